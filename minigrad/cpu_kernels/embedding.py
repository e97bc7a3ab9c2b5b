"""Embedding: y[i] = weight[indices[i]]; dweight[v] = sum of dy[i] over the positions i with indices[i] = v.

Backward is split by columns: each thread walks all positions in order for its own columns. Duplicates are summed in the
order of the positions, without atomics, and the sums do not depend on the split. A column block of a small table stays
in the L1 cache; of a large table only the rows in use are touched.
"""

import functools
import math
from typing import Any

import numpy as np

from ..plain_kernels.arrays import is_half
from .elementwise import assign, cast, supports_half
from .toolbox.array_program import FLOAT32
from .toolbox.jit import inline
from .toolbox.register_tile import operand
from .toolbox.threads import constant, get_num_threads, task_kernel, tasks_of_rows
from .toolbox.vector_math import widened

ALONE = 16384  # elements of a task
COLUMNS = 16  # rows are split at multiples of this, one cache line of float32
NUMBERS = (np.float32, np.float64, np.int64)


@inline
def _changed(kind, old, new):
    if kind == 2:
        return old + new
    if kind == 3:
        return old * new
    if kind == 4:
        return old if old >= new or old != old else new
    if kind == 5:
        return old if old <= new or old != old else new
    return new


def _mover(name: str, kind: int) -> Any:
    """The kernel that reads y from places of x, or makes ``_changed(kind, x, y)`` of x there.

    Its closure has numbers only, by which the cache of kernels knows it.
    """
    reads, changes = kind == 0, kind >= 2

    @task_kernel(name=name)
    def move(task, tasks, x, places, step, y, rows, columns, outside):
        """y[i, k] = x[o, places[i, k] * step + k], without k if step is 1; equally many of the ``rows`` i for each o.

        Changes of an o are in the order of its rows, of which a task has some ``columns``. Rows of places and of y
        repeat; a place alone is for all of a row. What has a place outside of x is left out, and said.
        """
        of_one, width, wide = rows // x.shape[0], y.shape[1], np.uint64(step)
        together, blocks = 1 if reads else of_one, (width + columns - 1) // columns
        alone, parts = places.shape[1] < width, rows // together * blocks
        for part in range(task * parts // tasks, (task + 1) * parts // tasks):
            first, start = part // blocks * together, part % blocks * columns
            for i in range(first, first + together):
                values, row, worst = y[i % y.shape[0]][start : start + columns], x[i // of_one], np.uint64(0)
                at = places[i % places.shape[0]][0 if alone else start :][: 1 if alone else values.shape[0]]
                for k in range(at.shape[0]):
                    worst = max(worst, at[k])
                if worst >= np.uint64(x.shape[1] // step):
                    outside[0] = 1
                elif alone:
                    there = row[np.int64(at[0]) * step + start :][: values.shape[0]]
                    source, target = (there, values) if reads else (values, there)
                    for k in range(source.shape[0]):
                        target[k] = _changed(kind, target[k], widened(source[k], row) if changes else source[k])
                elif step == 1:
                    for k in range(at.shape[0]):
                        if reads:
                            values[k] = row[at[k]]
                        else:
                            row[at[k]] = _changed(kind, row[at[k]], widened(values[k], row) if changes else values[k])
                else:
                    for k in range(at.shape[0]):
                        place = at[k] * wide + np.uint64(start + k)
                        if reads:
                            values[k] = row[place]
                        else:
                            row[place] = _changed(kind, row[place], widened(values[k], row) if changes else values[k])

    return move


READ, ASSIGN, ADD = _mover("read", 0), _mover("assign", 1), _mover("add", 2)
REDUCTIONS: dict[str, Any] = {
    "prod": _mover("multiply", 3),
    "amax": _mover("raise_to", 4),
    "amin": _mover("lower_to", 5),
}


@functools.lru_cache(1024)
def _rows_of(shape: Any, axis: int, indices: Any, strides: Any, reads: bool, threads: int) -> Any:
    """Where the indices repeat, shapes of x, places and y, and the launch: step, rows, columns, parts."""
    step, n = math.prod(shape[axis + 1 :]), indices[axis]
    outer = math.prod(shape[:axis])
    rows, width = (outer, n) if step == 1 else (outer * n, step)
    few = [m if stride or i == axis else 1 for i, (m, stride) in enumerate(zip(indices, strides))]
    if math.prod(few[:axis]) not in (1, outer) or math.prod(few[axis + 1 :]) not in (1, step):
        few = [*indices]
    once = few != [*indices] and tuple([slice(m) for m in few])
    blocks = 1 if step == 1 and not reads else -(-threads // (rows if reads else outer))
    columns = -(-width // (blocks * COLUMNS)) * COLUMNS
    parts = (rows if reads else outer) * -(-width // columns)
    of_places = -1, math.prod(few[axis + (step > 1) :])
    return once, (outer, -1), of_places, (-1, width), step, rows, columns, parts


def move(way: Any, x: np.ndarray, axis: int, indices: np.ndarray, y: Any) -> None:
    """``READ`` y from x at the indices along an axis, ``ADD`` it, ``ASSIGN`` it (or a number), or another change.

    The indices may be 1 long in all dimensions before the axis, or in all behind it. IndexError for those that are not
    within 0..n - 1; what is moved with them is left out. Half-width floats are added in float32, and rounded once.
    """
    if not indices.size or 0 in x.shape[axis + 1 :]:
        return
    if way not in (READ, ASSIGN) and is_half(x.dtype):
        wide = cast(x, FLOAT32)
        move(way, wide, axis, indices, y if supports_half(x) else cast(y, FLOAT32))
        assign(x, wide)
        return
    once, of_x, of_places, of_y, step, rows, columns, parts = _rows_of(
        x.shape, axis, indices.shape, indices.strides, way is READ, get_num_threads()
    )
    places = indices[once] if once else indices
    y = y if np.ndim(y) else np.full(of_y[1], y, x.dtype)
    x, places, y = [a if a.flags.carray else operand(np.ascontiguousarray(a)) for a in (x, places, y)]
    # Numba knows no half floats: they are moved as integers, of the types that ``widened`` takes.
    x, y = (a if a.dtype.type in NUMBERS else a.view(f"{'ui'[a.dtype.kind == 'f']}{a.itemsize}") for a in (x, y))
    outside = constant(np.zeros(1, np.int64))
    tasks = tasks_of_rows(parts, rows * of_y[1] // parts, ALONE)
    given = x.reshape(of_x), places.view(np.uint64).reshape(of_places), step, y.reshape(of_y), rows, columns, outside
    way.launch(y.dtype, tasks, *given)
    if outside[0]:
        n = x.size // (of_x[0] * step)
        bad = int(indices.reshape(-1)[check_indices(indices, n)])
        raise IndexError(f"index {bad} is out of range for size {n}")


def check_indices(indices: np.ndarray, rows: int) -> int:
    """The first flat position whose index is not in 0..rows - 1; -1 if all are. indices int64.

    ``forward`` and ``backward_into`` index unchecked: call this first.
    """
    if not indices.size or np.maximum.reduce(indices.view(np.uint64), None) < rows:  # a negative one is large
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
    move(ADD, dweight, 0, indices.reshape(-1, 1), dy.astype(dweight.dtype, copy=False))
