"""Embedding: y[i] = weight[indices[i]]; dweight[v] = sum of dy[i] over the positions i with indices[i] = v.

Each thread owns some rows of a table (of few long rows, some columns of them) and walks all positions in order for
these. So duplicates are summed in the order of the positions, without atomics, whatever the number of threads. Other
reads and changes at places of an array (``gather``, ``scatter``, ``index_add``) are the same kernel.
"""

import functools
import math
from typing import Any

import numpy as np

from ..plain_kernels import embedding as plain
from ..plain_kernels.arrays import is_half
from .elementwise import assign, cast, supports_half
from .toolbox.jit import inline
from .toolbox.multi_tensor import addresses_of
from .toolbox.numpy_loops import array_at
from .toolbox.threads import constant, get_num_threads, known_by_address, task_kernel, tasks_of_rows
from .toolbox.tracing import FLOAT32
from .toolbox.vector_math import widened

ALONE = 16384  # elements of a task
COLUMNS = 16  # rows are split at multiples of this, one cache line of float32
NUMBERS = (np.float32, np.float64, np.int64)


@inline
def _changed(kind, old, new):
    if kind < 2:
        return new
    if kind < 4:
        return old + new if kind == 2 else old * new
    stays = old >= new if kind == 4 else old <= new
    return old if stays or old != old else new


def _mover(name: str, kind: int) -> Any:
    """The kernel that reads y from places of x, or makes ``_changed(kind, x, y)`` of x there.

    Its closure has numbers only, by which the cache of kernels knows it.
    """
    reads, changes = kind == 0, kind >= 2

    @task_kernel(name=name)
    def move(task, tasks, of_x, of_places, of_y, outside, alike, x_like, y_like, outer, n, step, of_one, apart, across,
             width, columns, blocks):  # fmt: skip
        """y[i, k] = x[o, places[i, k] * step + k], without k if step is 1, for ``of_one`` rows i of each o.

        All three are given by their addresses. The places of an o are ``apart`` rows from the next one's, and y's are
        1 row from the next, or 0; a place alone is for all of a row. Changes of an o are in the order of its rows, of
        which a task has some ``columns``. What has a place outside of x is left out, and said.
        """
        rows, wide, lane, turns = outer * of_one, np.uint64(step), np.uint64(step > 1), np.uint64(blocks)
        x, y = array_at(of_x, (outer, n * step), x_like), array_at(of_y, (rows, width), y_like)
        places, together = array_at(of_places, (rows, across), np.uint64), 1 if reads else of_one
        alone, parts = across < width, rows // together * blocks
        for part in range(task * parts // tasks, (task + 1) * parts // tasks):
            first, turn, start = part // blocks * together, np.uint64(part % blocks), part % blocks * columns % width
            o = first // of_one
            for i in range(first, first + together):
                values, row, worst = y[i * alike][start : start + columns], x[o], np.uint64(0)
                at = places[i - o * (of_one - apart)][0 if alone else start :][: 1 if alone else values.shape[0]]
                for k in range(at.shape[0]):
                    worst = max(worst, at[k])
                if worst >= np.uint64(n):
                    outside[0] = 1
                elif alone and (reads or (at[0] >> np.uint64(3)) % turns == turn):
                    there = row[np.int64(at[0]) * step + start :][: values.shape[0]]
                    source, target = (there, values) if reads else (values, there)
                    for k in range(source.shape[0]):
                        target[k] = _changed(kind, target[k], widened(source[k], row) if changes else source[k])
                elif not alone:
                    for k in range(at.shape[0]):
                        place = at[k] * wide + lane * np.uint64(start + k)
                        if reads:
                            values[k] = row[place]
                        else:
                            row[place] = _changed(kind, row[place], widened(values[k], row) if changes else values[k])

    return move


READ, ASSIGN, ADD = _mover("read", 0), _mover("assign", 1), _mover("add", 2)
REDUCTIONS = {"prod": _mover("multiply", 3), "amax": _mover("raise_to", 4), "amin": _mover("lower_to", 5)}
MOVES = READ, ASSIGN


@functools.lru_cache(1024)
def _layout(way: Any, axis: int, threads: int, *of_arrays: Any) -> Any:
    """Where the indices repeat, the launch's parts, the elements of each, what stands for the kernel's types, and what
    it gets; None if it does not take these arrays, or if there is nothing to do.
    """
    shape, dtype, indices, strides, of_places, elements, kind = of_arrays  # of x, of indices, of y
    reads, moves, whole, ones = way is READ, way in MOVES, [*shape], [1] * len(shape)
    whole[axis] = ones[axis] = n = indices[axis]
    takes = is_half(kind) if kind != dtype else moves or kind.type in NUMBERS or is_half(kind)
    fits = [*indices] in (whole, ones) and elements in (None, math.prod(whole)) and 0 not in (*whole, *shape)
    if not (takes and fits and axis >= 0) or of_places != np.int64 or (moves and kind != dtype):
        return None
    step, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
    of_one, width = (1, n) if step == 1 else (n, step)
    few = [m if stride or i == axis else 1 for i, (m, stride) in enumerate(zip(indices, strides))]
    if math.prod(few[:axis]) not in (1, outer) or math.prod(few[axis + 1 :]) not in (1, step):
        few = [*indices]
    once = few != [*indices] and tuple([slice(m) for m in few])
    across = math.prod(few[axis + (step > 1) :])
    groups = outer * of_one if reads else outer
    blocks = 1 if step == 1 and not reads else min(-(-threads // groups), -(-width // COLUMNS))
    columns = -(-width // (blocks * COLUMNS)) * COLUMNS if reads or across == width else width
    blocks = blocks if columns == width else -(-width // columns)
    parts = groups * blocks
    apart, each = of_one if math.prod(few) > of_one * across else 0, outer * of_one * width // parts
    # The kernel takes elements as integers if it moves them, and half floats as ``widened`` does.
    kinds = ["u" if moves else "ui"[d.kind == "f"] if is_half(d) else d.kind for d in (dtype, kind)]
    likes = [np.zeros((), f"{letter}{d.itemsize}")[()] for letter, d in zip(kinds, (dtype, kind))]
    given = *likes, outer, shape[axis], step, of_one, apart, across, width, columns, blocks
    return once, parts, each, tuple([x.dtype.char for x in likes]), given


def move(way: Any, x: np.ndarray, axis: int, indices: np.ndarray, y: Any) -> bool:
    """``READ`` y from x at the indices along an axis, ``ADD`` it, ``ASSIGN`` it (or a number), or another change.

    Whether that is done: dtypes and shapes must fit, and what is changed be contiguous. The indices may be 1 long in
    all other dimensions. IndexError for those that are not within 0..n - 1; what is moved with them is left out.
    Half-width floats are added in float32, and rounded once.
    """
    alike, threads = isinstance(y, np.ndarray) and y.ndim > 0, get_num_threads()
    of_y, of_places = (y.size, y.dtype) if alike else (None, x.dtype), (indices.shape, indices.strides, indices.dtype)
    layout = _layout(way, axis, threads, x.shape, x.dtype, *of_places, *of_y)
    if layout is None or not (way is READ or x.flags.carray):
        return False
    if way not in MOVES and is_half(x.dtype):
        wide = cast(x, FLOAT32)
        move(way, wide, axis, indices, y if supports_half(x) else cast(y, FLOAT32))
        assign(x, wide)
        return True
    once, parts, each, key, given = layout
    y = y if alike else np.full(given[-3], y, x.dtype)
    x, places, y = map(np.ascontiguousarray, (x, indices[once] if once else indices, y))
    if way is not READ:
        places, y = [a.copy() if np.may_share_memory(x, a) else a for a in (places, y)]
    outside, addresses = constant(np.zeros(1, np.int64)), addresses_of((x, places, y))
    way.launch(key, tasks_of_rows(parts, each, ALONE), *addresses, outside, int(alike), *given)
    known_by_address((x, places, y))
    if outside[0]:
        n = x.shape[axis]
        bad = int(indices.reshape(-1)[check_indices(indices, n)])
        raise IndexError(f"index {bad} is out of range for size {n}")
    return True


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
    return y if move(READ, weight, 0, indices.reshape(-1, 1), y) else plain.forward(weight, indices)


def backward_into(dy: np.ndarray, indices: np.ndarray, dweight: np.ndarray) -> None:
    """dweight[indices] += dy, duplicates summed, in place; dy (\\*indices.shape, C), dweight (V, C) contiguous.

    Half-width floats are summed in float32 and rounded once.

    Raises ValueError if dweight is not C-contiguous.
    """
    if not dweight.flags.c_contiguous:
        raise ValueError(f"dweight has strides {dweight.strides}: expected a C-contiguous array, which is written to")
    if not move(ADD, dweight, 0, indices.reshape(-1, 1), dy.astype(dweight.dtype, copy=False)):
        plain.backward_into(dy, indices, dweight)
