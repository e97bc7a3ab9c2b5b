"""Functions of the methods in ``methods/search.py``."""

from __future__ import annotations

from ..methods.indexing import ValuesAndIndices
from ..tensor import Tensor


def cummax(x: Tensor, dim: int) -> ValuesAndIndices:
    """``Tensor.cummax``."""
    return x.cummax(dim)


def cummin(x: Tensor, dim: int) -> ValuesAndIndices:
    """``Tensor.cummin``."""
    return x.cummin(dim)


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """``Tensor.bincount``."""
    return x.bincount(weights, minlength)


def diff(x: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    """``Tensor.diff``."""
    return x.diff(n, dim)


def trace(x: Tensor) -> Tensor:
    """``Tensor.trace``."""
    return x.trace()
