"""Reading and adding at positions: the plain family, with the sums at positions that may repeat compiled."""

import math
from typing import Any

import numba
import numpy as np

from ..plain_kernels import indexing as plain
from . import embedding
from .toolbox.array_program import formula
from .toolbox.register_tile import operand
from .toolbox.threads import task_kernel, tasks_of_rows

FEW = 16384  # elements that NumPy picks in the time of a launch
ALONE = 16384  # elements of a task
BLOCK = 32  # elements of a row that are compared at once
MOST_BEST = 48  # so many of a row are found by comparing each element with those found before
NUMBERS = (np.float32, np.float64, np.int64)
globals().update((name, getattr(plain, name)) for name in vars(plain) if name[0] != "_")


@task_kernel
def _move(task, tasks, x, places, step, y, adding):
    """y[i, k] = x[o, places[i, k] * step + k], without k if step is 1; equally many rows i one by one for each o.

    Or, ``adding``, the same places of x += y[i, k]; then the rows of an o are one task's, in order.
    """
    of_one, along = y.shape[0] // x.shape[0], 0 if step == 1 else 1
    together = of_one if adding else 1
    parts = y.shape[0] // together
    for i in range(task * parts // tasks * together, (task + 1) * parts // tasks * together):
        row = x[i // of_one]
        if adding:
            for k in range(y.shape[1]):
                row[places[i, k] * step + k * along] += y[i, k]
        else:
            for k in range(y.shape[1]):
                y[i, k] = row[places[i, k] * step + k * along]


def _in_rows(
    x: np.ndarray, axis: int, places: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    """Arguments of the kernel above."""
    step = math.prod(x.shape[axis + 1 :])
    width = places.shape[axis] if step == 1 else step
    return x.reshape(-1, x.shape[axis] * step), places.reshape(-1, width), step, y.reshape(-1, width)


def gather(x: np.ndarray, axis: int, indices: np.ndarray) -> np.ndarray:
    """y[i][j][k] = x[i][indices[i][j][k]][k] (for axis 1), the shape of ``indices``, each from 0 on and in range."""
    others = (*indices.shape[:axis], x.shape[axis], *indices.shape[axis + 1 :])
    if not indices.size or others != x.shape or numba.config.DISABLE_JIT:
        return plain.gather(x, axis, indices)
    y, word = np.empty(indices.shape, x.dtype), np.dtype(f"u{x.itemsize}")
    x, indices = operand(np.ascontiguousarray(x)), operand(np.ascontiguousarray(indices))
    moved = (x, y) if x.dtype.type in NUMBERS else (x.view(word), y.view(word))
    arguments = _in_rows(moved[0], axis, indices, moved[1])
    _move.launch(moved[0].dtype, tasks_of_rows(len(arguments[1]), arguments[1].shape[1], ALONE), *arguments, False)
    return y


@task_kernel
def _best(task, tasks, x, descending, places):
    """places[i]: where the first elements of row i in sorted order are, each put in its place among those before."""
    rows, most = places.shape
    values = np.empty(most, x.dtype)
    for i in range(task * rows // tasks, (task + 1) * rows // tasks):
        found = 0
        for start in range(0, x.shape[1], BLOCK):
            block, worst, hits = x[i, start : start + BLOCK], values[most - 1], 0
            for j in range(block.shape[0]):
                hits += not (block[j] <= worst if descending else block[j] >= worst)
            if found == most and not hits:
                continue  # as most blocks of a long row are
            for j in range(block.shape[0]):
                value, at = block[j], found
                while at > 0:
                    other = values[at - 1]
                    if value <= other or other != other if descending else value >= other or value != value:
                        break  # not before the other; NaN is the largest
                    if at < most:
                        values[at], places[i, at] = other, places[i, at - 1]
                    at -= 1
                if at < most:
                    values[at], places[i, at] = value, start + j
                    found = min(found + 1, most)


def _in_order(x: Any) -> Any:
    """int64 that are in order as x, whose floats have NaN last and 0 equal to -0."""
    if x.dtype.kind == "f":
        bits, most = (x + x.dtype.type(0)).view(f"i{x.dtype.itemsize}"), 2 ** (8 * x.dtype.itemsize - 1) - 1
        x = np.where(x == x, bits ^ ((bits >> (8 * x.dtype.itemsize - 1)) & most), most)
    return x.astype(np.int64)


_upper = formula(lambda x: (_in_order(x) >> 32).astype(np.int32))
_lower = formula(lambda x, least: ((_in_order(x) - least) ^ 0x80000000).astype(np.int32))  # signed as if it were not
_not_equal = formula(np.not_equal)
_ascending = formula(lambda x, places: (_in_order(x) << 32) | places)
_descending = formula(lambda x, places: (np.invert(_in_order(x)) << 32) | places)


def argsort(x: np.ndarray, axis: int, descending: bool, first: int | None = None) -> np.ndarray:
    """The ``first`` (default: all) indices (int64) of ``x`` sorted stably along ``axis``; NaN is the largest.

    By NumPy's sort, which is fast for int64: of 32 bits of the value with the place below them, twice for 64 bits.
    """
    most, dtype = min(MOST_BEST, x.shape[axis] // 8), x.dtype
    if first is None or not 0 < first <= most or dtype.char not in "fdilq" or numba.config.DISABLE_JIT:
        wide = dtype in (np.float64, np.int64)
        if not (wide or dtype in (np.float32, np.int32)) or x.shape[axis] >> 32 or (wide and x.size < FEW):
            return plain.argsort(x, axis, descending, first)
        if wide:
            least, largest = (int(x.min()), int(x.max())) if dtype.kind == "i" else (0, 1 << 32)
            twice = largest - least >> 32
            lower = _lower(x, 0 if twice else least)
            if twice:
                order = argsort(lower, axis, descending)
                upper = gather(_upper(x), axis, order)
                return gather(order, axis, argsort(upper, axis, descending, first))
            x = lower
        places = np.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1 - axis))
        order = (_descending if descending else _ascending)(x, places)  # no two are equal
        order.sort(axis)
        return np.bitwise_and(order, 0xFFFFFFFF, order)[(slice(None),) * axis + (slice(first),)]
    rows = operand(np.ascontiguousarray(x if axis == x.ndim - 1 else np.moveaxis(x, axis, -1)))
    places = np.empty((*rows.shape[:-1], first), np.int64)
    flat = rows.reshape(-1, rows.shape[-1])
    _best.launch(x.dtype, tasks_of_rows(len(flat), flat.shape[1], ALONE), flat, descending, places.reshape(-1, first))
    return places if axis == x.ndim - 1 else np.moveaxis(places, -1, axis)


def nonzero(x: np.ndarray) -> np.ndarray:
    """int64 (count, ndim): the places where x is not 0."""
    return plain.nonzero(_not_equal(x, 0))


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
    _move.launch(x.dtype, tasks_of_rows(len(arguments[0]), y.size // len(arguments[0]), ALONE), *arguments, True)


def _places(indices: np.ndarray, x: np.ndarray, y: Any, axis: int = 0) -> np.ndarray | None:
    """The indices along ``axis``, counted from the front; None for what the plain kernels take, or refuse."""
    known = x.dtype == getattr(y, "dtype", None) and x.dtype.type in NUMBERS and indices.dtype == np.int64
    if not (known and x.ndim and x.flags.c_contiguous and indices.size and x.size):
        return None
    n = x.shape[axis]
    if embedding.check_indices(indices, n) >= 0:
        indices = np.where(indices < 0, indices + n, indices)
    return indices if embedding.check_indices(indices, n) < 0 else None
