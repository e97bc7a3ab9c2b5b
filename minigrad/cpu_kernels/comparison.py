"""Comparisons and logic: the plain formulas, each in one pass."""

from ..plain_kernels import comparison as plain
from .toolbox.formula import formulas

globals().update(formulas(plain))
