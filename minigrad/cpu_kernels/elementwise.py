"""Elementwise arithmetic by NumPy's ufuncs, erf, which NumPy lacks, and the derivatives that would cost several passes
in one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .jit import kernel
from .vector_math import erf_fast

# NaN and infinities are results, as in PyTorch, not warnings. (Sums and products cannot make them from ordinary numbers
# except by overflow; they keep NumPy's warning, and the half microsecond that silencing costs.)
quiet: np.errstate = np.errstate(all="ignore")

add: np.ufunc = np.add
sub: Callable[..., Any] = quiet(np.subtract)
mul: np.ufunc = np.multiply
div: Callable[..., Any] = quiet(np.true_divide)
neg: np.ufunc = np.negative
abs: np.ufunc = np.abs
square: np.ufunc = np.square
reciprocal: Callable[..., Any] = quiet(np.reciprocal)
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
round: Callable[..., Any] = np.round
trunc: np.ufunc = np.trunc
maximum: np.ufunc = np.maximum
minimum: np.ufunc = np.minimum
where: Callable[..., Any] = np.where


def _divisor(x: Any, y: Any) -> None:
    """Refuse what has no value: an integer divided by 0, which NumPy calls 0. (Floats give infinities and NaN.)"""
    if np.result_type(x, y).kind in "iu" and np.any(np.equal(y, 0)):
        raise ZeroDivisionError("integer division by 0; convert with .float() for infinities and NaN")


@quiet
def floor_div(x: Any, y: Any) -> Any:
    """floor(x / y). ZeroDivisionError for an integer 0 in y."""
    _divisor(x, y)
    return np.floor_divide(x, y)


@quiet
def remainder(x: Any, y: Any) -> Any:
    """x - y floor(x / y), of the sign of y. ZeroDivisionError for an integer 0 in y."""
    _divisor(x, y)
    return np.remainder(x, y)


@quiet
def fmod(x: Any, y: Any) -> Any:
    """x - y trunc(x / y), of the sign of x. ZeroDivisionError for an integer 0 in y."""
    _divisor(x, y)
    return np.fmod(x, y)


@quiet
def pow(x: Any, y: Any) -> Any:
    """x ** y. Of integers with a negative exponent in y the integer part: 0, or 1 and -1 for these."""
    if not (isinstance(y, np.ndarray) and y.dtype.kind == "i" and np.result_type(x, y).kind == "i" and (y < 0).any()):
        return np.power(x, y)
    odd = np.where(y % 2 == 1, x, 1)
    return np.where(y < 0, np.where(np.abs(x) == 1, odd, 0), np.power(x, np.maximum(y, 0)))


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
def rsqrt(x: np.ndarray) -> np.ndarray:
    """1 / sqrt(x)."""
    return np.reciprocal(np.sqrt(x))


def sign(x: np.ndarray) -> np.ndarray:
    """-1, 0 or 1; 0 for NaN, as in PyTorch."""
    return np.subtract(x > 0, x < 0, dtype=x.dtype)


@quiet
def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)): exact to the last digits also where it is tiny; exp(-x) = inf gives the right 0."""
    return np.reciprocal(np.exp(-x) + 1)


@kernel
def _erf(x, y):
    for i in range(x.shape[0]):
        y[i] = erf_fast(x[i])


def erf(x: np.ndarray) -> np.ndarray:
    """Error function, of the shape and dtype of x, float32 or float64. Any strides."""
    y = np.empty(x.shape, x.dtype)
    _erf(np.ascontiguousarray(x).reshape(-1), y.reshape(-1))
    return y


@quiet
def nan_to_num(x: np.ndarray, nan: float, posinf: float | None, neginf: float | None) -> np.ndarray:
    """x with NaN and the infinities replaced; None means the largest (smallest) finite number of the dtype."""
    return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


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
