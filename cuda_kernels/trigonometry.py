"""Inverse trigonometric and hyperbolic functions from scalar rules. Outside of their domains they give NaN."""

from __future__ import annotations

import numpy as np

from .platform.language import math
from .pointwise.pointwise import Pointwise, like
from .pointwise.rules import of_math, of_numbers

sinh: Pointwise = Pointwise("sinh", of_math("sinh"), like(np.sinh), 1)
cosh: Pointwise = Pointwise("cosh", of_math("cosh"), like(np.cosh), 1)
asin: Pointwise = Pointwise("asin", of_math("asin"), like(np.arcsin), 1)
acos: Pointwise = Pointwise("acos", of_math("acos"), like(np.arccos), 1)
atan: Pointwise = Pointwise("atan", of_math("atan"), like(np.arctan), 1)
atan2: Pointwise = Pointwise("atan2", of_numbers(lambda x, y: math.atan2(x, y)), like(np.arctan2), 2)
asinh: Pointwise = Pointwise("asinh", of_math("asinh"), like(np.arcsinh), 1)
acosh: Pointwise = Pointwise("acosh", of_math("acosh"), like(np.arccosh), 1)
atanh: Pointwise = Pointwise("atanh", of_math("atanh"), like(np.arctanh), 1)
