"""Reading and adding at positions: the plain family, with the sums at positions that may repeat compiled."""

import math
from typing import Any

import numba
import numpy as np

from ..plain_kernels import indexing as plain
from . import embedding
from .toolbox.array_program import formula
from .toolbox.register_tile import operand
from .toolbox.strided_copy import LIKE
from .toolbox.threads import task_kernel, tasks_of_rows

FEW = 16384  # elements that NumPy picks in the time of a launch
ALONE = 16384  # elements of a task
MOST_BEST = 128  # so many of a row are found by comparing each element with those found before
NUMBERS = (np.float32, np.float64, np.int64)
globals().update((name, getattr(plain, name)) for name in vars(plain) if name[0] != "_")


@task_kernel
def _gather(task, tasks, x, places, step, y):
    """y[i, k] = x[o, places[i, k] * step + k], without k if step is 1; equally many rows i one by one for each o."""
    rows, of_one = y.shape[0], y.shape[0] // x.shape[0]
    along = 0 if step == 1 else 1
    for i in range(task * rows // tasks, (task + 1) * rows // tasks):
        row = x[i // of_one]
        for k in range(y.shape[1]):
            y[i, k] = row[places[i, k] * step + k * along]


@task_kernel
def _scatter_add(task, tasks, x, places, step, y):
    """The same places of x += y[i, k]; the rows of an o are one task's, in order."""
    outer, of_one = x.shape[0], y.shape[0] // x.shape[0]
    along = 0 if step == 1 else 1
    for i in range(task * outer // tasks * of_one, (task + 1) * outer // tasks * of_one):
        row = x[i // of_one]
        for k in range(y.shape[1]):
            row[places[i, k] * step + k * along] += y[i, k]


def _in_rows(
    x: np.ndarray, axis: int, places: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    """Arguments of the two kernels above."""
    step = math.prod(x.shape[axis + 1 :])
    width = places.shape[axis] if step == 1 else step
    return x.reshape(-1, x.shape[axis] * step), places.reshape(-1, width), step, y.reshape(-1, width)


def gather(x: np.ndarray, axis: int, indices: np.ndarray) -> np.ndarray:
    """y[i][j][k] = x[i][indices[i][j][k]][k] (for axis 1), the shape of ``indices``, each from 0 on and in range."""
    others = (*indices.shape[:axis], x.shape[axis], *indices.shape[axis + 1 :])
    if not indices.size or others != x.shape or numba.config.DISABLE_JIT:
        return plain.gather(x, axis, indices)
    y, word = np.empty(indices.shape, x.dtype), LIKE[x.itemsize].dtype
    x, indices = operand(np.ascontiguousarray(x)), operand(np.ascontiguousarray(indices))
    arguments = _in_rows(x.view(word), axis, indices, y.view(word))
    _gather.launch(word, tasks_of_rows(len(arguments[1]), arguments[1].shape[1], ALONE), *arguments)
    return y


@task_kernel
def _best(task, tasks, x, descending, places):
    """places[i]: where the first elements of row i in sorted order are, each put in its place among those before."""
    rows, most = places.shape
    values = np.empty(most, x.dtype)
    for i in range(task * rows // tasks, (task + 1) * rows // tasks):
        found = 0
        for j in range(x.shape[1]):
            value, at = x[i, j], found
            if found == most and (value <= values[most - 1] if descending else value >= values[most - 1]):
                continue  # as most of a long row are
            while at > 0:
                other = values[at - 1]
                above, last = value > other, value != value
                below, last_is_other = value < other, other != other
                if descending:
                    before = above or (last and not last_is_other)
                else:
                    before = below or (last_is_other and not last)
                if not before:
                    break
                if at < most:
                    values[at], places[i, at] = other, places[i, at - 1]
                at -= 1
            if at < most:
                values[at], places[i, at] = value, j
                found = min(found + 1, most)


def _keys(x: Any, places: Any) -> Any:
    """int64 that are in order as x, float32 or int32, and where that is equal as their places."""
    bits = x
    if x.dtype.kind == "f":
        bits = (x + np.float32(0)).view(np.int32)  # -0 is 0
        bits = np.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    return (bits.astype(np.int64) << 32) | places


_ascending = formula(_keys)
_descending = formula(lambda x, places: np.invert(_keys(x, places)) ^ 0xFFFFFFFF)


def argsort(x: np.ndarray, axis: int, descending: bool, first: int | None = None) -> np.ndarray:
    """The ``first`` (default: all) indices (int64) of ``x`` sorted stably along ``axis``; NaN is the largest."""
    most, dtype = min(MOST_BEST, x.shape[axis] // 8), x.dtype
    if first is None or not 0 < first <= most or dtype.char not in "fdilq" or numba.config.DISABLE_JIT:
        if dtype not in (np.float32, np.int32) or x.shape[axis] >> 32:
            return plain.argsort(x, axis, descending, first)
        places = np.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1 - axis))
        order = (_descending if descending else _ascending)(x, places)  # no two are equal
        order.sort(axis)
        return np.bitwise_and(order, 0xFFFFFFFF, order)[(slice(None),) * axis + (slice(first),)]
    rows = operand(np.ascontiguousarray(x if axis == x.ndim - 1 else np.moveaxis(x, axis, -1)))
    places = np.empty((*rows.shape[:-1], first), np.int64)
    flat = rows.reshape(-1, rows.shape[-1])
    _best.launch(x.dtype, tasks_of_rows(len(flat), flat.shape[1], ALONE), flat, descending, places.reshape(-1, first))
    return places if axis == x.ndim - 1 else np.moveaxis(places, -1, axis)


def index(x: np.ndarray, where: Any) -> np.ndarray:
    """x[where], as the plain one; the elements under a mask by their places, which NumPy finds sooner."""
    if isinstance(where, np.ndarray) and where.dtype == bool and where.shape == x.shape:
        return x.reshape(-1).take(where.reshape(-1).nonzero()[0])
    rows = where[0] if isinstance(where, tuple) and len(where) == 1 else where
    if not (isinstance(rows, np.ndarray) and rows.dtype == np.int64 and rows.ndim and x.ndim and x.flags.c_contiguous):
        return plain.index(x, where)
    places = _places(rows, x, x) if rows.size * x[:1].size >= FEW else None
    if places is None:
        return x.take(rows, 0)  # in half the time
    return embedding.forward(x.reshape(len(x), -1), places).reshape(*places.shape, *x.shape[1:])


def add_at(x: np.ndarray, where: Any, y: np.ndarray) -> None:
    """x[where] += y; repeated positions add up."""
    rows = where[0] if isinstance(where, tuple) and len(where) == 1 else where
    places = _places(rows, x, y) if isinstance(rows, np.ndarray) else None
    if places is None or y.shape != (*places.shape, *x.shape[1:]):
        plain.add_at(x, where, y)
    else:
        embedding.backward_into(y.reshape(*places.shape, -1), places, x.reshape(len(x), -1))


def scatter_add(x: np.ndarray, axis: int, indices: np.ndarray, y: np.ndarray) -> None:
    """x[i][indices[i][j][k]][k] += y[i][j][k] (for axis 1), in place; repeated positions add up in order."""
    places = _places(indices, x, y, axis)
    expected = (*x.shape[:axis], *indices.shape[axis : axis + 1], *x.shape[axis + 1 :])
    if places is None or not indices.shape == y.shape == expected:
        plain.scatter_add(x, axis, indices, y)
        return
    arguments = _in_rows(x, axis, *(operand(np.ascontiguousarray(a)) for a in (places, y)))
    _scatter_add.launch(x.dtype, tasks_of_rows(len(arguments[0]), y.size // len(arguments[0]), ALONE), *arguments)


def _places(indices: np.ndarray, x: np.ndarray, y: Any, axis: int = 0) -> np.ndarray | None:
    """The indices along ``axis``, counted from the front; None for what the plain kernels take, or refuse."""
    if not (x.ndim and x.dtype == getattr(y, "dtype", None) and x.dtype.type in NUMBERS and x.flags.c_contiguous):
        return None
    if indices.dtype != np.int64 or not indices.size or not x.size:
        return None
    n = x.shape[axis]
    if embedding.check_indices(indices, n) >= 0:
        indices = np.where(indices < 0, indices + n, indices)
    return indices if embedding.check_indices(indices, n) < 0 else None
