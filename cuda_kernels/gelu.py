"""GELU: y = x Phi(x), Phi the distribution function of the standard normal; forward and backward one kernel each.

    approximate="none": Phi(x) = erfc(-x / sqrt 2) / 2                  dy/dx = Phi(x) + x phi(x)
    approximate="tanh": Phi(x) ~ s = sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
                        dy/dx = s + 2 x s (1 - s) du/dx                 as (1 + tanh u) / 2 = sigmoid(2u)

Source: Hendrycks & Gimpel, "Gaussian error linear units" (2016).
"""

from minigrad.plain_kernels.elementwise import gelu

from .platform.array import Array
from .pointwise.formulas import of_formula
from .pointwise.pointwise import Pointwise, floating

_LAZY = ("float64", "bfloat16", "float16")  # halves are computed in float32 and rounded once
_FORWARD = {
    "tanh": Pointwise("forward_tanh", of_formula(lambda x: gelu.forward(x, "tanh")), floating, 1, lazy=_LAZY),
    "none": Pointwise("forward_erf", of_formula(lambda x: gelu.forward(x, "none")), floating, 1, lazy=_LAZY),
}
_BACKWARD = {
    "tanh": Pointwise("backward_tanh", of_formula(lambda dy, x: gelu.backward(dy, x, "tanh")), floating, 2),
    "none": Pointwise("backward_erf", of_formula(lambda dy, x: gelu.backward(dy, x, "none")), floating, 2, lazy=_LAZY),
}


def forward(x: Array, approximate: str) -> Array:
    """x of a floating dtype, any shape -> y of the same shape."""
    return _FORWARD[approximate](x)


def backward(dy: Array, x: Array, approximate: str) -> Array:
    """dx = dy * dy/dx(x), shapes all equal."""
    return _BACKWARD[approximate](dy, x)
