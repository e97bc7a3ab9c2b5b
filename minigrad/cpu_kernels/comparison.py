"""Comparisons and logic: the plain formulas, each in one pass."""

from ..plain_kernels import comparison as plain
from .toolbox.array_program import formulas

globals().update(formulas(plain))
