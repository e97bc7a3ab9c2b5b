"""Logarithm of the sigmoid: the plain formulas, each in one pass."""

from ..plain_kernels import log_sigmoid as plain
from .toolbox.array_program import formulas

globals().update(formulas(plain))
