"""Dropout: y = x * mask / (1 - p), mask[i] = 1 with probability 1 - p; dx = dy * mask / (1 - p).

The mask is a function of (seed, offset, flat index), see ``random.py``, and the CPU backend's: backward draws it again,
nothing is stored. As in PyTorch the mask is multiplied, so a dropped NaN or infinity gives NaN.

Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting" (2014).
"""

from typing import Any

import numpy as np

from .elementwise import cast
from .platform.toolbox import Array, Kernel, contiguous, copy, cuda, empty, kernel
from .pointwise.philox import philox_block, unit_float32
from .ptx.fours import fours, load_inside, storer_inside
from .random import draw


def _dropout(real: Any) -> Kernel:
    word = real.__name__
    load_four, store = fours(np.dtype(real).itemsize).load_constant, storer_inside(np.dtype(real).itemsize)

    @kernel(f"{word}*, int64, uint64 x2, {word}*, float32, {word}", registers=40, vector_loads=True, of=word)
    def forward(y: Any, n: Any, seed: Any, offset: Any, x: Any, p: Any, kept: Any) -> None:
        """A thread has four elements; their words are one block's."""
        block = cuda.grid(1)
        i = 4 * block
        if i < n:
            a, b, c, d = philox_block(np.uint64(block), seed, offset)
            scale_a = kept if unit_float32(a) >= p else real(0)
            scale_b = kept if unit_float32(b) >= p else real(0)
            scale_c = kept if unit_float32(c) >= p else real(0)
            scale_d = kept if unit_float32(d) >= p else real(0)
            v = load_four(x, i) if i + 4 <= n else load_inside(x, i, 1, n - i, real(0))
            store(y, i, n, (v[0] * scale_a, v[1] * scale_b, v[2] * scale_c, v[3] * scale_d))

    return forward


_KERNELS = {np.dtype(real): _dropout(real) for real in (np.float32, np.float64)}


def forward(x: Array, p: float, seed: int, offset: int) -> Array:
    """x of any float dtype and shape (copied if not contiguous) -> y of the same shape; 0 <= p <= 1."""
    if x.dtype.itemsize == 2:  # computed in float32, and rounded once
        return cast(forward(cast(x, np.float32), p, seed, offset), x.dtype)
    x = contiguous(x)
    if x.pointer % 16:
        x = copy(x)
    y = empty(x.shape, x.dtype, x.device)
    real = x.dtype.type
    with np.errstate(divide="ignore"):
        kept = real(1) / (real(1) - real(p))
    return draw(_KERNELS[x.dtype], y, 4, seed, offset, x, p, kept)
