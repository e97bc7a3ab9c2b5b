"""Reading and writing at places along one dimension of a contiguous array, which is all that indexing comes down to.

x (P, K, Q) and places (N,) in [0, K) give y (P, N, Q) with y[p, n, q] = x[p, places[n], q]. A place may occur more than
once. Of the values written there the last one stays: the largest n of each place is found by an atomic maximum of
integers, whose result does not depend on an order. Reductions sort the places, stably, so that equal ones follow one
another; one thread takes all of a place's values in their order. Every run gives the same bits.
"""

import numpy as np

from ..platform import families
from ..platform.array import Array, empty, zeros
from ..platform.language import cuda, device_function
from ..platform.launch import Kernel, kernel
from ..pointwise.conversion import element_conversions
from ..pointwise.rules import larger_of, smaller_of
from ..ptx import ptx
from .sorting import sort_rows
from .strided_copy import WIDTHS, words_from

MOST_WORDS = 2**31 - 1  # of a launch, whose places are 32-bit numbers
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
    width = 16
    while (Q * x.itemsize) % width or x.pointer % width or y.pointer % width:
        width //= 2
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


def winners(places: Array, K: int) -> Array:
    """bool (N,): whether no later place is the same."""
    return families.comparison.ge(_keep_winners(places, K), 0)


# Reducing -------------------------------------------------------------------------------------------------------------


_COMBINE = {
    "sum": device_function(lambda x, y: x + y),
    "prod": device_function(lambda x, y: x * y),
    "amax": larger_of,
    "amin": smaller_of,
}
_OF_BOOLS = _COMBINE | {"sum": device_function(lambda x, y: x | y), "prod": device_function(lambda x, y: x & y)}


def _reducer(name: str, dtype: str) -> Kernel:
    combine = (_OF_BOOLS if dtype == "bool" else _COMBINE)[name]
    real = np.dtype({"bool": "uint8", "float16": "float32", "bfloat16": "float32"}.get(dtype, dtype)).type
    read, write = element_conversions(dtype)

    @kernel(f"{dtype}* x2, uint64*, int64*, uint32 x4", registers=25, name=f"{name}_{dtype}")
    def reduce(x, y, places, order, size, N, K, Q):
        """One thread takes all values of a place, from the first one on; places are sorted."""
        i = np.uint32(cuda.grid(1))
        if i < size:
            row = i // Q
            q = np.int64(i - row * Q)
            p = row // N
            n = np.int64(row - p * N)
            place = np.int64(places[n] & LOW_BITS)
            if n == 0 or places[n - 1] != places[n]:
                to = (np.int64(p) * np.int64(K) + np.int64(place)) * np.int64(Q) + q
                first = np.int64(p) * np.int64(N)
                total = real(read(x[to]))
                end = np.int64(N)
                key = places[n]
                while n < end and places[n] == key:
                    total = real(combine(total, real(read(y[(first + order[n]) * np.int64(Q) + q]))))
                    n += 1
                x[to] = write(total)

    return reduce


_REDUCE = {("sum", dtype): _reducer("sum", dtype) for dtype in ("float16", "bfloat16")} | {
    (name, dtype): _reducer(name, dtype)
    for name in ("sum", "prod", "amax", "amin")
    for dtype in ("float32", "float64", "int64", "int32", "uint8", "bool")
}


def reduce_at(x: Array, places: Array, y: Array, reduce: str) -> None:
    """x[p, places[n], q] = f(itself, y[p, n, q]) for n in order, all contiguous; half floats are rounded once.

    f is the sum, the product, the larger or the smaller one for ``reduce`` "sum", "prod", "amax" or "amin".
    """
    if not y.size:
        return
    P, K, Q = x.shape
    chosen = _REDUCE.get((reduce, x.dtype.name))
    if chosen is None:
        raise TypeError(f"there is no {reduce} of {x.dtype} at places on the device 'cuda'")
    if P > 1 and y.size > MOST_WORDS:
        for half in (slice(P // 2), slice(P // 2, None)):
            reduce_at(x[half], places, y[half], reduce)
        return
    if max(y.size, K) > MOST_WORDS:
        raise ValueError(f"indexing: {y.size} values at {K} places; at most {MOST_WORDS} are supported")
    keys, order = sort_rows(places.reshape(1, places.size))
    chosen.launch_each(y.size, x, y, keys, order, y.size, places.size, K, Q)
