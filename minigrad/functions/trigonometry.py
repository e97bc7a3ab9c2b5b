"""The inverse and the hyperbolic functions."""

from __future__ import annotations

from ..tensor import Tensor


def sinh(x: Tensor) -> Tensor:
    """Hyperbolic sine."""
    return x.sinh()


def cosh(x: Tensor) -> Tensor:
    """Hyperbolic cosine."""
    return x.cosh()


def asin(x: Tensor) -> Tensor:
    """Inverse sine."""
    return x.asin()


def acos(x: Tensor) -> Tensor:
    """Inverse cosine."""
    return x.acos()


def atan(x: Tensor) -> Tensor:
    """Inverse tangent."""
    return x.atan()


def asinh(x: Tensor) -> Tensor:
    """Inverse hyperbolic sine."""
    return x.asinh()


def acosh(x: Tensor) -> Tensor:
    """Inverse hyperbolic cosine."""
    return x.acosh()


def atanh(x: Tensor) -> Tensor:
    """Inverse hyperbolic tangent."""
    return x.atanh()


def atan2(x: Tensor, other: Tensor) -> Tensor:
    """The angle of the points with y = x and x = other."""
    return x.atan2(other)
