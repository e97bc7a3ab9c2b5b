"""Inverse trigonometric and hyperbolic functions, of the plain formulas. Outside of their domains they give NaN."""

from minigrad.plain_kernels import trigonometry as plain

from .pointwise.pointwise import made_from

made_from(plain, globals())
