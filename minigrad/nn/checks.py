"""Checks of arguments that the functions share."""

from __future__ import annotations

from ..dtypes import float32, float64
from ..tensor import Tensor


def float32_or_64(name: str, x: Tensor) -> Tensor:
    """``x``, if the fused kernels can compute with its dtype."""
    if x.dtype not in (float32, float64):
        raise TypeError(f"{name} expects float32 or float64, not {x.dtype}; convert with .float()")
    return x


def check_reduction(name: str, reduction: str, known: tuple[str, ...] = ("mean", "sum", "none")) -> None:
    """ValueError unless ``reduction`` is one of ``known``."""
    if reduction not in known:
        expected = ", ".join(map(repr, known[:-1]))
        raise ValueError(f"{name}: reduction={reduction!r}; expected {expected} or {known[-1]!r}")


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """The mean or sum of ``losses``, or themselves."""
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses
