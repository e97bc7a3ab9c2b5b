"""What the threads of a warp or of a block compute together. All of them must call.

Each is made for an associative ``combine`` of two values, or of two pairs, and takes them in a fixed order, so a kernel
gives the same bits at each run:

    across_warp(x)              over the 32 lanes
    across_block(x, partial)    over the threads of a block, a multiple of 32; ``partial`` is shared and holds 32, and
                                64 of pairs. In a block (32, n) each warp, which is a row of it, has its own.
    down_column(x, partial)     over the threads (x, 0), (x, 1), ... of a block, whose height is a power of 2; the
                                thread (x, 0) gets the result. ``partial`` holds one for each thread; of pairs there are
                                two.

Lanes and threads of a block all get the result.
"""

from __future__ import annotations

from typing import Any

from ..platform.language import FULL_WARP, cuda, device_function
from ..pointwise.rules import larger_of


@device_function
def add(x: Any, y: Any) -> Any:
    """x + y."""
    return x + y


def across_warp(combine: Any) -> Any:
    """The device function (x)."""

    @device_function
    def fold(x: Any) -> Any:
        x = combine(x, cuda.shfl_xor_sync(FULL_WARP, x, 16))
        x = combine(x, cuda.shfl_xor_sync(FULL_WARP, x, 8))
        x = combine(x, cuda.shfl_xor_sync(FULL_WARP, x, 4))
        x = combine(x, cuda.shfl_xor_sync(FULL_WARP, x, 2))
        return combine(x, cuda.shfl_xor_sync(FULL_WARP, x, 1))

    return fold


def across_block(combine: Any, again: bool = True) -> Any:
    """The device function (x, partial). ``again``: the kernel uses ``partial`` a second time."""
    of_warp = across_warp(combine)

    @device_function
    def fold(x: Any, partial: Any) -> Any:
        x = of_warp(x)
        if cuda.blockDim.x > 32:
            if cuda.threadIdx.x % 32 == 0:
                partial[cuda.threadIdx.x // 32] = x
            cuda.syncthreads()
            x = partial[0]
            for warp in range(1, cuda.blockDim.x // 32):
                x = combine(x, partial[warp])
            if again:
                cuda.syncthreads()
        return x

    return fold


def across_block_of_pairs(combine: Any) -> Any:
    """The device function (a, b, partial), of ``combine(a, b, a', b')``."""

    @device_function
    def other(a: Any, b: Any, distance: Any) -> Any:
        there = cuda.shfl_xor_sync(FULL_WARP, a, distance), cuda.shfl_xor_sync(FULL_WARP, b, distance)
        return combine(a, b, there[0], there[1])

    @device_function
    def fold(a: Any, b: Any, partial: Any) -> Any:
        a, b = other(a, b, 16)
        a, b = other(a, b, 8)
        a, b = other(a, b, 4)
        a, b = other(a, b, 2)
        a, b = other(a, b, 1)
        if cuda.blockDim.x > 32:
            if cuda.threadIdx.x % 32 == 0:
                partial[cuda.threadIdx.x // 32] = a
                partial[32 + cuda.threadIdx.x // 32] = b
            cuda.syncthreads()
            a, b = partial[0], partial[32]
            for warp in range(1, cuda.blockDim.x // 32):
                a, b = combine(a, b, partial[warp], partial[32 + warp])
            cuda.syncthreads()
        return a, b

    return fold


def down_column(combine: Any) -> Any:
    """The device function (x, partial)."""

    @device_function
    def fold(x: Any, partial: Any) -> Any:
        place, width = cuda.threadIdx.y, cuda.blockDim.x
        half = cuda.blockDim.y >> 1
        if half > 0:
            me = place * width + cuda.threadIdx.x
            partial[me] = x
            cuda.syncthreads()
            while half > 0:
                if place < half:
                    x = combine(x, partial[me + half * width])
                    partial[me] = x
                cuda.syncthreads()
                half >>= 1
        return x

    return fold


def down_column_of_pairs(combine: Any) -> Any:
    """The device function (a, b, firsts, seconds), of ``combine(a, b, a', b')``."""

    @device_function
    def fold(a: Any, b: Any, firsts: Any, seconds: Any) -> Any:
        place, width = cuda.threadIdx.y, cuda.blockDim.x
        half = cuda.blockDim.y >> 1
        if half > 0:
            me = place * width + cuda.threadIdx.x
            firsts[me], seconds[me] = a, b
            cuda.syncthreads()
            while half > 0:
                if place < half:
                    other = me + half * width
                    a, b = combine(a, b, firsts[other], seconds[other])
                    firsts[me], seconds[me] = a, b
                cuda.syncthreads()
                half >>= 1
        return a, b

    return fold


@device_function
def add_pairs(a: Any, b: Any, other_a: Any, other_b: Any) -> Any:
    """(a + a', b + b')."""
    return a + other_a, b + other_b


warp_sum: Any = across_warp(add)
warp_max: Any = across_warp(larger_of)
"""NaN if one is."""
block_sum: Any = across_block(add)
block_max: Any = across_block(larger_of)
"""NaN if one is."""
row_sums: Any = across_block_of_pairs(add_pairs)
"""Two sums at once."""
column_sum: Any = down_column(add)
