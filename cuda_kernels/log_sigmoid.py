"""Logarithm of the sigmoid: y = min(x, 0) - log(1 + e^-|x|) = -softplus(-x);  dx = sigmoid(-x) dy."""

from __future__ import annotations

from .pointwise import rules
from .pointwise.pointwise import Pointwise, floating
from .pointwise.rules import rule


@rule
def _forward(real):
    softplus = rules.softplus(real)
    return lambda x: -softplus(-x)


@rule
def _backward(real):
    sigmoid = rules.sigmoid(real)
    return lambda dy, x: dy * sigmoid(-x)


forward: Pointwise = Pointwise("forward", _forward, floating, 1)
backward: Pointwise = Pointwise("backward", _backward, floating, 2)
