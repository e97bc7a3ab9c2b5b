"""Embedding of tokens and of their places in one pass: y[b, t] = weight[indices[b, t]] + positions[t]. The gradients
are those of ``embedding`` and of a sum over b.
"""

from __future__ import annotations

import numpy as np

from ..toolbox import threads
from ..toolbox.task_pool import task_kernel

TASK_ELEMENTS = 16384  # rows of about this many elements are one task


@task_kernel
def _gather(task, tasks, weight, indices, positions, y):
    n = indices.shape[0]
    for i in range(task * n // tasks, (task + 1) * n // tasks):
        source, place, target = weight[indices[i]], positions[i % positions.shape[0]], y[i]
        for j in range(source.shape[0]):
            target[j] = source[j] + place[j]


def forward(weight: np.ndarray, indices: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """weight (V, C) and positions (T, C) of float32 or float64, indices (B, T) int64 (checked by ``embedding``) ->
    (B, T, C)."""
    (B, T), C = indices.shape, weight.shape[1]
    y = np.empty((B, T, C), weight.dtype)
    weight, positions = np.ascontiguousarray(weight), np.ascontiguousarray(positions)
    flat, rows_y = np.ascontiguousarray(indices).reshape(-1), y.reshape(B * T, C)
    _gather.launch(
        (weight.dtype, positions.dtype), threads.tasks_of_rows(B * T, C, TASK_ELEMENTS), weight, flat, positions, rows_y
    )
    return y
