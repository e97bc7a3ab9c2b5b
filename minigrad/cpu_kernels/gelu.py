"""The Gaussian error linear unit: the plain formulas, each in one pass."""

from typing import Any

from ..plain_kernels import gelu as plain
from .toolbox.formula import formulas

forward: Any
backward: Any
globals().update(formulas(plain))
