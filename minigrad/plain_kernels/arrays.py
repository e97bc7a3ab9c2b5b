"""Arrays: making and copying them, other shapes and orders, positions and tables, sums and other reductions."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

# What each backend in the host's memory has from here; the families below have their own names.
__all__ = [
    "Array", "as_array", "contiguous", "copy", "empty", "from_dlpack", "from_host", "full", "may_share_memory", "ones",
    "quiet", "reinterpret", "to_host", "zeros",
]  # fmt: skip
untyped: Any = np  # NumPy's type stubs have no overload for a ``keepdims`` that is a variable
Array = np.ndarray
as_array: Callable[..., np.ndarray] = np.asarray
empty: Callable[..., np.ndarray] = np.empty
ones: Callable[..., np.ndarray] = np.ones
zeros: Callable[..., np.ndarray] = np.zeros
may_share_memory: Callable[..., bool] = np.may_share_memory
from_dlpack: Callable[..., np.ndarray] = np.from_dlpack


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype is float16, or bfloat16, which NumPy has from another package and which is of kind V."""
    return dtype.kind in "fV" and dtype.itemsize == 2


def full(shape: tuple[int, ...], value: Any, dtype: Any) -> np.ndarray:
    """A new array filled with ``value``."""
    if shape or not isinstance(value, int | float):
        return np.full(shape, value, dtype)
    return np.array(value, dtype)  # in a fifth of the time


def copy(x: np.ndarray) -> np.ndarray:
    """A new C-contiguous array of the same values."""
    return np.array(x, order="C", copy=True)


def contiguous(x: np.ndarray) -> np.ndarray:
    """``x`` itself if it is C-contiguous, else a copy that is; keeps 0-d arrays 0-d."""
    return x if x.flags.c_contiguous else np.array(x, order="C", copy=True)


def from_host(x: np.ndarray, wait: bool = True) -> np.ndarray:
    """A NumPy array as an array of this device: itself, so there is nothing to wait for."""
    return x


def to_host(x: np.ndarray, wait: bool = True) -> np.ndarray:
    """An array of this device as a NumPy array: itself, so there is nothing to wait for."""
    return x


def reinterpret(x: np.ndarray, dtype: Any) -> np.ndarray:
    """The same bits as another dtype of the same width; a view."""
    return x.view(dtype)


def quiet() -> np.errstate:
    """A context in which NaN and infinite results raise no warnings."""
    return np.errstate(all="ignore")


_nditer: Any = np.nditer
_EXPANDED: tuple[Any, ...] = ("multi_index", "refs_ok", "zerosize_ok"), ("readonly",)


def padded_shape(x: Any, widths: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """What ``pad`` makes of the shape of x."""
    return tuple([n + before + after for n, (before, after) in zip(x.shape, widths, strict=True)])


def pad_parts(y: Any, x: Any, widths: tuple[tuple[int, int], ...]) -> tuple[list[Any], Any, Any]:
    """The borders of y, what is left of it, and the part of x that goes there; views."""
    edges, inner, kept = [], y, x
    for axis, (before, after) in enumerate(widths):
        along = (slice(None),) * axis
        low, high = max(before, 0), y.shape[axis] - max(after, 0)
        edges += [inner[(*along, slice(low))], inner[(*along, slice(high, None))]]
        inner = inner[(*along, slice(low, high))]
        kept = kept[(*along, slice(max(-before, 0), x.shape[axis] - max(-after, 0)))]
    return edges, inner, kept


class movement:
    """Rearranging memory: views where NumPy can give one, copies where it cannot."""

    def reshape(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """``x`` in another shape; a view if strides allow it."""
        return x.reshape(shape)

    def permute(x: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        """A view with the axes in another order."""
        return x.transpose(order)

    def expand(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """A read-only view with size-1 and new leading axes repeated (stride 0)."""
        walk = _nditer((x,), *_EXPANDED, itershape=shape, order="C")
        return walk.itviews[0]  # np.broadcast_to, without a microsecond of Python

    def cat(arrays: tuple[np.ndarray, ...], axis: int) -> np.ndarray:
        """The arrays one after the other along ``axis``."""
        return np.concatenate(arrays, axis)

    def split(x: Any, sizes: tuple[int, ...], axis: int) -> list[Any]:
        """Consecutive views of the given sizes along ``axis``."""
        before = (slice(None),) * axis
        return [x[(*before, slice(end - n, end))] for n, end in zip(sizes, itertools.accumulate(sizes), strict=True)]

    def tril(x: np.ndarray, diagonal: int) -> np.ndarray:
        """The last two axes' lower triangle, zeros above ``diagonal``."""
        return np.tril(x, diagonal)

    def triu(x: np.ndarray, diagonal: int) -> np.ndarray:
        """The last two axes' upper triangle, zeros below ``diagonal``."""
        return np.triu(x, diagonal)

    def pad(x: np.ndarray, widths: tuple[tuple[int, int], ...], value: float) -> np.ndarray:
        """A copy with (before, after) elements of ``value`` added along each axis; negative numbers remove elements."""
        y = np.full(padded_shape(x, widths), value, x.dtype)
        _, inner, kept = pad_parts(y, x, widths)
        inner[...] = kept
        return y

    def diagonal(x: np.ndarray, offset: int, axis1: int, axis2: int) -> np.ndarray:
        """A view of the diagonal of two axes as a new last axis, writeable if ``x`` is."""
        y = np.diagonal(x, offset, axis1, axis2)
        y.flags.writeable = x.flags.writeable
        return y


class indexing:
    """Reading and adding at positions. An index is anything NumPy accepts: ints, slices, None, Ellipsis, bool or int
    arrays.
    """

    def index(x: np.ndarray, where: Any) -> np.ndarray:
        """x[where]: a view for basic indices, a copy if arrays are among them."""
        y = x[where]
        return y if isinstance(y, np.ndarray) else x[(*np.atleast_1d(where), ...)]

    def add_at(x: np.ndarray, where: Any, y: np.ndarray) -> None:
        """x[where] += y; repeated positions add up."""
        _change_at(np.add, x, where, y)

    def assign_at(x: np.ndarray, where: Any, y: Any) -> None:
        """x[where] = y."""
        x[where] = y

    def gather(x: np.ndarray, axis: int, indices: np.ndarray) -> np.ndarray:
        """y[i][j][k] = x[i][indices[i][j][k]][k] (for axis 1), the shape of ``indices``."""
        return x[_grid(x, indices, axis)]

    def scatter_add(x: np.ndarray, axis: int, indices: np.ndarray, y: np.ndarray) -> None:
        """x[i][indices[i][j][k]][k] += y[i][j][k] (for axis 1), in place; repeated positions add up in order."""
        _change_at(np.add, x, _grid(x, indices, axis), y)

    def scatter(x: np.ndarray, axis: int, indices: np.ndarray, y: Any) -> None:
        """x[i][indices[i][j][k]][k] = y[i][j][k] (for axis 1), in place; of repeated positions the last one wins."""
        x[_grid(x, indices, axis)] = y

    def scatter_reduce(x: np.ndarray, axis: int, indices: np.ndarray, y: np.ndarray, reduce: str) -> None:
        """x[i][indices[i][j][k]][k] = f(itself, y[i][j][k]) (for axis 1), in place, one after the other.

        f is the product, the larger or the smaller one for ``reduce`` "prod", "amax" or "amin"; NaN stays.
        """
        _change_at(REDUCTIONS[reduce], x, _grid(x, indices, axis), y)

    def argsort(x: np.ndarray, axis: int, descending: bool, first: int | None = None) -> np.ndarray:
        """The ``first`` (default: all) indices (int64) of ``x`` sorted stably along ``axis``; NaN is the largest."""
        if descending:  # stably: reverse, sort ascending (stable), reverse back
            order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
            order = np.flip(x.shape[axis] - 1 - order, axis)
        else:
            order = np.argsort(x, axis=axis, kind="stable")
        return order[(slice(None),) * axis + (slice(first),)]

    def nonzero(x: np.ndarray) -> np.ndarray:
        """int64 (count, ndim): the places where x, of bool, is True."""
        rest = x.reshape(-1).nonzero()[0]
        places = np.empty((rest.size, x.ndim), np.int64)
        for dim in range(x.ndim - 1, 0, -1):
            above = rest // max(x.shape[dim], 1)
            np.subtract(rest, above * x.shape[dim], places[:, dim])
            rest = above
        places[:, :1] = rest[:, None]
        return places

    def searchsorted(x: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
        """int64: how many of the ascending last axis of ``x`` are before each value, or with ``right`` not behind it.

        ``x`` is a vector for all values, or has their axes but the last; NaN is behind all.
        """
        rows, side = math.prod(x.shape[:-1]), "right" if right else "left"
        pairs = zip(x.reshape(rows, x.shape[-1]), values.reshape(rows, -1) if values.size else ())
        found = [untyped.searchsorted(row, sought, side) for row, sought in pairs]
        return np.array(found, np.int64).reshape(values.shape)

    def one_hot(indices: np.ndarray, classes: int) -> np.ndarray:
        """int64, a new last axis with 1 at the index."""
        y = np.zeros((*indices.shape, classes), np.int64)
        y.reshape(-1)[np.arange(indices.size) * classes + indices.reshape(-1)] = 1
        return y


REDUCTIONS: dict[str, np.ufunc] = {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}


@quiet()
def _change_at(ufunc: np.ufunc, x: np.ndarray, where: Any, y: Any) -> None:
    """x[where] = ufunc(itself, y), one after the other; half-width floats in float32, rounded once."""
    wide = x.astype(np.float32) if is_half(x.dtype) else x
    ufunc.at(wide, where, np.asarray(y).astype(wide.dtype, copy=False))
    if wide is not x:
        x[...] = wide


def _grid(x: np.ndarray, indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    if (bad := embedding.check_indices(indices, x.shape[axis])) >= 0:
        raise IndexError(f"index {indices.reshape(-1)[bad]} is out of range for size {x.shape[axis]}")
    ranges = [np.arange(n).reshape(-1, *(1,) * (indices.ndim - 1 - i)) for i, n in enumerate(indices.shape)]
    return (*ranges[:axis], indices, *ranges[axis + 1 :])


class embedding:
    """y[i] = weight[indices[i]];  dweight[v] = sum of dy[i] over the positions i with indices[i] = v."""

    def check_indices(indices: np.ndarray, rows: int) -> int:
        """The first flat position whose index, int64, is not in 0..rows - 1; -1 if all are."""
        bad = (indices < 0) | (indices >= rows)
        return int(bad.argmax()) if bad.any() else -1

    def forward(weight: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """weight (V, C) of any real dtype, indices int64 of any shape (checked) -> (*indices.shape, C)."""
        return weight[indices]

    def backward_into(dy: np.ndarray, indices: np.ndarray, dweight: np.ndarray) -> None:
        """dweight[indices] += dy, in place, duplicates summed in order. Half floats are summed in float32 and rounded
        once.
        """
        _change_at(np.add, dweight, indices, dy)


class reduce:
    """By NumPy's pairwise sums, whose error grows with log n. NaN goes through.

    Over ``axes``, a tuple of non-negative ints, or along one axis.
    """

    def supports_half(x: np.ndarray) -> bool:
        """Whether folds of half floats (softmax, norms of rows) are in float32, rounded once; else float32 arrives."""
        return False

    @quiet()
    def sum(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> np.ndarray:
        """Sum over ``axes`` in ``dtype`` (default: that of x, float32 of half floats)."""
        dtype = dtype or (np.float32 if is_half(x.dtype) else x.dtype)
        wide = np.float32 if is_half(np.dtype(dtype)) else dtype  # partial sums of such width would soon stop growing
        y = untyped.add.reduce(x, axes, wide, None, keepdim)  # np.sum, without a microsecond of Python
        return np.asarray(y, dtype=dtype)

    @quiet()
    def sum_of_squares(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Sum of the squares over ``axes``."""
        return reduce.sum(np.square(x), axes, keepdim)

    def nansum(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Sum over ``axes`` of what is not NaN."""
        return reduce.sum(np.where(x == x, x, x.dtype.type(0)), axes, keepdim)

    @quiet()
    def moments(x: np.ndarray, axes: tuple[int, ...], sums: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean, and sum of the squared distances from it (in the dtype ``sums``, or that of x), over ``axes``, which
        stay; 0 where all values are equal.
        """
        mean = reduce.mean(x, axes, True)
        distances = x - mean - reduce.mean(x - mean, axes, True)
        return mean, reduce.sum_of_squares(distances.astype(sums or x.dtype, copy=False), axes, True)

    @quiet()
    def mean(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Mean over ``axes``; NaN for an empty one."""
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        return np.asarray(np.true_divide(reduce.sum(x, axes, keepdim), x.dtype.type(count)), dtype=x.dtype)

    @quiet()
    def max(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Largest value over ``axes``; NaN if there is one."""
        return np.asarray(untyped.maximum.reduce(x, axes, None, None, keepdim))  # np.max, without 2 us of Python

    @quiet()
    def min(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Smallest value over ``axes``; NaN if there is one."""
        return np.asarray(untyped.minimum.reduce(x, axes, None, None, keepdim))

    def argmax(x: np.ndarray, axis: int | None, keepdim: bool) -> np.ndarray:
        """Index (int64) of the first largest value along ``axis``, or in the flattened array."""
        return np.asarray(untyped.ndarray.argmax(x, axis, keepdims=keepdim), dtype=np.int64)

    def argmin(x: np.ndarray, axis: int | None, keepdim: bool) -> np.ndarray:
        """Index (int64) of the first smallest value along ``axis``, or in the flattened array."""
        return np.asarray(untyped.ndarray.argmin(x, axis, keepdims=keepdim), dtype=np.int64)

    @quiet()
    def extremes(x: np.ndarray, axis: int, largest: bool, running: bool) -> tuple[np.ndarray, np.ndarray]:
        """The largest (smallest) value along ``axis``, and the place (int64) of the first of equals.

        ``running``: of the first 1, 2, ... values, and of the last of equals. NaN is the largest and the smallest.
        """
        wide = x.astype(np.float32) if is_half(x.dtype) else x
        if running:
            so_far = (untyped.maximum if largest else untyped.minimum).accumulate(wide, axis)
            steps = np.arange(x.shape[axis]).reshape(-1, *[1] * (x.ndim - 1 - axis))
            places = np.maximum.accumulate(np.where((wide == so_far) | (wide != wide), steps, 0), axis)
        else:
            places = (reduce.argmax if largest else reduce.argmin)(wide, axis, True)
        return np.take_along_axis(x, places, axis), places

    def any(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Whether any value over ``axes`` is not zero."""
        return np.asarray(untyped.logical_or.reduce(x, axes, bool, None, keepdim))

    def all(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Whether all values over ``axes`` are not zero."""
        return np.asarray(untyped.logical_and.reduce(x, axes, bool, None, keepdim))

    @quiet()
    def cumsum(x: np.ndarray, axis: int) -> np.ndarray:
        """Sums of the first 1, 2, ... values along ``axis``."""
        return np.asarray(x.cumsum(axis, x.dtype))

    def reverse_cumsum(x: np.ndarray, axis: int) -> np.ndarray:
        """Sums of the last n, n-1, ... values along ``axis``."""
        return np.flip(np.cumsum(np.flip(x, axis), axis=axis, dtype=x.dtype), axis)

    @quiet()
    def prod(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> np.ndarray:
        """Product over ``axes``, in ``dtype`` (default: that of x)."""
        return np.asarray(untyped.multiply.reduce(x, axes, dtype, None, keepdim))

    @quiet()
    def prod_of_others(x: np.ndarray, axis: int) -> np.ndarray:
        """For each place the product of all other values along ``axis``; no division, so zeros need no care."""
        rows = np.moveaxis(x, axis, -1)
        y = np.ones_like(rows)
        np.cumprod(rows[..., :-1], axis=-1, out=y[..., 1:])  # of those before
        if x.shape[axis] > 1:
            y[..., :-1] *= np.cumprod(rows[..., :0:-1], axis=-1, dtype=x.dtype)[..., ::-1]  # of those after
        return np.moveaxis(y, -1, axis)

    @quiet()
    def cumprod(x: np.ndarray, axis: int) -> np.ndarray:
        """Products of the first 1, 2, ... values along ``axis``."""
        wide = np.float64 if x.dtype.kind == "f" else x.dtype  # so that a product may leave float32 and come back
        return np.cumprod(x, axis=axis, dtype=wide).astype(x.dtype, copy=False)

    @quiet()
    def median(x: np.ndarray) -> np.ndarray:
        """The value in the middle (of an even number the lower one) of all; NaN if there is one, and of none."""
        if not x.size:
            return np.full((), np.nan, x.dtype)
        upper = np.partition(x.reshape(-1), (x.size - 1) // 2)[(x.size - 1) // 2 :]
        top = np.maximum.reduce(upper)
        return np.asarray(upper[0] if top == top else np.nan, x.dtype)

    @quiet()
    def logsumexp(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """log(sum(exp(x))) over ``axes``, shifted by the maximum so that it cannot overflow."""
        top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(top), top, 0).astype(x.dtype)
        y = np.log(np.add.reduce(np.exp(x - shift), axis=axes, keepdims=True)) + shift
        return np.asarray(y if keepdim else np.squeeze(y, axis=axes))
