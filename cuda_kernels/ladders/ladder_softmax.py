"""Softmax of the rows of x (N, C), float32, in four steps; ``softmax.forward_rows`` is the last with any length.

1. ``row_per_thread``: three passes over a row: its maximum, the sum of e^(x - m), the result. Neighbouring threads read
   addresses that are C apart, so each access of a warp touches 32 lines of memory.
2. ``row_per_block``: the threads of a block share a row; neighbours read neighbours. Still three reads.
3. ``online``: maximum and sum in one pass: where a larger value appears, the sum so far is multiplied by
   e^(old - new maximum). Two reads (Milakov & Gimelshein, 2018).
4. ``registers``: the row stays in registers, 4 values for each of 4 128-bit loads. One read, one write.
"""

from typing import Any

import numpy as np

from ..platform.toolbox import Array, cuda, empty, kernel, math
from ..pointwise.rules import larger_of as larger
from ..rowwise.argmax_fold import add_exponentials
from ..rowwise.collective import block_max, block_sum
from ..rowwise.rows import aligned, ceil_div, row_tile

THREADS = 128
_TILE = row_tile(np.float32, 4)
read: Any = _TILE.read
write: Any = _TILE.write
COUNT: int = _TILE.values
LOWEST = np.float32(-np.inf)


@kernel("float32* x2, int64 x2", threads=THREADS, registers=32)
def row_per_thread(x: Any, y: Any, N: Any, C: Any) -> None:
    """A thread for each row."""
    row = np.int64(cuda.grid(1))
    if row < N:
        m, s = LOWEST, np.float32(0)
        for j in range(C):
            m = larger(m, x[row * C + j])
        for j in range(C):
            s += math.exp(x[row * C + j] - m)
        for j in range(C):
            y[row * C + j] = math.exp(x[row * C + j] - m) / s


@kernel("float32* x2, int64 x2", threads=THREADS, registers=32)
def row_per_block(x: Any, y: Any, N: Any, C: Any) -> None:
    """A block for each row."""
    partial = cuda.shared.array(32, np.float32)
    row = np.int64(cuda.blockIdx.x)
    m, s = LOWEST, np.float32(0)
    for j in range(cuda.threadIdx.x, C, THREADS):
        m = larger(m, x[row * C + j])
    m = block_max(m, partial)
    for j in range(cuda.threadIdx.x, C, THREADS):
        s += math.exp(x[row * C + j] - m)
    s = block_sum(s, partial)
    for j in range(cuda.threadIdx.x, C, THREADS):
        y[row * C + j] = math.exp(x[row * C + j] - m) / s


@kernel("float32* x2, int64 x2", threads=THREADS, registers=32)
def online(x: Any, y: Any, N: Any, C: Any) -> None:
    """A block for each row; a thread's sum is corrected when its maximum grows, and again for the block's."""
    partial = cuda.shared.array(32, np.float32)
    row = np.int64(cuda.blockIdx.x)
    m, s = LOWEST, np.float32(0)
    for j in range(cuda.threadIdx.x, C, THREADS):
        m, s = add_exponentials(m, s, x[row * C + j], np.float32(1))
    top = block_max(m, partial)
    s = block_sum(s * math.exp(m - top), partial)
    for j in range(cuda.threadIdx.x, C, THREADS):
        y[row * C + j] = math.exp(x[row * C + j] - top) / s


@kernel("float32* x2, int64 x2, int32", threads=THREADS, registers=40, vector_loads=True)
def registers(x: Any, y: Any, N: Any, C: Any, vectors: Any) -> None:
    """A block for each row of at most 2048 values; -inf stands behind its end."""
    partial = cuda.shared.array(32, np.float32)
    values = cuda.local.array(COUNT, np.float32)
    row = np.int64(cuda.blockIdx.x)
    read(x, row * C, C, vectors, values, LOWEST)
    m, s = LOWEST, np.float32(0)
    for k in range(COUNT):
        m = larger(m, values[k])
    m = block_max(m, partial)
    for k in range(COUNT):
        values[k] = math.exp(values[k] - m)
        s += values[k]
    s = np.float32(1) / block_sum(s, partial)
    for k in range(COUNT):
        values[k] *= s
    write(y, row * C, C, vectors, values)


def softmax(step: int, x: Array) -> Array:
    """softmax of contiguous float32 x (N, C) by rows, by step 1 to 4. ValueError for rows too long for step 4."""
    N, C = x.shape
    y = empty(x.shape, x.dtype, x.device)
    if step == 4:
        if C > THREADS * COUNT:
            raise ValueError(f"step 4 keeps rows of at most {THREADS * COUNT} values in registers, got {C}")
        registers.launch(N, x, y, N, C, aligned(4, C, x, y))
    else:
        chosen = (row_per_thread, row_per_block, online)[step - 1]
        chosen.launch(ceil_div(N, THREADS) if step == 1 else N, x, y, N, C)
    return y
