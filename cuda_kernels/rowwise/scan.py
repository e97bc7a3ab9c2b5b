"""Sums or products of the first 1, 2, ... values of x (outer, n, inner) along n.

``serial``: a thread goes along n. ``by_block``: a block takes tiles of as many values as it has threads; each warp
scans its 32 by shuffles, and adds what the warps and tiles before it have. Where few rows are long, n is taken in
parts, whose totals are scanned first. Products of float32 are formed in float64: they may leave float32 and come back.
"""

from typing import Any

import numpy as np

from ..platform.array import Array, empty
from ..platform.language import FULL_WARP, THREADS, cuda, device_function
from ..platform.launch import Kernel, kernel
from .collective import add
from .fold import multiply
from .rows import ceil_div, quotient

SERIAL = 32  # a thread is enough for so many values
PART = 4096  # values that are worth a block of their own
OUTPUTS = 16384  # so many rows fill a card with a thread each


Scan = tuple[Kernel, Kernel, np.dtype[Any]]  # ``serial``, ``by_block``, and what the parts' totals are


def _scan(name: str, real: Any, wide: Any, combine: Any, identity: int) -> Scan:
    word = real.__name__

    @device_function
    def with_before(value, lane, distance):
        other = cuda.shfl_up_sync(FULL_WARP, value, distance)
        return combine(other, value) if lane >= distance else value

    @kernel(f"{word}* x2, int64 x3, int32 x2, {wide.__name__}", registers=40, name=f"{name}_serial_{word}")
    def serial(x, y, outputs, n, inner, reverse, exclusive, start):
        """y[o, j, i] = x[o, 0, i] .. x[o, j, i]; ``reverse``: from the end; ``exclusive``: without x[o, j, i]."""
        output = np.int64(cuda.grid(1))
        if output < outputs:
            o = quotient(output, inner)
            at = o * n * inner + output - o * inner
            step = inner
            if reverse:
                at += (n - 1) * inner
                step = -inner
            total = start
            for _ in range(n):
                before = total
                total = combine(total, wide(x[at]))
                y[at] = before if exclusive else total
                at += step

    @kernel(f"{word}*, {wide.__name__}*, {word}*, int64 x3, int32 x3", registers=48, name=f"{name}_by_block_{word}")
    def by_block(x, totals, y, n, inner, part, reverse, exclusive, stage):
        """Stage 0: y, in one part. 1: totals[o, p, i] of parts p = blockIdx.y. 2: y, from totals of those before."""
        of_warps = cuda.shared.array(32, wide)
        t, lane, warp = cuda.threadIdx.x, cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        o = quotient(np.int64(cuda.blockIdx.x), inner)
        i = cuda.blockIdx.x - o * inner
        place = (o * cuda.gridDim.y + cuda.blockIdx.y) * inner + i
        carry = wide(identity)
        if stage == 2:
            carry = totals[place]
        start = cuda.blockIdx.y * part
        stop = min(n, start + part)
        for tile in range(start, stop, cuda.blockDim.x):
            j = tile + t
            at = (o * n + (n - 1 - j if reverse else j)) * inner + i
            value = wide(identity)
            if j < stop:
                value = wide(x[at])
            for distance in (1, 2, 4, 8, 16):
                value = with_before(value, lane, distance)
            before = cuda.shfl_up_sync(FULL_WARP, value, 1)
            if lane == 0:
                before = wide(identity)
            if lane == 31:
                of_warps[warp] = value
            cuda.syncthreads()
            for w in range(cuda.blockDim.x // 32):
                if w == warp and stage != 1 and j < stop:
                    y[at] = combine(carry, before if exclusive else value)
                carry = combine(carry, of_warps[w])
            cuda.syncthreads()
        if stage == 1 and t == 0:
            totals[place] = carry

    return serial, by_block, np.dtype(wide)


SCANS: dict[tuple[str, str], Scan] = {
    **{("sum", real.__name__): _scan("sum", real, real, add, 0) for real in (np.float32, np.float64, np.int64)},
    ("prod", "float32"): _scan("prod", np.float32, np.float64, multiply, 1),
    ("prod", "float64"): _scan("prod", np.float64, np.float64, multiply, 1),
    ("prod", "int64"): _scan("prod", np.int64, np.int64, multiply, 1),
}


def scan(name: str, x: Array, outer: int, n: int, inner: int, reverse: bool = False, exclusive: bool = False) -> Array:
    """``name`` (sum, prod) of the values so far of contiguous x (outer, n, inner) -> an array of x's shape and dtype.

    ``reverse``: from the last value to the first. ``exclusive``: of those before only.
    """
    y = empty(x.shape, x.dtype, x.device)
    serial, by_block, wide = SCANS[name, x.dtype.name]
    outputs = outer * inner
    identity = 0 if name == "sum" else 1
    flags = int(reverse), int(exclusive)
    if not x.size:
        return y
    if n <= SERIAL or (outputs >= OUTPUTS and inner > 1):
        serial.launch_each(outputs, x, y, outputs, n, inner, *flags, identity)
        return y
    part = max(PART, ceil_div(n, 1024)) if outputs < 1024 else n
    parts = ceil_div(n, part)
    threads = min(THREADS, 32 * ceil_div(n, 32))
    totals = empty(outputs * parts if parts > 1 else 0, wide, x.device)
    if parts > 1:
        by_block.launch((outputs, parts), x, totals, y, n, inner, part, *flags, 1, threads=threads)
        totals = scan(name, totals, outer, parts, inner, exclusive=True)
    stage = 2 if parts > 1 else 0
    by_block.launch((outputs, parts), x, totals, y, n, inner, part, *flags, stage, threads=threads)
    return y
