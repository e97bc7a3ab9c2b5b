"""Chapter 5: a fast product. The same multiply-adds, in an order that the memory likes, on all cores."""

import itertools
from collections import OrderedDict
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
LINE = 8  # numbers in a cache line


class Cache:
    """A model of a cache: so many lines; a new one takes the place of the one that was not used for longest."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        self.held: OrderedDict[Any, None] = OrderedDict()

    def misses(self, line: Any) -> bool:
        """Use a line; returns whether it had to be fetched."""
        missed = line not in self.held
        self.held[line] = None
        self.held.move_to_end(line)
        if len(self.held) > self.lines:
            self.held.popitem(last=False)
        return missed


class Counted:
    """A matrix that counts how often its elements are read and written, and how many lines that fetched."""

    def __init__(self, array: Array, cache: Cache) -> None:
        self.array, self.cache, self.shape = array, cache, array.shape
        self.reads = self.writes = self.fetched = 0

    def _place(self, index: Any) -> Any:
        i, j = index
        if not (0 <= i < self.shape[0] and 0 <= j < self.shape[1]):
            raise IndexError(f"[{i}, {j}] is outside of a matrix of shape {self.shape}")
        self.fetched += self.cache.misses((id(self), (i * self.shape[1] + j) // LINE))
        return i, j

    def __getitem__(self, index: Any) -> float:
        self.reads += 1
        return float(self.array[self._place(index)])

    def __setitem__(self, index: Any, value: float) -> None:
        self.writes += 1
        self.array[self._place(index)] = value


def ordered(a: Any, b: Any, c: Any) -> None:
    """c += a b. All three are matrices. The innermost loop walks along rows, of b and of c."""
    for i in range(c.shape[0]):
        for k in range(a.shape[1]):
            for j in range(c.shape[1]):
                c[i, j] += a[i, k] * b[k, j]


def blocked(a: Any, b: Any, c: Any, depth: int, width: int) -> None:
    """The same, one block of b after the other: all rows of a use a block before the next one.

    A block has ``depth`` rows and ``width`` columns of b; at the edges it may be smaller.
    """
    for k0 in range(0, b.shape[0], depth):
        for j0 in range(0, b.shape[1], width):
            for i in range(c.shape[0]):
                for k in range(k0, min(k0 + depth, b.shape[0])):
                    for j in range(j0, min(j0 + width, b.shape[1])):
                        c[i, j] += a[i, k] * b[k, j]


def block_depth(cache_bytes: int, width: int, itemsize: int) -> int:
    """The largest multiple of 4 such that a block of so many rows of ``width`` numbers fills at most half of a cache.

    The other half is for the rows of a and c that pass by. At least 4.
    """
    return max(4, cache_bytes // 2 // (width * itemsize) // 4 * 4)


def pack(b: Any, k0: int, j0: int, block: Any) -> None:
    """Copy the piece of b that begins at [k0, j0] into ``block``; 0 where the block is larger than the rest of b."""
    for k in range(block.shape[0]):
        for j in range(block.shape[1]):
            inside = k0 + k < b.shape[0] and j0 + j < b.shape[1]
            block[k, j] = b[k0 + k, j0 + j] if inside else 0


def tile(a: Any, block: Any, c: Any, i: int, k0: int) -> None:
    """Rows i and i + 1 of c += those rows of a, from column k0, times a packed block, which is as wide as c.

    The block has a multiple of 4 rows. Four of its rows at a time: 8 numbers of a wait in local variables, each number
    of the block is read once for both rows, and each element of c is read and written once for all four.
    """
    for k in range(0, block.shape[0], 4):
        a0, a1, a2, a3 = a[i, k0 + k], a[i, k0 + k + 1], a[i, k0 + k + 2], a[i, k0 + k + 3]
        d0, d1, d2, d3 = a[i + 1, k0 + k], a[i + 1, k0 + k + 1], a[i + 1, k0 + k + 2], a[i + 1, k0 + k + 3]
        for j in range(block.shape[1]):
            b0, b1, b2, b3 = block[k, j], block[k + 1, j], block[k + 2, j], block[k + 3, j]
            c[i, j] += a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3
            c[i + 1, j] += d0 * b0 + d1 * b1 + d2 * b2 + d3 * b3


def share(rows: int, threads: int) -> list[tuple[int, int]]:
    """Rows for each thread, as (first, last + 1): all of an even number of rows, in order, each row once.

    Each share is an even number of rows, as ``tile`` takes two. The largest and the smallest differ by 2 at most.
    """
    pairs = rows // 2
    ends = [pairs * k // threads * 2 for k in range(threads + 1)]
    return list(itertools.pairwise(ends))
