"""Comparisons and logic, of the plain formulas; results are bool, those of the bitwise ones also integers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad.plain_kernels import comparison as plain

from .platform.array import Array
from .pointwise.pointwise import Pointwise, made_from

if TYPE_CHECKING:  # what ``made_from`` makes

    def __getattr__(name: str) -> Any: ...


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


_KINDS = ("float64", "int64", "int32", "uint8", "bool", "bfloat16", "float16")
_, _, _LT, _LE = made_from(plain, globals(), "eq ne lt le", _Comparison, lazy=_KINDS)


def gt(x: Any, y: Any) -> Array:
    """x > y."""
    return _LT(y, x)


def ge(x: Any, y: Any) -> Array:
    """x >= y."""
    return _LE(y, x)


_NAMES = "logical_not logical_and logical_or logical_xor"
_LOGICAL_NOT = made_from(plain, globals(), _NAMES, eager=("bool",), lazy=("float32", "int64"))[0]
_NAMES = "bitwise_not bitwise_and bitwise_or bitwise_xor left_shift right_shift"
_BITWISE_NOT = made_from(plain, globals(), _NAMES, eager=("int64",), lazy=("int32", "uint8"))[0]
made_from(plain, globals(), "isnan isinf isfinite", lazy=("float64", "float16", "bfloat16"))


def bitwise_not(x: Array) -> Array:
    """All bits inverted; of bool the opposite."""
    return _LOGICAL_NOT(x) if x.dtype.kind == "b" else _BITWISE_NOT(x)
