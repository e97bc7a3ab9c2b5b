"""Methods of Tensor that count values and compare neighbours, made of gather, scatter and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import dtypes, shapes
from ..errors import located
from ..ops import movement
from .indexing import ValuesAndIndices

if TYPE_CHECKING:
    from ..tensor import Tensor


class SearchMethods:
    """See the module."""

    __slots__ = ()

    def cummax(self: Tensor, dim: int) -> ValuesAndIndices:
        """The largest of the first 1, 2, ... values along ``dim``, and its index: of equals the last; NaN is largest.

        The gradient goes to that index.
        """
        return _running(self, dim, largest=True)

    def cummin(self: Tensor, dim: int) -> ValuesAndIndices:
        """The smallest of the first 1, 2, ... values along ``dim``, and its index: of equals the last; NaN is smallest.

        The gradient goes to that index.
        """
        return _running(self, dim, largest=False)

    def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """How often each of 0, 1, ... occurs in a vector of integers, up to the largest and at least ``minlength``.

        int64; with ``weights`` (as many) their sums: float32 for float32, else float64. No gradient.
        """
        if self.ndim != 1 or self.dtype.kind not in "iu":
            raise located(ValueError(f"bincount of {self.dtype}, shape {self.shape}: expected a vector of integers"))
        if weights is not None and weights.shape != self.shape:
            raise located(ValueError(f"bincount: weights of shape {weights.shape} for indices of shape {self.shape}"))
        if minlength < 0 or (len(self) and int(self.amin()) < 0):
            raise located(ValueError(f"bincount: minlength={minlength} and the numbers must not be negative"))
        size = max(minlength, int(self.amax()) + 1 if len(self) else 0)
        if weights is None:
            added = self.new_ones(len(self), dtype=dtypes.int64)
        else:
            added = weights.detach() if weights.dtype == dtypes.float32 else weights.detach().double()
        return added.new_zeros(size).scatter_add(0, self.long(), added)

    def diff(self: Tensor, n: int = 1, dim: int = -1) -> Tensor:
        """Each value less the one before it along ``dim``, ``n`` times over; of bool whether they differ."""
        at = shapes.normalize_dim(dim, self.ndim)
        if not self.ndim or n < 0:
            raise located(ValueError(f"diff of shape {self.shape}, n={n}: expected at least one dimension, and n >= 0"))
        y = self
        for _ in range(min(n, self.shape[at])):
            size = y.shape[at]
            later, earlier = y.narrow(at, 1, size - 1), y.narrow(at, 0, size - 1)
            y = later ^ earlier if y.dtype == dtypes.bool_ else later - earlier
        return y

    def trace(self: Tensor) -> Tensor:
        """The sum of a matrix's diagonal."""
        if self.ndim != 2:
            raise located(ValueError(f"trace of shape {self.shape}: expected a matrix; see .diagonal"))
        return self.diagonal().sum()


def _running(x: Tensor, dim: int, largest: bool) -> ValuesAndIndices:
    at = shapes.normalize_dim(dim, x.ndim)
    if not x.ndim:
        return ValuesAndIndices(x.clone(), x.new_zeros((), dtype=dtypes.int64))
    n = x.shape[at]
    steps = x.tensor_type(list(range(n)), dtype=dtypes.int64, device=x.device)
    best = steps.reshape(*(-1 if i == at else 1 for i in range(x.ndim))).expand(*x.shape)
    step = 1
    while step < n:  # Hillis and Steele 1986: each index sees twice as far back as before
        tail, earlier = best.narrow(at, step, n - step), best.narrow(at, 0, n - step)
        a, b = x.detach().gather(at, earlier), x.detach().gather(at, tail)
        stays = (b >= a if largest else b <= a) | (b != b)
        behind = tail.where(stays, earlier)
        best = movement.Cat.apply(best.narrow(at, 0, step), behind, axis=at)
        step *= 2
    return ValuesAndIndices(x.gather(at, best), best.clone())
