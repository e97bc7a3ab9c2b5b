"""Piecewise activations: leaky ReLU, ELU, softplus, and their gradients. NaN goes through.

Each is one kernel, of a rule that is composed of the shared ones.
"""

from __future__ import annotations

from typing import Any

from . import rules
from .array import DeviceArray
from .language import device_function, math
from .pointwise import Pointwise, floating


def _leaky_relu(real: Any) -> Any:
    zero = real(0)

    @device_function
    def rule(x, slope):
        return x if x > zero else x * slope

    return rule


def _leaky_relu_backward(real: Any) -> Any:
    zero = real(0)

    @device_function
    def rule(dy, x, slope):
        return dy if x > zero else dy * slope

    return rule


def _elu(real: Any) -> Any:
    zero = real(0)

    @device_function
    def rule(x, alpha):
        return x if x > zero else alpha * math.expm1(x)

    return rule


def _elu_backward(real: Any) -> Any:
    zero = real(0)

    @device_function
    def rule(dy, x, alpha):
        return dy if x > zero else dy * (alpha * math.exp(x))

    return rule


def _softplus(real: Any) -> Any:
    softplus_of = rules.softplus(real)

    @device_function
    def rule(x, beta, threshold):
        z = x * beta
        return x if z > threshold else softplus_of(z) / beta

    return rule


def _softplus_backward(real: Any) -> Any:
    sigmoid = rules.sigmoid(real)

    @device_function
    def rule(dy, x, beta, threshold):
        z = x * beta
        return dy if z > threshold else dy * sigmoid(z)

    return rule


_LEAKY_RELU = Pointwise("leaky_relu", _leaky_relu, floating, 2)
_LEAKY_RELU_BACKWARD = Pointwise("leaky_relu_backward", _leaky_relu_backward, floating, 3)
_ELU = Pointwise("elu", _elu, floating, 2)
_ELU_BACKWARD = Pointwise("elu_backward", _elu_backward, floating, 3)
_SOFTPLUS = Pointwise("softplus", _softplus, floating, 3)
_SOFTPLUS_BACKWARD = Pointwise("softplus_backward", _softplus_backward, floating, 4, registers=40)


def leaky_relu(x: DeviceArray, slope: float) -> DeviceArray:
    """x where x > 0, else slope * x."""
    return _LEAKY_RELU(x, slope)


def leaky_relu_backward(dy: DeviceArray, x: DeviceArray, slope: float) -> DeviceArray:
    """dy where x > 0, else slope * dy."""
    return _LEAKY_RELU_BACKWARD(dy, x, slope)


def elu(x: DeviceArray, alpha: float) -> DeviceArray:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    return _ELU(x, alpha)


def elu_backward(dy: DeviceArray, x: DeviceArray, alpha: float) -> DeviceArray:
    """dy where x > 0, else alpha * exp(x) * dy."""
    return _ELU_BACKWARD(dy, x, alpha)


def softplus(x: DeviceArray, beta: float, threshold: float) -> DeviceArray:
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""
    return _SOFTPLUS(x, beta, threshold)


def softplus_backward(dy: DeviceArray, x: DeviceArray, beta: float, threshold: float) -> DeviceArray:
    """dy * sigmoid(beta x); dy itself where beta x > threshold."""
    return _SOFTPLUS_BACKWARD(dy, x, beta, threshold)
