"""Sums, products or extrema of the first 1, 2, ... values of the rows of x (N, n).

A block takes tiles of as many values as it has threads; each warp scans its 32 by shuffles, and adds what the warps and
tiles before it have. Where few rows are long, n is taken in parts, whose totals are scanned first. Products of float32
are formed in float64: they may leave float32 and come back.
"""

from typing import Any

import numpy as np

from ..platform.toolbox import FULL_WARP, THREADS, Array, Kernel, cuda, empty, kernel, ones
from ..pointwise.rules import larger_of, smaller_of
from .collective import add
from .fold import multiply
from .rows import ceil_div

PART = 4096  # values that are worth a block of their own

Scan = tuple[Kernel, np.dtype[Any]]  # and what the parts' totals are


def _scan(name: str, real: Any, wide: Any, combine: Any, identity: Any) -> Scan:
    word = real.__name__

    def with_before(value, lane, distance):
        other = cuda.shfl_up_sync(FULL_WARP, value, distance)
        both = combine(other, value)
        return both if lane >= distance else value

    @kernel(f"{word}*, {wide.__name__}*, {word}*, int64 x2, int32 x3", registers=48, name=f"{name}_{word}")
    def scan_rows(x, totals, y, n, part, reverse, exclusive, stage):
        """y[row, j] = x[row, 0] .. x[row, j]; ``reverse``: from the end; ``exclusive``: without x[row, j].

        Stage 0: y, in one part. 1: totals[row, p] of parts p = blockIdx.y. 2: y, from totals of those before.
        """
        of_warps = cuda.shared.array(32, wide)
        t, lane, warp = cuda.threadIdx.x, cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        row = np.int64(cuda.blockIdx.x)
        place = row * cuda.gridDim.y + cuda.blockIdx.y
        carry = wide(identity)
        if stage == 2:
            carry = totals[place]
        start = cuda.blockIdx.y * part
        stop = min(n, start + part)
        for tile in range(start, stop, cuda.blockDim.x):
            j = tile + t
            at = row * n + (n - 1 - j if reverse else j)
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

    return scan_rows, np.dtype(wide)


SCANS: dict[tuple[str, str], Scan] = {}
for real in (np.float32, np.float64, np.int64):
    word, wide = real.__name__, np.float64 if real is np.float32 else real  # in which products may leave it
    least, most = (np.iinfo(real).min, np.iinfo(real).max) if real is np.int64 else (-np.inf, np.inf)
    SCANS["sum", word], SCANS["prod", word] = _scan("sum", real, real, add, 0), _scan("prod", real, wide, multiply, 1)
    SCANS["max", word] = _scan("max", real, real, larger_of, least)
    SCANS["min", word] = _scan("min", real, real, smaller_of, most)


def scan(name: str, x: Array, reverse: bool = False, exclusive: bool = False) -> Array:
    """``name`` (sum, prod, max, min) of the values so far of the rows of contiguous x (N, n), of x's shape and dtype.

    ``reverse``: from the last value to the first. ``exclusive``: of those before only.
    """
    y, (N, n) = empty(x.shape, x.dtype, x.device), x.shape
    scan_rows, wide = SCANS[name, x.dtype.name]
    flags = int(reverse), int(exclusive)
    if not x.size:
        return y
    part = max(PART, ceil_div(n, 1024)) if N < 1024 else n
    parts = ceil_div(n, part)
    threads = min(THREADS, 32 * ceil_div(n, 32))
    totals = empty((N, parts) if parts > 1 else 0, wide, x.device)
    if parts > 1:
        scan_rows.launch((N, parts), x, totals, y, n, part, *flags, 1, threads=threads)
        totals = scan(name, totals, exclusive=True)
    scan_rows.launch((N, parts), x, totals, y, n, part, *flags, 2 if parts > 1 else 0, threads=threads)
    return y


def iota(n: int, device: int) -> Array:
    """int64 (n,): 0, 1, ... n - 1."""
    return scan("sum", ones((1, n), np.int64, device), exclusive=True).reshape(n)
