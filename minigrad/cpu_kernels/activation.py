"""Activations in pieces: the plain formulas, each in one pass."""

from ..plain_kernels import activation as plain
from .toolbox.array_program import formulas

globals().update(formulas(plain))
