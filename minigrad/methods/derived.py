"""Methods of Tensor that are made of other methods: PyTorch's further names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import dtypes, shapes
from ..autograd import TensorCore
from ..errors import located
from ..ops import elementwise, movement

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class DerivedMethods:
    """See the module."""

    __slots__ = ()

    def subtract(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
        """self - alpha * other."""
        return self.sub(other, alpha=alpha)

    def multiply(self: Tensor, other: Operand) -> Tensor:
        """self * other."""
        return self * other

    def divide(self: Tensor, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
        """``div``."""
        return self.div(other, rounding_mode=rounding_mode)

    def true_divide(self: Tensor, other: Operand) -> Tensor:
        """self / other."""
        return self / other

    def floor_divide(self: Tensor, other: Operand) -> Tensor:
        """self // other."""
        return self // other

    def negative(self: Tensor) -> Tensor:
        """-self."""
        return -self

    def absolute(self: Tensor) -> Tensor:
        """Absolute value."""
        return self.abs()

    def clip(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        """``clamp``."""
        return self.clamp(min, max)

    def clamp_min(self: Tensor, min: Operand) -> Tensor:
        """Values limited from below."""
        return self.clamp(min=min)

    def clamp_max(self: Tensor, max: Operand) -> Tensor:
        """Values limited from above."""
        return self.clamp(max=max)

    def bitwise_left_shift(self: Tensor, other: Operand) -> Tensor:
        """self << other, of integers."""
        return self << other

    def bitwise_right_shift(self: Tensor, other: Operand) -> Tensor:
        """self >> other, of integers; keeps the sign."""
        return self >> other

    def moveaxis(self: Tensor, source: shapes.Dim, destination: shapes.Dim) -> Tensor:
        """``movedim``."""
        return self.movedim(source, destination)

    def swapdims(self: Tensor, dim0: int, dim1: int) -> Tensor:
        """``transpose``."""
        return self.transpose(dim0, dim1)

    def ravel(self: Tensor) -> Tensor:
        """All dimensions as one."""
        return self.flatten()

    def ndimension(self: Tensor) -> int:
        """Number of dimensions."""
        return int(self.ndim)

    def t(self: Tensor) -> Tensor:
        """A matrix transposed (a view); tensors of fewer dimensions as they are."""
        if self.ndim > 2:
            raise located(ValueError(f"t of shape {self.shape}: expected at most two dimensions; use .mT or .permute"))
        return self.transpose(0, 1) if self.ndim == 2 else self

    def expand_as(self: Tensor, other: Tensor) -> Tensor:
        """``expand`` to the shape of ``other``."""
        return self.expand(*other.shape)

    def view_as(self: Tensor, other: Tensor) -> Tensor:
        """``view`` in the shape of ``other``."""
        return self.view(*other.shape)

    def reshape_as(self: Tensor, other: Tensor) -> Tensor:
        """``reshape`` to the shape of ``other``."""
        return self.reshape(*other.shape)

    def unflatten(self: Tensor, dim: int, sizes: Any) -> Tensor:
        """One dimension as several of the given sizes, one of which may be -1."""
        at = shapes.normalize_dim(dim, self.ndim)
        inner = shapes.infer_shape(shapes.shape_argument((sizes,)), self.shape[at], (self.shape[at],))
        return self.reshape(*self.shape[:at], *inner, *self.shape[at + 1 :])

    def narrow(self: Tensor, dim: int, start: int, length: int) -> Tensor:
        """A view of ``length`` places of a dimension from ``start`` on."""
        at = shapes.normalize_dim(dim, self.ndim)
        size = self.size(at)
        start = start + size if start < 0 else start
        if not 0 <= start <= start + length <= size:
            raise located(
                ValueError(f"narrow: {length} places from {start} on are not in dimension {dim} of shape {self.shape}")
            )
        return self[(slice(None),) * at + (slice(start, start + length),)]

    def select(self: Tensor, dim: int, index: int) -> Tensor:
        """A view of one place of a dimension, without it."""
        return self[(slice(None),) * shapes.normalize_dim(dim, self.ndim) + (index,)]

    def isclose(
        self: Tensor, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Tensor:
        """Where |self - other| <= atol + rtol |other|; equal infinities are close, NaN if ``equal_nan``."""
        other = self.tensor_type(other, device=self.device) if not isinstance(other, TensorCore) else other
        if self.dtype == other.dtype == dtypes.bool_:
            return self == other
        near = (self - other).abs() <= other.abs() * rtol + atol
        close = (self == other) | (near & other.isfinite())
        return close | (self.isnan() & other.isnan()) if equal_nan else close

    def allclose(
        self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> bool:
        """Whether ``isclose`` holds everywhere."""
        return bool(self.isclose(other, rtol, atol, equal_nan).all())

    def equal(self: Tensor, other: Tensor) -> bool:
        """Whether shape and all values are equal."""
        return self.shape == other.shape and bool((self == other).all())

    def count_nonzero(self: Tensor, dim: shapes.Dim = None) -> Tensor:
        """How many values over ``dim`` (default all) are not 0."""
        return (self != 0).sum(dim)

    def lerp(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
        """self + weight * (end - self), from the nearer end, as in PyTorch."""
        return elementwise.Lerp.apply(self, self._operand(end), self._operand(weight))

    def logaddexp(self: Tensor, other: Tensor) -> Tensor:
        """log(exp(self) + exp(other)) without overflow; the two broadcast; floating tensors only.

        The gradient is that of ``logsumexp``: NaN for an infinite argument.
        """
        x, y = self.maximum(other), self.minimum(other)
        if not x.is_floating_point():
            raise located(TypeError(f"logaddexp of {x.dtype} values is no integer; convert with .float() first"))
        shape = (1, *x.shape)
        return movement.Cat.apply(x.reshape(shape), y.reshape(shape), axis=0).logsumexp(0)

    def new_empty(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
        """Uninitialised memory of the dtype (if no other is given) and device of this tensor."""
        found = self.dtype if dtype is None else dtypes.as_dtype(dtype)
        return self.wrap(self.device.kernels.empty(shapes.shape_argument(size), found), self.device)

    def new_zeros(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
        """Zeros of the dtype (if no other is given) and device of this tensor."""
        return self.new_full(shapes.shape_argument(size), 0, dtype=dtype)

    def new_ones(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
        """Ones of the dtype (if no other is given) and device of this tensor."""
        return self.new_full(shapes.shape_argument(size), 1, dtype=dtype)

    def new_full(self: Tensor, size: Any, fill_value: float, *, dtype: Any = None) -> Tensor:
        """``fill_value`` everywhere, of the dtype (if no other is given) and device of this tensor."""
        found = self.dtype if dtype is None else dtypes.as_dtype(dtype)
        return self.wrap(self.device.kernels.full(shapes.shape_argument((size,)), fill_value, found), self.device)

    def new_tensor(self: Tensor, data: Any, *, dtype: Any = None) -> Tensor:
        """``data`` of the dtype (if no other is given) and device of this tensor."""
        return self.tensor_type(data, dtype=self.dtype if dtype is None else dtype, device=self.device)
