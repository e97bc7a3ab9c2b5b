"""Activations in pieces: the plain formulas, in chunks where arrays are large."""

from ..plain_kernels import activation as plain
from .toolbox.array_program import formulas

globals().update(formulas(plain))
