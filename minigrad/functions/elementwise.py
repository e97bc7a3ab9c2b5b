"""Functions of each element, and arithmetic."""

from __future__ import annotations

from ..tensor import Operand, Tensor


def abs(x: Tensor) -> Tensor:
    """Absolute value."""
    return x.abs()


def neg(x: Tensor) -> Tensor:
    """-x."""
    return x.neg()


def exp(x: Tensor) -> Tensor:
    """e to the power of x."""
    return x.exp()


def exp2(x: Tensor) -> Tensor:
    """2 to the power of x."""
    return x.exp2()


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, exact for small x."""
    return x.expm1()


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    return x.log()


def log2(x: Tensor) -> Tensor:
    """Logarithm to base 2."""
    return x.log2()


def log10(x: Tensor) -> Tensor:
    """Logarithm to base 10."""
    return x.log10()


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), exact for small x."""
    return x.log1p()


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    return x.sqrt()


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return x.rsqrt()


def square(x: Tensor) -> Tensor:
    """x * x."""
    return x.square()


def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return x.reciprocal()


def sin(x: Tensor) -> Tensor:
    """Sine."""
    return x.sin()


def cos(x: Tensor) -> Tensor:
    """Cosine."""
    return x.cos()


def tan(x: Tensor) -> Tensor:
    """Tangent."""
    return x.tan()


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return x.tanh()


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return x.sigmoid()


def relu(x: Tensor) -> Tensor:
    """max(x, 0), with gradient 0 at 0."""
    return x.relu()


def erf(x: Tensor) -> Tensor:
    """Error function."""
    return x.erf()


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return x.sign()


def floor(x: Tensor) -> Tensor:
    """Largest integer not above."""
    return x.floor()


def ceil(x: Tensor) -> Tensor:
    """Smallest integer not below."""
    return x.ceil()


def round(x: Tensor, *, decimals: int = 0) -> Tensor:
    """Nearest integer (or number of so many ``decimals``), halves to even."""
    return x.round(decimals=decimals)


def trunc(x: Tensor) -> Tensor:
    """Integer part."""
    return x.trunc()


def clone(x: Tensor) -> Tensor:
    """A copy in new memory; gradients flow through it."""
    return x.clone()


def add(x: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """x + alpha * other."""
    return x.add(other, alpha=alpha)


def sub(x: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """x - alpha * other."""
    return x.sub(other, alpha=alpha)


def mul(x: Tensor, other: Operand) -> Tensor:
    """x * other."""
    return x.mul(other)


def div(x: Tensor, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """x / other; rounded down with ``rounding_mode="floor"``, towards 0 with "trunc"."""
    return x.div(other, rounding_mode=rounding_mode)


def remainder(x: Tensor, other: Operand) -> Tensor:
    """x % other, of the sign of ``other``."""
    return x.remainder(other)


def fmod(x: Tensor, other: Operand) -> Tensor:
    """The remainder of a division that rounds towards 0, of the sign of x."""
    return x.fmod(other)


def maximum(x: Tensor, other: Operand) -> Tensor:
    """Elementwise larger one; ties share the gradient."""
    return x.maximum(other)


def minimum(x: Tensor, other: Operand) -> Tensor:
    """Elementwise smaller one; ties share the gradient."""
    return x.minimum(other)


def pow(x: Tensor, exponent: Operand) -> Tensor:
    """x ** exponent."""
    return x.pow(exponent)


def clamp(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Values limited to [min, max]; None does not limit."""
    return x.clamp(min, max)


def masked_fill(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """``value`` where the bool ``mask`` holds, else x."""
    return x.masked_fill(mask, value)


def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and the infinities replaced by numbers; None means the largest (smallest) finite one."""
    return x.nan_to_num(nan, posinf, neginf)
