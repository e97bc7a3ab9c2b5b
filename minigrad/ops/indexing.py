"""Indexing and sorting. Their gradients are mostly zeros, so they add into the input's gradient in place."""

import math
from typing import Any, ClassVar

from ..autograd import Function
from ..dtypes import bool_, int64


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
            self.where, self.basic = _kept(self.kernels, where), basic
        return self.kernels.indexing.index(x, where)

    def backward_into(self, dy: Any, dx: Any) -> None:
        indexing, elementwise = self.kernels.indexing, self.kernels.elementwise
        part = indexing.index(dx, self.where) if self.basic else None
        if part is None:
            indexing.add_at(dx, self.where, dy)
        elif part.base is dx or self.kernels.may_share_memory(dx, part):
            elementwise.add_into(part, dy)
        else:  # of a mask
            indexing.assign_at(dx, self.where, elementwise.add(part, dy))


def _kept(kernels: Any, where: Any) -> Any:
    """The index with copies of its arrays, which the caller may change before backward."""
    if isinstance(where, tuple):
        return tuple([_kept(kernels, part) for part in where])
    if not isinstance(where, kernels.Array):
        return where
    once = tuple([slice(None if stride else 1) for stride in where.strides])  # the rest repeats it
    return kernels.movement.expand(kernels.copy(where[once]), where.shape)


def _indexed(where: Any, ndim: int) -> int:
    """How many dimensions an index of arrays and slices takes; all of them for another."""
    parts = where if isinstance(where, tuple) else (where,)
    if any(part is None or part is Ellipsis or isinstance(part, bool) for part in parts):
        return ndim
    return sum(part.ndim if getattr(part, "dtype", int64) == bool_ else 1 for part in parts)


class IndexPut(Function):
    """y = x, but y[where] = values, after ``first`` a view;  dx = dy, 0 there, dvalues = dy there.

    If a position is written twice, the last value stays, and only that one gets a gradient.
    """

    __slots__ = ("basic", "first", "shape", "where")
    widens = False
    adds: ClassVar[bool] = False

    def forward(self, x: Any, values: Any, *, where: Any, basic: bool = False, first: Any = None) -> Any:
        y, k = self.kernels.copy(x), self.kernels.indexing
        self.basic, self.first, self.shape = basic, first, getattr(values, "shape", ())
        if True in self.needs:
            self.where = _kept(self.kernels, where)
        (k.add_at if self.adds else k.assign_at)(self._part(y), where, values)
        return y

    def _part(self, y: Any) -> Any:
        return y if self.first is None else self.kernels.indexing.index(y, self.first)

    def backward(self, dy: Any) -> Any:
        k, dx, dvalues = self.kernels.indexing, dy, None
        if self.needs[0] and not self.adds:
            dx = self.kernels.copy(dy)
            k.assign_at(self._part(dx), self.where, 0)
        if self.needs[1]:
            part = self._part(dy)
            dvalues = k.index(part, self.where)
            if not (self.basic or self.adds):
                dims, where = _indexed(self.where, part.ndim), self.where
                rest, shape = (1,) * (part.ndim - dims), dvalues.shape[: dvalues.ndim - part.ndim + dims]
                write, read = (lambda x, y: k.assign_at(x, where, y)), (lambda x: k.index(x, where))
                stays = _staying(self.kernels, shape, part.shape[:dims], write, read)
                dvalues = self.kernels.elementwise.select(stays.reshape((*shape, *rest)), dvalues)
            dvalues = dvalues.reshape((1,) * (len(self.shape) - dvalues.ndim) + dvalues.shape)
        return dx, dvalues


class IndexAdd(IndexPut):
    """y = x, but y[where] += values;  dx = dy, dvalues = dy there."""

    widens = True
    adds = True


def _staying(kernels: Any, shape: Any, target: Any, write: Any, read: Any) -> Any:
    """bool, of ``shape``: which values stay where some that ``write`` puts into an array are put over others."""
    order = kernels.reduce.cumsum(kernels.ones((math.prod(shape),), int64), 0).reshape(shape)
    last = kernels.zeros(target, int64)
    write(last, order)
    return kernels.comparison.eq(read(last), order)


class Gather(Function):
    """y[i][j] = x[i][indices[i][j]] (along an axis, which the indices may lack);  dx at those places += dy."""

    widens = False
    adds_in_place = True

    def forward(self, x: Any, indices: Any, *, axis: int) -> Any:
        places = indices if indices.ndim == x.ndim else indices.reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :]))
        self.saved = (axis, places)
        y = self.kernels.indexing.gather(x, axis, places)
        return y if places is indices else y.reshape(indices.shape)

    def backward_into(self, dy: Any, dx: Any) -> None:
        axis, places = self.saved
        self.kernels.indexing.scatter_add(dx, axis, places, dy.reshape(places.shape))


class Scatter(Function):
    """y = x, but y[i][indices[i][j]] = source[i][j] (along an axis);  dx = dy, 0 where overwritten, dsource = dy there.

    If a position is written twice, the last value stays, and only that one gets a gradient.
    """

    widens = False

    def forward(self, x: Any, source: Any, indices: Any, *, axis: int) -> Any:
        self.saved = (axis, _kept(self.kernels, indices) if True in self.needs else indices)
        y = self.kernels.copy(x)
        self.kernels.indexing.scatter(y, axis, indices, source)
        return y

    def backward(self, dy: Any) -> Any:
        k = self.kernels.indexing
        dx = dsource = None
        if self.needs[0]:
            dx = self.kernels.copy(dy)
            k.scatter(dx, *self.saved, 0)
        if self.needs[1]:
            (axis, indices), there = self.saved, k.gather(dy, *self.saved)
            write, read = (lambda x, y: k.scatter(x, axis, indices, y)), (lambda x: k.gather(x, axis, indices))
            stays = _staying(self.kernels, there.shape, dy.shape, write, read)
            dsource = self.kernels.elementwise.select(stays, there)
        return dx, dsource, None


class ScatterAdd(Function):
    """y = x, but y[i][indices[i][j]] += source[i][j] (along an axis);  dx = dy, dsource = dy at those places."""

    def forward(self, x: Any, source: Any, indices: Any, *, axis: int) -> Any:
        self.saved = (axis, _kept(self.kernels, indices) if True in self.needs else indices)
        y = self.kernels.copy(x)
        self.kernels.indexing.scatter_add(y, axis, indices, source)
        return y

    def backward(self, dy: Any) -> Any:
        dsource = self.kernels.indexing.gather(dy, *self.saved) if self.needs[1] else None
        return dy, dsource, None


class ScatterProd(Function):
    """y = x, but y[i][indices[i][j]] *= source[i][j] (along an axis);  each gets dy times the product of the others.

    That is the product of all that are not 0, divided by itself, unless another one is 0.
    """

    def forward(self, x: Any, source: Any, indices: Any, *, axis: int, reduce: str) -> Any:
        self.saved = (x, source, indices, axis)
        y = self.kernels.copy(x)
        self.kernels.indexing.scatter_reduce(y, axis, indices, source, reduce)
        return y

    def backward(self, dy: Any) -> Any:
        x, source, indices, axis = self.saved
        k, c, i = self.kernels.elementwise, self.kernels.comparison, self.kernels.indexing
        x_zero, source_zero = (k.cast(c.eq(v, 0), x.dtype) for v in (x, source))
        x_part, source_part = k.add(x, x_zero), k.add(source, source_zero)  # 1 for 0
        product, zeros = self.kernels.copy(x_part), self.kernels.copy(x_zero)
        i.scatter_reduce(product, axis, indices, source_part, "prod")
        i.scatter_add(zeros, axis, indices, source_zero)
        dx = dsource = None
        if self.needs[0]:
            dx = k.mul(dy, k.select(c.eq(zeros, x_zero), k.div(product, x_part)))
        if self.needs[1]:
            dy, product, zeros = (i.gather(v, axis, indices) for v in (dy, product, zeros))
            dsource = k.mul(dy, k.select(c.eq(zeros, source_zero), k.div(product, source_part)))
        return dx, dsource, None


class ScatterExtremum(Function):
    """y = x, but y[i][indices[i][j]] = the larger (smaller) one of itself and source[i][j];  dy to those that it is.

    Those that tie share it evenly, as in ``AMax``.
    """

    def forward(self, x: Any, source: Any, indices: Any, *, axis: int, reduce: str) -> Any:
        y = self.kernels.copy(x)
        self.kernels.indexing.scatter_reduce(y, axis, indices, source, reduce)
        self.saved = (x, source, indices, y, axis)
        return y

    def backward(self, dy: Any) -> Any:
        x, source, indices, y, axis = self.saved
        k, eq, i = self.kernels.elementwise, self.kernels.comparison.eq, self.kernels.indexing
        attained = k.cast(eq(x, y), x.dtype)
        source_attained = k.cast(eq(source, i.gather(y, axis, indices)), x.dtype)
        ties = self.kernels.copy(attained)
        i.scatter_add(ties, axis, indices, source_attained)
        share = k.div(dy, ties)
        return k.mul(share, attained), k.mul(i.gather(share, axis, indices), source_attained), None


class ArgSort(Function):
    """Indices that sort x along an axis, stably, or the ``first`` of them; no gradient."""

    differentiable = False

    def forward(self, x: Any, *, axis: int, descending: bool, first: int | None = None) -> Any:
        return self.kernels.indexing.argsort(x, axis, descending, first)


class OneHot(Function):
    """A new last axis with 1 at the index; no gradient."""

    widens = False
    differentiable = False

    def forward(self, indices: Any, *, classes: int) -> Any:
        return self.kernels.indexing.one_hot(indices, classes)
