"""The steps of what normalises channels, of the plain formulas: one kernel each."""

from minigrad.plain_kernels import batch_norm as plain

from .pointwise.pointwise import made_from

made_from(plain, globals(), registers=64)
