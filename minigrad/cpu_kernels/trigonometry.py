"""Inverse trigonometric and hyperbolic functions: the plain formulas, each in one pass."""

from ..plain_kernels import trigonometry as plain
from .toolbox.formula import formulas

globals().update(formulas(plain))
