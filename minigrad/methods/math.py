"""Methods of Tensor: arithmetic, its operators, and functions of each element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from .. import dtypes
from ..autograd import TensorCore
from ..errors import bad_type, bad_value, check_choice
from ..ops import elementwise, trigonometry
from ..random import Source, draw
from ..shapes import bool_mask
from .combine import combine, combine_three, of_each, of_two

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class MathMethods:
    """See the module."""

    __slots__ = ()

    def _operand(self: Tensor, other: Operand) -> Tensor | float:
        """A Tensor, a Python number, or an array-like made a Tensor on this tensor's device."""
        if isinstance(other, TensorCore) or type(other) is float or type(other) is int:  # as it is most often
            return other
        if isinstance(other, np.generic):  # np.float64 is a Python float too, and NumPy would widen the result to it
            return other.item()
        if isinstance(other, int | float):  # or of a class of these
            return other if isinstance(other, bool) else float(other) if isinstance(other, float) else int(other)
        if isinstance(other, np.ndarray | list | tuple):
            return self.tensor_type(other, device=self.device)
        raise bad_type(f"a tensor and {type(other).__name__} do not combine; expected a tensor, a number or an array")

    __add__: Final = of_two(elementwise.Add, "__add__")
    __radd__: Final = of_two(elementwise.Add, "__radd__")
    __sub__: Final = of_two(elementwise.Sub, "__sub__")
    __rsub__: Final = of_two(elementwise.Sub, "__rsub__")
    __truediv__: Final = of_two(elementwise.Div, "__truediv__")
    __rtruediv__: Final = of_two(elementwise.Div, "__rtruediv__")
    __rmul__: Final = of_two(elementwise.Mul, "__rmul__")
    __rfloordiv__: Final = of_two(elementwise.FloorDiv, "__rfloordiv__")
    __rmod__: Final = of_two(elementwise.Remainder, "__rmod__")

    def __rpow__(self: Tensor, other: Operand) -> Tensor:
        # A 0-d tensor of this dtype, so that a number base promotes like a number.
        other = self._operand(other)
        dtype = dtypes.result_dtype((self.data, other)) if isinstance(other, int | float) else None
        return combine(elementwise.Pow, self.tensor_type(other, dtype=dtype, device=self.device), self)

    def __pos__(self: Tensor) -> Tensor:
        return self

    def add(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
        """self + alpha * other."""
        if alpha == 1 or not isinstance(other, TensorCore) or type(alpha) not in (int, float):
            return self + (other if alpha == 1 else self._operand(other) * alpha)
        return combine_three(elementwise.AddScaled, self, other, alpha)

    def sub(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
        """self - alpha * other."""
        return self - (other if alpha == 1 else self._operand(other) * alpha)

    mul: Final = of_two(elementwise.Mul, "mul", "self * other.")

    def div(self: Tensor, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
        """self / other; rounded down with ``rounding_mode="floor"``, towards 0 with "trunc"."""
        if rounding_mode is None:
            return self / other
        check_choice("div", "rounding_mode", rounding_mode, (None, "floor", "trunc"))
        y = self // other
        if rounding_mode == "floor":
            return y
        return (self / other).trunc() if y.is_floating_point() else y + ((y < 0) & (self % other != 0))

    true_divide: Final = of_two(elementwise.Div, "true_divide", "self / other.")
    floor_divide: Final = of_two(elementwise.FloorDiv, "floor_divide", "self // other.")
    remainder: Final = of_two(elementwise.Remainder, "remainder", "self % other, of the sign of ``other``.")
    fmod: Final = of_two(elementwise.FMod, "fmod", "Remainder of division towards 0, of the sign of self.")

    def pow(self: Tensor, exponent: Operand) -> Tensor:
        """self ** exponent."""
        exponent = self._operand(exponent)
        op = elementwise.PowScalar if isinstance(exponent, int | float) else elementwise.Pow
        return combine(op, self, exponent)

    neg: Final = of_each(elementwise.Neg, "-self.")
    abs: Final = of_each(elementwise.Abs, "Absolute value.")

    __mul__ = mul
    multiply = mul
    __floordiv__ = floor_divide
    __mod__ = remainder
    __pow__ = pow
    __neg__ = neg
    negative = neg
    __abs__ = abs
    absolute = abs
    subtract = sub
    divide = div

    exp: Final = of_each(elementwise.Exp, "e to the power of self.")
    exp2: Final = of_each(elementwise.Exp2, "2 to the power of self.")
    expm1: Final = of_each(elementwise.Expm1, "exp(self) - 1, exact for small values.")
    log: Final = of_each(elementwise.Log, "Natural logarithm.")
    log2: Final = of_each(elementwise.Log2, "Logarithm to base 2.")
    log10: Final = of_each(elementwise.Log10, "Logarithm to base 10.")
    log1p: Final = of_each(elementwise.Log1p, "log(1 + self), exact for small values.")
    sqrt: Final = of_each(elementwise.Sqrt, "Square root.")
    rsqrt: Final = of_each(elementwise.Rsqrt, "1 / sqrt(self).")

    def square(self: Tensor) -> Tensor:
        """self * self; of bool in int64."""
        return combine(elementwise.Square, self.long() if self.data.dtype == dtypes.bool_ else self)

    reciprocal: Final = of_each(elementwise.Reciprocal, "1 / self.")
    sin: Final = of_each(elementwise.Sin, "Sine.")
    cos: Final = of_each(elementwise.Cos, "Cosine.")
    tan: Final = of_each(elementwise.Tan, "Tangent.")
    sinh: Final = of_each(trigonometry.Sinh, "Hyperbolic sine.")
    cosh: Final = of_each(trigonometry.Cosh, "Hyperbolic cosine.")
    tanh: Final = of_each(elementwise.Tanh, "Hyperbolic tangent.")
    asin: Final = of_each(trigonometry.Asin, "Inverse sine, in [-pi / 2, pi / 2].")
    acos: Final = of_each(trigonometry.Acos, "Inverse cosine, in [0, pi].")
    atan: Final = of_each(trigonometry.Atan, "Inverse tangent, in (-pi / 2, pi / 2).")
    atan2: Final = of_two(trigonometry.Atan2, "atan2", "Angle, in [-pi, pi], of points with y = self and x = other.")
    asinh: Final = of_each(trigonometry.Asinh, "Inverse hyperbolic sine.")
    acosh: Final = of_each(trigonometry.Acosh, "Inverse hyperbolic cosine, of values of at least 1.")
    atanh: Final = of_each(trigonometry.Atanh, "Inverse hyperbolic tangent, of values in [-1, 1].")
    erf: Final = of_each(elementwise.Erf, "Error function.")
    sigmoid: Final = of_each(elementwise.Sigmoid, "1 / (1 + exp(-self)).")
    relu: Final = of_each(elementwise.Relu, "max(self, 0), with gradient 0 at 0.")

    def sign(self: Tensor) -> Tensor:
        """-1, 0 or 1."""
        return self.clone() if self.data.dtype == dtypes.bool_ else combine(elementwise.Sign, self)

    floor: Final = of_each(elementwise.Floor, "Largest integer not above.")
    ceil: Final = of_each(elementwise.Ceil, "Smallest integer not below.")

    def round(self: Tensor, *, decimals: int = 0) -> Tensor:
        """Nearest integer (or number of so many ``decimals``), halves to even."""
        scale = 10.0**decimals
        return (self * scale).round() / scale if decimals else combine(elementwise.Round, self)

    def __round__(self: Tensor, decimals: int | None = None) -> Tensor:
        return self.round(decimals=decimals or 0)

    trunc: Final = of_each(elementwise.Trunc, "Integer part.")

    def clamp(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        """Values limited to [min, max], numbers or tensors; None does not limit."""
        if max is None:
            if min is None:
                raise bad_value("clamp: expected min, max or both")
            return self.clamp_min(min)
        high = self._operand(max)
        return self.clamp_max(high) if min is None else combine_three(elementwise.Clamp, self, self._operand(min), high)

    clamp_min: Final = of_two(elementwise.AtLeast, "clamp_min", "Values limited from below.")
    clamp_max: Final = of_two(elementwise.AtMost, "clamp_max", "Values limited from above.")

    clip = clamp

    def nan_to_num(self: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
        """NaN and the infinities replaced by numbers; None means the largest (smallest) finite one of the dtype."""
        if self.is_floating_point():
            limits = dtypes.finfo(self.dtype)
            posinf = float(limits.max if posinf is None else posinf)
            neginf = float(limits.min if neginf is None else neginf)
        return combine(elementwise.NanToNum, self, nan=float(nan), posinf=posinf, neginf=neginf)

    maximum: Final = of_two(elementwise.Maximum, "maximum", "Elementwise larger one; ties share the gradient.")
    minimum: Final = of_two(elementwise.Minimum, "minimum", "Elementwise smaller one; ties share the gradient.")

    def lerp(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
        """self + weight * (end - self), from the nearer end, as in PyTorch."""
        return combine_three(elementwise.Lerp, self, self._operand(end), self._operand(weight))

    def where(self: Tensor, condition: Tensor, other: Operand) -> Tensor:
        """self where the bool ``condition`` holds, else ``other``."""
        x, y, mask = self, self._operand(other), bool_mask("where", condition)
        given = y.data if isinstance(y, TensorCore) else y
        if getattr(given, "dtype", None) is not x.data.dtype:
            dtype = dtypes.result_dtype((x.data, given))
            x, y = x._cast(dtype), y._cast(dtype) if isinstance(y, TensorCore) else y
        return combine_three(elementwise.Where, mask, x, y)

    def masked_fill(self: Tensor, mask: Tensor, value: float) -> Tensor:
        """``value`` where the bool ``mask`` holds, else self."""
        value = dtypes.check_number("masked_fill", value, self.data.dtype)
        return combine_three(elementwise.MaskedFill, self, bool_mask("masked_fill", mask), value)

    clone: Final = of_each(elementwise.Clone, "A copy in new memory; gradients flow through it.")

    def bernoulli(self: Tensor, *, generator: Source = None) -> Tensor:
        """A new tensor: 1 with the probability that this one (floating, in [0, 1]) gives for the place, else 0."""
        if not self.is_floating_point():
            raise bad_type(f"bernoulli of a {self.dtype} tensor: probabilities are floating; convert with .float()")
        if not ((self >= 0) & (self <= 1)).all():
            low, high = self.amin().item(), self.amax().item()
            raise bad_value(f"bernoulli: expected probabilities in [0, 1], not {low} to {high}")
        k = self.device.kernels
        values = draw("uniform", k, self.shape, dtypes.float64, generator)
        return self.wrap(k.elementwise.cast(k.comparison.lt(values, self.data), self.dtype), self.device)
