"""Indexing and sorting. Their gradients are mostly zeros, so they add into the input's gradient in place."""

from __future__ import annotations

from typing import Any

from ..autograd import Function


class Index(Function):
    """y = x[where];  dx[where] += dy."""

    __slots__ = ("basic", "where")
    widens = False
    is_view = True
    adds_in_place = True
    basic: bool
    where: Any

    def forward(self, x: Any, *, where: Any, basic: bool) -> Any:
        if self.needs[0]:
            self.where, self.basic = self._kept(where), basic
        return self.kernels.indexing.index(x, where)

    def _kept(self, where: Any) -> Any:
        """The index with copies of its arrays, which the caller may change before backward."""
        if isinstance(where, tuple):
            return tuple(self._kept(part) for part in where)
        return self.kernels.copy(where) if isinstance(where, self.kernels.Array) else where

    def backward_into(self, dy: Any, dx: Any) -> None:
        self.kernels.indexing.add_at(dx, self.where, dy, distinct=self.basic)


class Gather(Function):
    """y[i][j] = x[i][indices[i][j]] (along an axis);  dx at those places += dy."""

    __slots__ = ("axis",)
    widens = False
    adds_in_place = True
    axis: int

    def forward(self, x: Any, indices: Any, *, axis: int) -> Any:
        self.axis = axis
        self.saved = (indices,)
        return self.kernels.indexing.gather(x, axis, indices)

    def backward_into(self, dy: Any, dx: Any) -> None:
        self.kernels.indexing.scatter_add(dx, self.axis, self.saved[0], dy)


class Scatter(Function):
    """y = x, but y[i][indices[i][j]] = source[i][j] (along an axis);  dx = dy, 0 where overwritten, dsource = dy there.

    If a position is written twice, the last value stays, and only that one gets a gradient.
    """

    __slots__ = ("axis",)
    widens = False
    axis: int

    def forward(self, x: Any, source: Any, indices: Any, *, axis: int) -> Any:
        self.axis = axis
        self.saved = (indices,)
        y = self.kernels.copy(x)
        self.kernels.indexing.scatter(y, axis, indices, source)
        return y

    def backward(self, dy: Any) -> Any:
        (indices,) = self.saved
        k = self.kernels.indexing
        dx = dsource = None
        if self.needs[0]:
            dx = self.kernels.copy(dy)
            k.scatter(dx, self.axis, indices, 0)
        if self.needs[1]:
            there = k.gather(dy, self.axis, indices)
            dsource = self.kernels.elementwise.select(k.scatter_winners(dy.shape, self.axis, indices), there)
        return dx, dsource, None


class ScatterAdd(Function):
    """y = x, but y[i][indices[i][j]] += source[i][j] (along an axis);  dx = dy, dsource = dy at those places."""

    __slots__ = ("axis",)
    axis: int

    def forward(self, x: Any, source: Any, indices: Any, *, axis: int) -> Any:
        self.axis = axis
        self.saved = (indices,)
        y = self.kernels.copy(x)
        self.kernels.indexing.scatter_add(y, axis, indices, source)
        return y

    def backward(self, dy: Any) -> Any:
        dsource = self.kernels.indexing.gather(dy, self.axis, self.saved[0]) if self.needs[1] else None
        return dy, dsource, None


class ArgSort(Function):
    """Indices that sort x along an axis, stably; no gradient."""

    __slots__ = ()
    differentiable = False

    def forward(self, x: Any, *, axis: int, descending: bool) -> Any:
        return self.kernels.indexing.argsort(x, axis, descending)


class OneHot(Function):
    """A new last axis with 1 at the index; no gradient."""

    __slots__ = ()
    widens = False
    differentiable = False

    def forward(self, indices: Any, *, classes: int) -> Any:
        return self.kernels.indexing.one_hot(indices, classes)
