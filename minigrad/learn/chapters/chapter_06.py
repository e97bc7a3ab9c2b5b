"""Chapter 6: the GPU's model. Threads in warps and blocks, the memory that they share, and what an access costs."""

from typing import Any

import numpy as np

from minigrad.cuda_kernels.simulator import cuda  # on a GPU: from numba import cuda

WARP = 32
ALL = 0xFFFFFFFF  # a mask with a bit for each lane of a warp: all of them
BLOCK = 64  # threads of a block of ``reverse``
TILE = 32  # rows and columns of a tile of ``transpose``
SIDE = 8  # of a tile of ``matmul``
BINS = 8  # of ``histogram``


def double(x: Any, y: Any, n: int) -> None:
    """y[i] = x[i] + x[i] for i < n. The threads of the grid, 0, 1, 2, ..., have one element each; some have none."""
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i] + x[i]


def add_row(x: Any, row: Any, y: Any) -> None:
    """y[i, j] = x[i, j] + row[j]. The grid is (columns, rows): neighbours of a warp have neighbouring columns.

    ``cuda.grid(2)`` gives a thread's two places, x first. ``x.shape`` is (rows, columns).
    """
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        y[i, j] = x[i, j] + row[j]


def reverse(x: Any, y: Any) -> None:
    """Each block turns its 64 elements round: thread t writes y[first + t] = x[first + 63 - t], through shared memory.

    ``x`` and ``y`` have as many elements as the grid has threads. Each element of x is read once, in order.
    """
    tile = cuda.shared.array(BLOCK, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    y[cuda.grid(1)] = tile[BLOCK - 1 - t]


def transpose(x: Any, y: Any) -> None:
    """y[j, i] = x[i, j], a tile of 32 x 32 for each block of (32, 8) threads, through shared memory.

    Block (bx, by) reads the tile that begins at row 32 by and column 32 bx. Both x and y are accessed row by row. The
    columns of the tile lie in different banks. Threads past the edge of x do not read, those past the edge of y do not
    write.
    """
    tile = cuda.shared.array((TILE, TILE + 1), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for k in range(ty, TILE, 8):
        if top + k < x.shape[0] and left + tx < x.shape[1]:
            tile[k, tx] = x[top + k, left + tx]
    cuda.syncthreads()
    for k in range(ty, TILE, 8):
        if left + k < y.shape[0] and top + tx < y.shape[1]:
            y[left + k, top + tx] = tile[tx, k]


def warp_sum(value: Any) -> Any:
    """The sum of the values of the 32 lanes of a warp, for each of them: five exchanges, no shared memory."""
    distance = WARP // 2
    while distance > 0:
        value += cuda.shfl_xor_sync(ALL, value, distance)
        distance //= 2
    return value


def matmul(a: Any, b: Any, y: Any) -> None:
    """y = a b: a thread of an 8 x 8 block for each element, tiles of 8 x 8 of a and of b in shared memory.

    Block (bx, by) has the columns from 8 bx and the rows from 8 by on. a (M, K), b (K, N), y (M, N), of any sizes.
    """
    a_tile, b_tile = cuda.shared.array((SIDE, SIDE), np.float32), cuda.shared.array((SIDE, SIDE), np.float32)  # given
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y  # given
    j, i = cuda.grid(2)  # given
    total = np.float32(0)  # given
    for first in range(0, a.shape[1], SIDE):
        a_tile[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1] else np.float32(0)
        b_tile[ty, tx] = b[first + ty, j] if first + ty < b.shape[0] and j < b.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(SIDE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if i < y.shape[0] and j < y.shape[1]:
        y[i, j] = total


def histogram(x: Any, counts: Any) -> None:
    """counts[b] += how often b is in x, for b < 8: in shared bins first, then one addition of each block for each bin.

    Blocks of at least 8 threads; x has as many elements as the grid has threads. All additions are atomic.
    """
    bins = cuda.shared.array(BINS, np.int32)
    t = cuda.threadIdx.x
    if t < BINS:
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, x[cuda.grid(1)], 1)
    cuda.syncthreads()
    if t < BINS:
        cuda.atomic.add(counts, t, bins[t])
