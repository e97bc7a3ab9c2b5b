"""The sum of n float32 values in five steps, each a few lines from the one before; the last is ``rowwise/fold.py``.

1. ``one_thread``: adds them one after the other. One load is under way at a time, and the error grows with n.
2. ``tree``: each thread of a block brings a value; half of the threads add the other half's, then a quarter, ... There
   is one barrier for each of 8 halvings, and half of the threads only load.
3. ``add_while_loading``: each thread brings the sum of two values, so half as many blocks do the same work.
4. ``shuffles``: below 32 values a warp exchanges registers: no shared memory, no barrier.
5. ``fold``: a thread adds many values before anything is exchanged, 4 in each 128-bit load.

A launch leaves a sum for each block in y; the next one adds those. No step uses atomics: the order is fixed.
"""

from typing import Any

import numpy as np

from ..platform.toolbox import Array, Kernel, cuda, empty, kernel
from ..rowwise.collective import warp_sum
from ..rowwise.fold import FOLDS, fold
from ..rowwise.rows import ceil_div

THREADS = 256


@kernel("float32* x2, int64", threads=1, registers=40)
def one_thread(x: Any, y: Any, n: Any) -> None:
    """y[0] = the sum of x[0 : n]."""
    total = np.float32(0)
    for i in range(n):
        total += x[i]
    y[0] = total


def halve(values: Any, t: Any) -> None:
    """values[0] = the sum of the block's values."""
    half = THREADS // 2
    while half > 0:
        if t < half:
            values[t] += values[t + half]
        cuda.syncthreads()
        half //= 2


def _by_halves(name: str, count: int) -> Kernel:
    """Steps 2 and 3, which differ in how many values a thread brings: 1, or the sum of 2."""

    @kernel("float32* x2, int64", registers=16, name=name)
    def sums(x: Any, y: Any, n: Any) -> None:
        values = cuda.shared.array(THREADS, np.float32)
        t = cuda.threadIdx.x
        i = np.int64(cuda.blockIdx.x) * (count * THREADS) + t
        total = x[i] if i < n else np.float32(0)
        if count == 2:
            total += x[i + THREADS] if i + THREADS < n else np.float32(0)
        values[t] = total
        cuda.syncthreads()
        halve(values, t)
        if t == 0:
            y[cuda.blockIdx.x] = values[0]

    return sums


tree: Kernel = _by_halves("tree", 1)
add_while_loading: Kernel = _by_halves("add_while_loading", 2)


@kernel("float32* x2, int64", registers=24)
def shuffles(x: Any, y: Any, n: Any) -> None:
    """As before; a warp's sum takes 5 exchanges of registers, and the 8 warps' sums one barrier."""
    of_warps = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    i = np.int64(cuda.blockIdx.x) * (2 * THREADS) + t
    total = (x[i] if i < n else np.float32(0)) + (x[i + THREADS] if i + THREADS < n else np.float32(0))
    total = warp_sum(total)
    if t % 32 == 0:
        of_warps[t // 32] = total
    cuda.syncthreads()
    if t < 32:
        total = warp_sum(of_warps[t] if 32 * t < THREADS else np.float32(0))
    if t == 0:
        y[cuda.blockIdx.x] = total


LADDER: tuple[tuple[Kernel, int], ...] = (  # and how many values a block adds; ``fold`` decides that itself
    (one_thread, 0),
    (tree, THREADS),
    (add_while_loading, 2 * THREADS),
    (shuffles, 2 * THREADS),
    (FOLDS["sum", "float32", "float32"].rows, 0),
)


def reduce(step: int, x: Array) -> Array:
    """The sum of contiguous float32 x, (1,), by step 1 to 5."""
    if step == len(LADDER):
        return fold("sum", x, 1, x.size, 1, x.dtype)
    chosen, per_block = LADDER[step - 1]
    blocks = max(ceil_div(x.size, per_block), 1) if per_block else 1
    y = empty(blocks, x.dtype, x.device)
    chosen.launch(blocks, x, y, x.size)
    return y if blocks == 1 else reduce(step, y)
