"""Embedding: y[i] = weight[indices[i]]; dweight[v] = sum of dy[i] over the positions i with indices[i] = v.

Backward is split by columns: each thread walks all positions in order for its own columns. Duplicates are summed in the
order of the positions, without atomics, and the sums do not depend on the split. A column block of a small table stays
in the L1 cache; of a large table only the rows in use are touched.
"""

import numpy as np

from ..plain_kernels.arrays import is_half
from .toolbox.jit import kernel
from .toolbox.threads import get_num_threads, task_kernel, tasks_of, tasks_of_rows

TASK_ELEMENTS = 16384  # forward: rows of about this many elements are one task
COLUMNS = 16  # backward: columns are split at multiples of this, one cache line of float32


@task_kernel
def _gather(task, tasks, weight, indices, y):
    n = indices.shape[0]
    for i in range(task * n // tasks, (task + 1) * n // tasks):
        source, target = weight[indices[i]], y[i]
        for j in range(source.shape[0]):
            target[j] = source[j]


@task_kernel
def _scatter_add(task, tasks, dy, indices, dweight, columns):
    """dweight[indices[i]] += dy[i] for i in order, in the task's ``columns`` columns."""
    first, last = task * columns, min((task + 1) * columns, dy.shape[1])
    for i in range(indices.shape[0]):
        source, target = dy[i][first:last], dweight[indices[i]][first:last]
        for j in range(source.shape[0]):
            target[j] += source[j]


@kernel
def _largest(indices):
    largest = np.uint64(0)
    for i in range(indices.shape[0]):
        largest = max(largest, np.uint64(indices[i]))
    return largest


def without_repeats(indices: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The indices, 1 long in dimensions that only repeat them, other than ``axis``."""
    if 0 not in indices.strides:
        return indices
    return indices[tuple(slice(None if stride or i == axis else 1) for i, stride in enumerate(indices.strides))]


def _within(indices: np.ndarray, rows: int) -> bool:
    """Whether all indices, int64 of any shape, are in 0..rows - 1."""
    # A negative int64 is large as uint64: one reduction, of a short array in less time than NumPy's (1.2 and 2.9 us).
    return bool(_largest(np.ascontiguousarray(without_repeats(indices)).reshape(-1)) < rows) if indices.size else True


def check_indices(indices: np.ndarray, rows: int) -> int:
    """The first flat position whose index is not in 0..rows - 1; -1 if all are. indices int64.

    ``forward`` and ``backward_into`` index unchecked: call this first.
    """
    if _within(indices, rows):
        return -1
    return int(((indices < 0) | (indices >= rows)).argmax())


def forward(weight: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """weight (V, C) of any real dtype, indices int64 of any shape (checked) -> (\\*indices.shape, C)."""
    C, dtype = weight.shape[1], weight.dtype
    weight = weight.view(np.uint16) if is_half(dtype) and C else weight  # Numba knows no bfloat16; a row is only moved
    y = np.empty((*indices.shape, C), weight.dtype)
    flat, rows_y = np.ascontiguousarray(indices).reshape(-1), y.reshape(indices.size, C)
    weight = np.ascontiguousarray(weight)
    _gather.launch(weight.dtype, tasks_of_rows(indices.size, C, TASK_ELEMENTS), weight, flat, rows_y)
    return y.view(dtype) if C else y


def backward_into(dy: np.ndarray, indices: np.ndarray, dweight: np.ndarray) -> None:
    """dweight[indices] += dy, duplicates summed, in place; dy (\\*indices.shape, C), dweight (V, C) contiguous.

    Half-width floats are summed in float32 and rounded once.

    Raises ValueError if dweight is not C-contiguous.
    """
    if not dweight.flags.c_contiguous:
        raise ValueError(
            f"dweight has strides {dweight.strides}: expected a C-contiguous array, it is written in place"
        )
    if is_half(dweight.dtype):
        wide = np.zeros(dweight.shape, np.float32)
        backward_into(dy.astype(np.float32), indices, wide)
        np.copyto(dweight, wide + dweight, casting="unsafe")
        return
    C = dweight.shape[1]
    flat, rows_dy = np.ascontiguousarray(indices).reshape(-1), np.ascontiguousarray(dy).reshape(indices.size, C)
    share = C if dy.size <= TASK_ELEMENTS else -(-C // get_num_threads())
    columns = max(-(-share // COLUMNS), 1) * COLUMNS
    _scatter_add.launch((dy.dtype, dweight.dtype), tasks_of(C, columns), rows_dy, flat, dweight, columns)
