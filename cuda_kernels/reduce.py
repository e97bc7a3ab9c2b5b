"""Reductions over any axes, in an order that depends on the shape only. ``axes`` is a tuple of non-negative ints.

An array whose memory is dense is reduced as it lies, one run of neighbouring axes after the other, the last run first;
any other is copied. ``fold.py`` has the kernels of sums, products and extrema, ``argmax_fold.py`` those of indices and
logsumexp, ``scan.py`` those of cumulative sums and products.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.plain_kernels import reduce as plain
from minigrad.plain_kernels.arrays import is_half

from . import comparison, elementwise
from .platform.array import Array, contiguous, contiguous_strides, from_host
from .rowwise import gather_scatter as at
from .rowwise.argmax_fold import pair_fold
from .rowwise.fold import FOLDS, fold, word_of
from .rowwise.scan import iota, scan
from .rowwise.sorting import sort_rows

supports_half: Callable[[Any], bool] = plain.supports_half


def _dense(x: Array) -> tuple[Array, list[int]]:
    """x with its dimensions in the order of its memory, which has no gaps, and that order."""
    order = sorted(range(x.ndim), key=lambda i: -x.strides[i])
    moved = x.transpose(*order)
    if not moved.contiguous:
        moved, order = contiguous(x), list(range(x.ndim))
    return moved, order


def _reduce(step: Any, x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """``step(x, outer, n, inner)`` on each run of neighbouring axes, the last run first -> of step's dtype."""
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    if x.size:
        y, order = _dense(x)
        sizes = [(i in axes, x.shape[i]) for i in order if x.shape[i] > 1]
        runs = [(of, math.prod(n for _, n in run)) for of, run in itertools.groupby(sizes, key=lambda size: size[0])]
        if not dict(runs).get(True):
            y = step(y, x.size, 1, 1)
        inner = 1
        while runs:
            of, n = runs.pop()
            if of:
                y = step(y, math.prod(m for _, m in runs), n, inner)
            else:
                inner *= n
    else:  # sums of nothing
        y, order = step(x, math.prod(shape), 0, 1), list(range(x.ndim))
    strides = dict(zip(order, contiguous_strides(tuple(shape[i] for i in order), y.itemsize), strict=True))
    kept = [i for i in range(x.ndim) if keepdim or i not in axes]
    return Array(y.memory, tuple(shape[i] for i in kept), y.dtype, tuple(strides[i] for i in kept))


def _fold(name: str, x: Array, axes: tuple[int, ...], keepdim: bool, dtype: Any) -> Array:
    """The fold ``name`` in ``dtype``, half floats in float32 and other integers in int64 (which wrap the same)."""
    dtype = np.dtype(dtype)
    wide = dtype
    if (name, word_of(dtype), word_of(dtype)) not in FOLDS:
        wide = np.dtype(np.int64 if dtype.kind in "iub" else np.float32)
    if x.dtype != wide and ((name, word_of(x.dtype), word_of(wide)) not in FOLDS or x.dtype.kind == "u"):
        x = elementwise.cast(x, wide)
    y = _reduce(lambda x, outer, n, inner: fold(name, x, outer, n, inner, wide), x, axes, keepdim)
    return y if wide == dtype else elementwise.cast(y, dtype)


def sum(x: Array, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> Array:
    """Sum over ``axes`` in ``dtype`` (default: that of x, float32 of half floats)."""
    return _fold("sum", x, axes, keepdim, dtype or (np.float32 if is_half(x.dtype) else x.dtype))


def sum_of_squares(x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """Sum of the squares over ``axes``."""
    return sum(elementwise.square(x), axes, keepdim)


def nansum(x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """Sum over ``axes`` of what is not NaN."""
    return sum(elementwise.select(comparison.eq(x, x), x), axes, keepdim)


def moments(x: Array, axes: tuple[int, ...], sums: Any = None) -> tuple[Array, Array]:
    """Mean, and sum of the squared distances from it (in the dtype ``sums``, or that of x), over ``axes``, which stay;
    0 where all values are equal.
    """
    middle = mean(x, axes, True)
    centred = elementwise.sub(x, middle)
    distances = elementwise.sub(centred, mean(centred, axes, True))
    return middle, sum_of_squares(elementwise.cast(distances, sums) if sums else distances, axes, True)


def mean(x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """Mean over ``axes``; NaN for an empty one."""
    count = math.prod(x.shape[axis] for axis in axes)
    return elementwise.div(sum(x, axes, keepdim), x.dtype.type(count))


def _extremum(name: str, x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    if 0 in (x.shape[axis] for axis in axes):
        raise ValueError(f"{name} of no values: the shape is {x.shape}, the axes are {axes}")
    return _fold(name, x, axes, keepdim, x.dtype)


def max(x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """Largest value over ``axes``; NaN if there is one."""
    return _extremum("max", x, axes, keepdim)


def min(x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """Smallest value over ``axes``; NaN if there is one."""
    return _extremum("min", x, axes, keepdim)


def _index(name: str, x: Array, axis: int | None, keepdim: bool) -> Array:
    shape = x.shape
    x = contiguous(x)
    if axis is None or not x.ndim:
        x, axis = x.reshape(-1), 0
        kept = (1,) * len(shape) if keepdim else ()
    else:
        axis %= x.ndim
        kept = (*shape[:axis], *((1,) if keepdim else ()), *shape[axis + 1 :])
    if not x.shape[axis]:
        raise ValueError(f"{name} of no values: the shape is {shape}, the axis is {axis}")
    y = pair_fold(name, x, *_around(x, axis))
    return Array(y.memory, kept, y.dtype)


def argmax(x: Array, axis: int | None, keepdim: bool) -> Array:
    """Index (int64) of the first largest value along ``axis``, or in the flattened array."""
    return _index("argmax", x, axis, keepdim)


def argmin(x: Array, axis: int | None, keepdim: bool) -> Array:
    """Index (int64) of the first smallest value along ``axis``, or in the flattened array."""
    return _index("argmin", x, axis, keepdim)


def extremes(x: Array, axis: int, largest: bool, running: bool) -> tuple[Array, Array]:
    """The largest (smallest) value along ``axis``, and the place (int64) of the first of equals.

    ``running``: of the first 1, 2, ... values, and of the last of equals. NaN is the largest and the smallest.
    """
    wide = elementwise.cast(x, np.dtype(np.float32)) if is_half(x.dtype) else x
    if not running:
        places = _index("argmax" if largest else "argmin", wide, axis, True)
        return (max if largest else min)(x, (axis,), True), places
    values = _scan("max" if largest else "min", wide, axis)
    found = comparison.logical_or(comparison.eq(wide, values), comparison.ne(wide, wide))
    steps = iota(x.shape[axis], x.device).reshape(*(-1 if i == axis else 1 for i in range(x.ndim)))
    return elementwise.cast(values, x.dtype), _scan("max", elementwise.where(found, steps, 0), axis)


def any(x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """Whether any value over ``axes`` is not zero."""
    return _fold("max", comparison.ne(x, 0) if x.dtype.kind != "b" else x, axes, keepdim, np.bool_)


def all(x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """Whether all values over ``axes`` are not zero."""
    return _fold("min", comparison.ne(x, 0) if x.dtype.kind != "b" else x, axes, keepdim, np.bool_)


def logsumexp(x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    """log(sum(exp(x))) over ``axes``, shifted by the maximum so that it cannot overflow."""
    return _reduce(lambda x, *sizes: pair_fold("logsumexp", x, *sizes), x, axes, keepdim)


def median(x: Array) -> Array:
    """The value in the middle (of an even number the lower one) of all; NaN if there is one, and of none."""
    if not x.size:
        return from_host(np.full((), np.nan, x.dtype), x.device)
    flat = _dense(x)[0].reshape(1, x.size, 1)
    _, order = sort_rows(flat.reshape(1, x.size))
    middle, last = (at.take(flat, order[0, k : k + 1]).reshape(()) for k in ((x.size - 1) // 2, x.size - 1))
    return middle if x.dtype.kind != "f" else elementwise.where(comparison.ne(last, last), last, middle)


def prod(x: Array, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> Array:
    """Product over ``axes``, in ``dtype`` (default: that of x)."""
    return _fold("prod", x, axes, keepdim, dtype or x.dtype)


# Along an axis --------------------------------------------------------------------------------------------------------


def _around(x: Array, axis: int) -> tuple[int, int, int]:
    """(outer, n, inner) of an axis; a 0-d array has one value."""
    if not x.ndim:
        return 1, 1, 1
    axis %= x.ndim
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


def _scan(name: str, x: Array, axis: int, reverse: bool = False, exclusive: bool = False) -> Array:
    wide = x.dtype if x.dtype.name in ("float32", "float64", "int64") else np.dtype(np.int64)
    y = x if wide == x.dtype else elementwise.cast(x, wide)
    rows = contiguous(y.swapaxes(axis, -1) if x.ndim else y)
    n = _around(x, axis)[1]
    y = scan(name, rows.reshape(x.size // (n or 1), n), reverse, exclusive).reshape(rows.shape)
    y = y.swapaxes(axis, -1) if x.ndim else y
    return y if wide == x.dtype else elementwise.cast(y, x.dtype)


def cumsum(x: Array, axis: int) -> Array:
    """Sums of the first 1, 2, ... values along ``axis``."""
    return _scan("sum", x, axis)


def reverse_cumsum(x: Array, axis: int) -> Array:
    """Sums of the last n, n-1, ... values along ``axis``."""
    return _scan("sum", x, axis, reverse=True)


def cumprod(x: Array, axis: int) -> Array:
    """Products of the first 1, 2, ... values along ``axis``; of float32 in float64, so that they may leave it."""
    return _scan("prod", x, axis)


def prod_of_others(x: Array, axis: int) -> Array:
    """For each place the product of all other values along ``axis``; no division, so zeros need no care."""
    before = _scan("prod", x, axis, exclusive=True)
    return elementwise.mul(before, _scan("prod", x, axis, reverse=True, exclusive=True))
