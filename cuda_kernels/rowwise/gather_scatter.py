"""Reading and writing at places along one dimension of a contiguous array, which is all that indexing comes down to.

x (P, K, Q) and places (N,) in [0, K) give y (P, N, Q) with y[p, n, q] = x[p, places[n], q]. A place may occur more than
once. Of the values written there the last one stays: the largest n of each place is found by an atomic maximum of
integers, whose result does not depend on an order.

Reductions sort the places, stably, and take them in chunks of 32. A thread walks a chunk for one column of (P, Q), or
for four, and joins the values of equal places, in order:

    chunk 0           chunk 1           chunk 2
    3 3 3 5 5 7 7 7   7 7 7 7 7 7 7 7   7 7 8 8 9 9 9 9

A place within one chunk (3, 5, 8, 9) is changed at once. What a place that goes on (7) has in each chunk is kept, and
joined by a second kernel, chunk after chunk. No atomics: each run gives the same bits.
"""

from typing import Any

import numpy as np

from ..platform.toolbox import THREADS, Array, Kernel, cuda, empty, kernel, zeros
from ..pointwise.conversion import element_conversions
from ..pointwise.rules import larger_of, smaller_of
from ..ptx import ptx
from ..ptx.fours import each
from .rows import ceil_div, quotient
from .sorting import sort_rows
from .strided_copy import WIDTHS, widest_word, words_from

MOST_WORDS = 2**31 - 1  # of a launch, whose places are 32-bit numbers
SORTED_CHUNK = 32  # sorted places that a thread takes
LOW_BITS = np.uint64(2**63 - 1)  # of the keys of numbers >= 0, whose highest bit is set


# Moving ---------------------------------------------------------------------------------------------------------------


def _mover(bits: int, vector: bool, writes: bool) -> Kernel:
    step = 1 + vector  # words of ``bits`` in each access

    @kernel(
        f"bits{bits}* x2, int64*, uint32 x4", registers=16, vector_loads=vector,
        name=f"{'put' if writes else 'take'}_{bits * step}_bits",
    )  # fmt: skip
    def move(x, y, places, size, N, K, Q):
        i = np.uint32(cuda.grid(1))
        if i < size:
            row = i // Q
            q = i - row * Q
            p = row // N
            n = row - p * N
            place = places[n]
            if place >= 0:
                there = step * ((np.int64(p) * np.int64(K) + place) * np.int64(Q) + np.int64(q))
                here = step * np.int64(i)
                if writes:
                    if vector:
                        ptx.store2(x, there, ptx.load2(y, here))
                    else:
                        x[there] = y[here]
                elif vector:
                    ptx.store2(y, here, ptx.load2(x, there))
                else:
                    y[here] = x[there]

    return move


_TAKE = {n: _mover(8 * n, False, False) for n in WIDTHS} | {16: _mover(64, True, False)}
_PUT = {n: _mover(8 * n, False, True) for n in WIDTHS} | {16: _mover(64, True, True)}


def take(x: Array, places: Array) -> Array:
    """y (P, N, Q) of x (P, K, Q), contiguous, and places int64 (N,) within [0, K)."""
    y = empty((x.shape[0], places.size, x.shape[2]), x.dtype, x.device)
    _move(_TAKE, x, y, places)
    return y


def put(x: Array, places: Array, y: Array, distinct: bool = False) -> None:
    """x[p, places[n], q] = y[p, n, q], all contiguous; of equal places the last one stays."""
    if not distinct:
        places = _keep_winners(places, x.shape[1])
    _move(_PUT, x, y, places)


def _move(kernels: dict[int, Kernel], x: Array, y: Array, places: Array) -> None:
    P, N, Q = y.shape
    if not y.size:
        return
    width = widest_word(Q * x.itemsize, [x.pointer, y.pointer])
    words, K = Q * x.itemsize // width, x.shape[1]
    if P * N * words > MOST_WORDS and P * N > 1:
        for half in (slice(P // 2), slice(P // 2, None)) if P > 1 else (slice(N // 2), slice(N // 2, None)):
            if P > 1:
                _move(kernels, x[half], y[half], places)
            else:
                _move(kernels, x, y[:, half], places[half])
        return
    if max(words, K) > MOST_WORDS:
        raise ValueError(f"indexing: {K} places of {Q} elements each; at most {MOST_WORDS} are supported")
    size = P * N * words
    pair = (words_from(a, a.pointer, min(width, 8)) for a in (x, y))
    kernels[width].launch_each(size, *pair, places, size, N, K, words)


@kernel("int64*, int32*, int64", registers=16)
def claim(places, last, n):
    i = cuda.grid(1)
    if i < n:
        ptx.atomic_max(last, places[i], i + 1)


@kernel("int64* x2, int32*, int64", registers=16)
def keep_claimed(kept, places, last, n):
    i = cuda.grid(1)
    if i < n:
        place = places[i]
        kept[i] = place if last[place] == i + 1 else -1


def _keep_winners(places: Array, K: int) -> Array:
    """The places, -1 for those that occur again later."""
    n = places.size
    last, kept = zeros(K, np.int32, places.device), empty(n, np.int64, places.device)
    claim.launch_each(n, places, last, n)
    keep_claimed.launch_each(n, kept, places, last, n)
    return kept


# Reducing -------------------------------------------------------------------------------------------------------------


_COMBINE = {"sum": lambda x, y: x + y, "prod": lambda x, y: x * y, "amax": larger_of, "amin": smaller_of}
_OF_BOOLS = _COMBINE | {"sum": lambda x, y: x | y, "prod": lambda x, y: x & y}


def _load_one(p: Any, i: Any) -> Any:
    x = p[i]
    return x, x, x, x


def _store_one(p: Any, i: Any, values: Any) -> None:
    p[i] = values[0]


def _reducers(name: str, dtype: str, width: int) -> tuple[Kernel, Kernel, np.dtype[Any]]:
    """The two kernels of a reduction, and the dtype of what the first leaves to the second."""
    combine = (_OF_BOOLS if dtype == "bool" else _COMBINE)[name]
    real = np.dtype({"bool": "uint8", "float16": "float32", "bfloat16": "float32"}.get(dtype, dtype)).type
    read, write = element_conversions(dtype)
    load, store = (ptx.load4, ptx.store4) if width == 4 else (_load_one, _store_one)
    wide, of = real.__name__, f"{name}_{dtype}_{width}"

    widened: Any = each(lambda v: real(read(v)))
    joined: Any = each(lambda s, v: real(combine(s, v)), 2)
    narrowed: Any = each(write)

    def place_of(blocks):
        """The thread's chunk and column."""
        block = np.uint32(cuda.blockIdx.x)
        down = np.uint32(block // blocks)
        across = np.int64(np.uint32(block - down * blocks))
        chunk = np.int64(down) * cuda.blockDim.y + cuda.threadIdx.y
        return chunk, width * (across * cuda.blockDim.x + cuda.threadIdx.x)

    @kernel(
        f"{dtype}* x2, uint64*, int64*, {wide}*, int64 x4, uint32",
        registers=64, vector_loads=width == 4 and dtype == "float32", name=f"chunks_{of}",
    )  # fmt: skip
    def reduce_chunks(x, y, keys, order, kept, N, K, Q, columns, blocks):
        """kept (chunks, 2, columns): of a place from the chunk before what it has here; of one that goes on, too."""
        chunk, column = place_of(blocks)
        start = chunk * SORTED_CHUNK
        if column >= columns or start >= N:
            return
        p = quotient(column, Q)
        q = column - p * Q
        end = min(start + SORTED_CHUNK, N)
        began_before, first = start > 0 and keys[start - 1] == keys[start], True
        found = real(0), real(0), real(0), real(0)
        for i in range(start, end):
            key = keys[i]
            to = (p * K + np.int64(key & LOW_BITS)) * Q + q
            values = widened(load(y, (p * N + order[i]) * Q + q))
            if first:
                found = widened(load(x, to))
            found = values if first and began_before else joined(found, values)
            goes_on = i + 1 < N and keys[i + 1] == key
            first = i + 1 == end or not goes_on
            if first:
                if began_before:
                    store(kept, 2 * chunk * columns + column, found)
                elif goes_on:
                    store(kept, (2 * chunk + 1) * columns + column, found)
                else:
                    store(x, to, narrowed(found))
                began_before = False

    @kernel(f"{dtype}*, uint64*, {wide}*, int64 x4, uint32", registers=40, name=f"spanning_{of}")
    def reduce_spanning(x, keys, kept, N, K, Q, columns, blocks):
        """The thread of the chunk where a place that goes on begins takes what all its chunks have."""
        chunk, column = place_of(blocks)
        start = chunk * SORTED_CHUNK
        end = start + SORTED_CHUNK
        if column >= columns or end >= N:
            return
        key = keys[end - 1]
        if keys[end] != key or (start > 0 and keys[start - 1] == key):
            return
        found = load(kept, (2 * chunk + 1) * columns + column)
        while end < N and keys[end] == key:
            chunk += 1
            found = joined(found, load(kept, 2 * chunk * columns + column))
            end += SORTED_CHUNK
        p = quotient(column, Q)
        store(x, (p * K + np.int64(key & LOW_BITS)) * Q + column - p * Q, narrowed(found))

    return reduce_chunks, reduce_spanning, np.dtype(real)


_NUMBERS = ("float32", "float64", "int64", "int32", "uint8", "bool")
_REDUCE = {
    (name, dtype, width): _reducers(name, dtype, width)
    for name, dtypes, width in (
        *((name, _NUMBERS, 1) for name in _COMBINE),
        ("sum", ("float16", "bfloat16"), 1),
        ("sum", ("float32", "float16", "bfloat16"), 4),
    )
    for dtype in dtypes
}


def reduce_at(x: Array, places: Array, y: Array, reduce: str) -> None:
    """x[p, k, q] = f(itself, y[p, n, q] of all n with places[n] = k), in order; all contiguous, halves rounded once.

    f is the sum, the product, the larger or the smaller one for ``reduce`` "sum", "prod", "amax" or "amin".
    """
    if not y.size:
        return
    (P, K, Q), N = x.shape, places.size
    wide = Q % 4 == 0 and not (x.pointer % 16 or y.pointer % 16)
    width = 4 if wide and (reduce, x.dtype.name, 4) in _REDUCE else 1
    if (reduce, x.dtype.name, width) not in _REDUCE:
        raise TypeError(f"there is no {reduce} of {x.dtype} at places on the device 'cuda'")
    chunks_of, spanning, total = _REDUCE[reduce, x.dtype.name, width]
    keys, order = sort_rows(places.reshape(1, N))
    chunks, columns = ceil_div(N, SORTED_CHUNK), P * Q
    kept = empty((chunks, 2, columns), total, x.device)
    across = min(THREADS, columns // width)
    down, blocks = min(THREADS // across, chunks), ceil_div(columns // width, across)
    grid, threads, sizes = blocks * ceil_div(chunks, down), (across, down), (N, K, Q, columns, blocks)
    chunks_of.launch(grid, x, y, keys, order, kept, *sizes, threads=threads)
    if chunks > 1:
        spanning.launch(grid, x, keys, kept, *sizes, threads=threads)
