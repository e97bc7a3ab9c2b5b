"""Methods of Tensor: elements by place, writing to places of a copy, sorting, counting, drawing places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import dtypes, shapes
from ..autograd import TensorCore
from ..errors import bad_type, bad_value, check_instance, check_option, expect
from ..modes import cast_inputs
from ..ops import indexing, movement
from ..random import Source, draw
from ..shapes import Axis, check_range, parse_index, scatter_source
from .combine import combine

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


class ValuesAndIndices(NamedTuple):
    """What ``max(dim)``, ``min(dim)``, ``sort`` and ``topk`` return."""

    values: Tensor
    indices: Tensor


class IndexingMethods:
    """See the module."""

    __slots__ = ()

    def __getitem__(self: Tensor, where: Any) -> Tensor:
        first, where, is_view = parse_index(where)
        x = self if first is None else combine(indexing.Slice, self, first)
        return combine(indexing.Slice if is_view else indexing.Index, x, where)

    def __contains__(self: Tensor, value: Any) -> bool:
        return bool((self == value).any().item())

    def __iter__(self: Tensor) -> Iterator[Tensor]:
        if not self.ndim:
            raise bad_type("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    def gather(self: Tensor, dim: int, index: Tensor) -> Tensor:
        """y[i][j] = self[i][index[i][j]] for dim 1; ``index`` (int) has as many dimensions, none larger except dim."""
        shape, wanted = self.data.shape, index.data.shape
        dim = shapes.normalize_dim(dim, len(shape))
        if not shape and not wanted:
            return self.reshape(1).gather(0, index.reshape(1)).reshape(())
        shapes.check_places("gather", self, dim, index)
        return indexing.Gather.apply(self, index, axis=dim)

    def take_along_dim(self: Tensor, indices: Tensor, dim: Axis = None) -> Tensor:
        """``gather`` that broadcasts the other dimensions; without ``dim`` from the flattened tensor."""
        if dim is None:
            return self.flatten().gather(0, indices.flatten())
        axis = shapes.normalize_dim(dim, self.ndim)
        if indices.ndim != self.ndim:
            raise bad_value(f"take_along_dim: indices of shape {indices.shape} for a tensor of shape {self.shape}")
        if self.data.shape == indices.data.shape:
            return self.gather(axis, indices)
        x, found = shapes.broadcast_except(axis, self.shape, indices.shape)
        return self.expand(x).gather(axis, indices.expand(found))

    def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
        """The slices of ``dim`` at the places in ``index`` (1-d, int), repeated and in any order; a copy."""
        self._needs_dimension("index_select")
        axis = shapes.normalize_dim(dim, self.ndim)
        if index.ndim > 1:
            raise bad_value(f"index_select: index of shape {index.shape}; expected one dimension")
        check_range("index_select", index, self.data.shape[axis])
        return combine(indexing.Index, self, (slice(None),) * axis + (index.data.reshape(-1),))

    def masked_select(self: Tensor, mask: Tensor) -> Tensor:
        """The values where the bool ``mask`` holds, as a vector; the two broadcast."""
        x, chosen = self._together(shapes.bool_mask("masked_select", mask))
        return x[chosen]

    def _together(self: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Both as they broadcast."""
        if self.data.shape == other.data.shape:
            return self, other
        shape = shapes.broadcast(self.shape, other.shape)
        return self.expand(*shape), other.expand(*shape)

    def nonzero(self: Tensor, *, as_tuple: bool = False) -> Any:
        """Where self is not 0: indices (int64) of shape (count, ndim), or with ``as_tuple`` one vector per dimension,
        so that ``x[x.nonzero(as_tuple=True)]`` are the values.
        """
        if as_tuple and not self.ndim:
            return self.reshape(1).nonzero(as_tuple=True)
        places = self.wrap(self.device.kernels.indexing.nonzero((self != 0).data), self.device)
        return places.unbind(1) if as_tuple else places

    def diag(self: Tensor, diagonal: int = 0) -> Tensor:
        """The diagonal of a matrix, or the matrix with this vector on its diagonal and zeros elsewhere; a copy."""
        if self.ndim == 2:
            return self.diagonal(diagonal).clone()
        if self.ndim != 1:
            raise bad_value(f"diag of shape {self.shape}: expected a vector or a matrix; see .diagonal")
        return combine(movement.DiagEmbed, self, offset=diagonal)

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

    def scatter_reduce(
        self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
    ) -> Tensor:
        """A copy in which y[i][index[i][j]] is reduced with src[i][j] (for dim 1), as in ``scatter``.

        ``reduce`` is "sum", "prod", "mean", "amax" or "amin". Without ``include_self``, what was at a place that is
        written does not count. The mean of integers is rounded down; values that tie for the largest or the smallest
        share the gradient evenly.
        """
        check_option("scatter_reduce: reduce", reduce, REDUCTIONS)
        if not isinstance(src, TensorCore):
            raise bad_type(f"scatter_reduce: src is a {type(src).__name__}; expected a tensor")
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

    def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        """The values of ``source``, in order, where the bool ``mask`` holds, else self; self and mask broadcast."""
        x, chosen = self._together(shapes.bool_mask("masked_scatter", mask))
        count = int(chosen.sum())
        check_instance("masked_scatter: source", source, self.tensor_type)
        if count > source.numel():
            raise bad_value(f"masked_scatter: {count} places and {source.numel()} values in the source")
        if source.dtype != self.dtype:
            raise bad_type(f"masked_scatter: the source is {source.dtype}, the tensor {self.dtype}; use .to(dtype)")
        return indexing.IndexPut.apply(x, source.flatten()[:count], where=(chosen.data,), first=None)

    def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
        """A copy in which y[index[i]] += alpha * source[i] along ``dim``."""
        where = _along("index_add", self, dim, index, source)
        return _put("index_add", indexing.IndexAdd, self, source if alpha == 1 else source * alpha, where)

    def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        """A copy in which y[index[i]] = source[i] along ``dim``; of equal places the last one stays."""
        return _put("index_copy", indexing.IndexPut, self, source, _along("index_copy", self, dim, index, source))

    def index_fill(self: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
        """A copy in which y[index[i]] = value along ``dim``; ``value`` is a number or a 0-d tensor."""
        if not self.ndim:
            return self.reshape(1).index_fill(dim, index, value).reshape(())
        if isinstance(value, TensorCore) and value.ndim:
            raise bad_value(f"index_fill: a value of shape {value.shape}; expected a number or a 0-d tensor")
        value = value.to(self.dtype) if isinstance(value, TensorCore) else value
        return _put("index_fill", indexing.IndexPut, self, value, _along("index_fill", self, dim, index.reshape(-1)))

    def index_put(self: Tensor, indices: Sequence[Tensor], values: Operand, accumulate: bool = False) -> Tensor:
        """A copy in which y[indices] = values, which broadcast; with ``accumulate`` they are added.

        Of a place that occurs twice the last value stays and gets the gradient; ``accumulate`` adds them all.
        """
        first, where, _ = parse_index(tuple(indices))
        return _put("index_put", indexing.IndexAdd if accumulate else indexing.IndexPut, self, values, where, first)

    def argsort(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """Indices (int64) that sort along ``dim``; stable even if not asked, NaN last (first if descending)."""
        if not self.ndim:
            return self.reshape(1).argsort(dim).reshape(())
        return combine(indexing.ArgSort, self, axis=shapes.normalize_dim(dim, self.ndim), descending=descending)

    def sort(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesAndIndices:
        """(values, indices) sorted along ``dim``; stable even if not asked."""
        order = self.argsort(dim, descending)
        return ValuesAndIndices(self._at(dim, order), order)

    def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True) -> ValuesAndIndices:
        """(values, indices) of the ``k`` largest (or smallest) along ``dim``, best first."""
        dim = shapes.normalize_dim(dim, self.ndim)
        if not self.ndim:
            return ValuesAndIndices(*(x.reshape(()) for x in self.reshape(1).topk(k)))
        if not 0 <= k <= self.data.shape[dim]:  # the text of an error takes time to write
            expect(False, "topk: k", k, f"0 to {self.data.shape[dim]}, the size of dim {dim}")
        order = combine(indexing.ArgSort, self, axis=dim, descending=largest, first=k)
        return ValuesAndIndices(indexing.Gather.apply(self, order, axis=dim), order)

    def _at(self: Tensor, dim: int, index: Tensor) -> Tensor:
        """``gather`` of an index that was found in this tensor, and so is in range; it may lack the dimension."""
        if not self.ndim:
            return self.clone()
        return indexing.Gather.apply(self, index, axis=shapes.normalize_dim(dim, self.ndim))

    def unique(
        self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Axis = None
    ) -> Any:
        """The different values of the flattened tensor, sorted even if not asked; no gradient.

        With ``return_inverse`` also, in the shape of self, where each element is among them, and with ``return_counts``
        how often each value occurs (both int64). NaN differs from every other NaN. ValueError for a ``dim``.
        """
        if dim is not None:
            raise bad_value(f"unique: dim={dim}; only the values of the whole tensor, dim=None, are supported")
        x, k = self.detach().reshape(-1), self.device.kernels
        order = x.argsort(0)
        ordered = k.indexing.gather(x.data, 0, order.data)
        first = k.ones(ordered.shape, dtypes.bool_)
        k.elementwise.assign(first[1:], k.comparison.ne(ordered[1:], ordered[:-1]))
        values = self.wrap(k.indexing.index(ordered, first), self.device)
        if not (return_inverse or return_counts):
            return values
        rank = self.wrap(first, self.device).cumsum(0) - 1  # of each ordered element among the values
        found = [values]
        if return_inverse:
            found.append(order.scatter(0, order, rank).reshape(self.shape))
        if return_counts:
            found.append(rank.new_zeros(values.numel()).scatter_add(0, rank, rank.new_ones(x.numel())))
        return tuple(found)

    def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """How often each of 0, 1, ... occurs in a vector of integers, up to the largest and at least ``minlength``.

        int64; with ``weights`` (as many) their sums: float32 for float32, else float64. No gradient.
        """
        if self.ndim != 1 or self.dtype.kind not in "iu":
            raise bad_value(f"bincount of {self.dtype}, shape {self.shape}: expected a vector of integers")
        if weights is not None and weights.shape != self.shape:
            raise bad_value(f"bincount: weights of shape {weights.shape} for indices of shape {self.shape}")
        k, x = self.device.kernels, self.long().data
        if minlength < 0 or (x.size and k.to_host(k.reduce.min(x, (0,), False)) < 0):
            raise bad_value(f"bincount: minlength={minlength} and the numbers must not be negative")
        size = max(minlength, int(k.to_host(k.reduce.max(x, (0,), False))) + 1 if x.size else 0)
        own = None if weights is None else weights.dtype
        y = k.zeros((size,), dtype := {None: dtypes.int64, dtypes.float32: own}.get(own, dtypes.float64))
        k.indexing.scatter_add(y, 0, x, 1 if weights is None else weights.to(dtype).data)
        return self.wrap(y, self.device)

    def multinomial(self: Tensor, num_samples: int, replacement: bool = False, *, generator: Source = None) -> Tensor:
        """Indices (int64, shape (..., num_samples)) drawn in proportion to the last dimension's weights.

        Without ``replacement`` no index comes twice in a row: each draw is from those that are left (by exponential
        clocks; Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).

        Raises ValueError for weights that are negative, not finite, or all zero in a row. Raises it also for more
        samples without replacement than a row has weights above 0.
        """
        w, k, last = self.detach() if self.is_floating_point() else self.double(), self.device.kernels, self.ndim - 1
        if good := last >= 0 and w.shape[-1] > 0:  # divided by the largest, so that no sum overflows or is subnormal
            top = k.reduce.max(w.data, (last,), True)
            edges = k.reduce.cumsum(k.elementwise.fused(_parts, dtypes.float64, w.data, top), last)
            least = [k.reduce.min(x, tuple(range(w.ndim)), False) for x in (w.data, edges[..., -1:]) if w.numel()]
            good = all(k.to_host(x) >= n for x, n in zip(least, (0, 1)))
        if not good:
            raise bad_value("multinomial: weights must be finite, non-negative, and not all zero in a row")
        expect(num_samples >= 0, "multinomial: num_samples", num_samples, "0 or more")
        once = not replacement and num_samples > 1
        shape = w.shape if once else (*w.shape[:-1], num_samples)
        if once and w.numel() and num_samples > (positive := int((w > 0).sum(-1).amin())):
            raise bad_value(
                f"multinomial: num_samples={num_samples} without replacement, but a row has {positive} weights "
                "above 0; pass replacement=True"
            )
        u = draw("uniform", k, shape, dtypes.float64, generator)
        if once:
            clocks = (-(-self.wrap(u, w.device)).log1p()).log() - w.double().log()  # logarithms: none overflows
            return clocks.topk(num_samples, largest=False).indices
        # The first edge above the point; a weight of 0 has an empty interval, so it is never drawn.
        found = k.indexing.searchsorted(edges, k.elementwise.mul(u, edges[..., -1:]), True)
        return self.wrap(found, w.device)


def _parts(k: Any, dtype: Any, x: Any, whole: Any) -> Any:
    return k.div(k.cast(x, dtype), k.cast(whole, dtype))


def _along(name: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None = None) -> tuple[Any, ...]:
    """The slices of x along a dimension, which those of ``source`` fit; without it places may be negative."""
    x._needs_dimension(name)
    at = shapes.normalize_dim(dim, x.ndim)
    check_range(name, index, x.shape[at] if source is not None else None)
    sizes = (*x.shape[:at], index.numel(), *x.shape[at + 1 :])
    if source is not None:
        check_instance(f"{name}: source", source, x.tensor_type)
        if index.ndim > 1 or source.shape != sizes:
            places = f"{index.shape} places of {x.shape}"
            raise bad_value(f"{name} along {at}: a source of shape {source.shape} does not fit {places}")
    return (slice(None),) * at + (index.data.reshape(-1),)


def _put(name: str, op: Any, x: Tensor, values: Operand, where: tuple[Any, ...], first: Any = None) -> Tensor:
    """``IndexPut`` or ``IndexAdd``; TypeError for values of another dtype."""
    x, values = cast_inputs("widest", x, x._operand(values))
    if isinstance(values, TensorCore) and values.dtype != x.dtype:
        raise bad_type(f"{name}: values are {values.dtype}, the tensor {x.dtype}; convert with .to(dtype)")
    return op.apply(x, values, where=where, first=first)


def _neutral(reduce: str, dtype: np.dtype[Any]) -> float:
    """The value that leaves the result of a reduction as it is."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    largest = reduce == "amin"
    if dtypes.is_floating(dtype):
        return math.inf if largest else -math.inf
    return largest if dtype == dtypes.bool_ else int(np.iinfo(dtype).max if largest else np.iinfo(dtype).min)
