"""Rotary position embedding: the D / 2 pairs of a row at position p are rotated by the angles p base^(-2j / D).

    (a, b) -> (a cos - b sin, a sin + b cos)

Pair j is (x[2j], x[2j + 1]) if ``interleaved``, else (x[j], x[j + D/2]). The gradient is the rotation by the negative
angles. Angles are computed in float64: at position 10^6 float32 would be off by 0.06.

Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021).
"""

from collections.abc import Callable

import numpy as np

from ..plain_kernels import rope as plain
from .toolbox.threads import constant, shares, task_kernel


@task_kernel
def _rotate(task, tasks, x, place, cos, sin, interleaved, y):
    N, D = x.shape
    half = D // 2
    for i in range(task * N // tasks, (task + 1) * N // tasks):
        c, s = cos[place[i]], sin[place[i]]
        xi, yi = x[i], y[i]
        if interleaved:
            for j in range(half):
                a, b = xi[2 * j], xi[2 * j + 1]
                yi[2 * j] = a * c[j] - b * s[j]
                yi[2 * j + 1] = a * s[j] + b * c[j]
        else:
            xa, xb, ya, yb = xi[:half], xi[half:], yi[:half], yi[half:]
            for j in range(half):
                a, b = xa[j], xb[j]
                ya[j] = a * c[j] - b * s[j]
                yb[j] = a * s[j] + b * c[j]


tables: Callable[..., tuple[np.ndarray, np.ndarray]] = plain.tables
angle_tables: Callable[..., tuple[np.ndarray, np.ndarray]] = plain.angle_tables


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """x (..., D); cos and sin (..., D / 2) of x's dtype, their leading sizes broadcast to those of x -> y (..., D).

    Inputs that are not contiguous are copied.
    """
    D = x.shape[-1]
    places = np.arange(int(np.prod(cos.shape[:-1]))).reshape(cos.shape[:-1])
    place = np.broadcast_to(places, x.shape[:-1]).reshape(-1)
    cos, sin = (np.ascontiguousarray(t).reshape(places.size, D // 2) for t in (cos, sin))
    y = np.empty(x.shape, x.dtype)
    rows = np.ascontiguousarray(x).reshape(place.size, D)
    arguments = (rows, constant(np.ascontiguousarray(place)), cos, sin, bool(interleaved), y.reshape(place.size, D))
    _rotate.launch(x.dtype, shares(x.size), *arguments)
    return y
