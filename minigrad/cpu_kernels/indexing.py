"""Reading and adding at positions: the plain family, with the sums at positions that may repeat compiled."""

from typing import Any

import numba
import numpy as np

from ..plain_kernels import indexing as plain
from .embedding import ADD, ALONE, ASSIGN, NUMBERS, READ, check_indices, move, without_repeats
from .toolbox.array_program import formula
from .toolbox.register_tile import operand
from .toolbox.threads import task_kernel, tasks_of_rows

FEW = 16384  # elements that NumPy picks in the time of a launch
BLOCK = 32  # elements of a row that are compared at once
MOST_BEST = 48  # so many of a row are found by comparing each element with those found before
globals().update((name, getattr(plain, name)) for name in vars(plain) if name[0] != "_")


def _fits(x: np.ndarray, axis: int, indices: np.ndarray) -> bool:
    """Whether the kernel moves this."""
    others = (*indices.shape[:axis], x.shape[axis], *indices.shape[axis + 1 :])
    return indices.size > 0 and others == x.shape and indices.dtype == np.int64 and not numba.config.DISABLE_JIT


def gather(x: np.ndarray, axis: int, indices: np.ndarray) -> np.ndarray:
    """y[i][j][k] = x[i][indices[i][j][k]][k] (for axis 1), the shape of ``indices``, each from 0 on and in range."""
    if not _fits(x, axis, indices):
        return plain.gather(x, axis, indices)
    y = np.empty(indices.shape, x.dtype)
    move(READ, x, axis, indices, y)
    return y


def scatter(x: np.ndarray, axis: int, indices: np.ndarray, y: Any) -> None:
    """x[i][indices[i][j][k]][k] = y[i][j][k] (for axis 1), in place, each from 0 on and in range; the last one wins."""
    fits = np.ndim(y) == 0 or (y.dtype == x.dtype and y.shape == indices.shape and not np.may_share_memory(x, y))
    fits = fits and not np.may_share_memory(x, indices)
    if fits and x.flags.carray and _fits(x, axis, indices):
        move(ASSIGN, x, axis, indices, y)
    else:
        plain.scatter(x, axis, indices, y)


def scatter_winners(shape: tuple[int, ...], axis: int, indices: np.ndarray) -> np.ndarray:
    """bool, of a shape that broadcasts to that of ``indices``: whose value ``scatter`` into ``shape`` leaves there."""
    places = without_repeats(indices, axis)
    order = np.arange(places.size).reshape(places.shape)
    last = np.empty((*places.shape[:axis], shape[axis], *places.shape[axis + 1 :]), np.int64)
    scatter(last, axis, places, order)
    return gather(last, axis, places) == order


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
    axis, rows = _slices(x, where)
    if rows is None:
        return plain.index(x, where)
    few = rows.size * x.size < FEW * x.shape[axis] or not x.size
    places = None if few else _places(rows, x.shape[axis])
    if places is None:
        return x.take(rows, axis)  # in half the time
    y = np.empty((*x.shape[:axis], *rows.shape, *x.shape[axis + 1 :]), x.dtype)
    move(READ, x, axis, _of_slices(x, axis, places), y)
    return y


def add_at(x: np.ndarray, where: Any, y: np.ndarray) -> None:
    """x[where] += y; repeated positions add up."""
    axis, rows = _slices(x, where)
    if rows is None or y.shape != (*x.shape[:axis], *rows.shape, *x.shape[axis + 1 :]):
        plain.add_at(x, where, y)
    else:
        y = y.reshape(*x.shape[:axis], rows.size, *x.shape[axis + 1 :])
        scatter_add(x, axis, np.broadcast_to(_of_slices(x, axis, rows), y.shape), y)


def scatter_add(x: np.ndarray, axis: int, indices: np.ndarray, y: np.ndarray) -> None:
    """x[i][indices[i][j][k]][k] += y[i][j][k] (for axis 1), in place; repeated positions add up in order."""
    adds = x.dtype == y.dtype and x.dtype.type in NUMBERS and x.flags.carray and y.shape == indices.shape
    adds = adds and not np.may_share_memory(x, y) and not np.may_share_memory(x, indices)
    places = _places(indices, x.shape[axis]) if adds and _fits(x, axis, indices) else None
    if places is None:
        plain.scatter_add(x, axis, indices, y)
    else:
        move(ADD, x, axis, places, y)


def _slices(x: np.ndarray, where: Any) -> tuple[int, Any]:
    """The axis, and the int64 places of x[:, places]; None for any other index."""
    parts = where if isinstance(where, tuple) else (where,)
    rows = parts[-1] if 0 < len(parts) <= x.ndim and x.flags.c_contiguous else None
    if not (isinstance(rows, np.ndarray) and rows.dtype == np.int64 and rows.ndim):
        return 0, None
    return len(parts) - 1, rows if all(isinstance(part, slice) and part == slice(None) for part in parts[:-1]) else None


def _of_slices(x: np.ndarray, axis: int, rows: np.ndarray) -> np.ndarray:
    """The places of slices as indices that repeat."""
    return rows.reshape(*(1 if i != axis else -1 for i in range(x.ndim)))


def _places(indices: np.ndarray, n: int) -> np.ndarray | None:
    """The indices counted from the front; None for what the plain kernels refuse."""
    if check_indices(indices, n) < 0:
        return indices
    indices = np.where(indices < 0, indices + n, indices)
    return indices if check_indices(indices, n) < 0 else None
