"""Copies between arrays of any strides, by all threads; a transposed array goes block by block, as caches like it."""

import numba
import numpy as np

from .multi_tensor import addresses_of, elements_at
from .threads import constant, get_num_threads, task_kernel

FEW = 65536  # bytes that NumPy copies in the time of a launch
TASK = 131072  # bytes of a task, about
BLOCK_ROWS, BLOCK_COLUMNS = 16, 8  # so few that their lines, all a power of two apart, find room in the first cache
RUN = 16384  # elements of a contiguous row that are a block


@task_kernel
def _copy(task, tasks, table, like):
    """A table row for each dimension, (size, stride of x, stride of y): those before, rows, columns; then addresses."""
    outer = table.shape[0] - 3
    rows, columns = table[outer, 0], table[outer + 1, 0]
    x_row, y_row, x_step, y_step = table[outer, 1], table[outer, 2], table[outer + 1, 1], table[outer + 1, 2]
    straight = x_step == like.itemsize and y_step == like.itemsize
    height, width = (1, RUN) if straight else (BLOCK_ROWS, BLOCK_COLUMNS)
    across, down = (columns + width - 1) // width, (rows + height - 1) // height
    blocks = across * down
    for d in range(outer):
        blocks *= table[d, 0]
    for block in range(task * blocks // tasks, (task + 1) * blocks // tasks):
        rest, j = block // across, block % across * width
        rest, i = rest // down, rest % down * height
        x = table[outer + 2, 1] + i * x_row + j * x_step
        y = table[outer + 2, 2] + i * y_row + j * y_step
        for d in range(outer - 1, -1, -1):
            rest, at = rest // table[d, 0], rest % table[d, 0]
            x, y = x + at * table[d, 1], y + at * table[d, 2]
        count = min(width, columns - j)
        for r in range(min(height, rows - i)):
            if straight:
                source, target = elements_at(x, count, like), elements_at(y, count, like)
                for c in range(count):
                    target[c] = source[c]
            else:
                for c in range(count):
                    value = elements_at(x + r * x_row + c * x_step, 1, like)[0]
                    elements_at(y + r * y_row + c * y_step, 1, like)[0] = value


def copy_into(y: np.ndarray, x: np.ndarray) -> None:
    """y[...] = x, of the same shape and dtype, which share no memory; as a launch, but for objects and odd layouts."""
    size = y.itemsize
    if size not in LIKE or y.dtype.hasobject or not (x.flags.aligned and y.flags.aligned) or not y.size:
        np.copyto(y, x)
        return
    dims: list[tuple[int, int, int]] = []
    for n, a, b in sorted(zip(y.shape, x.strides, y.strides), key=lambda dim: -abs(dim[2])):
        if dims and dims[-1][1:] == (n * a, n * b):
            dims[-1] = (dims[-1][0] * n, a, b)
        elif n > 1:
            dims.append((n, a, b))
    columns = dims.pop() if dims else (1, size, size)
    rows = min(dims, key=lambda dim: abs(dim[1]), default=(1, 0, 0))
    if dims:
        dims.remove(rows)
    table = np.array([*dims, rows, columns, (0, *addresses_of((x, y)))], np.int64)
    threads = get_num_threads() if y.nbytes >= FEW else 1
    _copy.launch(size, threads * max(1, y.nbytes // (TASK * threads)), constant(table), LIKE[size])


LIKE = {size: np.empty(0, f"u{size}") for size in (1, 2, 4, 8)}


def copied(x: np.ndarray) -> np.ndarray:
    """A new C-contiguous array of the same values."""
    if x.nbytes < FEW or numba.config.DISABLE_JIT:
        return np.array(x, order="C", copy=True)
    y = np.empty(x.shape, x.dtype)
    copy_into(y, x)
    return y
