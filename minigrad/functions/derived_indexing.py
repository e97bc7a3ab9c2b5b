"""Writing to places and looking for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..tensor import Operand, Tensor


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The values where the bool ``mask`` holds, as a vector."""
    return x.masked_select(mask)


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The values of ``source``, in order, where the bool ``mask`` holds, else x."""
    return x.masked_scatter(mask, source)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """A copy in which y[index[i]] += alpha * source[i] along ``dim``."""
    return x.index_add(dim, index, source, alpha=alpha)


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy in which y[index[i]] = source[i] along ``dim``."""
    return x.index_copy(dim, index, source)


def index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """A copy in which y[index[i]] = value along ``dim``."""
    return x.index_fill(dim, index, value)


def index_put(x: Tensor, indices: Sequence[Tensor], values: Operand, accumulate: bool = False) -> Tensor:
    """A copy in which y[indices] = values; with ``accumulate`` they are added."""
    return x.index_put(indices, values, accumulate)


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A copy of x in which y[i][index[i][j]] is reduced with src[i][j] for dim 1."""
    return x.scatter_reduce(dim, index, src, reduce, include_self=include_self)


def nonzero(x: Tensor, *, as_tuple: bool = False) -> Any:
    """Where x is not 0: indices of shape (count, ndim), or one vector per dimension."""
    return x.nonzero(as_tuple=as_tuple)


def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The different values, sorted; with where each element is among them, and how often each occurs."""
    return x.unique(sorted, return_inverse, return_counts, dim)


def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix with this vector on its diagonal."""
    return x.diag(diagonal)
