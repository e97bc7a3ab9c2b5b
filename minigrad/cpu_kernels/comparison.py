"""Comparisons and logic: the plain formulas, in chunks where arrays are large."""

from ..plain_kernels import comparison as plain
from .toolbox.array_program import in_chunks

globals().update(in_chunks(plain))
