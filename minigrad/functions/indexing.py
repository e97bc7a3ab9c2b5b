"""Choosing elements by place, writing to places of a copy, sorting."""

from __future__ import annotations

from ..methods.indexing import ValuesAndIndices
from ..tensor import Operand, Tensor


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """y[i][j] = x[i][index[i][j]] for dim 1."""
    return x.gather(dim, index)


def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """``gather`` that broadcasts the other dimensions; without ``dim`` from the flattened tensor."""
    return x.take_along_dim(indices, dim)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of ``dim`` at the places in ``index``."""
    return x.index_select(dim, index)


def scatter(x: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """A copy of x in which y[i][index[i][j]] = src[i][j] for dim 1."""
    return x.scatter(dim, index, src)


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """A copy of x in which y[i][index[i][j]] += src[i][j] for dim 1."""
    return x.scatter_add(dim, index, src)


def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Indices that sort along ``dim``; stable."""
    return x.argsort(dim, descending)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> ValuesAndIndices:
    """(values, indices) sorted along ``dim``; stable."""
    return x.sort(dim, descending)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True) -> ValuesAndIndices:
    """(values, indices) of the ``k`` largest (or smallest) along ``dim``, best first."""
    return x.topk(k, dim, largest)
