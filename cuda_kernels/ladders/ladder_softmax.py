"""Softmax of the rows of x (N, C), float32, in four steps; the last is ``softmax.py``.

1. ``row_per_thread``: three passes over a row: its maximum, the sum of e^(x - m), the result. Neighbouring threads read
   addresses that are C apart, so each access of a warp touches 32 lines of memory.
2. ``row_per_block``: the threads of a block share a row; neighbours read neighbours. Still three reads.
3. ``online``: maximum and sum in one pass: where a larger value appears, the sum so far is multiplied by
   e^(old - new maximum). Two reads (Milakov & Gimelshein, 2018).
4. ``softmax.forward_rows``: the row stays in registers, 4 values for each of 4 128-bit loads. One read, one write.
"""

from typing import Any

import numpy as np

from ..platform import families
from ..platform.toolbox import Array, cuda, empty, kernel, math
from ..pointwise.rules import larger_of as larger
from ..rowwise.argmax_fold import add_exponentials
from ..rowwise.collective import block_max, block_sum
from ..rowwise.rows import ceil_div

THREADS = 128
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


def softmax(step: int, x: Array) -> Array:
    """softmax of contiguous float32 x (N, C) by rows, by step 1 to 4."""
    if step == 4:
        return families.softmax.forward(x, 1)
    (N, C), y = x.shape, empty(x.shape, x.dtype, x.device)
    chosen = (row_per_thread, row_per_block, online)[step - 1]
    chosen.launch(ceil_div(N, THREADS) if step == 1 else N, x, y, N, C)
    return y
