"""Comparisons and logic: kernels made from scalar rules; results are bool, those of the bitwise ones also integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import rules
from .array import DeviceArray
from .language import device_function, math
from .pointwise import Pointwise, like

_KINDS = ("float64", "int64", "int32", "uint8", "bool", "bfloat16", "float16")


def _eq(real: Any) -> Any:
    @device_function
    def rule(x, y):
        return x == y

    return rule


def _ne(real: Any) -> Any:
    @device_function
    def rule(x, y):
        return x != y

    return rule


def _lt(real: Any) -> Any:
    @device_function
    def rule(x, y):
        return x < y

    return rule


def _le(real: Any) -> Any:
    @device_function
    def rule(x, y):
        return x <= y

    return rule


class _Comparison(Pointwise):
    """An operation that knows whole numbers which the other one's integer dtype cannot hold."""

    def __call__(self, *inputs: Any, out: DeviceArray | None = None, dtype: np.dtype[Any] | None = None) -> DeviceArray:
        x, y = inputs
        return super().__call__(_bounded(x, y), _bounded(y, x), out=out, dtype=dtype)


def _bounded(x: Any, other: Any) -> Any:
    """x, or infinity if it is a whole number beyond what the other one's integer dtype holds."""
    if type(x) is int and isinstance(other, DeviceArray) and other.dtype.kind in "iu":
        limits = np.iinfo(other.dtype)
        if not limits.min <= x <= limits.max:
            return np.inf if x > 0 else -np.inf
    return x


eq: Pointwise = _Comparison("eq", _eq, like(np.equal), 2, later=_KINDS)
ne: Pointwise = _Comparison("ne", _ne, like(np.not_equal), 2, later=_KINDS)
lt: Pointwise = _Comparison("lt", _lt, like(np.less), 2, later=_KINDS)
le: Pointwise = _Comparison("le", _le, like(np.less_equal), 2, later=_KINDS)


def gt(x: Any, y: Any) -> DeviceArray:
    """x > y."""
    return lt(y, x)


def ge(x: Any, y: Any) -> DeviceArray:
    """x >= y."""
    return le(y, x)


# Logic ----------------------------------------------------------------------------------------------------------------


def _logical_not(real: Any) -> Any:
    zero = real(0)

    @device_function
    def rule(x):
        return x == zero

    return rule


def _logical_and(real: Any) -> Any:
    zero = real(0)

    @device_function
    def rule(x, y):
        return x != zero and y != zero

    return rule


def _logical_or(real: Any) -> Any:
    zero = real(0)

    @device_function
    def rule(x, y):
        return x != zero or y != zero

    return rule


def _logical_xor(real: Any) -> Any:
    zero = real(0)

    @device_function
    def rule(x, y):
        return (x != zero) != (y != zero)

    return rule


_BOOL: Any = {"dtypes": ("bool",), "later": ("float32", "int64")}
logical_not: Pointwise = Pointwise("logical_not", _logical_not, like(np.logical_not), 1, **_BOOL)
logical_and: Pointwise = Pointwise("logical_and", _logical_and, like(np.logical_and), 2, **_BOOL)
logical_or: Pointwise = Pointwise("logical_or", _logical_or, like(np.logical_or), 2, **_BOOL)
logical_xor: Pointwise = Pointwise("logical_xor", _logical_xor, like(np.logical_xor), 2, **_BOOL)

# Bits -----------------------------------------------------------------------------------------------------------------


def _bitwise_not(real: Any) -> Any:
    @device_function
    def rule(x):
        return ~x

    return rule


def _bitwise_and(real: Any) -> Any:
    @device_function
    def rule(x, y):
        return x & y

    return rule


def _bitwise_or(real: Any) -> Any:
    @device_function
    def rule(x, y):
        return x | y

    return rule


def _bitwise_xor(real: Any) -> Any:
    @device_function
    def rule(x, y):
        return x ^ y

    return rule


def _left_shift(real: Any) -> Any:
    zero, bits = real(0), real(8 * np.dtype(real).itemsize)

    @device_function
    def rule(x, y):
        return x << y if zero <= y and y < bits else zero

    return rule


def _right_shift(real: Any) -> Any:
    zero, bits = real(0), real(8 * np.dtype(real).itemsize)

    @device_function
    def rule(x, y):
        return x >> y if zero <= y and y < bits else (-real(1) if x < zero else zero)

    return rule


_INTEGERS: Any = {"dtypes": ("int64",), "later": ("int32", "uint8")}
_BITWISE_NOT = Pointwise("bitwise_not", _bitwise_not, like(np.invert), 1, **_INTEGERS)
bitwise_and: Pointwise = Pointwise("bitwise_and", _bitwise_and, like(np.bitwise_and), 2, **_INTEGERS)
bitwise_or: Pointwise = Pointwise("bitwise_or", _bitwise_or, like(np.bitwise_or), 2, **_INTEGERS)
bitwise_xor: Pointwise = Pointwise("bitwise_xor", _bitwise_xor, like(np.bitwise_xor), 2, **_INTEGERS)
left_shift: Pointwise = Pointwise("left_shift", _left_shift, like(np.left_shift), 2, **_INTEGERS)
right_shift: Pointwise = Pointwise("right_shift", _right_shift, like(np.right_shift), 2, **_INTEGERS)


def bitwise_not(x: DeviceArray) -> DeviceArray:
    """All bits inverted; of bool the opposite."""
    return logical_not(x) if x.dtype.kind == "b" else _BITWISE_NOT(x)


# Kinds of floats ------------------------------------------------------------------------------------------------------


def _isnan(real: Any) -> Any:
    @device_function
    def rule(x):
        return x != x

    return rule


def _isinf(real: Any) -> Any:
    if not rules.is_float(real):
        return _isnan(real)  # no integer is
    infinity = real(np.inf)

    @device_function
    def rule(x):
        return math.fabs(x) == infinity

    return rule


def _isfinite(real: Any) -> Any:
    if not rules.is_float(real):

        @device_function
        def of_integers(x):
            return x == x

        return of_integers
    infinity = real(np.inf)

    @device_function
    def rule(x):
        return math.fabs(x) < infinity

    return rule


_HALVES: Any = {"later": ("float64", "float16", "bfloat16")}
isnan: Pointwise = Pointwise("isnan", _isnan, like(np.isnan), 1, **_HALVES)
isinf: Pointwise = Pointwise("isinf", _isinf, like(np.isinf), 1, **_HALVES)
isfinite: Pointwise = Pointwise("isfinite", _isfinite, like(np.isfinite), 1, **_HALVES)
