"""Reading and adding at positions: the plain family, with the sums at positions that may repeat compiled."""

import math
from typing import Any

import numpy as np

from ..plain_kernels import indexing as plain
from .elementwise import assign
from .embedding import ADD, ALONE, ASSIGN, READ, REDUCTIONS, check_indices, move
from .toolbox.formula import formula
from .toolbox.register_tile import operand
from .toolbox.strided_copy import MANY
from .toolbox.threads import shares, task_kernel, tasks_of_rows

FEW = 16384  # elements that NumPy picks in the time of a launch
BLOCK = 32  # elements of a row that are compared at once
MOST_BEST = 48  # so many of a row are found by comparing each element with those found before
globals().update((name, getattr(plain, name)) for name in vars(plain) if name[0] != "_")


def gather(x: np.ndarray, axis: int, indices: np.ndarray) -> np.ndarray:
    """y[i][j][k] = x[i][indices[i][j][k]][k] (for axis 1), the shape of ``indices``, each from 0 on and in range."""
    y = np.empty(indices.shape, x.dtype)
    return y if move(READ, x, axis, indices, y) else plain.gather(x, axis, indices)


def scatter(x: np.ndarray, axis: int, indices: np.ndarray, y: Any) -> None:
    """x[i][indices[i][j][k]][k] = y[i][j][k] (for axis 1), in place, each from 0 on and in range; the last one wins."""
    if not move(ASSIGN, x, axis, indices, y):
        plain.scatter(x, axis, indices, y)


def scatter_add(x: np.ndarray, axis: int, indices: np.ndarray, y: Any) -> None:
    """x[i][indices[i][j][k]][k] += y[i][j][k] (for axis 1), in place; repeated positions add up in order."""
    if not move(ADD, x, axis, indices, y):
        plain.scatter_add(x, axis, indices, y)


def scatter_reduce(x: np.ndarray, axis: int, indices: np.ndarray, y: np.ndarray, reduce: str) -> None:
    """x[i][indices[i][j][k]][k] = f(itself, y[i][j][k]) (for axis 1), in place; f as ``reduce`` says, NaN stays."""
    if not move(REDUCTIONS[reduce], x, axis, indices, y):
        plain.scatter_reduce(x, axis, indices, y, reduce)


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


@task_kernel
def _search(task, tasks, x, values, left, y):
    """y[i, k]: how many of row i of x are before values[i, k]. Bisection, of the values of a block at once."""
    blocks = (values.shape[1] + BLOCK - 1) // BLOCK
    for part in range(task * len(x) * blocks // tasks, (task + 1) * len(x) * blocks // tasks):
        row, start, n = x[part // blocks], part % blocks * BLOCK, x.shape[1]
        sought, low = values[part // blocks][start : start + BLOCK], y[part // blocks][start : start + BLOCK]
        low[:] = 0
        while n > 0:
            half = (n + 1) // 2
            probes = row[half - 1 :]
            for k in range(low.shape[0]):  # without a choice, which is a jump that nobody foresees
                probe = probes[np.uint64(low[k])]
                low[k] += half & (np.int64(probe > sought[k]) + np.int64(left & (probe == sought[k])) - 1)
            n -= half


def searchsorted(x: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    """int64: how many of the ascending last axis of ``x`` are before each value, or with ``right`` not behind it."""
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    y, each = np.empty(values.shape, np.int64), values.size // max(rows, 1)
    sequences, sought = (operand(np.ascontiguousarray(a)) for a in (x, values))
    given = sequences.reshape(rows, n), sought.reshape(rows, each), not right, y.reshape(rows, each)
    _search.launch(x.dtype, shares(values.size * n.bit_length()), *given)
    return y


def _in_order(x: Any) -> Any:
    """int64 that are in order as x, whose floats have NaN last and 0 equal to -0."""
    if x.dtype.kind == "f":
        bits, most = (x + x.dtype.type(0)).view(f"i{x.dtype.itemsize}"), 2 ** (8 * x.dtype.itemsize - 1) - 1
        x = np.where(x == x, bits ^ ((bits >> (8 * x.dtype.itemsize - 1)) & most), most)
    return x.astype(np.int64)


_upper = formula(lambda x: (_in_order(x) >> 32).astype(np.int32))
_lower = formula(lambda x, least: ((_in_order(x) - least) ^ 0x80000000).astype(np.int32))  # signed as if it were not
_ascending = formula(lambda x, places: (_in_order(x) << 32) | places)
_descending = formula(lambda x, places: (np.invert(_in_order(x)) << 32) | places)


def argsort(x: np.ndarray, axis: int, descending: bool, first: int | None = None) -> np.ndarray:
    """The ``first`` (default: all) indices (int64) of ``x`` sorted stably along ``axis``; NaN is the largest.

    By NumPy's sort, which is fast for int64: of 32 bits of the value with the place below them, twice for 64 bits.
    """
    most, dtype = min(MOST_BEST, x.shape[axis] // 8), x.dtype
    if first is None or not 0 < first <= most or dtype.char not in "fdilq":
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


def index(x: np.ndarray, where: Any) -> np.ndarray:
    """x[where], as the plain one."""
    found = None if x.size < FEW else _rows(x, where)
    if found is None:
        return plain.index(x, where)
    cube, axis, rows = found
    y = np.empty((*x.shape[:axis], *rows.shape, *cube.shape[axis + 1 :]), x.dtype)
    return y if move(READ, cube, axis, _of_slices(cube, axis, rows), y) else plain.index(x, where)


def _at(way: Any, x: np.ndarray, where: Any, y: Any) -> bool:
    """Whether a kernel has changed x at rows of ``where`` by y. NumPy is quick where a few elements are assigned."""
    few = way is ASSIGN and x.size < FEW and (where if isinstance(where, np.ndarray) else np.asarray(y)).size < FEW
    found = None if few else _rows(x, where)
    if found is None:
        return False
    cube, axis, rows = found
    y, before, after = np.asarray(y, x.dtype), x.shape[:axis], cube.shape[axis + 1 :]
    if y.ndim:  # dimensions of 1 may come before
        shape = *before, *rows.shape, *after
        y = y if y.shape == shape else np.broadcast_to(y.reshape(y.shape[-len(shape) :]), shape)
        y = y.reshape(*before, rows.size, *after)
    return move(way, cube, axis, _of_slices(cube, axis, rows), y)


def add_at(x: np.ndarray, where: Any, y: np.ndarray) -> None:
    """x[where] += y; repeated positions add up."""
    if not _at(ADD, x, where, y):
        plain.add_at(x, where, y)


def assign_at(x: np.ndarray, where: Any, y: Any) -> None:
    """x[where] = y; of repeated positions the last one wins."""
    if _at(ASSIGN, x, where, y):
        return
    part = x[where] if x.nbytes >= MANY and isinstance(y, np.ndarray) else None
    if part is not None and np.may_share_memory(part, x):
        assign(part, y)
    else:
        plain.assign_at(x, where, y)


_append = formula(lambda rows, n, places: rows * n + places)


def _rows(x: np.ndarray, where: Any) -> tuple[np.ndarray, int, Any] | None:
    """x with those dimensions as one that neighbouring arrays index, that dimension, and the places in it, int64.

    None for any other index, and for what NumPy refuses.
    """
    parts = where if isinstance(where, tuple) else (where,)
    arrays = [part for part in parts if isinstance(part, np.ndarray) and part.ndim]
    axis = len(parts) - len(arrays)
    whole = all([isinstance(part, slice) and part == slice(None) for part in parts[:axis]])
    if not arrays or not whole or not x.flags.c_contiguous or len(parts) > x.ndim:
        return None
    shape, mask = x.shape, arrays[0]
    rows: Any = None
    if mask.dtype == bool and len(arrays) == 1:
        if mask.shape != shape[axis : axis + mask.ndim]:
            return None
        end, rows = axis + mask.ndim, mask.reshape(-1).nonzero()[0]
    else:
        end = axis
        for part in arrays:
            places = _places(part, shape[end]) if part.dtype == np.int64 else None
            if places is None:
                return None
            rows = places if rows is None else _append(rows, shape[end], places)
            end += 1
    return x.reshape(*shape[:axis], math.prod(shape[axis:end]), *shape[end:]), axis, rows


def _of_slices(x: np.ndarray, axis: int, rows: np.ndarray) -> np.ndarray:
    """The places of slices as indices that repeat."""
    return rows.reshape(*(1 if i != axis else -1 for i in range(x.ndim)))


def _places(indices: np.ndarray, n: int) -> np.ndarray | None:
    """The indices counted from the front; None for what the plain kernels refuse."""
    if check_indices(indices, n) < 0:
        return indices
    indices = np.where(indices < 0, indices + n, indices)
    return indices if check_indices(indices, n) < 0 else None
