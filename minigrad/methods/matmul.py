"""Methods of Tensor: products of vectors and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import shapes
from ..autograd import TensorCore
from ..errors import bad_type, bad_value
from ..modes import cast_inputs
from ..ops import matmul

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class MatmulMethods:
    """See the module."""

    __slots__ = ()

    def matmul(self: Tensor, other: Operand) -> Tensor:
        """self @ other: dot product, matrix product, or batched with broadcasting, as in PyTorch."""
        return _matmul(self, self._operand(other))

    def __rmatmul__(self: Tensor, other: Operand) -> Tensor:
        return _matmul(self._operand(other), self)

    __matmul__ = matmul

    def mm(self: Tensor, other: Tensor) -> Tensor:
        """self @ other of two matrices."""
        return matmul.MatMul.apply(_ranks("mm", self, 2, other, 2), other)

    def bmm(self: Tensor, other: Tensor) -> Tensor:
        """self @ other of two batches of matrices: (B, m, k) and (B, k, n)."""
        if _ranks("bmm", self, 3, other, 3).shape[0] != other.shape[0]:
            raise bad_value(f"bmm of shapes {self.shape} and {other.shape}: expected equal batches; @ broadcasts them")
        return matmul.MatMul.apply(self, other)

    def mv(self: Tensor, vec: Tensor) -> Tensor:
        """self @ vec of a matrix and a vector."""
        return matmul.MatMul.apply(_ranks("mv", self, 2, vec, 1), vec)

    def dot(self: Tensor, other: Tensor) -> Tensor:
        """Sum of the products of two vectors."""
        return matmul.MatMul.apply(_ranks("dot", self, 1, other, 1), other)

    def outer(self: Tensor, vec2: Tensor) -> Tensor:
        """The matrix of all products self[i] * vec2[j] of two vectors."""
        return _ranks("outer", self, 1, vec2, 1).unsqueeze(1) * vec2

    def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta * self + alpha * (mat1 @ mat2) of two matrices; self broadcasts. With beta 0 it does not count."""
        return _added("addmm", self, mat1.mm(mat2), beta, alpha)

    def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta * self + alpha * (mat @ vec); self broadcasts. With beta 0 it does not count."""
        return _added("addmv", self, mat.mv(vec), beta, alpha)

    def baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta * self + alpha * (batch1 @ batch2), see ``bmm``; self broadcasts. With beta 0 it does not count."""
        return _added("baddbmm", self, batch1.bmm(batch2), beta, alpha)


def _matmul(a: Tensor | float, b: Tensor | float) -> Tensor:
    if not (isinstance(a, TensorCore) and isinstance(b, TensorCore)):
        raise bad_type("@ of a tensor and a number; use * to scale a tensor")
    if not a.ndim or not b.ndim:
        raise bad_value(f"@ of shapes {a.shape} and {b.shape}: a 0-d tensor has no matrix product; use *")
    return matmul.MatMul.apply(a, b)


def _added(name: str, x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    if x.shape != product.shape and shapes.broadcast(x.shape, product.shape) != product.shape:
        raise bad_value(f"{name}: shape {x.shape} does not broadcast to the product's, {product.shape}")
    (x,) = cast_inputs("half", x)
    return product * alpha if beta == 0 else (x if beta == 1 else x * beta).add(product, alpha=alpha)


def _ranks(name: str, a: Tensor, m: int, b: Tensor, n: int) -> Tensor:
    """``a``, if it is of ``m`` dimensions and ``b`` is a tensor of ``n``."""
    if not isinstance(b, TensorCore) or a.data.ndim != m or b.data.ndim != n:
        found = f"shapes {a.shape} and {b.shape}" if isinstance(b, TensorCore) else f"a tensor and {type(b).__name__}"
        raise bad_value(f"{name} of {found}: expected {m} and {n} dimensions; @ takes any")
    return a
