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


@rule
def _leaky_relu(real):
    return lambda x, slope: x if x > real(0) else x * slope


@rule
def _leaky_relu_backward(real):
    return lambda dy, x, slope: dy if x > real(0) else dy * slope


@rule
def _elu(real):
    return lambda x, alpha: x if x > real(0) else alpha * math.expm1(x)


@rule
def _elu_backward(real):
    return lambda dy, x, alpha: dy if x > real(0) else dy * (alpha * math.exp(x))


leaky_relu: Pointwise = Pointwise("leaky_relu", _leaky_relu, floating, 2)
leaky_relu_backward: Pointwise = Pointwise("leaky_relu_backward", _leaky_relu_backward, floating, 3)
elu: Pointwise = Pointwise("elu", _elu, floating, 2)
elu_backward: Pointwise = Pointwise("elu_backward", _elu_backward, floating, 3)
softplus: Pointwise = Pointwise("softplus", _softplus, floating, 3)
softplus_backward: Pointwise = Pointwise("softplus_backward", _softplus_backward, floating, 4, registers=40)
