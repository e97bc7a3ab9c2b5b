"""Operations on each element, mostly NumPy's functions: arithmetic, comparison, GELU."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

# NaN and infinities are results, as in PyTorch, not warnings. (Sums and products cannot make them from ordinary numbers
# except by overflow; they keep NumPy's warning, and the half microsecond that silencing costs.)
quiet: np.errstate = np.errstate(all="ignore")
of_each: dict[Callable[..., float], np.ufunc] = {f: np.frompyfunc(f, 1, 1) for f in (math.erf, math.erfc)}
"""Ufuncs of C's functions that NumPy lacks; their results are Python's objects."""


def check_divisor(x: Any, y: Any) -> None:
    """Refuse what has no value: an integer divided by 0, which NumPy calls 0. (Floats give infinities and NaN.)"""
    if np.result_type(x, y).kind in "iu" and np.any(np.equal(y, 0)):
        raise ZeroDivisionError("integer division by 0; convert with .float() for infinities and NaN")


def _as_numbers(x: Any, dtype: Any) -> Any:
    return np.multiply(x, 1, dtype=np.promote_types(dtype, np.float32), casting="unsafe").astype(dtype)


class elementwise:
    """Arithmetic and functions of one number."""

    add: np.ufunc = np.add
    sub: Callable[..., Any] = quiet(np.subtract)
    mul: np.ufunc = np.multiply
    div: Callable[..., Any] = quiet(np.true_divide)
    neg: np.ufunc = np.negative
    abs: np.ufunc = np.abs
    square: Callable[..., Any] = quiet(np.square)
    exp: Callable[..., Any] = quiet(np.exp)
    exp2: Callable[..., Any] = quiet(np.exp2)
    log: Callable[..., Any] = quiet(np.log)
    log2: Callable[..., Any] = quiet(np.log2)
    log10: Callable[..., Any] = quiet(np.log10)
    log1p: Callable[..., Any] = quiet(np.log1p)
    expm1: Callable[..., Any] = quiet(np.expm1)
    sqrt: Callable[..., Any] = quiet(np.sqrt)
    sin: Callable[..., Any] = quiet(np.sin)
    cos: Callable[..., Any] = quiet(np.cos)
    tan: Callable[..., Any] = quiet(np.tan)
    tanh: np.ufunc = np.tanh
    floor: np.ufunc = np.floor
    ceil: np.ufunc = np.ceil
    trunc: np.ufunc = np.trunc
    maximum: np.ufunc = np.maximum
    minimum: np.ufunc = np.minimum

    def supports_half(x: np.ndarray) -> bool:
        """Whether functions of half floats compute in float32, and round their results once; else float32 arrives."""
        return False

    @quiet
    def fused(expression: Callable[..., Any], *inputs: Any) -> Any:
        """expression(k, *inputs), a function that lasts, with the names of ``elementwise``, ``comparison`` and
        ``trigonometry`` in k: other backends take it as one pass.
        """
        return expression(Each, *inputs)

    def where(condition: Any, x: Any, y: Any) -> Any:
        """x where the condition holds, else y; of an array and a number in the array's dtype."""
        kinds = [z.dtype for z in (x, y) if isinstance(z, np.ndarray)]
        return np.where(condition, x, y).astype(kinds[0], copy=False) if len(kinds) == 1 else np.where(condition, x, y)

    def round(x: np.ndarray) -> np.ndarray:
        """The nearest whole numbers, of two equally near the even one."""
        return np.rint(x) if x.dtype.kind == "f" else x.copy()

    @quiet
    def floor_div(x: Any, y: Any) -> Any:
        """floor(x / y). ZeroDivisionError for an integer 0 in y."""
        check_divisor(x, y)
        return np.floor_divide(x, y)

    @quiet
    def remainder(x: Any, y: Any) -> Any:
        """x - y floor(x / y), of the sign of y. ZeroDivisionError for an integer 0 in y."""
        check_divisor(x, y)
        return np.remainder(x, y)

    @quiet
    def fmod(x: Any, y: Any) -> Any:
        """x - y trunc(x / y), of the sign of x. ZeroDivisionError for an integer 0 in y."""
        check_divisor(x, y)
        return np.fmod(x, y)

    @quiet
    def pow(x: Any, y: Any) -> Any:
        """x ** y. Of integers with a negative exponent in y the integer part: 0, or 1 and -1 for these."""
        if np.result_type(x, y).kind != "i" or isinstance(y, int) or not np.any(np.less(y, 0)):
            return np.power(x, y)
        odd = np.where(y % 2 == 1, x, 1)
        return np.where(y < 0, np.where(np.abs(x) == 1, odd, 0), np.power(x, np.maximum(y, 0)))

    @quiet
    def cube(x: np.ndarray) -> np.ndarray:
        """x^3."""
        return x * x * x

    def add_into(x: np.ndarray, y: Any) -> None:
        """x += y."""
        np.add(x, y, x)  # the name ``out`` would cost a tenth of a microsecond

    @quiet
    def assign(x: np.ndarray, y: Any) -> None:
        """x[...] = y, broadcasting y."""
        np.copyto(x, y, casting="unsafe")

    @quiet
    def cast(x: np.ndarray, dtype: Any) -> np.ndarray:
        """A copy of ``x`` in another dtype."""
        return x.astype(dtype)

    @quiet
    def reciprocal(x: np.ndarray) -> np.ndarray:
        """1 / x."""
        return np.true_divide(1, x)

    @quiet
    def rsqrt(x: np.ndarray) -> np.ndarray:
        """1 / sqrt(x)."""
        return np.true_divide(1, np.sqrt(x))

    def sign(x: np.ndarray) -> np.ndarray:
        """-1, 0 or 1; 0 for NaN, as in PyTorch."""
        return np.subtract(x > 0, x < 0, dtype=x.dtype)

    @quiet
    def sigmoid(x: np.ndarray) -> np.ndarray:
        """1 / (1 + exp(-x)): exact to the last digits also where it is tiny; exp(-x) = inf gives the right 0."""
        return np.true_divide(1, np.exp(-x) + 1)

    @quiet
    def nan_to_num(x: np.ndarray, nan: float, posinf: float | None, neginf: float | None) -> np.ndarray:
        """x with NaN and the infinities replaced; None means the largest (smallest) finite number of the dtype."""
        if x.dtype.kind != "f":
            return x.copy()
        limits = np.finfo(x.dtype)
        above, below = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
        y = np.where(x == np.inf, above, np.where(x == -np.inf, below, x))
        return np.where(np.isnan(x), nan, y)

    def relu(x: np.ndarray) -> np.ndarray:
        """max(x, 0); NaN stays NaN."""
        return np.maximum(x, 0)

    def clamp(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
        """min(max(x, low), high); a bound of None does not bound."""
        if low is not None:
            x = np.maximum(x, low)
        return np.minimum(x, high) if high is not None else x

    def select(condition: np.ndarray, x: Any) -> np.ndarray:
        """x where the condition holds, else 0 (also where x is NaN or infinite, unlike a product with the mask)."""
        return np.where(condition, x, np.zeros((), dtype=x.dtype))

    def erf(x: np.ndarray) -> np.ndarray:
        """Error function, of the shape and dtype of x, float32 or float64."""
        return _as_numbers(of_each[math.erf](x), x.dtype)


class comparison:
    """Comparisons and logic; results are bool arrays, those of the bitwise ones also integers."""

    eq: np.ufunc = np.equal
    ne: np.ufunc = np.not_equal
    lt: np.ufunc = np.less
    le: np.ufunc = np.less_equal
    gt: np.ufunc = np.greater
    ge: np.ufunc = np.greater_equal
    logical_not: np.ufunc = np.logical_not
    logical_and: np.ufunc = np.logical_and
    logical_or: np.ufunc = np.logical_or
    logical_xor: np.ufunc = np.logical_xor
    bitwise_not: np.ufunc = np.invert
    bitwise_and: np.ufunc = np.bitwise_and
    bitwise_or: np.ufunc = np.bitwise_or
    bitwise_xor: np.ufunc = np.bitwise_xor
    left_shift: np.ufunc = np.left_shift
    right_shift: np.ufunc = np.right_shift
    isnan: np.ufunc = np.isnan
    isinf: np.ufunc = np.isinf
    isfinite: np.ufunc = np.isfinite


class trigonometry:
    """Inverse trigonometric and hyperbolic functions. Outside of their domains they give NaN."""

    sinh: Callable[..., Any] = quiet(np.sinh)
    cosh: Callable[..., Any] = quiet(np.cosh)
    asin: Callable[..., Any] = quiet(np.arcsin)
    acos: Callable[..., Any] = quiet(np.arccos)
    atan: np.ufunc = np.arctan
    atan2: np.ufunc = np.arctan2
    asinh: np.ufunc = np.arcsinh
    acosh: Callable[..., Any] = quiet(np.arccosh)
    atanh: Callable[..., Any] = quiet(np.arctanh)


class Each(elementwise, comparison, trigonometry):
    """What ``fused`` gives its expressions."""


class gelu:
    """y = x Phi(x), Phi the distribution function of the standard normal (Hendrycks & Gimpel 2016).

    "none": Phi(x) = erfc(-x / sqrt 2) / 2                                     dy/dx = Phi(x) + x phi(x)
    "tanh": Phi(x) ~ s = sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)      dy/dx = s + 2 x s (1 - s) du/dx
    """

    @quiet
    def forward(x: np.ndarray, approximate: str) -> np.ndarray:
        """y of the shape and dtype of x."""
        return x * _phi(x, approximate)

    @quiet
    def backward(dy: np.ndarray, x: np.ndarray, approximate: str) -> np.ndarray:
        """dx = dy * dy/dx(x)."""
        phi = _phi(x, approximate)
        if approximate == "none":
            return dy * (phi + x * np.exp(-x * x / 2) * (1 / math.sqrt(2 * math.pi)))
        return dy * (phi + x * phi * (1 - phi) * GELU_SLOPE * (1 + 3 * GELU_CUBIC * (x * x)))


GELU_SLOPE, GELU_CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715  # "tanh": 2u = GELU_SLOPE (x + GELU_CUBIC x^3)


def _phi(x: np.ndarray, approximate: str) -> Any:
    if approximate == "none":
        return _as_numbers(of_each[math.erfc](x * -math.sqrt(0.5)), x.dtype) / 2
    if approximate == "tanh":
        return 1 / (1 + np.exp(x * (-GELU_SLOPE - GELU_SLOPE * GELU_CUBIC * (x * x))))
    raise ValueError(f"approximate={approximate!r}: expected 'none' (erf) or 'tanh'")
