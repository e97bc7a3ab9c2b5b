"""Scalar rules that several families share: made for a type ``real``, device functions of numbers of that type.

See ``pointwise.py`` for how kernels are made from them, and how they are composed.
"""

from __future__ import annotations

import math as host_math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..platform.language import device_function, libdevice, math


def rule(make: Callable[[Any], Callable[..., Any]]) -> Any:
    """The rule whose function for the type ``real`` is ``make(real)``: ``rule(lambda real: lambda x: real(1) / x)``."""
    return lambda real: device_function(make(real))


def of_numbers(function: Callable[..., Any]) -> Any:
    """The rule of a function that is the same for all types."""
    return rule(lambda real: function)


def libdevice_function(name: str, real: Any) -> Any:
    """NVIDIA's function for float64 or, with the ending f, for float32."""
    return getattr(libdevice, name if real is np.float64 else f"{name}f")


def of_math(name: str) -> Any:
    """The rule of a function of one number in ``math``, which knows the precision of its argument."""
    function = getattr(math, name)
    return of_numbers(lambda x: function(x))


def of_libdevice(name: str) -> Any:
    """The rule of one of libdevice's functions of one number."""

    def make(real: Any) -> Any:
        function = libdevice_function(name, real)
        return lambda x: function(x)

    return rule(make)


def rounding(name: str) -> Any:
    """As ``of_libdevice``, for a function that leaves integers as they are."""
    of_floats = of_libdevice(name)
    return lambda real: of_floats(real) if is_float(real) else same(real)


same: Any = of_numbers(lambda x: x)
is_zero: Any = rule(lambda real: lambda x: x == real(0))
"""Zero has the type of x: comparing with Python's 0 would widen floats to float64."""


def is_float(real: Any) -> bool:
    """Whether the rule is made for float32 or float64."""
    return bool(np.dtype(real).kind == "f")


@device_function
def larger_of(x: Any, y: Any) -> Any:
    """max(x, y); NaN if one of them is."""
    return x if x > y or x != x else y


@device_function
def smaller_of(x: Any, y: Any) -> Any:
    """min(x, y); NaN if one of them is."""
    return x if x < y or x != x else y


sigmoid: Any = rule(lambda real: lambda x: real(1) / (real(1) + math.exp(-x)))
"""1 / (1 + e^-x); e^-x = inf gives the right 0."""


@rule
def softplus(real: Any) -> Any:
    """log(1 + e^x), which neither overflows nor cancels."""

    def softplus(x):
        tail = math.log1p(math.exp(-math.fabs(x)))
        return tail if x < real(0) else x + tail

    return softplus


GELU_SLOPE, GELU_CUBIC = 2 * host_math.sqrt(2 / host_math.pi), 0.044715  # of "tanh": 2u = SLOPE x (1 + CUBIC x^2)


@rule
def gelu_slope(real: Any) -> Any:
    """The derivative of x sigmoid(2u), the GELU of "tanh"."""
    one, slope, cubic, cubic3 = real(1), real(GELU_SLOPE), real(GELU_CUBIC), real(3 * GELU_CUBIC)
    sigmoid_of = sigmoid(real)

    def slope_of(x):
        square = x * x
        s = sigmoid_of(slope * x * (one + cubic * square))
        return s + x * s * (one - s) * slope * (one + cubic3 * square)

    return slope_of


@rule
def normal_cdf(real: Any) -> Any:
    """Phi(x), the distribution function of the standard normal; its relative error where it is tiny is that of x^2."""
    scale, half = real(-(0.5**0.5)), real(0.5)
    return lambda x: half * math.erfc(scale * x)
