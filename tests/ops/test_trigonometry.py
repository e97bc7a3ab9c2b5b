"""Inverse trigonometric and hyperbolic functions."""

import numpy as np
from harness import binary, every_check, unary, uniform

NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh"}
NUMPY |= {"atanh": "arctanh"}
INSIDE = uniform(-0.9, 0.9)
DOMAINS = {"asin": INSIDE, "acos": INSIDE, "atanh": INSIDE, "acosh": uniform(1.25, 4)}


def function(name):
    return unary(
        name,
        lambda x: getattr(x, name)(),
        getattr(np, NUMPY.get(name, name)),
        lambda x: getattr(x, name)(),
        domains=DOMAINS.get(name, uniform(-2, 2)),
        rounding=64,
    )


NAMES = ("sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh")
OPS = [
    *map(function, NAMES),
    binary("atan2", lambda x, y: x.atan2(y), np.arctan2, lambda x, y: x.atan2(y), rounding=64),
]


test_op = every_check(OPS)
