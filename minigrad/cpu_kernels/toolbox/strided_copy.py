"""Copies between arrays of any strides, by all threads; a transposed array goes block by block, as caches like it."""

from typing import Any

import numba
import numpy as np
from numba import types

from .array_program import layout_of
from .jit import emits, inline, kernel
from .multi_tensor import addresses_of, elements_at
from .register_tile import INT64, Vectors, transpose_registers
from .threads import constant, get_num_threads, task_kernel

FEW = 65536  # bytes that NumPy rearranges in the time of a launch
MANY = 1 << 19  # bytes in order that it copies in that time
TASK = 131072  # bytes of a task, about
RUN = 16384  # elements of a row that are a block
ROWS, COLUMNS, TILE = 16, 512, 8  # of a block of a transposed array; a tile's lines find room in the first cache


@task_kernel
def _copies(task, tasks, tables, like, wide):
    """The task's share of each copy. A copy's table is that of ``layout_of``, with the addresses behind it."""
    start = 0
    while start < tables.shape[0]:
        end = start + 3 * tables[start] + 3
        _copy(task, tasks, tables[start + 1 : end - 2].reshape(-1, 3), tables[end - 2], tables[end - 1], like, wide)
        start = end


@kernel
def _copy(task, tasks, table, first_x, first_y, like, wide):
    outer = table.shape[0] - 2
    rows, columns = table[outer, 0], table[outer + 1, 0]
    x_row, y_row, x_step, y_step = table[outer, 1], table[outer, 2], table[outer + 1, 1], table[outer + 1, 2]
    turned = abs(x_row) < abs(x_step) and abs(x_step) > like.itemsize and rows > 1
    adjacent = turned and x_row == like.itemsize and y_step == like.itemsize
    width, tile = (COLUMNS, TILE) if turned else (RUN, RUN)
    across, down = (columns + width - 1) // width, (rows + ROWS - 1) // ROWS
    blocks = across * down
    for d in range(outer):
        blocks *= table[d, 0]
    for block in range(task * blocks // tasks, (task + 1) * blocks // tasks):
        rest, first = block // across, block % across * width
        rest, i = rest // down, rest % down * ROWS
        x, y = first_x + i * x_row, first_y + i * y_row
        for d in range(outer - 1, -1, -1):
            rest, at = rest // table[d, 0], rest % table[d, 0]
            x, y = x + at * table[d, 1], y + at * table[d, 2]
        here = min(ROWS, rows - i)
        for j in range(first, min(first + width, columns), tile):
            count = min(tile, columns - j)
            for r in range(0, here, TILE):
                source, target, lines = x + r * x_row + j * x_step, y + r * y_row + j * y_step, min(TILE, here - r)
                if adjacent and count == TILE and lines == TILE:
                    _transpose(source, x_step, target, y_row, like)
                else:
                    for k in range(lines):
                        _copy_row(source + k * x_row, x_step, target + k * y_row, y_step, count, like, wide)


@emits(lambda x, x_step, y, y_row, like: types.void(*[types.int64] * 4, like))
def _transpose(context: Any, builder: Any, signature: Any, x: Any, x_step: Any, y: Any, y_row: Any, like: Any) -> None:
    """TILE elements from each of the addresses x, x + x_step, ... as the columns of TILE rows at y, y + y_row, ..."""
    vectors = Vectors(builder, context, signature.args[-1].dtype, TILE)

    def place(address: Any, step: Any, i: int) -> Any:
        return builder.inttoptr(builder.add(address, builder.mul(step, INT64(i))), vectors.scalar.as_pointer())

    lines = [vectors.load(place(x, x_step, i), INT64(0)) for i in range(TILE)]
    transpose_registers(builder, lines)
    for i, line in enumerate(lines):
        vectors.store(line, place(y, y_row, i), INT64(0))


@inline
def _copy_row(x, x_step, y, y_step, count, like, wide):
    source, target = elements_at(x, count, like), elements_at(y, count, like)
    if y_step != like.itemsize:
        for c in range(count):
            elements_at(y + c * y_step, 1, like)[0] = elements_at(x + c * x_step, 1, like)[0]
    elif x_step == like.itemsize:
        for c in range(count):
            target[c] = source[c]
    elif x_step == 0:
        target[:] = source[0]
    elif x_step == wide.itemsize:  # whose lower half is the element: vectors shorten it
        pairs, last = elements_at(x, count, wide), x + (count - 1) * x_step
        for c in range(count - 1):
            target[c] = pairs[c]
        target[count - 1] = elements_at(last, 1, like)[0]  # behind it there may be no memory
    elif x_step == -like.itemsize:
        before = elements_at(x + (count - 1) * x_step, count, like)
        for c in range(count):
            target[c] = before[np.uint64(count - 1 - c)]
    else:
        for c in range(count):
            target[c] = elements_at(x + c * x_step, 1, like)[0]


def copy_into(y: np.ndarray, x: np.ndarray) -> None:
    """y[...] = x, of the same shape and dtype, which share no memory; as a launch, but for objects and odd layouts."""
    copy_each([(y, x)])


def copy_each(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """The same for each (y, x), all of one dtype, as one launch."""
    tables: list[int] = []
    size, total = pairs[0][0].itemsize, 0
    for y, x in pairs:
        if x.shape != y.shape or x.dtype != y.dtype:
            raise ValueError(f"an array {x.dtype} {x.shape} is no copy of one {y.dtype} {y.shape}")
        if size not in LIKE or y.dtype.hasobject or not (x.flags.aligned and y.flags.aligned) or not y.size:
            np.copyto(y, x)
            continue
        tables += (*layout_of(y.shape, (x.shape, x.strides), (y.shape, y.strides))[0], *addresses_of((x, y)))
        total += y.nbytes
    threads = get_num_threads() if total >= FEW else 1
    if tables:
        tasks = threads * max(1, total // (TASK * threads))
        _copies.launch(size, tasks, constant(np.array(tables, np.int64)), LIKE[size], LIKE.get(2 * size, LIKE[size]))


LIKE = {size: np.empty(0, f"u{size}") for size in (1, 2, 4, 8)}


def copied(x: np.ndarray, few: int = FEW) -> np.ndarray:
    """A new C-contiguous array of the same values; NumPy's copy of less than ``few`` bytes."""
    if x.nbytes < few or numba.config.DISABLE_JIT:
        return np.array(x, order="C", copy=True)
    y = np.empty(x.shape, x.dtype)
    copy_into(y, x)
    return y
