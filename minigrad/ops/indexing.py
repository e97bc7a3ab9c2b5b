"""Indexing and sorting. Their gradients are mostly zeros, so they add into the input's gradient in place."""

import math
from typing import Any, ClassVar

from ..autograd import Function
from ..dtypes import bool_, int64, is_half


class Slice(Function):
    """y = x[where], a view: ``where`` has integers, slices and the like, and an ellipsis;  dx[where] += dy."""

    __slots__ = ("where",)
    widens = False
    is_view = True
    adds_in_place = True

    def forward(self, x: Any, where: tuple[Any, ...]) -> Any:
        self.where = where
        return x[where]

    def backward_into(self, dy: Any, dx: Any) -> None:
        self.kernels.elementwise.add_into(dx[self.where], dy)


class Index(Function):
    """y = x[where], by arrays of integers or bool;  dx[where] += dy."""

    __slots__ = ("where",)
    widens = False
    adds_in_place = True
    where: Any

    def forward(self, x: Any, where: Any) -> Any:
        if self.needs[0]:
            self.where = _kept(self.kernels, where)
        return self.kernels.indexing.index(x, where)

    def backward_into(self, dy: Any, dx: Any) -> None:
        self.kernels.indexing.add_at(dx, self.where, dy)


def _kept(kernels: Any, where: Any) -> Any:
    """The index with copies of its arrays, which the caller may change before backward."""
    if isinstance(where, tuple):
        return tuple([_kept(kernels, part) for part in where])
    if not isinstance(where, kernels.Array):
        return where
    once = tuple([slice(None if stride else 1) for stride in where.strides])  # the rest repeats it
    return kernels.movement.expand(kernels.copy(where[once]), where.shape)


class _Written(Function):
    """y = x, but values at places, or their sum with it where the operation ``adds``;  dx = dy, unless it adds 0 there,
    dvalues = dy there.

    If a place is written twice, the last value stays, and only that one gets a gradient. A subclass says how values are
    ``put`` to the places ``where`` of an array, and how those there are ``got``.
    """

    __slots__ = ("shape", "where")
    widens = False
    adds: ClassVar[bool] = False
    where: Any
    put: ClassVar[Any]
    got: ClassVar[Any]

    def forward(self, x: Any, values: Any, *indices: Any, **options: Any) -> Any:
        y = self.kernels.copy(x)
        self.where, self.shape = (*indices, *options.values()), getattr(values, "shape", ())
        self.put(y, values, self.adds)
        self.where = _kept(self.kernels, self.where) if True in self.needs else None
        return y

    def backward(self, dy: Any) -> Any:
        k, dx, dvalues, parts = self.kernels, dy, None, self.where[0]
        if self.needs[0] and not self.adds:
            dx = k.copy(dy)
            self.put(dx, 0, False)
        if self.needs[1]:
            dvalues = self.got(dy)
            repeats = not isinstance(parts, tuple) or any(getattr(x, "dtype", bool_) != bool_ for x in parts)  # may
            if repeats and not self.adds:
                arrays = isinstance(parts, tuple) and self.where[1] is None
                arrays = arrays and all(isinstance(x, slice) or getattr(x, "dtype", bool_) != bool_ for x in parts)
                rest = dy.ndim - len(parts) if arrays else 0  # dimensions that are written as a whole
                shape = dvalues.shape[: dvalues.ndim - rest]
                order = k.reduce.cumsum(k.ones((math.prod(shape),), int64), 0).reshape(shape)
                last = k.zeros(dy.shape[: dy.ndim - rest], int64)
                self.put(last, order, False)
                stays = k.comparison.eq(self.got(last), order).reshape((*shape, *(1,) * rest))
                dvalues = k.elementwise.select(stays, dvalues)
            dvalues = dvalues.reshape((1,) * (len(self.shape) - dvalues.ndim) + dvalues.shape)
        return (dx, dvalues, None)[: len(self.needs)]


class IndexPut(_Written):
    """At an index, or at one of the view that ``first`` gives."""

    def put(self, y: Any, values: Any, adds: bool) -> None:
        k, (where, first) = self.kernels.indexing, self.where
        (k.add_at if adds else k.assign_at)(y if first is None else k.index(y, first), where, values)

    def got(self, y: Any) -> Any:
        k, (where, first) = self.kernels.indexing, self.where
        return k.index(y if first is None else k.index(y, first), where)


class IndexAdd(IndexPut):
    """``IndexPut`` that adds."""

    widens = True
    half_kernels = "elementwise"
    adds = True


class Scatter(_Written):
    """y[i][indices[i][j]] = values[i][j] (along an axis)."""

    def put(self, y: Any, values: Any, adds: bool) -> None:
        (indices, axis), k = self.where, self.kernels.indexing
        (k.scatter_add if adds else k.scatter)(y, axis, indices, values)

    def got(self, y: Any) -> Any:
        return self.kernels.indexing.gather(y, self.where[1], self.where[0])


class ScatterAdd(Scatter):
    """y[i][indices[i][j]] += values[i][j] (along an axis)."""

    widens = True
    half_kernels = "elementwise"
    adds = True


class Gather(Function):
    """y[i][j] = x[i][indices[i][j]] (along an axis, which the indices may lack);  dx at those places += dy."""

    __slots__ = ("adds_once",)
    widens = False
    adds_in_place = True

    def forward(self, x: Any, indices: Any, *, axis: int, made: Any = None) -> Any:
        """``made``: the result, where a reduction has found it together with the indices."""
        places = indices if indices.ndim == x.ndim else indices.reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :]))
        self.saved = (axis, places)
        self.adds_once: bool = places.shape[axis] == 1
        y = self.kernels.indexing.gather(x, axis, places) if made is None else made
        return y if places is indices else y.reshape(indices.shape)

    def backward_into(self, dy: Any, dx: Any) -> None:
        (axis, places), k = self.saved, self.kernels
        dy = dy.reshape(places.shape)
        if is_half(dx.dtype):  # once to a place, or it would be float32
            k.indexing.scatter(dx, axis, places, k.elementwise.add(k.indexing.gather(dx, axis, places), dy))
        else:
            k.indexing.scatter_add(dx, axis, places, dy)


class _Reduced(Function):
    """y = x, but y[i][indices[i][j]] = f(itself, source[i][j]) (along an axis), f as ``reduce`` says."""

    def forward(self, x: Any, source: Any, indices: Any, *, axis: int, reduce: str) -> Any:
        y = self.kernels.copy(x)
        self.kernels.indexing.scatter_reduce(y, axis, indices, source, reduce)
        self.saved = (x, source, indices, y, axis)
        return y


class ScatterProd(_Reduced):
    """The product;  each gets dy times the product of the others.

    That is the product of all that are not 0, divided by itself, unless another one is 0.
    """

    def backward(self, dy: Any) -> Any:
        x, source, indices, _, axis = self.saved
        k, c, i = self.kernels.elementwise, self.kernels.comparison, self.kernels.indexing
        x_zero, source_zero = (k.cast(c.eq(v, 0), x.dtype) for v in (x, source))
        x_part, source_part = k.add(x, x_zero), k.add(source, source_zero)  # 1 for 0
        product, zeros = self.kernels.copy(x_part), self.kernels.copy(x_zero)
        i.scatter_reduce(product, axis, indices, source_part, "prod")
        i.scatter_add(zeros, axis, indices, source_zero)
        dx = k.mul(dy, k.select(c.eq(zeros, x_zero), k.div(product, x_part))) if self.needs[0] else None
        dsource = None
        if self.needs[1]:
            dy, product, zeros = (i.gather(v, axis, indices) for v in (dy, product, zeros))
            dsource = k.mul(dy, k.select(c.eq(zeros, source_zero), k.div(product, source_part)))
        return dx, dsource, None


class ScatterExtremum(_Reduced):
    """The larger (smaller) one;  dy to those that it is. Those that tie share it evenly, as in ``AMax``."""

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
