"""Embedding: y[i] = weight[indices[i]]; dweight[v] = sum of dy[i] over the positions i with indices[i] = v.

Backward is split by columns: each thread walks all positions in order for its own columns. Duplicates are summed in the
order of the positions, without atomics, and the sums do not depend on the split. A column block of a small table stays
in the L1 cache; of a large table only the rows in use are touched.
"""

import math
from typing import Any

import numpy as np

from ..plain_kernels.arrays import is_half
from .toolbox.register_tile import operand
from .toolbox.threads import get_num_threads, task_kernel, tasks_of_rows

ALONE = 16384  # elements of a task
COLUMNS = 16  # rows are split at multiples of this, one cache line of float32
READ, ADD, ASSIGN = range(3)
NUMBERS = (np.float32, np.float64, np.int64)


@task_kernel
def _move(task, tasks, x, places, step, y, rows, way, columns):
    """y[i, k] = x[o, places[i, k] * step + k], without k if step is 1; equally many of the ``rows`` i for each o.

    Or, as ``way`` says, the same places of x += y[i, k], or = y[i, k]: then the rows of an o are in order, and if step
    is not 1, a task has some of their ``columns``. Rows of places and of y repeat; a place alone is for all of a row.
    """
    of_one, width = rows // x.shape[0], y.shape[1]
    together, blocks = 1 if way == READ else of_one, (width + columns - 1) // columns
    parts = rows // together * blocks
    for part in range(task * parts // tasks, (task + 1) * parts // tasks):
        first, start = part // blocks * together, part % blocks * columns
        end = min(width, start + columns)
        for i in range(first, first + together):
            p, r, row = i % places.shape[0], i % y.shape[0], x[i // of_one]
            if places.shape[1] < width:
                there, values = row[places[p, 0] * step :][start:end], y[r][start:end]
                if way == ADD:
                    for k in range(values.shape[0]):
                        there[k] += values[k]
                else:
                    source, target = (there, values) if way == READ else (values, there)
                    for k in range(source.shape[0]):
                        target[k] = source[k]
            elif way == READ and step == 1:
                for k in range(y.shape[1]):
                    y[r, k] = row[places[p, k]]
            elif way == READ:
                for k in range(y.shape[1]):
                    y[r, k] = row[places[p, k] * step + k]
            elif way == ADD and step == 1:
                for k in range(y.shape[1]):
                    row[places[p, k]] += y[r, k]
            elif step == 1:
                for k in range(y.shape[1]):
                    row[places[p, k]] = y[r, k]
            else:
                for k in range(start, end):
                    at = places[p, k] * step + k
                    row[at] = row[at] + y[r, k] if way == ADD else y[r, k]


def move(way: int, x: np.ndarray, axis: int, indices: np.ndarray, y: Any) -> None:
    """``READ`` y from, ``ADD`` it to or ``ASSIGN`` it (or a number) to x at the indices along an axis.

    The indices, checked, may be 1 long in all dimensions before the axis, or in all behind it.
    """
    if not x.size * indices.size:
        return
    step, n = math.prod(x.shape[axis + 1 :]), indices.shape[axis]
    outer = x.size // (x.shape[axis] * step)
    rows, width = (outer, n) if step == 1 else (outer * n, step)
    places = without_repeats(indices, axis)
    if math.prod(places.shape[:axis]) not in (1, outer) or math.prod(places.shape[axis + 1 :]) not in (1, step):
        places = indices
    y = y if np.ndim(y) else np.full(width, y, x.dtype)
    x, places, y = [a if a.flags.carray else operand(np.ascontiguousarray(a)) for a in (x, places, y)]
    if x.dtype.type not in NUMBERS:  # Numba knows no bfloat16; elements are only moved
        x, y = (a.view(f"u{a.itemsize}") for a in (x, y))
    blocks = 1 if way == READ or step == 1 else -(-get_num_threads() // outer)
    columns = -(-width // (blocks * COLUMNS)) * COLUMNS
    parts = (rows if way == READ else outer) * -(-width // columns)
    flat = x.reshape(outer, -1), places.reshape(-1, math.prod(places.shape[axis + (step > 1) :])), step
    tasks = tasks_of_rows(parts, rows * width // parts, ALONE)
    _move.launch(x.dtype, tasks, *flat, y.reshape(-1, width), rows, way, columns)


def without_repeats(indices: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The indices, 1 long in dimensions that only repeat them, other than ``axis``."""
    if 0 not in indices.strides:
        return indices
    return indices[tuple(slice(None if stride or i == axis else 1) for i, stride in enumerate(indices.strides))]


def within(indices: np.ndarray, rows: int) -> bool:
    """Whether all indices, int64 of any shape, are in 0..rows - 1."""
    once = without_repeats(indices).view(np.uint64)  # a negative one is large: one reduction
    return not indices.size or bool(np.maximum.reduce(once, None) < rows)


def check_indices(indices: np.ndarray, rows: int) -> int:
    """The first flat position whose index is not in 0..rows - 1; -1 if all are. indices int64.

    ``forward`` and ``backward_into`` index unchecked: call this first.
    """
    if within(indices, rows):
        return -1
    return int(((indices < 0) | (indices >= rows)).argmax())


def forward(weight: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """weight (V, C) of any real dtype, indices int64 of any shape (checked) -> (\\*indices.shape, C)."""
    y = np.empty((*indices.shape, weight.shape[1]), weight.dtype)
    move(READ, weight, 0, indices.reshape(-1, 1), y)
    return y


def backward_into(dy: np.ndarray, indices: np.ndarray, dweight: np.ndarray) -> None:
    """dweight[indices] += dy, duplicates summed, in place; dy (\\*indices.shape, C), dweight (V, C) contiguous.

    Half-width floats are summed in float32 and rounded once.

    Raises ValueError if dweight is not C-contiguous.
    """
    if not dweight.flags.c_contiguous:
        raise ValueError(f"dweight has strides {dweight.strides}: expected a C-contiguous array, which is written to")
    if is_half(dweight.dtype):
        wide = np.zeros(dweight.shape, np.float32)
        backward_into(dy.astype(np.float32), indices, wide)
        np.copyto(dweight, wide + dweight, casting="unsafe")
        return
    move(ADD, dweight, 0, indices.reshape(-1, 1), dy.astype(dweight.dtype, copy=False))
