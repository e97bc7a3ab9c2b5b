"""Stable sorting of rows: each value becomes an unsigned key of the same order, and (key, index) pairs are sorted.

A key's order is that of the values with NaN as the largest and -0 equal to 0; for a descending order its bits are
inverted. Equal keys keep the order of their indices.

1. Blocks sort tiles of up to 1024 pairs in shared memory, by a bitonic network: log2(n) (log2(n) + 1) / 2 steps of
   compare-exchanges between fixed places (Batcher, 1968).
2. Neighbouring sorted runs are merged until one is left: an element's place is its place in its own run plus the number
   of elements before it in the other one, by binary search; among equals the first run's come first.
"""

from typing import Any

import numpy as np

from ..platform.array import reinterpret
from ..platform.toolbox import THREADS, Array, Kernel, cuda, empty, kernel
from ..pointwise.pointwise import Pointwise
from ..pointwise.rules import rule

SORTED = 1024


def _key(kind: str) -> Pointwise:
    """From the bits of values of a kind (f, i or u) to keys, of which ``inverted`` turns none or all of the bits."""

    @rule
    def key(word):
        width = 8 * np.dtype(word).itemsize
        top, everything = word(1 << (width - 1)), word((1 << width) - 1)
        infinity = word(0x7F800000 if width == 32 else 0x7FF0000000000000)

        def of_float(bits, inverted):
            size = bits & (everything ^ top)
            if size > infinity:
                return everything ^ inverted  # NaN
            if size == word(0):
                return top ^ inverted
            return (everything ^ bits if bits & top else bits | top) ^ inverted

        return {"f": of_float, "i": lambda bits, inverted: bits ^ top ^ inverted}.get(kind, lambda b, i: b ^ i)

    eager = {"f": ("uint32", "uint64"), "i": ("uint32", "uint64"), "u": ("uint8 uint32 to uint32",)}[kind]
    return Pointwise(f"key_{kind}", key, lambda bits, inverted: (_word(bits),) * 3, 2, eager=eager, lazy=())


def _word(bits: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.uint32 if bits.itemsize < 8 else np.uint64)


_KEY = {kind: _key(kind) for kind in "fiu"}


def _sort_tiles(width: int) -> Kernel:
    word = np.dtype(f"uint{width}").type
    largest = word((1 << width) - 1)

    @kernel(f"uint{width}*, int64*, int64, int32", threads=SORTED // 2, registers=32, of=str(width))
    def sort_tiles(keys, order, n, tile):
        """Each tile of each row in place; ``order`` gets the indices. A block has tile / 2 threads, a power of 2."""
        key = cuda.shared.array(SORTED, word)
        place = cuda.shared.array(SORTED, np.int32)
        t, threads = cuda.threadIdx.x, cuda.blockDim.x
        row = np.int64(cuda.blockIdx.y) * n
        first = np.int64(cuda.blockIdx.x) * tile
        for k in range(t, tile, threads):
            inside = first + k < n
            key[k] = keys[row + first + k] if inside else largest
            place[k] = k
        cuda.syncthreads()
        size = 2
        while size <= tile:
            step = size // 2
            while step > 0:
                low = 2 * t - (t & (step - 1))
                high = low + step
                ascending = low & size == 0
                a, b = key[low], key[high]
                i, j = place[low], place[high]
                if (a > b or (a == b and i > j)) == ascending:
                    key[low], key[high] = b, a
                    place[low], place[high] = j, i
                cuda.syncthreads()
                step //= 2
            size *= 2
        for k in range(t, tile, threads):
            if first + k < n:
                keys[row + first + k] = key[k]
                order[row + first + k] = first + place[k]

    return sort_tiles


def _merge(width: int) -> Kernel:
    @kernel(f"uint{width}*, int64*, uint{width}*, int64*, int64 x2", registers=26, of=str(width))
    def merge_runs(keys, order, merged_keys, merged_order, n, run):
        """Each pair of neighbouring runs of each row into one; the last ones may be short."""
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if i < n:
            row = np.int64(cuda.blockIdx.y) * n
            pair = i & ~(2 * run - 1)  # run is a power of 2
            middle = min(pair + run, n)
            end = min(pair + 2 * run, n)
            key = keys[row + i]
            left = i < middle
            low = middle if left else pair
            high = end if left else middle
            start = low
            while low < high:  # the elements of the other run that come before this one
                half = (low + high) >> 1
                other = keys[row + half]
                if other < key or (other == key and not left):
                    low = half + 1
                else:
                    high = half
            place = row + (i if left else i - middle + pair) + low - start
            merged_keys[place] = key
            merged_order[place] = order[row + i]

    return merge_runs


_SORT_TILES = {width // 8: _sort_tiles(width) for width in (32, 64)}
_MERGE = {width // 8: _merge(width) for width in (32, 64)}
MOST_ROWS = 65535  # of a launch


def _parts(rows: int) -> list[tuple[slice, int]]:
    """As many rows as a launch takes, and their number."""
    return [(slice(i, i + MOST_ROWS), min(rows - i, MOST_ROWS)) for i in range(0, rows, MOST_ROWS)]


def sort_rows(x: Array, descending: bool = False) -> tuple[Array, Array]:
    """x (rows, n), contiguous -> the sorted keys (unsigned) and the indices (int64) that sort each row, stably."""
    rows, n = x.shape
    bits, word = reinterpret(x, f"u{x.itemsize}"), _word(x.dtype)
    inverted = (1 << 8 * word.itemsize) - 1 if descending else 0
    keys = _KEY["u" if x.dtype.kind == "b" else x.dtype.kind](bits, inverted)
    order = empty(x.shape, np.int64, x.device)
    if not x.size:
        return keys, order
    tile = min(SORTED, 1 << max((n - 1).bit_length(), 1))
    for part, count in _parts(rows):
        _SORT_TILES[word.itemsize].launch((-(-n // tile), count), keys[part], order[part], n, tile, threads=tile // 2)
    run = tile
    while run < n:
        merged_keys, merged_order = empty(x.shape, word, x.device), empty(x.shape, np.int64, x.device)
        for part, count in _parts(rows):
            arrays = (a[part] for a in (keys, order, merged_keys, merged_order))
            _MERGE[word.itemsize].launch((-(-n // THREADS), count), *arrays, n, run)
        keys, order = merged_keys, merged_order
        run *= 2
    return keys, order
