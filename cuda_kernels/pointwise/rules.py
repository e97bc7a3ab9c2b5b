"""Scalar rules: made for a type ``real``, device functions of numbers of that type.

``formulas.py`` makes rules of plain formulas, and finds those of NumPy's functions here. See ``pointwise.py`` for how
kernels are made from them, and how they are composed.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..platform.language import libdevice, math

rule: Any = functools.cache
"""Of a function from the type ``real`` to the function of its numbers: ``rule(lambda real: lambda x: real(1) / x)``."""


def of_numbers(function: Callable[..., Any]) -> Any:
    """The rule of a function that is the same for all types."""
    return lambda real: function


def libdevice_function(name: str, real: Any) -> Any:
    """NVIDIA's function for float64 or, with the ending f, for float32."""
    return getattr(libdevice, name if real is np.float64 else f"{name}f")


def of_math(name: str) -> Any:
    """The rule of a function in ``math``, which knows the precision of its arguments."""
    return of_numbers(getattr(math, name))


def of_libdevice(name: str, of_floats: bool = False) -> Any:
    """The rule of one of libdevice's functions of one number; ``of_floats``: it leaves integers as they are."""

    def make(real: Any) -> Any:
        if of_floats and not is_float(real):
            return lambda x: x
        return libdevice_function(name, real)

    return make


same: Any = of_numbers(lambda x: x)
is_zero: Any = rule(lambda real: lambda x: x == real(0))
"""Zero has the type of x: comparing with Python's 0 would widen floats to float64."""


def is_float(real: Any) -> bool:
    """Whether the rule is made for float32 or float64."""
    return bool(np.dtype(real).kind == "f")


def larger_of(x: Any, y: Any) -> Any:
    """max(x, y); NaN if one of them is."""
    return x if x > y or x != x else y


def smaller_of(x: Any, y: Any) -> Any:
    """min(x, y); NaN if one of them is."""
    return x if x < y or x != x else y


# NumPy's functions ----------------------------------------------------------------------------------------------------


@rule
def _abs(real):
    return (lambda x: math.fabs(x)) if is_float(real) else (lambda x: -x if x < real(0) else x)


@rule
def _reciprocal(real):
    one, zero = real(1), real(0)
    if is_float(real):
        return lambda x: one / x
    return lambda x: one if x == one else (-one if x == -one else zero)


@rule
def _left_shift(real):
    zero, bits = real(0), real(8 * np.dtype(real).itemsize)
    return lambda x, y: x << y if zero <= y and y < bits else zero


@rule
def _right_shift(real):
    zero, bits = real(0), real(8 * np.dtype(real).itemsize)
    return lambda x, y: x >> y if zero <= y and y < bits else (-real(1) if x < zero else zero)


OF_NUMPY: dict[Any, Any] = {
    np.abs: _abs,
    np.reciprocal: _reciprocal,
    np.maximum: lambda real: larger_of,
    np.minimum: lambda real: smaller_of,
    np.exp2: of_libdevice("exp2"),
    **{rounds: of_libdevice(rounds.__name__, of_floats=True) for rounds in (np.floor, np.ceil, np.rint, np.trunc)},
    np.arctan2: of_math("atan2"),
    np.logical_not: is_zero,
    np.logical_and: rule(lambda real: lambda x, y: x != real(0) and y != real(0)),
    np.logical_or: rule(lambda real: lambda x, y: x != real(0) or y != real(0)),
    np.logical_xor: rule(lambda real: lambda x, y: (x != real(0)) != (y != real(0))),
    np.left_shift: _left_shift,
    np.right_shift: _right_shift,
    np.isfinite: rule(lambda real: lambda x: x - x == real(0)),  # infinity - infinity is NaN
    np.isinf: rule(lambda real: lambda x: x - x != real(0) and x == x),
}


TRUTHS: set[Any] = {
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.isnan, np.isinf, np.isfinite,
    np.logical_not, np.logical_and, np.logical_or, np.logical_xor,
}  # fmt: skip
"""NumPy's functions whose results are truth values."""


def of_numpy(function: Any) -> Any:
    """The rule of one of NumPy's functions that is no operator; most are functions of a number in ``math``."""
    return (
        OF_NUMPY[function]
        if function in OF_NUMPY
        else of_math(function.__name__.removesuffix(" (vectorized)").replace("arc", "a"))
    )
