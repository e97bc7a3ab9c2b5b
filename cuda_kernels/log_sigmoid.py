"""Logarithm of the sigmoid, and its gradient, of the plain formulas."""

from minigrad.plain_kernels import log_sigmoid as plain

from .pointwise.pointwise import made_from

made_from(plain, globals())
