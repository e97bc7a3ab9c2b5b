"""Piecewise activations and their gradients. NaN goes through.

    leaky_relu(x, slope)            x where x > 0, else slope x
    elu(x, alpha)                   x where x > 0, else alpha (e^x - 1)
    softplus(x, beta, threshold)    log(1 + e^(beta x)) / beta; x itself where beta x > threshold

The gradients take dy first. Each is one kernel, of a rule that is composed of the shared ones.
"""

from __future__ import annotations

from .platform.language import math
from .pointwise import rules
from .pointwise.pointwise import Pointwise, floating
from .pointwise.rules import rule


@rule
def _softplus(real):
    softplus_of = rules.softplus(real)

    def scaled(x, beta, threshold):
        z = x * beta
        return x if z > threshold else softplus_of(z) / beta

    return scaled


@rule
def _softplus_backward(real):
    sigmoid = rules.sigmoid(real)

    def slope(dy, x, beta, threshold):
        z = x * beta
        return dy if z > threshold else dy * sigmoid(z)

    return slope


_LEAKY_RELU = rule(lambda real: lambda x, slope: x if x > real(0) else x * slope)
_LEAKY_RELU_BACKWARD = rule(lambda real: lambda dy, x, slope: dy if x > real(0) else dy * slope)
_ELU = rule(lambda real: lambda x, alpha: x if x > real(0) else alpha * math.expm1(x))
_ELU_BACKWARD = rule(lambda real: lambda dy, x, alpha: dy if x > real(0) else dy * (alpha * math.exp(x)))

leaky_relu: Pointwise = Pointwise("leaky_relu", _LEAKY_RELU, floating, 2)
leaky_relu_backward: Pointwise = Pointwise("leaky_relu_backward", _LEAKY_RELU_BACKWARD, floating, 3)
elu: Pointwise = Pointwise("elu", _ELU, floating, 2)
elu_backward: Pointwise = Pointwise("elu_backward", _ELU_BACKWARD, floating, 3)
softplus: Pointwise = Pointwise("softplus", _softplus, floating, 3)
softplus_backward: Pointwise = Pointwise("softplus_backward", _softplus_backward, floating, 4, registers=40)
