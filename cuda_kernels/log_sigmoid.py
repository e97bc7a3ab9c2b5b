"""Logarithm of the sigmoid: y = min(x, 0) - log(1 + e^-|x|) = -softplus(-x);  dx = sigmoid(-x) dy."""

from __future__ import annotations

from typing import Any

from . import rules
from .array import DeviceArray
from .language import device_function
from .pointwise import Pointwise, floating


def _forward(real: Any) -> Any:
    softplus = rules.softplus(real)

    @device_function
    def rule(x):
        return -softplus(-x)

    return rule


def _backward(real: Any) -> Any:
    sigmoid = rules.sigmoid(real)

    @device_function
    def rule(dy, x):
        return dy * sigmoid(-x)

    return rule


_FORWARD = Pointwise("forward", _forward, floating, 1)
_BACKWARD = Pointwise("backward", _backward, floating, 2)


def forward(x: DeviceArray) -> DeviceArray:
    """y of the shape and (floating) dtype of x."""
    return _FORWARD(x)


def backward(dy: DeviceArray, x: DeviceArray) -> DeviceArray:
    """dx from dy and the input of ``forward``."""
    return _BACKWARD(dy, x)
