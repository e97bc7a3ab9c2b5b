"""Softmax and its logarithm."""

from __future__ import annotations

from ..tensor import Tensor


def softmax(x: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """exp(x) along ``dim``, divided by its sum."""
    return x.softmax(dim, axis=axis)


def log_softmax(x: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """log(softmax(x)) along ``dim``, computed without overflow."""
    return x.log_softmax(dim, axis=axis)
