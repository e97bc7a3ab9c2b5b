"""Methods of Tensor that write to places or look for them, made of gather, scatter and sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import capturing, dtypes, shapes
from ..autograd import TensorCore
from ..errors import located
from ..indices import scatter_source
from ..ops import indexing

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


class DerivedIndexingMethods:
    """See the module."""

    __slots__ = ()

    def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        """The values of ``source``, in order, where the bool ``mask`` holds, else self; self and mask broadcast."""
        shape = shapes.broadcast(self.shape, mask.shape)
        x, chosen = self.expand(*shape), mask.expand(*shape)
        count = int(chosen.sum())
        if count > source.numel():
            raise located(ValueError(f"masked_scatter: {count} places and {source.numel()} values in the source"))
        if source.dtype != self.dtype:
            raise located(
                TypeError(f"masked_scatter: the source is {source.dtype}, the tensor {self.dtype}; use .to(dtype)")
            )
        if not count:
            return x.clone()
        place = (chosen.reshape(-1).cumsum(0) - 1).clamp(min=0)
        return source.reshape(-1).index_select(0, place).reshape(shape).where(chosen, x)

    def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
        """A copy in which y[index[i]] += alpha * source[i] along ``dim``."""
        at, places = _along(self, dim, index, source)
        return self.scatter_add(at, places, source if alpha == 1 else source * alpha)

    def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        """A copy in which y[index[i]] = source[i] along ``dim``; of equal places the last one stays."""
        at, places = _along(self, dim, index, source)
        return self.scatter(at, places, source)

    def index_fill(self: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
        """A copy in which y[index[i]] = value along ``dim``; ``value`` is a number or a 0-d tensor."""
        if not self.ndim:
            return self.reshape(1).index_fill(dim, index, value).reshape(())
        at = shapes.normalize_dim(dim, self.ndim)
        size = self.shape[at]
        index = index.reshape(-1)
        chosen = self.new_zeros(size, dtype=dtypes.bool_).scatter(0, index.where(index >= 0, index + size), True)
        mask = chosen.reshape(*(size if i == at else 1 for i in range(self.ndim)))
        if not isinstance(value, TensorCore):
            return self.masked_fill(mask, value)
        if value.ndim:
            raise located(ValueError(f"index_fill: a value of shape {value.shape}; expected a number or a 0-d tensor"))
        return value.to(self.dtype).where(mask, self)

    def index_put(self: Tensor, indices: Sequence[Tensor], values: Operand, accumulate: bool = False) -> Tensor:
        """A copy in which y[indices] = values, which broadcast; with ``accumulate`` they are added.

        Of a place that occurs twice the last value stays and gets the gradient; ``accumulate`` adds them all.
        """

        def every() -> Tensor:
            return self.tensor_type(np.arange(self.numel()).reshape(self.shape), device=self.device)

        places = capturing.constant(every)[tuple(indices)]
        if isinstance(values, TensorCore):
            values = values.expand(*places.shape).reshape(-1)
        write = self.reshape(-1).scatter_add if accumulate else self.reshape(-1).scatter
        return write(0, places.reshape(-1), values).reshape(self.shape)

    def scatter_reduce(
        self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
    ) -> Tensor:
        """A copy in which y[i][index[i][j]] is reduced with src[i][j] (for dim 1), as in ``scatter``.

        ``reduce`` is "sum", "prod", "mean", "amax" or "amin". Without ``include_self``, what was at a place that is
        written does not count. The mean of integers is rounded down; values that tie for the largest or the smallest
        share the gradient evenly.
        """
        if reduce not in REDUCTIONS:
            raise located(ValueError(f"scatter_reduce: reduce={reduce!r}; expected one of {', '.join(REDUCTIONS)}"))
        if not isinstance(src, TensorCore):
            raise located(TypeError(f"scatter_reduce: src is a {type(src).__name__}; expected a tensor"))
        axis = shapes.normalize_dim(dim, self.ndim)
        source = scatter_source("scatter_reduce", self, axis, index, src)
        x = self if include_self else self.scatter(axis, index, _neutral(reduce, self.dtype))
        if reduce in ("prod", "amax", "amin"):
            op = indexing.ScatterProd if reduce == "prod" else indexing.ScatterExtremum
            return op.apply(x, source, index, axis=axis, reduce=reduce)
        total = x.scatter_add(axis, index, source)
        if reduce == "sum":
            return total
        ones = self.new_ones(index.shape, dtype=dtypes.int64)
        count = self.new_full(self.shape, include_self, dtype=dtypes.int64).scatter_add(axis, index, ones)
        return total.div(count.clamp(min=1), rounding_mode=None if self.is_floating_point() else "floor").to(self.dtype)

    def masked_select(self: Tensor, mask: Tensor) -> Tensor:
        """The values where the bool ``mask`` holds, as a vector; the two broadcast."""
        shape = shapes.broadcast(self.shape, mask.shape)
        return self.expand(*shape)[mask.expand(*shape)]

    def nonzero(self: Tensor, *, as_tuple: bool = False) -> Any:
        """Where self is not 0: indices (int64) of shape (count, ndim), or with ``as_tuple`` one vector per dimension,
        so that ``x[x.nonzero(as_tuple=True)]`` are the values.
        """
        if as_tuple and not self.ndim:
            return self.reshape(1).nonzero(as_tuple=True)
        sizes = np.array([max(n, 1) for n in self.shape], np.int64)
        strides = np.array([max(math.prod(self.shape[i + 1 :]), 1) for i in range(self.ndim)], np.int64)
        where = (self != 0).reshape(-1)
        found = self.tensor_type(np.arange(self.numel()), device=self.device)[where].unsqueeze(1)
        step, size = (self.tensor_type(n, device=self.device) for n in (strides, sizes))
        places = found // step % size
        return places.unbind(1) if as_tuple else places

    def unique(
        self: Tensor,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
    ) -> Any:
        """The different values of the flattened tensor, sorted even if not asked; no gradient.

        With ``return_inverse`` also, in the shape of self, where each element is among them, and with ``return_counts``
        how often each value occurs (both int64). NaN differs from every other NaN. ValueError for a ``dim``.
        """
        if dim is not None:
            raise located(
                ValueError(f"unique: dim={dim}; only the values of the whole tensor, dim=None, are supported")
            )
        x = self.detach().reshape(-1)
        order = x.argsort(0)
        ordered = x.index_select(0, order)
        first = ordered != ordered.roll(1)
        if x.numel():
            first[0] = True
        values = ordered[first]
        rank = first.cumsum(0) - 1  # of each ordered element among the values
        found = [values]
        if return_inverse:
            found.append(order.scatter(0, order, rank).reshape(self.shape))
        if return_counts:
            ones = rank.new_ones(x.numel())
            found.append(rank.new_zeros(values.numel()).scatter_add(0, rank, ones))
        return tuple(found) if len(found) > 1 else values

    def diag(self: Tensor, diagonal: int = 0) -> Tensor:
        """The diagonal of a matrix, or the matrix with this vector on its diagonal and zeros elsewhere; a copy."""
        if self.ndim == 2:
            return self.diagonal(diagonal).clone()
        if self.ndim != 1:
            raise located(ValueError(f"diag of shape {self.shape}: expected a vector or a matrix; see .diagonal"))
        size = len(self) + abs(diagonal)
        first = diagonal if diagonal >= 0 else -diagonal * size
        places = self.tensor_type(first + np.arange(len(self)) * (size + 1), device=self.device)
        return self.new_zeros(size * size).scatter(0, places, self).reshape(size, size)


def _along(x: Tensor, dim: int, index: Tensor, source: Tensor) -> tuple[int, Tensor]:
    """The dimension, and the places of the slices of ``source`` as an index of ``scatter``."""
    at = shapes.normalize_dim(dim, x.ndim)
    return at, index.reshape(*(-1 if i == at else 1 for i in range(x.ndim))).expand(*source.shape)


def _neutral(reduce: str, dtype: np.dtype[Any]) -> float:
    """What changes nothing when it takes part in a reduction."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    largest = reduce == "amin"
    if dtypes.is_floating(dtype):
        return math.inf if largest else -math.inf
    if dtype == dtypes.bool_:
        return largest
    return int(np.iinfo(dtype).max if largest else np.iinfo(dtype).min)
