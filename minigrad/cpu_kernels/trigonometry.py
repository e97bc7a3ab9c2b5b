"""Inverse trigonometric and hyperbolic functions, by NumPy's ufuncs. Outside of their domains they give NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

quiet: np.errstate = np.errstate(all="ignore")

sinh: Callable[..., Any] = quiet(np.sinh)
cosh: Callable[..., Any] = quiet(np.cosh)
asin: Callable[..., Any] = quiet(np.arcsin)
acos: Callable[..., Any] = quiet(np.arccos)
atan: np.ufunc = np.arctan
atan2: np.ufunc = np.arctan2
asinh: np.ufunc = np.arcsinh
acosh: Callable[..., Any] = quiet(np.arccosh)
atanh: Callable[..., Any] = quiet(np.arctanh)
