"""Dropout: y = x * mask / (1 - p), mask[i] = 1 with probability 1 - p; dx = dy * mask / (1 - p).

The mask is a function of (seed, offset, flat index), see ``random.py``: backward draws it again, nothing is stored.
As in PyTorch the mask is multiplied, so a dropped NaN or infinity gives NaN.

Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting" (2014).
"""

import numpy as np

from ..plain_kernels.arrays import is_half
from .random import CHUNK, fill_dropout, state
from .toolbox.threads import task_kernel, tasks_of
from .toolbox.vector_math import bits_of, numbers, rounded, widened


@task_kernel
def _dropout(task, tasks, x, y, seed, offset, p):
    start = task * CHUNK
    x, y = x[start : start + CHUNK], y[start : start + CHUNK]
    mask = numbers(y, np.empty(CHUNK if y.itemsize == 2 else 0, np.float32), False)[: y.shape[0]]
    fill_dropout(mask, start, seed, offset, p)  # the chunk stays in the L1 or L2 cache for the product
    for i in range(x.shape[0]):
        y[i] = rounded(widened(x[i], mask) * mask[i], y)


def forward(x: np.ndarray, p: float, seed: int, offset: int) -> np.ndarray:
    """x of any float dtype and shape (copied if not contiguous) -> y of the same shape; 0 <= p <= 1."""
    if not 0 <= p <= 1:
        raise ValueError(f"p={p}: expected a probability from 0 to 1")
    y = np.empty(x.shape, x.dtype)
    flat = [(bits_of(a) if is_half(a.dtype) else np.ascontiguousarray(a)).reshape(-1) for a in (x, y)]
    _dropout.launch(flat[0].dtype, tasks_of(x.size, CHUNK), *flat, *state(seed, offset), float(p))
    return y
