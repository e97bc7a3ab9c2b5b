"""Products of fragments, which the registers of a warp hold, by the dtype of their elements."""

from __future__ import annotations

from typing import Any

from ..platform.language import device_function
from . import ptx

MMA = {"bfloat16": ptx.mma_bfloat16, "float16": ptx.mma_float16, "float32": ptx.mma_tf32}


def adder(word: str) -> Any:
    """``add_product``, which adds a b to the four sums from ``i`` on."""
    mma = MMA[word]

    @device_function
    def add_product(sums, i, a, b0, b1):
        s = mma(a, (b0, b1), (sums[i], sums[i + 1], sums[i + 2], sums[i + 3]))
        sums[i] = s[0]
        sums[i + 1] = s[1]
        sums[i + 2] = s[2]
        sums[i + 3] = s[3]

    return add_product
