"""Inverse trigonometric and hyperbolic functions."""

import numpy as np
from harness import alike, every_check, unary, uniform

INSIDE = uniform(-0.9, 0.9)
DOMAINS = {"asin": INSIDE, "acos": INSIDE, "atanh": INSIDE, "acosh": uniform(1.25, 4)}

OPS = [
    *(
        unary(
            name, None, getattr(np, name.replace("a", "arc", 1)), domains=DOMAINS.get(name, uniform(-2, 2)), rounding=64
        )
        for name in ("sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh")
    ),
    alike("atan2", lambda x, y: x.atan2(y), np.arctan2, rounding=64),
]


test_op = every_check(OPS)
