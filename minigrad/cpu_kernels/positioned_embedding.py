"""Embedding of tokens and of their places in one pass: y[b, t] = weight[indices[b, t]] + positions[t]. The gradients
are those of ``embedding`` and of a sum over b.
"""

from __future__ import annotations

import numba
import numpy as np

from . import threads
from .jit import kernel, parallel_kernel

TASK_ELEMENTS = 16384  # rows of about this many elements are one task


@kernel
def _gather_sums(weight, indices, positions, y, first, last):
    for i in range(first, last):
        source, place, target = weight[indices[i]], positions[i % positions.shape[0]], y[i]
        for j in range(source.shape[0]):
            target[j] = source[j] + place[j]


@parallel_kernel
def _gather(weight, indices, positions, y, rows):
    n = indices.shape[0]
    for task in numba.prange((n + rows - 1) // rows):
        _gather_sums(weight, indices, positions, y, task * rows, min((task + 1) * rows, n))


def forward(weight: np.ndarray, indices: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """weight (V, C) and positions (T, C) of float32 or float64, indices (B, T) int64 (checked by ``embedding``) ->
    (B, T, C)."""
    (B, T), C = indices.shape, weight.shape[1]
    y = np.empty((B, T, C), weight.dtype)
    weight, positions = np.ascontiguousarray(weight), np.ascontiguousarray(positions)
    flat, rows_y = np.ascontiguousarray(indices).reshape(-1), y.reshape(B * T, C)
    if y.size <= TASK_ELEMENTS:
        _gather_sums(weight, flat, positions, rows_y, 0, B * T)
    else:
        _gather(weight, flat, positions, rows_y, threads.rows_of_a_task(B * T, C, TASK_ELEMENTS))
    return y
