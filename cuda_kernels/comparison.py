"""Comparisons and logic: kernels made from scalar rules; results are bool, those of the bitwise ones also integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .platform.array import Array
from .platform.language import math
from .pointwise import rules
from .pointwise.pointwise import Pointwise, like
from .pointwise.rules import of_numbers, rule

_KINDS = ("float64", "int64", "int32", "uint8", "bool", "bfloat16", "float16")


class _Comparison(Pointwise):
    """An operation that knows whole numbers which the other one's integer dtype cannot hold."""

    def __call__(self, *inputs: Any, out: Array | None = None, dtype: np.dtype[Any] | None = None) -> Array:
        x, y = inputs
        return super().__call__(_bounded(x, y), _bounded(y, x), out=out, dtype=dtype)


def _bounded(x: Any, other: Any) -> Any:
    """x, or infinity if it is a whole number beyond what the other one's integer dtype holds."""
    if type(x) is int and isinstance(other, Array) and other.dtype.kind in "iu":
        limits = np.iinfo(other.dtype)
        if not limits.min <= x <= limits.max:
            return np.inf if x > 0 else -np.inf
    return x


eq: Pointwise = _Comparison("eq", of_numbers(lambda x, y: x == y), like(np.equal), 2, lazy=_KINDS)
ne: Pointwise = _Comparison("ne", of_numbers(lambda x, y: x != y), like(np.not_equal), 2, lazy=_KINDS)
lt: Pointwise = _Comparison("lt", of_numbers(lambda x, y: x < y), like(np.less), 2, lazy=_KINDS)
le: Pointwise = _Comparison("le", of_numbers(lambda x, y: x <= y), like(np.less_equal), 2, lazy=_KINDS)


def gt(x: Any, y: Any) -> Array:
    """x > y."""
    return lt(y, x)


def ge(x: Any, y: Any) -> Array:
    """x >= y."""
    return le(y, x)


# Logic ----------------------------------------------------------------------------------------------------------------


_LOGICAL_AND = rule(lambda real: lambda x, y: x != real(0) and y != real(0))
_LOGICAL_OR = rule(lambda real: lambda x, y: x != real(0) or y != real(0))
_LOGICAL_XOR = rule(lambda real: lambda x, y: (x != real(0)) != (y != real(0)))

_BOOL: Any = {"eager": ("bool",), "lazy": ("float32", "int64")}
logical_not: Pointwise = Pointwise("logical_not", rules.is_zero, like(np.logical_not), 1, **_BOOL)
logical_and: Pointwise = Pointwise("logical_and", _LOGICAL_AND, like(np.logical_and), 2, **_BOOL)
logical_or: Pointwise = Pointwise("logical_or", _LOGICAL_OR, like(np.logical_or), 2, **_BOOL)
logical_xor: Pointwise = Pointwise("logical_xor", _LOGICAL_XOR, like(np.logical_xor), 2, **_BOOL)

# Bits -----------------------------------------------------------------------------------------------------------------


@rule
def _left_shift(real):
    zero, bits = real(0), real(8 * np.dtype(real).itemsize)
    return lambda x, y: x << y if zero <= y and y < bits else zero


@rule
def _right_shift(real):
    zero, bits = real(0), real(8 * np.dtype(real).itemsize)
    return lambda x, y: x >> y if zero <= y and y < bits else (-real(1) if x < zero else zero)


_INTEGERS: Any = {"eager": ("int64",), "lazy": ("int32", "uint8")}
_BITWISE_NOT = Pointwise("bitwise_not", of_numbers(lambda x: ~x), like(np.invert), 1, **_INTEGERS)
bitwise_and: Pointwise = Pointwise("bitwise_and", of_numbers(lambda x, y: x & y), like(np.bitwise_and), 2, **_INTEGERS)
bitwise_or: Pointwise = Pointwise("bitwise_or", of_numbers(lambda x, y: x | y), like(np.bitwise_or), 2, **_INTEGERS)
bitwise_xor: Pointwise = Pointwise("bitwise_xor", of_numbers(lambda x, y: x ^ y), like(np.bitwise_xor), 2, **_INTEGERS)
left_shift: Pointwise = Pointwise("left_shift", _left_shift, like(np.left_shift), 2, **_INTEGERS)
right_shift: Pointwise = Pointwise("right_shift", _right_shift, like(np.right_shift), 2, **_INTEGERS)


def bitwise_not(x: Array) -> Array:
    """All bits inverted; of bool the opposite."""
    return logical_not(x) if x.dtype.kind == "b" else _BITWISE_NOT(x)


# Kinds of floats ------------------------------------------------------------------------------------------------------


_ISNAN = of_numbers(lambda x: x != x)


@rule
def _isinf(real):
    return (lambda x: math.fabs(x) == real(np.inf)) if rules.is_float(real) else (lambda x: x != x)  # no integer is


@rule
def _isfinite(real):
    return (lambda x: math.fabs(x) < real(np.inf)) if rules.is_float(real) else (lambda x: x == x)


_HALVES: Any = {"lazy": ("float64", "float16", "bfloat16")}
isnan: Pointwise = Pointwise("isnan", _ISNAN, like(np.isnan), 1, **_HALVES)
isinf: Pointwise = Pointwise("isinf", _isinf, like(np.isinf), 1, **_HALVES)
isfinite: Pointwise = Pointwise("isfinite", _isfinite, like(np.isfinite), 1, **_HALVES)
