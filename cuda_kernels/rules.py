"""Scalar rules that several families share: made for a type ``real``, device functions of numbers of that type.

See ``pointwise.py`` for how kernels are made from them, and how they are composed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .language import device_function, libdevice, math


def libdevice_function(name: str, real: Any) -> Any:
    """NVIDIA's function for float64 or, with the ending f, for float32."""
    return getattr(libdevice, name if real is np.float64 else f"{name}f")


def of_math(name: str) -> Any:
    """The rule of a function of one number in ``math``, which knows the precision of its argument."""
    function = getattr(math, name)

    def make(real: Any) -> Any:
        @device_function
        def rule(x):
            return function(x)

        return rule

    return make


def of_libdevice(name: str) -> Any:
    """The rule of one of libdevice's functions of one number."""

    def make(real: Any) -> Any:
        function = libdevice_function(name, real)

        @device_function
        def rule(x):
            return function(x)

        return rule

    return make


def rounding(name: str) -> Any:
    """As ``of_libdevice``, for a function that leaves integers as they are."""
    of_floats = of_libdevice(name)

    def make(real: Any) -> Any:
        return of_floats(real) if is_float(real) else same(real)

    return make


def same(real: Any) -> Any:
    """x."""

    @device_function
    def rule(x):
        return x

    return rule


def is_float(real: Any) -> bool:
    """Whether the rule is made for float32 or float64."""
    return bool(np.dtype(real).kind == "f")


def sigmoid(real: Any) -> Any:
    """1 / (1 + e^-x); e^-x = inf gives the right 0."""
    one = real(1)

    @device_function
    def rule(x):
        return one / (one + math.exp(-x))

    return rule


def softplus(real: Any) -> Any:
    """log(1 + e^x), which neither overflows nor cancels."""
    zero = real(0)

    @device_function
    def rule(x):
        tail = math.log1p(math.exp(-math.fabs(x)))
        return tail if x < zero else x + tail

    return rule


def normal_cdf(real: Any) -> Any:
    """Phi(x), the distribution function of the standard normal; its relative error where it is tiny is that of x^2."""
    scale, half = real(-(0.5**0.5)), real(0.5)

    @device_function
    def rule(x):
        return half * math.erfc(scale * x)

    return rule


def larger(real: Any) -> Any:
    """max(x, y); NaN if one of them is."""

    @device_function
    def rule(x, y):
        return x if x > y or x != x else y

    return rule


def smaller(real: Any) -> Any:
    """min(x, y); NaN if one of them is."""

    @device_function
    def rule(x, y):
        return x if x < y or x != x else y

    return rule
