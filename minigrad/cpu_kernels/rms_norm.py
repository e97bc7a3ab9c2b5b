"""Root-mean-square normalisation of the rows of x (N, C):

    rstd = 1 / sqrt(sum(x^2) / C + eps)      xhat = x rstd      y = xhat * weight
    g  = dy * weight
    dx = rstd (g - xhat sum(g xhat) / C)      dweight = sum over rows of dy * xhat

Each row is read from memory once, forward and backward. dweight is summed in chunks of rows that depend on the shape
only, then over the chunks in order.

Source: Zhang & Sennrich, "Root mean square layer normalization" (2019).
"""

import math

import numpy as np

from .toolbox.threads import shares, task_kernel

BACKWARD_CHUNKS = 64  # at most; each has its own partial sum of dweight
BACKWARD_ROWS = 16  # at least, in each chunk


@task_kernel
def _forward(task, tasks, x, weight, eps, y, rstd):
    real = x.dtype.type
    N, C = x.shape
    scale = real(1) / real(C)
    for i in range(task * N // tasks, (task + 1) * N // tasks):
        xi, yi = x[i], y[i]
        squares = real(0)
        for j in range(C):
            squares += xi[j] * xi[j]
        r = real(1.0 / math.sqrt(np.float64(squares * scale) + eps))  # in float32 1 / sqrt(inf) may become NaN
        for j in range(C):
            yi[j] = xi[j] * r * weight[j]
        rstd[i] = r


@task_kernel
def _backward(task, tasks, dy, x, weight, rstd, dx, partial_dweight, rows):
    real = x.dtype.type
    N, C = x.shape
    scale = real(1) / real(C)
    chunks = partial_dweight.shape[0]
    for chunk in range(task * chunks // tasks, (task + 1) * chunks // tasks):
        dweight = partial_dweight[chunk]
        dweight[:] = real(0)
        for i in range(chunk * rows, min((chunk + 1) * rows, N)):
            xi, dyi, dxi = x[i], dy[i], dx[i]
            r = rstd[i]
            sum_g_xhat = real(0)
            for j in range(C):
                t = dyi[j] * (xi[j] * r)
                sum_g_xhat += t * weight[j]
                dweight[j] += t
            mean_g_xhat = sum_g_xhat * scale
            for j in range(C):
                dxi[j] = r * (dyi[j] * weight[j] - xi[j] * r * mean_g_xhat)


def forward(x: np.ndarray, weight: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """x (N, C), weight (C,) -> y (N, C), rstd (N,); all of x's dtype. Inputs that are not contiguous are copied."""
    y, rstd = np.empty(x.shape, x.dtype), np.empty(x.shape[0], x.dtype)
    tasks = shares(x.size)
    _forward.launch(x.dtype, tasks, np.ascontiguousarray(x), np.ascontiguousarray(weight), float(eps), y, rstd)
    return y, rstd


def backward(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, rstd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """dy, x (N, C) and rstd (N,) of forward -> dx (N, C), dweight (C,)."""
    N, C = x.shape
    rows = max(BACKWARD_ROWS, -(-N // BACKWARD_CHUNKS))
    dx, partial = np.empty((N, C), x.dtype), np.empty((-(-N // rows), C), x.dtype)
    tasks = min(len(partial), shares(x.size))
    dy, x, weight = (np.ascontiguousarray(a) for a in (dy, x, weight))
    _backward.launch(x.dtype, tasks, dy, x, weight, rstd, dx, partial, rows)
    return dx, partial.sum(axis=0)  # rows are added in order: NumPy's pairwise order is for the last axis
