"""What the threads of a warp or of a block compute together. All of them must call, and all get the result.

Sums are added in a fixed order, so a kernel gives the same bits at each run.
"""

from __future__ import annotations

from typing import Any

from .language import FULL_WARP, cuda, device_function


@device_function
def warp_sum(x: Any) -> Any:
    """The sum over the 32 lanes."""
    x += cuda.shfl_xor_sync(FULL_WARP, x, 16)
    x += cuda.shfl_xor_sync(FULL_WARP, x, 8)
    x += cuda.shfl_xor_sync(FULL_WARP, x, 4)
    x += cuda.shfl_xor_sync(FULL_WARP, x, 2)
    x += cuda.shfl_xor_sync(FULL_WARP, x, 1)
    return x


@device_function
def larger(x: Any, y: Any) -> Any:
    """max(x, y); NaN if one of them is."""
    return x if x > y or x != x else y


@device_function
def warp_max(x: Any) -> Any:
    """The largest of the 32 lanes; NaN if one of them is."""
    x = larger(x, cuda.shfl_xor_sync(FULL_WARP, x, 16))
    x = larger(x, cuda.shfl_xor_sync(FULL_WARP, x, 8))
    x = larger(x, cuda.shfl_xor_sync(FULL_WARP, x, 4))
    x = larger(x, cuda.shfl_xor_sync(FULL_WARP, x, 2))
    return larger(x, cuda.shfl_xor_sync(FULL_WARP, x, 1))


@device_function
def block_sum(x: Any, partial: Any) -> Any:
    """The sum over the block's threads, a multiple of 32; ``partial`` is shared and holds 32.

    In a block (32, n) each warp, which is a row of it, has its own sum.
    """
    x = warp_sum(x)
    if cuda.blockDim.x > 32:
        if cuda.threadIdx.x % 32 == 0:
            partial[cuda.threadIdx.x // 32] = x
        cuda.syncthreads()
        x = partial[0]
        for warp in range(1, cuda.blockDim.x // 32):
            x += partial[warp]
        cuda.syncthreads()  # partial may be used again
    return x


@device_function
def block_max(x: Any, partial: Any) -> Any:
    """The largest over the block's threads, NaN if one is; as ``block_sum``."""
    x = warp_max(x)
    if cuda.blockDim.x > 32:
        if cuda.threadIdx.x % 32 == 0:
            partial[cuda.threadIdx.x // 32] = x
        cuda.syncthreads()
        x = partial[0]
        for warp in range(1, cuda.blockDim.x // 32):
            x = larger(x, partial[warp])
        cuda.syncthreads()
    return x
