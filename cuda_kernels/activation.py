"""Activations in pieces, and their gradients, of the plain formulas: one kernel each. NaN goes through."""

from minigrad.plain_kernels import activation as plain

from .pointwise.pointwise import made_from

made_from(plain, globals(), registers=40)
