"""Sums, means, extrema and the like over dimensions, and running sums and products."""

from __future__ import annotations

from typing import Any

from ..shapes import Dim
from ..tensor import Tensor


def sum(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum over ``dim`` (default all)."""
    return x.sum(dim, keepdim, dtype=dtype)


def mean(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Mean over ``dim`` (default all)."""
    return x.mean(dim, keepdim, dtype=dtype)


def nansum(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Sum over ``dim`` of what is not NaN."""
    return x.nansum(dim, keepdim)


def nanmean(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Mean over ``dim`` of what is not NaN."""
    return x.nanmean(dim, keepdim)


def amax(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Largest value over ``dim``; ties share the gradient evenly."""
    return x.amax(dim, keepdim)


def amin(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Smallest value over ``dim``; ties share the gradient evenly."""
    return x.amin(dim, keepdim)


def any(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether any value over ``dim`` is not zero."""
    return x.any(dim, keepdim)


def all(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether all values over ``dim`` are not zero."""
    return x.all(dim, keepdim)


def var(
    x: Tensor, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """Variance over ``dim``, divided by n - correction."""
    return x.var(dim, unbiased, keepdim, correction=correction)


def std(
    x: Tensor, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """Square root of ``var``."""
    return x.std(dim, unbiased, keepdim, correction=correction)


def norm(x: Tensor, p: float | str = 2, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Euclidean norm over ``dim`` (default all)."""
    return x.norm(p, dim, keepdim)


def logsumexp(x: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over ``dim``, without overflow."""
    return x.logsumexp(dim, keepdim)


def prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Product along ``dim`` (default all)."""
    return x.prod(dim, keepdim, dtype=dtype)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first largest value along ``dim``, or of the flattened tensor."""
    return x.argmax(dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first smallest value along ``dim``, or of the flattened tensor."""
    return x.argmin(dim, keepdim)


def max(x: Tensor, dim: Tensor | int | None = None, keepdim: bool = False) -> Any:
    """The largest value, or along ``dim`` the pair (values, indices)."""
    return x.max(dim, keepdim)


def min(x: Tensor, dim: Tensor | int | None = None, keepdim: bool = False) -> Any:
    """The smallest value, or along ``dim`` the pair (values, indices)."""
    return x.min(dim, keepdim)


def median(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The value in the middle, or along ``dim`` the pair (values, indices)."""
    return x.median(dim, keepdim)


def cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Sums of the first 1, 2, ... values along ``dim``."""
    return x.cumsum(dim, dtype=dtype)


def cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Products of the first 1, 2, ... values along ``dim``."""
    return x.cumprod(dim, dtype=dtype)
