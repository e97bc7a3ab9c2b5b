"""Layer normalisation of the rows of x (N, C):

    mean = sum(x) / C      rstd = 1 / sqrt(sum((x - mean)^2) / C + eps)      xhat = (x - mean) rstd
    y  = xhat * weight + bias
    g  = dy * weight
    dx = rstd (g - sum(g) / C - xhat sum(g xhat) / C)      dweight = sum over rows of dy * xhat      dbias = of dy

Forward reads a row from memory once (it stays in the L1 cache); the variance is the two-pass one, which does not
cancel. Backward is one pass over dy and x for all three gradients. dweight and dbias are summed in chunks of rows that
depend on the shape only, then over the chunks in order.

Source: Ba, Kiros & Hinton, "Layer normalization" (2016).
"""

import math

import numpy as np

from .toolbox.register_tile import whole_vectors
from .toolbox.threads import shares, task_kernel

BACKWARD_CHUNKS = 64  # at most; each has its own partial sums of dweight and dbias
BACKWARD_ROWS = 16  # at least, in each chunk


@task_kernel
def _forward(task, tasks, x, weight, bias, eps, y, mean, rstd):
    whole_vectors()
    real = x.dtype.type
    N, C = x.shape
    scale = real(1) / real(C)
    for i in range(task * N // tasks, (task + 1) * N // tasks):
        xi, yi = x[i], y[i]
        total = real(0)
        for j in range(C):
            total += xi[j]
        m = total * scale
        squares = real(0)
        for j in range(C):
            centred = xi[j] - m
            squares += centred * centred
        r = real(1) / math.sqrt(squares * scale + real(eps))
        for j in range(C):
            yi[j] = (xi[j] - m) * r * weight[j] + bias[j]
        mean[i] = m
        rstd[i] = r


@task_kernel
def _sum_chunks(task, tasks, partial, dweight, dbias):
    for c in range(partial.shape[1]):
        for part, total in ((partial[0, c], dweight), (partial[1, c], dbias)):
            for j in range(total.shape[0]):
                total[j] = part[j] if c == 0 else total[j] + part[j]


_add_chunks = _sum_chunks.kernel


@task_kernel
def _backward(task, tasks, dy, x, weight, mean, rstd, dx, dweight, dbias, partial, rows):
    """dx, and in ``partial`` the sums over each chunk of rows, which a single task adds up as well."""
    whole_vectors()
    real = x.dtype.type
    N, C = x.shape
    scale = real(1) / real(C)
    chunks = partial.shape[1]
    for chunk in range(task * chunks // tasks, (task + 1) * chunks // tasks):
        of_weight, of_bias = partial[0, chunk], partial[1, chunk]
        of_weight[:] = real(0)
        of_bias[:] = real(0)
        for i in range(chunk * rows, min(N, (chunk + 1) * rows)):
            xi, dyi, dxi = x[i], dy[i], dx[i]
            m, r = mean[i], rstd[i]
            sum_g = real(0)
            sum_g_xhat = real(0)
            for j in range(C):
                xhat = (xi[j] - m) * r
                g = dyi[j] * weight[j]
                sum_g += g
                sum_g_xhat += g * xhat
                of_weight[j] += dyi[j] * xhat
                of_bias[j] += dyi[j]
            mean_g = sum_g * scale
            mean_g_xhat = sum_g_xhat * scale
            for j in range(C):
                dxi[j] = r * (dyi[j] * weight[j] - mean_g - (xi[j] - m) * r * mean_g_xhat)
    if tasks == 1:
        _add_chunks(0, 1, partial, dweight, dbias)


# ---------------------------------------------------------------- launchers


def forward(
    x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (N, C), weight and bias (C,), None for 1 and 0 -> y (N, C), mean (N,), rstd (N,); all of x's dtype.

    Inputs that are not contiguous are copied.
    """
    (N, C), dtype, empty, contiguous = x.shape, x.dtype, np.empty, np.ascontiguousarray
    y, mean, rstd = empty((N, C), dtype), empty(N, dtype), empty(N, dtype)
    weight = np.ones(C, dtype) if weight is None else contiguous(weight)
    bias = np.zeros(C, dtype) if bias is None else contiguous(bias)
    x = contiguous(x)
    _forward.launch(dtype, min(N, shares(x.size)), x, weight, bias, float(eps), y, mean, rstd)
    return y, mean, rstd


def backward(
    dy: np.ndarray, x: np.ndarray, weight: np.ndarray | None, mean: np.ndarray, rstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dy, x (N, C), mean and rstd (N,) of forward -> dx (N, C), dweight (C,), dbias (C,)."""
    (N, C), dtype, empty, contiguous = x.shape, x.dtype, np.empty, np.ascontiguousarray
    dx, dweight, dbias = empty((N, C), dtype), empty(C, dtype), empty(C, dtype)
    weight = np.ones(C, dtype) if weight is None else contiguous(weight)
    dy, x = contiguous(dy), contiguous(x)
    rows = max(BACKWARD_ROWS, -(-N // BACKWARD_CHUNKS))
    partial = empty((2, -(-N // rows) or 1, C), dtype)
    tasks = shares(x.size)
    _backward.launch(dtype, tasks, dy, x, weight, mean, rstd, dx, dweight, dbias, partial, rows)
    if tasks > 1:
        _sum_chunks.launch(dtype, 1, partial, dweight, dbias)
    return dx, dweight, dbias
