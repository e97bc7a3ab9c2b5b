"""Inverse trigonometric and hyperbolic functions, by NumPy's ufuncs. Outside of their domains they give NaN."""

from __future__ import annotations

import numpy as np

quiet = np.errstate(all="ignore")

sinh = quiet(np.sinh)
cosh = quiet(np.cosh)
asin = quiet(np.arcsin)
acos = quiet(np.arccos)
atan = np.arctan
atan2 = np.arctan2
asinh = np.arcsinh
acosh = quiet(np.arccosh)
atanh = quiet(np.arctanh)
