"""GELU: y = x Phi(x), Phi the distribution function of the standard normal; forward and backward one kernel each.

    approximate="none": Phi(x) = erfc(-x / sqrt 2) / 2                  dy/dx = Phi(x) + x phi(x)
    approximate="tanh": Phi(x) ~ s = sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
                        dy/dx = s + 2 x s (1 - s) du/dx                 as (1 + tanh u) / 2 = sigmoid(2u)

Source: Hendrycks & Gimpel, "Gaussian error linear units" (2016).
"""

from __future__ import annotations

import math as host_math
from typing import Any

from . import rules
from .array import DeviceArray
from .language import device_function, math
from .pointwise import Pointwise, floating

SLOPE = 2 * host_math.sqrt(2 / host_math.pi)
CUBIC = 0.044715
NORMAL_DENSITY = 1 / host_math.sqrt(2 * host_math.pi)  # phi(0)


def _forward_tanh(real: Any) -> Any:
    one, slope, cubic = real(1), real(SLOPE), real(CUBIC)
    sigmoid = rules.sigmoid(real)

    @device_function
    def rule(x):
        return x * sigmoid(slope * x * (one + cubic * x * x))

    return rule


def _backward_tanh(real: Any) -> Any:
    one, slope, cubic, cubic3 = real(1), real(SLOPE), real(CUBIC), real(3 * CUBIC)
    sigmoid = rules.sigmoid(real)

    @device_function
    def rule(dy, x):
        square = x * x
        s = sigmoid(slope * x * (one + cubic * square))
        return dy * (s + x * s * (one - s) * slope * (one + cubic3 * square))

    return rule


def _forward_erf(real: Any) -> Any:
    normal_cdf = rules.normal_cdf(real)

    @device_function
    def rule(x):
        return x * normal_cdf(x)

    return rule


def _backward_erf(real: Any) -> Any:
    half, density = real(-0.5), real(NORMAL_DENSITY)
    normal_cdf = rules.normal_cdf(real)

    @device_function
    def rule(dy, x):
        return dy * (normal_cdf(x) + x * density * math.exp(half * x * x))

    return rule


_FORWARD = {
    "tanh": Pointwise("forward_tanh", _forward_tanh, floating, 1),
    "none": Pointwise("forward_erf", _forward_erf, floating, 1),
}
_BACKWARD = {
    "tanh": Pointwise("backward_tanh", _backward_tanh, floating, 2),
    "none": Pointwise("backward_erf", _backward_erf, floating, 2),
}


def _select(operations: dict[str, Pointwise], approximate: str) -> Pointwise:
    if approximate not in operations:
        raise ValueError(f"approximate={approximate!r}: expected 'none' (erf) or 'tanh'")
    return operations[approximate]


def forward(x: DeviceArray, approximate: str) -> DeviceArray:
    """x float32 or float64, any shape -> y of the same shape."""
    return _select(_FORWARD, approximate)(x)


def backward(dy: DeviceArray, x: DeviceArray, approximate: str) -> DeviceArray:
    """dx = dy * dy/dx(x), shapes all equal."""
    return _select(_BACKWARD, approximate)(dy, x)
