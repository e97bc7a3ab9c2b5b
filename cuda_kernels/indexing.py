"""Reading and adding at positions, sorting: ``minigrad.cpu_kernels.indexing`` on the device.

An index is anything NumPy accepts (``index_arrays.py``). Every function reduces it to places along one dimension of a
contiguous array (``gather_scatter.py``); an array that is written and not contiguous is copied and copied back.
``gather`` and the scatters turn (coordinates, index) into places in the flattened array; indices must be in range.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import elementwise
from .platform.array import Array, contiguous, contiguous_strides, copy, empty, expand, from_host, full, zeros
from .platform.language import cuda
from .platform.launch import Kernel, kernel
from .rowwise import gather_scatter as at
from .rowwise.gather_scatter import MOST_WORDS
from .rowwise.index_arrays import as_indices, harmless, is_basic, select
from .rowwise.sorting import sort_rows
from .rowwise.strided_copy import Dimension, collapse, copy_into

REDUCTIONS = ("prod", "amax", "amin")
RANK = 5  # dimensions of ``flat_places``


# x[where] -------------------------------------------------------------------------------------------------------------


def index(x: Array, where: Any) -> Array:
    """x[where]: a view for basic indices, a copy if arrays are among them."""
    if is_basic(where):
        return x[where]
    chosen = select(x, where)
    cube = _cube(contiguous(chosen.view), chosen.first, chosen.last)
    return at.take(cube, chosen.places).reshape(chosen.shape)


def add_at(x: Array, where: Any, y: Any, distinct: bool) -> None:
    """x[where] += y. ``distinct`` promises that no position occurs twice; else repeated ones add up."""
    if is_basic(where):
        target = x[where]
        elementwise.add_into(target, _values(y, target.shape, x))
        return
    chosen = select(x, where)

    def add(cube: Array, places: Array, rows: Array) -> None:
        at.put(cube, places, elementwise.add(at.take(cube, places), rows), distinct=True)

    _change(*chosen[:4], y, chosen.shape, add if distinct else _reducing("sum"))


def assign_at(x: Array, where: Any, y: Any) -> None:
    """x[where] = y; of repeated positions the last one wins."""
    if is_basic(where):
        target = x[where]
        if isinstance(y, Array | np.ndarray):
            copy_into(target, _values(y, target.shape, x))
        else:
            elementwise.fill(target, y)
        return
    if _covers(where, x) and not isinstance(y, Array | np.ndarray):
        _FILL_WHERE[x.itemsize].launch_each(x.size, x, contiguous(where), _values(y, (1,), x), x.size)
        return
    chosen = select(x, where)
    _change(*chosen[:4], y, chosen.shape, functools.partial(at.put, distinct=chosen.distinct))


def _covers(where: Any, x: Array) -> bool:
    """Whether the index is a mask of x's shape, and x contiguous: then nothing need be counted."""
    return isinstance(where, Array) and where.dtype.kind == "b" and where.shape == x.shape and x.contiguous


def _cube(x: Array, first: int, last: int) -> Array:
    """x, contiguous, as (P, K, Q): dimensions before ``first``, those to ``last``, those after."""
    return x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:last]), math.prod(x.shape[last:]))


def _change(
    x: Array, first: int, last: int, places: Array, y: Any, shape: tuple[int, ...], change: Callable[..., None]
) -> None:
    """Call ``change`` with x as (P, K, Q), through a copy if x is not contiguous, places, and y as (P, N, Q).

    ``shape`` is what y is broadcast to.
    """
    values, own = contiguous(_values(y, shape, x)), contiguous(x)
    cube = _cube(own, first, last)
    change(cube, places, values.reshape(cube.shape[0], places.size, cube.shape[2]))
    if own is not x:
        copy_into(x, own)


def _reducing(reduce: str) -> Callable[..., None]:
    return functools.partial(at.reduce_at, reduce=reduce)


def _values(y: Any, shape: tuple[int, ...], x: Array) -> Array:
    """``y`` in x's dtype, broadcast to ``shape``, in memory that writing x does not change."""
    if isinstance(y, Array):
        y = y if y.dtype == x.dtype else elementwise.cast(y, x.dtype)
    else:
        y = np.asarray(y).astype(x.dtype)
        y = from_host(y, x.device) if y.ndim else full((), y[()], x.dtype, x.device)
    while y.ndim > len(shape) and y.shape[0] == 1:
        y = y.reshape(y.shape[1:])
    return expand(copy(y) if y.memory is x.memory else y, shape)


def _fill_where(bits: int) -> Kernel:
    @kernel(f"bits{bits}*, bool*, bits{bits}*, int64", registers=10, of=f"{bits}_bits")
    def fill_where(x, mask, value, n):
        i = cuda.grid(1)
        if i < n and mask[i] != 0:
            x[i] = value[0]

    return fill_where


_FILL_WHERE = {bits // 8: _fill_where(bits) for bits in (8, 16, 32, 64)}


# Along an axis --------------------------------------------------------------------------------------------------------


def gather(x: Array, axis: int, indices: Array) -> Array:
    """y[i][j][k] = x[i][indices[i][j][k]][k] (for axis 1), the shape of ``indices``."""
    places = _flat_places(x.shape, axis, indices)
    return at.take(contiguous(x).reshape(1, x.size, 1), places).reshape(indices.shape)


def scatter_add(x: Array, axis: int, indices: Array, y: Any) -> None:
    """x[i][indices[i][j][k]][k] += y[i][j][k] (for axis 1), in place; repeated positions add up in order."""
    _scatter_reduce(x, axis, indices, y, "sum")


def scatter(x: Array, axis: int, indices: Array, y: Any) -> None:
    """x[i][indices[i][j][k]][k] = y[i][j][k] (for axis 1), in place; of repeated positions the last one wins."""
    _change(x, 0, x.ndim, _flat_places(x.shape, axis, indices), y, indices.shape, at.put)


def scatter_reduce(x: Array, axis: int, indices: Array, y: Any, reduce: str) -> None:
    """x[i][indices[i][j][k]][k] = f(itself, y[i][j][k]) (for axis 1), in place, one after the other.

    f is the product, the larger or the smaller one for ``reduce`` "prod", "amax" or "amin"; NaN stays.
    Raises KeyError for another name.
    """
    if reduce not in REDUCTIONS:
        raise KeyError(reduce)
    _scatter_reduce(x, axis, indices, y, reduce)


def _scatter_reduce(x: Array, axis: int, indices: Array, y: Any, reduce: str) -> None:
    _change(x, 0, x.ndim, _flat_places(x.shape, axis, indices), y, indices.shape, _reducing(reduce))


def scatter_winners(shape: tuple[int, ...], axis: int, indices: Array) -> Array:
    """bool, of the shape of ``indices``: whose value ``scatter`` into an array of ``shape`` leaves there."""
    return at.winners(_flat_places(shape, axis, indices), math.prod(shape)).reshape(indices.shape)


@kernel(f"int64* x2, uint32 x{RANK}, int64 x{RANK + 3}", registers=16)
def flat_places(places, indices, n, n1, n2, n3, n4, s0, s1, s2, s3, s4, size, step, base):
    """places[i] = base + sum of coordinate * stride + index * step; negative indices count from the end."""
    i = cuda.grid(1)
    if i < n:
        place = indices[i]
        if place < 0:
            place += size
        place = base + place * step
        rest = np.uint32(i)
        for count, stride in ((n4, s4), (n3, s3), (n2, s2), (n1, s1)):
            if rest > 0:  # else the other coordinates are all 0
                outer = rest // count
                place += np.int64(rest - outer * count) * stride
                rest = outer
        places[i] = place + np.int64(rest) * s0


def _flat_places(shape: tuple[int, ...], axis: int, indices: Array) -> Array:
    """The places, int64 (n,), of an index along ``axis`` in a contiguous array of ``shape`` that is flattened."""
    indices = harmless(as_indices(indices), 0, shape[axis])
    places = empty(indices.size, np.int64, indices.device)
    strides = contiguous_strides(shape, 1)
    kept = tuple(0 if d == axis % len(shape) else stride for d, stride in enumerate(strides))
    dimensions = collapse(indices.shape, contiguous_strides(indices.shape, 1), kept)
    _fill_places(places, indices.reshape(indices.size), dimensions, 0, shape[axis], strides[axis])
    return places


def _fill_places(
    places: Array, indices: Array, dimensions: Sequence[Dimension], base: int, size: int, step: int
) -> None:
    """One launch, or one for each coordinate of the outer dimension if one cannot count so many."""
    n = places.size
    if len(dimensions) > RANK or (n > MOST_WORDS and len(dimensions) > 1):
        outer, *inner = dimensions
        each = n // outer.n
        for i in range(outer.n):
            part = slice(i * each, (i + 1) * each)
            _fill_places(places[part], indices[part], inner, base + i * outer.sx, size, step)
        return
    dimensions = [*[Dimension(1, 0, 0)] * (RANK - len(dimensions)), *dimensions]
    counts, coordinate_strides = (d.n for d in dimensions[1:]), (d.sx for d in dimensions)
    flat_places.launch_each(n, places, indices, n, *counts, *coordinate_strides, size, step, base)


# Sorting, one-hot -----------------------------------------------------------------------------------------------------


def argsort(x: Array, axis: int, descending: bool) -> Array:
    """Indices (int64) that sort ``x`` stably along ``axis``; NaN counts as the largest."""
    last = contiguous(x.swapaxes(axis, -1))
    n = last.shape[-1]
    _, order = sort_rows(last.reshape(last.size // n if n else 0, n), descending)
    return contiguous(order.reshape(last.shape).swapaxes(axis, -1))


@kernel("int64* x2, int64 x2", registers=10)
def mark(y, indices, n, classes):
    i = cuda.grid(1)
    if i < n and 0 <= indices[i] < classes:
        y[i * classes + indices[i]] = 1


def one_hot(indices: Array, classes: int) -> Array:
    """int64, a new last axis with 1 at the index."""
    y = zeros((*indices.shape, classes), np.int64, indices.device)
    n = indices.size
    mark.launch_each(n, y, as_indices(indices), n, classes)
    return y
