"""Methods of Tensor: arithmetic, its operators, and functions of each element."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import capturing, dtypes
from ..autograd import TensorCore, combine
from ..errors import located
from ..ops import elementwise
from .checks import bool_mask, check_number

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class ElementwiseMethods:
    """See the module."""

    __slots__ = ()

    def _operand(self: Tensor, other: Operand) -> Tensor | float:
        """A Tensor, a Python number, or an array-like made a Tensor on this tensor's device."""
        if isinstance(other, TensorCore):
            return other
        if isinstance(other, np.generic):  # np.float64 is a Python float too, and NumPy would widen the result to it
            number: float = other.item()
            return number
        if isinstance(other, int | float):
            return other
        if isinstance(other, np.ndarray | list | tuple):
            return self.tensor_type(other, device=self.device)
        raise located(
            TypeError(f"a tensor and {type(other).__name__} do not combine; expected a tensor, a number or an array")
        )

    def __add__(self: Tensor, other: Operand) -> Tensor:
        if isinstance(other, TensorCore):
            return combine(elementwise.Add, self, other)
        return elementwise.Add.apply(self, self._operand(other))

    def __radd__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.Add.apply(self._operand(other), self)

    def __sub__(self: Tensor, other: Operand) -> Tensor:
        if isinstance(other, TensorCore):
            return combine(elementwise.Sub, self, other)
        return elementwise.Sub.apply(self, self._operand(other))

    def __rsub__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.Sub.apply(self._operand(other), self)

    def __mul__(self: Tensor, other: Operand) -> Tensor:
        if isinstance(other, TensorCore):
            return combine(elementwise.Mul, self, other)
        return elementwise.Mul.apply(self, self._operand(other))

    def __rmul__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.Mul.apply(self._operand(other), self)

    def __truediv__(self: Tensor, other: Operand) -> Tensor:
        if isinstance(other, TensorCore):
            return combine(elementwise.Div, self, other)
        return elementwise.Div.apply(self, self._operand(other))

    def __rtruediv__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.Div.apply(self._operand(other), self)

    def __floordiv__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.FloorDiv.apply(self, self._operand(other))

    def __rfloordiv__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.FloorDiv.apply(self._operand(other), self)

    def __mod__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.Remainder.apply(self, self._operand(other))

    def __rmod__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.Remainder.apply(self._operand(other), self)

    def __pow__(self: Tensor, other: Operand) -> Tensor:
        other = self._operand(other)
        op = elementwise.PowScalar if isinstance(other, int | float) else elementwise.Pow
        return op.apply(self, other)

    def __rpow__(self: Tensor, other: Operand) -> Tensor:
        # A 0-d tensor of this dtype, so that a number base promotes like a number.
        other = self._operand(other)
        dtype = dtypes.result_dtype((self.data, other)) if isinstance(other, int | float) else None
        return elementwise.Pow.apply(self.tensor_type(other, dtype=dtype, device=self.device), self)

    def __neg__(self: Tensor) -> Tensor:
        return elementwise.Neg.apply(self)

    def __pos__(self: Tensor) -> Tensor:
        return self

    def __abs__(self: Tensor) -> Tensor:
        return elementwise.Abs.apply(self)

    def add(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
        """self + alpha * other."""
        return self + (other if alpha == 1 else self._operand(other) * alpha)

    def sub(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
        """self - alpha * other."""
        return self - (other if alpha == 1 else self._operand(other) * alpha)

    def mul(self: Tensor, other: Operand) -> Tensor:
        """self * other."""
        return self * other

    def div(self: Tensor, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
        """self / other; rounded down with ``rounding_mode="floor"``, towards 0 with "trunc"."""
        if rounding_mode not in (None, "floor", "trunc"):
            raise located(ValueError(f"div: rounding_mode={rounding_mode!r}; expected None, 'floor' or 'trunc'"))
        if rounding_mode is None:
            return self / other
        y = self // other
        if rounding_mode == "floor":
            return y
        return (self / other).trunc() if y.is_floating_point() else y + ((y < 0) & (self % other != 0))

    def pow(self: Tensor, exponent: Operand) -> Tensor:
        """self ** exponent."""
        return self**exponent

    def remainder(self: Tensor, other: Operand) -> Tensor:
        """self % other, of the sign of ``other``."""
        return self % other

    def fmod(self: Tensor, other: Operand) -> Tensor:
        """The remainder of a division that rounds towards 0, of the sign of self."""
        return elementwise.FMod.apply(self, self._operand(other))

    def neg(self: Tensor) -> Tensor:
        """-self."""
        return -self

    def abs(self: Tensor) -> Tensor:
        """Absolute value."""
        return elementwise.Abs.apply(self)

    def exp(self: Tensor) -> Tensor:
        """e to the power of self."""
        return elementwise.Exp.apply(self)

    def exp2(self: Tensor) -> Tensor:
        """2 to the power of self."""
        return elementwise.Exp2.apply(self)

    def expm1(self: Tensor) -> Tensor:
        """exp(self) - 1, exact for small values."""
        return elementwise.Expm1.apply(self)

    def log(self: Tensor) -> Tensor:
        """Natural logarithm."""
        return elementwise.Log.apply(self)

    def log2(self: Tensor) -> Tensor:
        """Logarithm to base 2."""
        return elementwise.Log2.apply(self)

    def log10(self: Tensor) -> Tensor:
        """Logarithm to base 10."""
        return elementwise.Log10.apply(self)

    def log1p(self: Tensor) -> Tensor:
        """log(1 + self), exact for small values."""
        return elementwise.Log1p.apply(self)

    def sqrt(self: Tensor) -> Tensor:
        """Square root."""
        return elementwise.Sqrt.apply(self)

    def rsqrt(self: Tensor) -> Tensor:
        """1 / sqrt(self)."""
        return elementwise.Rsqrt.apply(self)

    def square(self: Tensor) -> Tensor:
        """self * self; of bool in int64."""
        return elementwise.Square.apply(self.long() if self.dtype == dtypes.bool_ else self)

    def reciprocal(self: Tensor) -> Tensor:
        """1 / self."""
        return elementwise.Reciprocal.apply(self)

    def sin(self: Tensor) -> Tensor:
        """Sine."""
        return elementwise.Sin.apply(self)

    def cos(self: Tensor) -> Tensor:
        """Cosine."""
        return elementwise.Cos.apply(self)

    def tan(self: Tensor) -> Tensor:
        """Tangent."""
        return elementwise.Tan.apply(self)

    def erf(self: Tensor) -> Tensor:
        """Error function."""
        return elementwise.Erf.apply(self)

    def tanh(self: Tensor) -> Tensor:
        """Hyperbolic tangent."""
        return elementwise.Tanh.apply(self)

    def sigmoid(self: Tensor) -> Tensor:
        """1 / (1 + exp(-self))."""
        return elementwise.Sigmoid.apply(self)

    def relu(self: Tensor) -> Tensor:
        """max(self, 0), with gradient 0 at 0."""
        return elementwise.Relu.apply(self)

    def sign(self: Tensor) -> Tensor:
        """-1, 0 or 1."""
        return self.clone() if self.dtype == dtypes.bool_ else elementwise.Sign.apply(self)

    def floor(self: Tensor) -> Tensor:
        """Largest integer not above."""
        return elementwise.Floor.apply(self)

    def ceil(self: Tensor) -> Tensor:
        """Smallest integer not below."""
        return elementwise.Ceil.apply(self)

    def round(self: Tensor, *, decimals: int = 0) -> Tensor:
        """Nearest integer (or number of so many ``decimals``), halves to even."""
        scale = 10.0**decimals
        return (self * scale).round() / scale if decimals else elementwise.Round.apply(self)

    def trunc(self: Tensor) -> Tensor:
        """Integer part."""
        return elementwise.Trunc.apply(self)

    def clamp(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        """Values limited to [min, max], numbers or tensors; None does not limit."""
        if min is None and max is None:
            raise located(ValueError("clamp: expected min, max or both"))
        low, high = (None if bound is None else self._operand(bound) for bound in (min, max))
        if isinstance(low, TensorCore) or isinstance(high, TensorCore):
            given = [self, *(bound for bound in (low, high) if bound is not None)]
            dtype = dtypes.result_dtype([getattr(x, "data", x) for x in given])
            low, high = (x._cast(dtype) if isinstance(x, TensorCore) else x for x in (low, high))
            return elementwise.ClampTensor.apply(self._cast(dtype), low, high)
        x = self._cast(dtypes.result_dtype([self.data, *(bound for bound in (low, high) if bound is not None)]))
        return elementwise.Clamp.apply(x, low=low, high=high)

    def nan_to_num(self: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
        """NaN and the infinities replaced by numbers; None means the largest (smallest) finite one of the dtype."""
        if self.is_floating_point():
            limits = dtypes.finfo(self.dtype)
            posinf = float(limits.max) if posinf is None else posinf
            neginf = float(limits.min) if neginf is None else neginf
        return elementwise.NanToNum.apply(self, nan=nan, posinf=posinf, neginf=neginf)

    def maximum(self: Tensor, other: Operand) -> Tensor:
        """Elementwise larger one; ties share the gradient."""
        return elementwise.Maximum.apply(self, self._operand(other))

    def minimum(self: Tensor, other: Operand) -> Tensor:
        """Elementwise smaller one; ties share the gradient."""
        return elementwise.Minimum.apply(self, self._operand(other))

    def where(self: Tensor, condition: Tensor, other: Operand) -> Tensor:
        """self where the bool ``condition`` holds, else ``other``."""
        y = self._operand(other)
        if not isinstance(y, TensorCore):
            y = capturing.number(y, self.tensor_type, dtypes.result_dtype((self.data, y)), self.device)
        dtype = dtypes.result_dtype((self.data, y.data))
        return elementwise.Where.apply(self._cast(dtype), y._cast(dtype), bool_mask("where", condition))

    def masked_fill(self: Tensor, mask: Tensor, value: float) -> Tensor:
        """``value`` where the bool ``mask`` holds, else self."""
        check_number("masked_fill", value, self.dtype)
        return elementwise.MaskedFill.apply(self, bool_mask("masked_fill", mask), value=value)

    def clone(self: Tensor) -> Tensor:
        """A copy in new memory; gradients flow through it."""
        return elementwise.Clone.apply(self)
