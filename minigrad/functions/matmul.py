"""Products of vectors and matrices."""

from __future__ import annotations

from ..tensor import Operand, Tensor


def matmul(x: Tensor, other: Operand) -> Tensor:
    """x @ other."""
    return x.matmul(other)


def mm(x: Tensor, other: Tensor) -> Tensor:
    """x @ other of two matrices."""
    return x.mm(other)


def bmm(x: Tensor, other: Tensor) -> Tensor:
    """x @ other of two batches of matrices."""
    return x.bmm(other)


def mv(x: Tensor, vec: Tensor) -> Tensor:
    """x @ vec of a matrix and a vector."""
    return x.mv(vec)


def dot(x: Tensor, other: Tensor) -> Tensor:
    """Sum of the products of two vectors."""
    return x.dot(other)


def outer(x: Tensor, vec2: Tensor) -> Tensor:
    """The matrix of all products x[i] * vec2[j] of two vectors."""
    return x.outer(vec2)


def addmm(x: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``Tensor.addmm``."""
    return x.addmm(mat1, mat2, beta=beta, alpha=alpha)


def addmv(x: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``Tensor.addmv``."""
    return x.addmv(mat, vec, beta=beta, alpha=alpha)


def baddbmm(x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``Tensor.baddbmm``."""
    return x.baddbmm(batch1, batch2, beta=beta, alpha=alpha)
