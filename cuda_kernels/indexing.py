"""Reading and adding at positions, sorting: ``minigrad.cpu_kernels.indexing`` on the device.

An index is anything NumPy accepts (``index_arrays.py``). Every function reduces it to places along one dimension of a
contiguous array (``gather_scatter.py``); an array that is written and not contiguous is copied and copied back.
``gather`` and the scatters turn (coordinates, index) into places in the flattened array; indices must be in range.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import comparison, elementwise
from .platform.array import Array, contiguous, copy, empty, expand, from_host, full
from .rowwise import gather_scatter as at
from .rowwise.index_arrays import APPEND_INDEX, as_indices, harmless, is_basic, nonzero as places_of, select
from .rowwise.scan import iota
from .rowwise.sorting import sort_rows
from .rowwise.strided_copy import copy_into

REDUCTIONS = ("prod", "amax", "amin")


# x[where] -------------------------------------------------------------------------------------------------------------


def index(x: Array, where: Any) -> Array:
    """x[where]: a view for basic indices, a copy if arrays are among them."""
    if is_basic(where):
        return x[where]
    chosen = select(x, where)
    cube = _cube(contiguous(chosen.view), chosen.first, chosen.last)
    return at.take(cube, chosen.places).reshape(chosen.shape)


def add_at(x: Array, where: Any, y: Any) -> None:
    """x[where] += y; repeated positions add up."""
    if is_basic(where):
        target = x[where]
        elementwise.add_into(target, _values(y, target.shape, x))
        return
    chosen = select(x, where)
    _change(*chosen[:4], y, chosen.shape, _reducing("sum"))


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
        elementwise.where(where, _values(y, (), x), x, out=x)
        return
    chosen = select(x, where)
    _change(*chosen[:4], y, chosen.shape, functools.partial(at.put, distinct=chosen.distinct))


def _covers(where: Any, x: Array) -> bool:
    """Whether the index is a mask of x's shape: then nothing need be counted."""
    return isinstance(where, Array) and where.dtype.kind == "b" and where.shape == x.shape


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


def nonzero(x: Array) -> Array:
    """int64 (count, ndim): the places where x, of bool, is True."""
    rest = places_of(x)
    places = empty((rest.size, x.ndim), rest.dtype, x.device)
    for dim in range(x.ndim - 1, -1, -1):
        above = elementwise.floor_div(rest, max(x.shape[dim], 1))
        copy_into(places[:, dim], elementwise.sub(rest, elementwise.mul(above, x.shape[dim])))
        rest = above
    return places


# Along an axis --------------------------------------------------------------------------------------------------------


def gather(x: Array, axis: int, indices: Array) -> Array:
    """y[i][j][k] = x[i][indices[i][j][k]][k] (for axis 1), the shape of ``indices``."""
    flat = contiguous(x).reshape(1, x.size, 1)
    return at.take(flat, _flat_places(x.shape, axis, indices)).reshape(indices.shape)


def scatter_add(x: Array, axis: int, indices: Array, y: Any) -> None:
    """x[i][indices[i][j][k]][k] += y[i][j][k] (for axis 1), in place; repeated positions add up in order."""
    _change(x, 0, x.ndim, _flat_places(x.shape, axis, indices), y, indices.shape, _reducing("sum"))


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
    _change(x, 0, x.ndim, _flat_places(x.shape, axis, indices), y, indices.shape, _reducing(reduce))


def _flat_places(shape: tuple[int, ...], axis: int, indices: Array) -> Array:
    """The places, int64 (n,), of an index along ``axis`` in a contiguous array of ``shape`` that is flattened."""
    indices = harmless(as_indices(indices), 0, shape[axis])
    places: Any = 0
    for d, n in enumerate(shape):
        after = (1,) * (len(shape) - 1 - d)
        along = indices if d == axis % len(shape) else iota(indices.shape[d], indices.device).reshape(-1, *after)
        places = APPEND_INDEX(places, along, n)
    return contiguous(places).reshape(-1)


# Sorting, one-hot -----------------------------------------------------------------------------------------------------


def argsort(x: Array, axis: int, descending: bool, first: int | None = None) -> Array:
    """The ``first`` (default: all) indices (int64) of ``x`` sorted stably along ``axis``; NaN is the largest."""
    last = contiguous(x.swapaxes(axis, -1))
    n = last.shape[-1]
    _, order = sort_rows(last.reshape(last.size // n if n else 0, n), descending)
    return contiguous(order.reshape(last.shape)[..., :first].swapaxes(axis, -1))


def searchsorted(x: Array, values: Array, right: bool) -> Array:
    """int64: how many of the ascending last axis of ``x`` are before each value, or with ``right`` not behind it.

    ``x`` is a vector for all values, or has their axes but the last. By bisection of all at once.
    """
    v, reached = values.reshape(-1) if x.ndim == 1 else values, comparison.gt if right else comparison.ge
    low = full(v.shape, 0, np.dtype(np.int64), v.device)
    for bit in reversed(range(x.shape[-1].bit_length())):
        probe = elementwise.minimum(elementwise.add(low, (1 << bit) - 1), x.shape[-1] - 1)
        found = reached(gather(x, x.ndim - 1, probe), v)
        low = elementwise.where(found, low, elementwise.add(probe, 1))
    return low.reshape(values.shape)


def one_hot(indices: Array, classes: int) -> Array:
    """int64, a new last axis with 1 at the index."""
    places = as_indices(indices).reshape(*indices.shape, 1)
    return comparison.eq(places, iota(classes, indices.device), dtype=np.dtype(np.int64))
