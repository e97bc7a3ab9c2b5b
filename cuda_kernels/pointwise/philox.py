"""Philox4x32-10 as device functions: a block's four random words. ``random.py`` has the formulas.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from typing import Any

import numpy as np

from ..ptx import ptx

# Unsigned constants: Numba promotes uint64 with a signed int to float64.
MULTIPLIER_0, MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
HALF_WORD, LOW_WORD = np.uint64(32), np.uint64(0xFFFFFFFF)
ON_DEVICE = 1 << 63  # in an offset: the seed is an address
LAST_BIT, OTHER_BITS = np.uint64(63), np.uint64(ON_DEVICE - 1)
EIGHT = np.uint32(8)


def philox4x32(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Ten rounds: counter (c0, c1, c2, c3) and key (k0, k1), all uint32, to four random uint32."""
    for _ in range(10):
        left = np.uint64(c0) * MULTIPLIER_0
        right = np.uint64(c2) * MULTIPLIER_1
        c0 = np.uint32(np.uint32(right >> HALF_WORD) ^ c1 ^ k0)
        c1 = np.uint32(right & LOW_WORD)
        c2 = np.uint32(np.uint32(left >> HALF_WORD) ^ c3 ^ k1)
        c3 = np.uint32(left & LOW_WORD)
        k0 = np.uint32(k0 + WEYL_0)
        k1 = np.uint32(k1 + WEYL_1)
    return c0, c1, c2, c3


def philox_block(block: Any, seed: Any, offset: Any) -> Any:
    """Four random uint32: the words 4 * block to 4 * block + 3 of the draw; all arguments uint64.

    Of an offset with the last bit, the seed is the address of two uint64: the seed, and what the offset's other bits
    are added to. So the draws of a graph differ from launch to launch (``graphs.py``).
    """
    if offset >> LAST_BIT:
        start = ptx.pointer_uint64(np.int64(seed))
        seed, offset = start[0], start[1] + (offset & OTHER_BITS)
    return philox4x32(
        np.uint32(block & LOW_WORD), np.uint32(block >> HALF_WORD),
        np.uint32(offset & LOW_WORD), np.uint32(offset >> HALF_WORD),
        np.uint32(seed & LOW_WORD), np.uint32(seed >> HALF_WORD),
    )  # fmt: skip


def unit_float32(word: Any) -> Any:
    """A uint32 as a float32 in [0, 1): its upper 24 bits."""
    return np.float32(np.int32(word >> EIGHT)) * np.float32(2.0**-24)
