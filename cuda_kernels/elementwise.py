"""Elementwise arithmetic: kernels made from scalar rules (``pointwise.py``), of the dtypes that NumPy's ufuncs have.

Division by an integer 0 raises ZeroDivisionError: a flag is copied back, for integer dtypes only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .platform import memory
from .platform.array import Array, copy, expand, from_host, may_share_memory
from .platform.language import math
from .pointwise import rules
from .pointwise.conversion import loaded
from .pointwise.division import floor_div as floor_div
from .pointwise.division import fmod as fmod
from .pointwise.division import pow as pow
from .pointwise.division import remainder as remainder
from .pointwise.pointwise import Pointwise, floating, like
from .pointwise.rules import of_numbers, rule
from .rowwise.strided_copy import copy_into

# x + y and kin --------------------------------------------------------------------------------------------------------


def _result(*kinds: Any) -> np.dtype[Any]:
    return np.result_type(*(_EXAMPLES.get(k, k) for k in kinds))


_EXAMPLES: dict[Any, Any] = {int: 0, float: 0.0}  # Python's numbers adapt to the dtype of the others

_NUMBERS = ("float64", "int64", "int32", "uint8", "bool")

add: Pointwise = Pointwise("add", of_numbers(lambda x, y: x + y), like(np.add), 2, lazy=_NUMBERS)
sub: Pointwise = Pointwise("sub", of_numbers(lambda x, y: x - y), like(np.subtract), 2, lazy=_NUMBERS[:-1])
mul: Pointwise = Pointwise(
    "mul", of_numbers(lambda x, y: x * y), like(np.multiply), 2, lazy=(*_NUMBERS, "float32 bool to float32")
)
div: Pointwise = Pointwise("div", of_numbers(lambda x, y: x / y), like(np.true_divide), 2, lazy=("float64", "int64"))
maximum: Pointwise = Pointwise("maximum", lambda real: rules.larger_of, like(np.maximum), 2, lazy=_NUMBERS)
minimum: Pointwise = Pointwise("minimum", lambda real: rules.smaller_of, like(np.minimum), 2, lazy=_NUMBERS)
_EITHER = of_numbers(lambda condition, x, y: x if condition else y)
_WHERE = Pointwise(
    "where", _EITHER, lambda condition, *kinds: (np.dtype(bool), *[_result(*kinds)] * 3), 3,
    eager=("bool float32 float32",), lazy=("bool float64 float64", "bool int64 int64", "bool bfloat16 bfloat16"),
)  # fmt: skip


def where(condition: Any, x: Any, y: Any) -> Array:
    """x where the condition holds, else y."""
    return _WHERE(condition, x, y)


def select(condition: Array, x: Array) -> Array:
    """x where the condition holds, else 0 (also where x is NaN or infinite, unlike a product with the mask)."""
    return _WHERE(condition, x, 0)


# Functions of x -------------------------------------------------------------------------------------------------------


@rule
def _abs(real):
    return (lambda x: math.fabs(x)) if rules.is_float(real) else (lambda x: -x if x < real(0) else x)


@rule
def _reciprocal(real):
    one, zero = real(1), real(0)
    if rules.is_float(real):
        return lambda x: one / x
    return lambda x: one if x == one else (-one if x == -one else zero)


@rule
def _sign(real):
    zero, one = real(0), real(1)
    other = -one if np.dtype(real).kind != "u" else one
    return lambda x: one if x > zero else (other if x < zero else zero)


neg: Pointwise = Pointwise("neg", of_numbers(lambda x: -x), like(np.negative), 1, lazy=("float64", "int64"))
abs: Pointwise = Pointwise("abs", _abs, like(np.abs), 1, lazy=("float64", "int64"))
square: Pointwise = Pointwise("square", of_numbers(lambda x: x * x), like(np.square), 1, lazy=("float64", "int64"))
reciprocal: Pointwise = Pointwise("reciprocal", _reciprocal, like(np.reciprocal), 1)
exp: Pointwise = Pointwise("exp", rules.of_math("exp"), like(np.exp), 1)
exp2: Pointwise = Pointwise("exp2", rules.of_libdevice("exp2"), like(np.exp2), 1)
log: Pointwise = Pointwise("log", rules.of_math("log"), like(np.log), 1)
log2: Pointwise = Pointwise("log2", rules.of_math("log2"), like(np.log2), 1)
log10: Pointwise = Pointwise("log10", rules.of_math("log10"), like(np.log10), 1)
log1p: Pointwise = Pointwise("log1p", rules.of_math("log1p"), like(np.log1p), 1)
expm1: Pointwise = Pointwise("expm1", rules.of_math("expm1"), like(np.expm1), 1)
sqrt: Pointwise = Pointwise("sqrt", rules.of_math("sqrt"), like(np.sqrt), 1)
sin: Pointwise = Pointwise("sin", rules.of_math("sin"), like(np.sin), 1, width=1, slow_path=True)
cos: Pointwise = Pointwise("cos", rules.of_math("cos"), like(np.cos), 1, width=1, slow_path=True)
tan: Pointwise = Pointwise("tan", rules.of_math("tan"), like(np.tan), 1, width=1, slow_path=True)
tanh: Pointwise = Pointwise("tanh", rules.of_math("tanh"), like(np.tanh), 1)
floor: Pointwise = Pointwise("floor", rules.rounding("floor"), like(np.floor), 1, lazy=("float64", "int64"))
ceil: Pointwise = Pointwise("ceil", rules.rounding("ceil"), like(np.ceil), 1, lazy=("float64", "int64"))
round: Pointwise = Pointwise("round", rules.rounding("rint"), floating, 1, lazy=("float64", "int64"))
trunc: Pointwise = Pointwise("trunc", rules.rounding("trunc"), like(np.trunc), 1, lazy=("float64", "int64"))
rsqrt: Pointwise = Pointwise("rsqrt", rule(lambda real: lambda x: real(1) / math.sqrt(x)), like(np.sqrt), 1)
sign: Pointwise = Pointwise("sign", _sign, floating, 1, lazy=("float64", "int64"))
sigmoid: Pointwise = Pointwise("sigmoid", rules.sigmoid, like(np.exp), 1)
erf: Pointwise = Pointwise("erf", rules.of_math("erf"), floating, 1)
_RELU = rule(lambda real: lambda x: real(0) if x <= real(0) else x)
relu: Pointwise = Pointwise("relu", _RELU, floating, 1, lazy=("float64", "int64"))

# Functions with bounds ------------------------------------------------------------------------------------------------


_CLAMPED = of_numbers(lambda x, low, high: rules.smaller_of(rules.larger_of(x, low), high))


@rule
def _nan_to_num(real):
    infinity = real(np.inf)

    def finite(x, nan, posinf, neginf):
        if x != x:
            return nan
        if x == infinity:
            return posinf
        return neginf if x == -infinity else x

    return finite


_CLAMP = Pointwise("clamp", _CLAMPED, lambda *kinds: (_result(*kinds),) * 4, 3, lazy=("float64", "int64"))
_NAN_TO_NUM = Pointwise("nan_to_num", _nan_to_num, floating, 4)


def clamp(x: Array, low: Any, high: Any) -> Array:
    """min(max(x, low), high); a bound of None does not bound."""
    if low is not None and high is not None:
        return _CLAMP(x, low, high)
    if low is not None:
        return maximum(x, low)
    return minimum(x, high) if high is not None else x


def nan_to_num(x: Array, nan: float, posinf: float | None, neginf: float | None) -> Array:
    """x with NaN and the infinities replaced; None means the largest (smallest) finite number of the dtype."""
    if x.dtype.kind not in "fV":
        return copy(x)
    limits = np.finfo(loaded(x.dtype))
    return _NAN_TO_NUM(x, nan, limits.max if posinf is None else posinf, limits.min if neginf is None else neginf)


# Into existing arrays, and between dtypes -----------------------------------------------------------------------------

_OFTEN = "float32 to bfloat16", "bfloat16 to float32", "float32 to float16", "float16 to float32"
_SELDOM = "float32 to float64", "float64 to float32", "float64 to float16", "int64 to float32", "float32 to int64"
_CAST = Pointwise("cast", rules.same, floating, 1, eager=_OFTEN, lazy=_SELDOM)
_FILL = Pointwise("fill", rules.same, floating, 1, lazy=())


def cast(x: Array, dtype: Any) -> Array:
    """A copy of ``x`` in another dtype."""
    dtype = np.dtype(dtype)
    if dtype == x.dtype:
        return copy(x)
    return _CAST(x, dtype=dtype)


def fill(x: Array, value: Any) -> None:
    """x[...] = value, a number. Raises OverflowError if an integer dtype cannot hold it."""
    number = loaded(x.dtype)
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
        value = number.type(bool(value) if x.dtype.kind == "b" else value)
    if x.contiguous and not value.tobytes().strip(b"\0"):
        memory.clear(x.pointer, x.nbytes)
    else:
        _FILL(value, out=x)


def add_into(x: Array, y: Any) -> None:
    """x += y."""
    add(x, _apart(x, y), out=x)


def assign(x: Array, y: Any) -> None:
    """x[...] = y, broadcasting y."""
    if isinstance(y, np.ndarray):
        y = from_host(y, x.device)
    if not isinstance(y, Array):
        fill(x, y)
    elif y.dtype == x.dtype:
        copy_into(x, expand(_apart(x, y), x.shape))
    else:
        _CAST(_apart(x, y), out=x)


def _apart(x: Array, y: Any) -> Any:
    """y, in other memory if writing x would change elements of it that are still to be read."""
    if not isinstance(y, Array) or not may_share_memory(x, y):
        return y
    same = x.pointer == y.pointer and x.shape == y.shape and x.strides == y.strides
    return y if same else copy(y)
