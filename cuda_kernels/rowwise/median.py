"""The value of rank k among n, found bit by bit from the highest: with the bits above known, the values that agree with
them and have 0 here are counted. If they are k or fewer, the bit is 1 and k falls by their number.

Values are compared as unsigned keys of the same order: of a negative float all bits are turned, of others the sign.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..platform.array import Array, empty, full, zeros
from ..platform.language import THREADS, cuda
from ..platform.launch import Kernel, kernel
from .collective import block_sum
from .fold import fold
from .rows import ceil_div

COUNT_BLOCKS = 512


class RankSelection(NamedTuple):
    """The kernels for one dtype."""

    counts: Kernel
    decide: Kernel
    bits: int


def _selection(bits: int, kind: str) -> RankSelection:
    """``kind``: f, i or u, the keys' order."""
    unsigned = np.dtype(f"uint{bits}").type
    top, every = np.uint64(1 << (bits - 1)), np.uint64((1 << bits) - 1)
    one, none = np.uint64(1), np.uint64(0)
    floating, signed = kind == "f", kind != "u"

    @kernel(f"bits{bits}*, uint64*, int64*, int64 x2", registers=40, of=f"{kind}{bits}")
    def count(x, prefix, partial, n, bit):
        """partial[blockIdx.x] = how many keys agree with prefix[0] from ``bit`` on, where it is 0."""
        of_warps = cuda.shared.array(32, np.int64)
        wanted = prefix[0] >> np.uint64(bit)
        found = np.int64(0)
        for i in range(np.int64(cuda.grid(1)), n, cuda.gridsize(1)):
            key = np.uint64(x[i])
            if signed:
                key = key ^ (every if floating and (key & top) != none else top)
            if key >> np.uint64(bit) == wanted:
                found += 1
        found = block_sum(found, of_warps)
        if cuda.threadIdx.x == 0:
            partial[cuda.blockIdx.x] = found

    @kernel(f"int64*, uint64*, int64*, bits{bits}*, int64", threads=1, registers=24, of=f"{kind}{bits}")
    def decide(total, prefix, rank, y, bit):
        """Set this bit of prefix[0], and rank[0] among those that agree with it; y[0] is the value of prefix[0]."""
        if rank[0] >= total[0]:
            rank[0] -= total[0]
            prefix[0] = prefix[0] | (one << np.uint64(bit))
        key = prefix[0]
        if signed:
            key = key ^ (every if floating and (key & top) == none else top)
        y[0] = unsigned(key)

    return RankSelection(count, decide, bits)


SELECTIONS: dict[tuple[str, int], RankSelection] = {
    (kind, itemsize): _selection(8 * itemsize, kind)
    for kind, itemsize in (("f", 4), ("f", 8), ("i", 4), ("i", 8), ("u", 1))
}


def select(x: Array, k: int) -> Array:
    """The value of rank k (0 is the smallest) of contiguous x, 0-d; NaNs are the largest or smallest by their sign."""
    chosen = SELECTIONS["u" if x.dtype.kind == "b" else x.dtype.kind, x.itemsize]
    y = empty((), x.dtype, x.device)
    prefix, rank = zeros(1, np.uint64, x.device), full(1, k, np.int64, x.device)
    parts = min(COUNT_BLOCKS, ceil_div(x.size, THREADS))
    threads = min(THREADS, 32 * ceil_div(x.size, 32))
    partial = empty(parts, np.int64, x.device)
    for bit in reversed(range(chosen.bits)):
        chosen.counts.launch(parts, x, prefix, partial, x.size, bit, threads=threads)
        total = partial if parts == 1 else fold("sum", partial, 1, parts, 1, np.dtype(np.int64))
        chosen.decide.launch(1, total, prefix, rank, y, bit)
    return y
