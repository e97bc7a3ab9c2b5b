"""Methods of Tensor that are made of other methods: PyTorch's further names, and the in-place forms.

``Tensor`` inherits them; ``tensor.py`` has those that name an operation.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from . import dtypes, shapes
from .autograd import TensorCore
from .derived_indexing import IndexingMethods
from .errors import located
from .random import Generator, draw

if TYPE_CHECKING:
    from .tensor import Tensor


class DerivedMethods(IndexingMethods):
    """See the module; ``self`` is a Tensor."""

    __slots__ = ()

    # ------------------------------------------------------------------ other names

    def eq(self: Any, other: Any) -> Tensor:
        """self == other, elementwise."""
        return self == other

    def ne(self: Any, other: Any) -> Tensor:
        """self != other, elementwise."""
        return self != other

    def lt(self: Any, other: Any) -> Tensor:
        """self < other, elementwise."""
        return self < other

    def le(self: Any, other: Any) -> Tensor:
        """self <= other, elementwise."""
        return self <= other

    def gt(self: Any, other: Any) -> Tensor:
        """self > other, elementwise."""
        return self > other

    def ge(self: Any, other: Any) -> Tensor:
        """self >= other, elementwise."""
        return self >= other

    def subtract(self: Any, other: Any, *, alpha: float = 1) -> Tensor:
        """self - alpha * other."""
        return self.sub(other, alpha=alpha)

    def multiply(self: Any, other: Any) -> Tensor:
        """self * other."""
        return self * other

    def divide(self: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
        """``div``."""
        return self.div(other, rounding_mode=rounding_mode)

    def true_divide(self: Any, other: Any) -> Tensor:
        """self / other."""
        return self / other

    def floor_divide(self: Any, other: Any) -> Tensor:
        """self // other."""
        return self // other

    def negative(self: Any) -> Tensor:
        """-self."""
        return -self

    def absolute(self: Any) -> Tensor:
        """Absolute value."""
        return self.abs()

    def clip(self: Any, min: Any = None, max: Any = None) -> Tensor:
        """``clamp``."""
        return self.clamp(min, max)

    def clamp_min(self: Any, min: Any) -> Tensor:
        """Values limited from below."""
        return self.clamp(min=min)

    def clamp_max(self: Any, max: Any) -> Tensor:
        """Values limited from above."""
        return self.clamp(max=max)

    def bitwise_left_shift(self: Any, other: Any) -> Tensor:
        """self << other, of integers."""
        return self << other

    def bitwise_right_shift(self: Any, other: Any) -> Tensor:
        """self >> other, of integers; keeps the sign."""
        return self >> other

    def moveaxis(self: Any, source: shapes.Dim, destination: shapes.Dim) -> Tensor:
        """``movedim``."""
        return self.movedim(source, destination)

    def swapdims(self: Any, dim0: builtins.int, dim1: builtins.int) -> Tensor:
        """``transpose``."""
        return self.transpose(dim0, dim1)

    def ravel(self: Any) -> Tensor:
        """All dimensions as one."""
        return self.flatten()

    def ndimension(self: Any) -> builtins.int:
        """Number of dimensions."""
        return builtins.int(self.ndim)

    def half(self: Any) -> Tensor:
        """As float16."""
        return self.to(dtypes.float16)

    def bfloat16(self: Any) -> Tensor:
        """As bfloat16."""
        return self.to(dtypes.bfloat16)

    def type_as(self: Any, other: Tensor) -> Tensor:
        """As the dtype of ``other``."""
        return self.to(other.dtype)

    # ------------------------------------------------------------------ shapes

    def t(self: Any) -> Tensor:
        """A matrix transposed (a view); tensors of fewer dimensions as they are."""
        if self.ndim > 2:
            raise ValueError(f"t of shape {self.shape}: expected at most two dimensions; use .mT or .permute")
        return self.transpose(0, 1) if self.ndim == 2 else self

    def expand_as(self: Any, other: Tensor) -> Tensor:
        """``expand`` to the shape of ``other``."""
        return self.expand(*other.shape)

    def view_as(self: Any, other: Tensor) -> Tensor:
        """``view`` in the shape of ``other``."""
        return self.view(*other.shape)

    def reshape_as(self: Any, other: Tensor) -> Tensor:
        """``reshape`` to the shape of ``other``."""
        return self.reshape(*other.shape)

    def unflatten(self: Any, dim: builtins.int, sizes: Any) -> Tensor:
        """One dimension as several of the given sizes, one of which may be -1."""
        at = shapes.normalize_dim(dim, self.ndim)
        inner = shapes.infer_shape(shapes.shape_argument((sizes,)), self.shape[at], (self.shape[at],))
        return self.reshape(*self.shape[:at], *inner, *self.shape[at + 1 :])

    def narrow(self: Any, dim: builtins.int, start: builtins.int, length: builtins.int) -> Tensor:
        """A view of ``length`` places of a dimension from ``start`` on."""
        at = shapes.normalize_dim(dim, self.ndim)
        size = self.size(at)
        start = start + size if start < 0 else start
        if not 0 <= start <= start + length <= size:
            raise ValueError(
                f"narrow: {length} places from {start} on are not in dimension {dim} of shape {self.shape}"
            )
        return self[(slice(None),) * at + (slice(start, start + length),)]

    def select(self: Any, dim: builtins.int, index: builtins.int) -> Tensor:
        """A view of one place of a dimension, without it."""
        return self[(slice(None),) * shapes.normalize_dim(dim, self.ndim) + (index,)]

    # ------------------------------------------------------------------ values

    def isclose(self: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
        """Where |self - other| <= atol + rtol |other|; equal infinities are close, NaN if ``equal_nan``."""
        other = self.tensor_type(other, device=self.device) if not isinstance(other, TensorCore) else other
        if self.dtype == other.dtype == dtypes.bool_:
            return self == other
        near = (self - other).abs() <= other.abs() * rtol + atol
        close = (self == other) | (near & other.isfinite())
        return close | (self.isnan() & other.isnan()) if equal_nan else close

    def allclose(
        self: Any, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> builtins.bool:
        """Whether ``isclose`` holds everywhere."""
        return builtins.bool(self.isclose(other, rtol, atol, equal_nan).all())

    def equal(self: Any, other: Tensor) -> builtins.bool:
        """Whether shape and all values are equal."""
        return self.shape == other.shape and builtins.bool((self == other).all())

    def count_nonzero(self: Any, dim: shapes.Dim = None) -> Tensor:
        """How many values over ``dim`` (default all) are not 0."""
        return (self != 0).sum(dim)

    def lerp(self: Any, end: Tensor, weight: Any) -> Tensor:
        """self + weight * (end - self)."""
        return self + weight * (end - self)

    def multinomial(
        self: Any,
        num_samples: builtins.int,
        replacement: builtins.bool = False,
        *,
        generator: Generator | None = None,
    ) -> Tensor:
        """Indices (int64, shape (..., num_samples)) drawn in proportion to the last dimension's weights.

        Without ``replacement`` no index comes twice in a row: each draw is from those that are left (by exponential
        clocks; Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).

        Raises ValueError for weights that are negative, not finite, or all zero in a row, and for more samples without
        replacement than a row has weights above 0.
        """
        w = self.detach().double()
        bad = not w.isfinite().all() or (w < 0).any() or (w.sum(-1) == 0).any()
        if bad or not w.ndim or not w.shape[-1]:
            raise located(ValueError("multinomial: weights must be finite, non-negative, and not all zero in a row"))
        if num_samples < 0:
            raise located(ValueError(f"multinomial: num_samples={num_samples}; expected 0 or more"))
        once = not replacement and num_samples > 1
        shape = w.shape if once else (*w.shape[:-1], num_samples)
        if once and w.numel() and num_samples > (w > 0).sum(-1).amin():
            positive = (w > 0).sum(-1).amin().item()
            raise located(
                ValueError(
                    f"multinomial: num_samples={num_samples} without replacement, but a row has {positive} weights "
                    "above 0; pass replacement=True"
                )
            )
        u = TensorCore.tensor_type.wrap(draw("uniform", w.device.kernels, shape, dtypes.float64, generator), w.device)
        if once:
            clocks = (-(-u).log1p()).log() - w.log()  # logarithms of exponential times: none overflows
            return clocks.topk(num_samples, largest=False).indices
        edges = (w / w.amax(-1, keepdim=True)).cumsum(-1)  # scaled, so that no sum overflows or is subnormal
        points = u * edges[..., -1:]
        # The first edge above the point; a weight of 0 has an empty interval, so it is never drawn.
        return (edges.unsqueeze(-2) <= points.unsqueeze(-1)).sum(-1)

    def new_zeros(self: Any, *size: Any, dtype: Any = None) -> Tensor:
        """Zeros of the dtype (if no other is given) and device of this tensor."""
        return self.new_full(shapes.shape_argument(size), 0, dtype=dtype)

    def new_ones(self: Any, *size: Any, dtype: Any = None) -> Tensor:
        """Ones of the dtype (if no other is given) and device of this tensor."""
        return self.new_full(shapes.shape_argument(size), 1, dtype=dtype)

    def new_full(self: Any, size: Any, fill_value: float, *, dtype: Any = None) -> Tensor:
        """``fill_value`` everywhere, of the dtype (if no other is given) and device of this tensor."""
        found = self.dtype if dtype is None else dtypes.as_dtype(dtype)
        return self.wrap(self.device.kernels.full(shapes.shape_argument((size,)), fill_value, found), self.device)

    def new_tensor(self: Any, data: Any, *, dtype: Any = None) -> Tensor:
        """``data`` of the dtype (if no other is given) and device of this tensor."""
        return self.tensor_type(data, dtype=self.dtype if dtype is None else dtype, device=self.device)

    # ------------------------------------------------------------------ in place, outside of the graph

    def pow_(self: Any, exponent: Any) -> Tensor:
        """self **= exponent, in place."""
        return self._write("pow_", lambda x, y: x**y, exponent)

    def remainder_(self: Any, other: Any) -> Tensor:
        """self %= other, in place."""
        return self._write("remainder_", lambda x, y: x % y, other)

    def floor_divide_(self: Any, other: Any) -> Tensor:
        """self //= other, in place."""
        return self._write("floor_divide_", lambda x, y: x // y, other)

    def bitwise_and_(self: Any, other: Any) -> Tensor:
        """self &= other, in place."""
        return self._write("bitwise_and_", lambda x, y: x & y, other)

    def bitwise_or_(self: Any, other: Any) -> Tensor:
        """self |= other, in place."""
        return self._write("bitwise_or_", lambda x, y: x | y, other)

    def bitwise_xor_(self: Any, other: Any) -> Tensor:
        """self ^= other, in place."""
        return self._write("bitwise_xor_", lambda x, y: x ^ y, other)

    def bitwise_left_shift_(self: Any, other: Any) -> Tensor:
        """self <<= other, in place."""
        return self._write("bitwise_left_shift_", lambda x, y: x << y, other)

    def bitwise_right_shift_(self: Any, other: Any) -> Tensor:
        """self >>= other, in place."""
        return self._write("bitwise_right_shift_", lambda x, y: x >> y, other)

    __ifloordiv__ = floor_divide_
    __imod__ = remainder_
    __ipow__ = pow_
    __iand__ = bitwise_and_
    __ior__ = bitwise_or_
    __ixor__ = bitwise_xor_
    __ilshift__ = bitwise_left_shift_
    __irshift__ = bitwise_right_shift_

    def clamp_(self: Any, min: Any = None, max: Any = None) -> Tensor:
        """``clamp`` in place."""
        return self._write("clamp_", lambda x, _: x.clamp(min, max), 0)

    def lerp_(self: Any, end: Tensor, weight: Any) -> Tensor:
        """``lerp`` in place."""
        return self._write("lerp_", lambda x, y: x.lerp(y, weight), end)

    def neg_(self: Any) -> Tensor:
        """``neg`` in place."""
        return self._write("neg_", lambda x, _: x.neg(), 0)

    def abs_(self: Any) -> Tensor:
        """``abs`` in place."""
        return self._write("abs_", lambda x, _: x.abs(), 0)

    def exp_(self: Any) -> Tensor:
        """``exp`` in place."""
        return self._write("exp_", lambda x, _: x.exp(), 0)

    def log_(self: Any) -> Tensor:
        """``log`` in place."""
        return self._write("log_", lambda x, _: x.log(), 0)

    def sqrt_(self: Any) -> Tensor:
        """``sqrt`` in place."""
        return self._write("sqrt_", lambda x, _: x.sqrt(), 0)

    def rsqrt_(self: Any) -> Tensor:
        """``rsqrt`` in place."""
        return self._write("rsqrt_", lambda x, _: x.rsqrt(), 0)

    def reciprocal_(self: Any) -> Tensor:
        """``reciprocal`` in place."""
        return self._write("reciprocal_", lambda x, _: x.reciprocal(), 0)

    def square_(self: Any) -> Tensor:
        """``square`` in place."""
        return self._write("square_", lambda x, _: x.square(), 0)

    def sigmoid_(self: Any) -> Tensor:
        """``sigmoid`` in place."""
        return self._write("sigmoid_", lambda x, _: x.sigmoid(), 0)

    def tanh_(self: Any) -> Tensor:
        """``tanh`` in place."""
        return self._write("tanh_", lambda x, _: x.tanh(), 0)

    def relu_(self: Any) -> Tensor:
        """``relu`` in place."""
        return self._write("relu_", lambda x, _: x.relu(), 0)

    def round_(self: Any) -> Tensor:
        """``round`` in place."""
        return self._write("round_", lambda x, _: x.round(), 0)

    def floor_(self: Any) -> Tensor:
        """``floor`` in place."""
        return self._write("floor_", lambda x, _: x.floor(), 0)

    def ceil_(self: Any) -> Tensor:
        """``ceil`` in place."""
        return self._write("ceil_", lambda x, _: x.ceil(), 0)

    def trunc_(self: Any) -> Tensor:
        """``trunc`` in place."""
        return self._write("trunc_", lambda x, _: x.trunc(), 0)
