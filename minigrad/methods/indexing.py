"""Methods of Tensor: choosing elements by place, writing to places of a copy, sorting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import shapes
from ..errors import located
from ..indices import check_range, parse_index, scatter_source
from ..mixed_precision import cast_inputs
from ..ops import indexing

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class ValuesAndIndices(NamedTuple):
    """What ``max(dim)``, ``min(dim)``, ``sort`` and ``topk`` return."""

    values: Tensor
    indices: Tensor


class IndexingMethods:
    """See the module."""

    __slots__ = ()

    def __getitem__(self: Tensor, where: Any) -> Tensor:
        first, where, basic = parse_index(where)
        x = self if first is None else indexing.Index.apply(self, where=first, basic=True)
        return indexing.Index.apply(x, where=where, basic=basic)

    def __contains__(self: Tensor, value: Any) -> bool:
        return bool((self == value).any().item())

    def __iter__(self: Tensor) -> Iterator[Tensor]:
        if not self.ndim:
            raise located(TypeError("iteration over a 0-d tensor"))
        return iter(self.unbind(0))

    def gather(self: Tensor, dim: int, index: Tensor) -> Tensor:
        """y[i][j] = self[i][index[i][j]] for dim 1; ``index`` (int) has as many dimensions, none larger except dim."""
        dim = shapes.normalize_dim(dim, self.ndim)
        if not self.ndim and not index.ndim:
            return self.reshape(1).gather(0, index.reshape(1)).reshape(())
        sizes = zip(index.shape, self.shape, strict=False)
        if index.ndim != self.ndim or any(n > m for i, (n, m) in enumerate(sizes) if i != dim):
            raise located(
                ValueError(f"gather along {dim}: index shape {index.shape} does not fit the tensor's {self.shape}")
            )
        check_range("gather", index, self.shape[dim])
        return indexing.Gather.apply(self, index, axis=dim)

    def take_along_dim(self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
        """``gather`` that broadcasts the other dimensions; without ``dim`` from the flattened tensor."""
        if dim is None:
            return self.flatten().gather(0, indices.flatten())
        axis = shapes.normalize_dim(dim, self.ndim)
        if indices.ndim != self.ndim:
            raise located(
                ValueError(f"take_along_dim: indices of shape {indices.shape} for a tensor of shape {self.shape}")
            )
        x, found = shapes.broadcast_except(axis, self.shape, indices.shape)
        return self.expand(x).gather(axis, indices.expand(found))

    def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
        """The slices of ``dim`` at the places in ``index`` (1-d, int), repeated and in any order; a copy."""
        self._needs_dimension("index_select")
        axis = shapes.normalize_dim(dim, self.ndim)
        if index.ndim > 1:
            raise located(ValueError(f"index_select: index of shape {index.shape}; expected one dimension"))
        check_range("index_select", index, self.shape[axis])
        where = (slice(None),) * axis + (index.data.reshape(-1),)
        return indexing.Index.apply(self, where=where, basic=False)

    def scatter(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
        """A copy in which y[i][index[i][j]] = src[i][j] (for dim 1); ``src`` is a tensor or a number, as in ``gather``.

        If a place is written twice, the last value stays and gets the gradient.
        """
        axis = shapes.normalize_dim(dim, self.ndim)
        x, src = cast_inputs("widest", self, self._operand(src))
        return indexing.Scatter.apply(x, scatter_source("scatter", x, axis, index, src), index, axis=axis)

    def scatter_add(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
        """A copy in which y[i][index[i][j]] += src[i][j] (for dim 1); a place may occur more than once."""
        axis = shapes.normalize_dim(dim, self.ndim)
        x, src = cast_inputs("widest", self, self._operand(src))
        return indexing.ScatterAdd.apply(x, scatter_source("scatter_add", x, axis, index, src), index, axis=axis)

    def argsort(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """Indices (int64) that sort along ``dim``; stable even if not asked, NaN last (first if descending)."""
        if not self.ndim:
            return self.reshape(1).argsort(dim).reshape(())
        return indexing.ArgSort.apply(self, axis=shapes.normalize_dim(dim, self.ndim), descending=descending)

    def sort(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesAndIndices:
        """(values, indices) sorted along ``dim``; stable even if not asked."""
        order = self.argsort(dim, descending)
        return ValuesAndIndices(self._at(dim, order), order)

    def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True) -> ValuesAndIndices:
        """(values, indices) of the ``k`` largest (or smallest) along ``dim``, best first."""
        dim = shapes.normalize_dim(dim, self.ndim)
        if not self.ndim:
            return ValuesAndIndices(*(x.reshape(()) for x in self.reshape(1).topk(k)))
        if not 0 <= k <= self.shape[dim]:
            raise located(ValueError(f"topk: k={k}; expected 0 to {self.shape[dim]}, the size of dim {dim}"))
        order = self.argsort(dim, largest)[(slice(None),) * dim + (slice(k),)]
        return ValuesAndIndices(self._at(dim, order), order)

    def _at(self: Tensor, dim: int, index: Tensor) -> Tensor:
        """``gather`` of an index that was found in this tensor, and so is in range."""
        if not self.ndim:
            return self.clone()
        return indexing.Gather.apply(self, index, axis=shapes.normalize_dim(dim, self.ndim))
