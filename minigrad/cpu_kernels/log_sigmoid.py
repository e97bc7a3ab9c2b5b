"""Logarithm of the sigmoid: the plain formulas, in chunks where arrays are large."""

from ..plain_kernels import log_sigmoid as plain
from .toolbox.array_program import formulas

globals().update(formulas(plain))
