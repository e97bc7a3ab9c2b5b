"""Indexing and sorting. Their gradients are mostly zeros, so they add into the input's gradient in place."""

from typing import Any

from ..autograd import Function


class Slice(Function):
    """y = x[where], a view: ``where`` has integers, slices and the like, and an ellipsis;  dx[where] += dy."""

    __slots__ = ("where",)
    widens = False
    is_view = True
    adds_in_place = True
    where: tuple[Any, ...]

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
            kernels, parts = self.kernels, where if isinstance(where, tuple) else (where,)
            # Copies of arrays, which the caller may change before backward.
            kept = [kernels.copy(part) if isinstance(part, kernels.Array) else part for part in parts]
            self.where = tuple(kept) if isinstance(where, tuple) else kept[0]
        return self.kernels.indexing.index(x, where)

    def backward_into(self, dy: Any, dx: Any) -> None:
        self.kernels.indexing.add_at(dx, self.where, dy)


class Gather(Function):
    """y[i][j] = x[i][indices[i][j]] (along an axis, which the indices may lack);  dx at those places += dy."""

    widens = False
    adds_in_place = True

    def forward(self, x: Any, indices: Any, *, axis: int, made: Any = None) -> Any:
        """``made``: the result, where a reduction has found it together with the indices."""
        places = indices if indices.ndim == x.ndim else indices.reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :]))
        self.saved = (axis, places)
        y = self.kernels.indexing.gather(x, axis, places) if made is None else made
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
        self.saved = (axis, self.kernels.copy(indices))  # which the caller may change before backward
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
            there = k.gather(dy, *self.saved)
            dsource = self.kernels.elementwise.select(k.scatter_winners(dy.shape, *self.saved), there)
        return dx, dsource, None


class ScatterAdd(Function):
    """y = x, but y[i][indices[i][j]] += source[i][j] (along an axis);  dx = dy, dsource = dy at those places."""

    def forward(self, x: Any, source: Any, indices: Any, *, axis: int) -> Any:
        self.saved = (axis, self.kernels.copy(indices))  # which the caller may change before backward
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
