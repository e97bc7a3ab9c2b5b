"""Inverse trigonometric and hyperbolic functions: the plain formulas, in chunks where arrays are large."""

from ..plain_kernels import trigonometry as plain
from .toolbox.array_program import formulas

globals().update(formulas(plain))
