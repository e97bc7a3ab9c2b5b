"""Layer normalisation of the rows of x (N, C):

    mean = sum(x) / C      rstd = 1 / sqrt(sum((x - mean)^2) / C + eps)      xhat = (x - mean) rstd
    y  = xhat * weight + bias
    g  = dy * weight
    dx = rstd (g - sum(g) / C - xhat sum(g xhat) / C)      dweight = sum over rows of dy * xhat      dbias = of dy

Forward reads a row from memory once (it stays in the L1 cache); the variance is the two-pass one, which does not
cancel. Backward is one pass over dy and x for all three gradients. dweight and dbias are summed in chunks of rows that
depend on the shape only, then over the chunks in order. The kernels of ``rms_norm`` are made from the same source, with
mean = 0 and without a bias.

Source: Ba, Kiros & Hinton, "Layer normalization" (2016).
"""

import math
from typing import Any

import numpy as np

from .reduce import reduce
from .toolbox.register_tile import whole_vectors
from .toolbox.threads import TaskKernel, shares, task_kernel

BACKWARD_CHUNKS = 64  # at most; each has its own partial sums of dweight and dbias
BACKWARD_ROWS = 16  # at least, in each chunk


Norm = tuple[TaskKernel, TaskKernel, int]
"""Forward, backward, which leaves sums over each chunk of rows, and how many parameters there are."""


def kernels(name: str, centred: bool) -> Norm:
    """The kernels of rows from which the mean is subtracted, or not."""

    @task_kernel(name=f"{name}_forward")
    def forward(task, tasks, x, weight, bias, eps, y, mean, rstd):
        whole_vectors()
        real = x.dtype.type
        N, C = x.shape
        scale, m = real(1) / real(C), real(0)
        for i in range(task * N // tasks, (task + 1) * N // tasks):
            xi, yi = x[i], y[i]
            if centred:
                total = real(0)
                for j in range(C):
                    total += xi[j]
                mean[i] = m = total * scale
            squares = real(0)
            for j in range(C):
                distance = xi[j] - m
                squares += distance * distance
            rstd[i] = r = real(
                1.0 / math.sqrt(np.float64(squares * scale) + eps)
            )  # 1 / sqrt(inf) may be NaN in float32
            for j in range(C):
                xhat = (xi[j] - m) * r
                yi[j] = xhat * weight[j] + bias[j] if centred else xhat * weight[j]

    @task_kernel(name=f"{name}_backward")
    def backward(task, tasks, dy, x, weight, mean, rstd, dx, partial, rows):
        whole_vectors()
        real = x.dtype.type
        N, C = x.shape
        scale, m = real(1) / real(C), real(0)
        _, chunks, _ = partial.shape
        for chunk in range(task * chunks // tasks, (task + 1) * chunks // tasks):
            of_weight, of_bias = partial[0, chunk], partial[-1, chunk]
            partial[:, chunk] = real(0)
            for i in range(chunk * rows, min(N, (chunk + 1) * rows)):
                xi, dyi, dxi = x[i], dy[i], dx[i]
                r = rstd[i]
                if centred:
                    m = mean[i]
                sum_g = real(0)
                sum_g_xhat = real(0)
                for j in range(C):
                    xhat = (xi[j] - m) * r
                    g = dyi[j] * weight[j]
                    sum_g_xhat += g * xhat
                    of_weight[j] += dyi[j] * xhat
                    if centred:
                        sum_g += g
                        of_bias[j] += dyi[j]
                mean_g = sum_g * scale
                mean_g_xhat = sum_g_xhat * scale
                for j in range(C):
                    dxi[j] = r * (dyi[j] * weight[j] - mean_g - (xi[j] - m) * r * mean_g_xhat)

    return forward, backward, 1 + centred


_LAYER = kernels("layer_norm", centred=True)


def forward(x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, eps: float) -> tuple[np.ndarray, ...]:
    """x (N, C), weight and bias (C,), None for 1 and 0 -> y (N, C), mean (N,), rstd (N,); all of x's dtype.

    Inputs that are not contiguous are copied.
    """
    return normalised(_LAYER, x, weight, bias, eps)


def normalised(norm: Norm, x: Any, weight: Any, bias: Any, eps: float) -> tuple[np.ndarray, ...]:
    """``forward`` of one of the norms."""
    (N, C), dtype, empty, contiguous = x.shape, x.dtype, np.empty, np.ascontiguousarray
    y, mean, rstd = empty((N, C), dtype), empty(N, dtype), empty(N, dtype)
    weight = np.ones(C, dtype) if weight is None else contiguous(weight)
    bias = np.zeros(C, dtype) if bias is None else contiguous(bias)
    x = contiguous(x)
    norm[0].launch(dtype, min(N, shares(x.size)), x, weight, bias, float(eps), y, mean, rstd)
    return y, mean, rstd


def backward(
    dy: np.ndarray, x: np.ndarray, weight: np.ndarray | None, mean: np.ndarray, rstd: np.ndarray
) -> tuple[np.ndarray, ...]:
    """dy, x (N, C), mean and rstd (N,) of forward -> dx (N, C), dweight (C,), dbias (C,)."""
    return gradients(_LAYER, dy, x, weight, mean, rstd)


def gradients(norm: Norm, dy: Any, x: Any, weight: Any, mean: np.ndarray, rstd: np.ndarray) -> tuple[np.ndarray, ...]:
    """``backward`` of one of the norms: dx, and what its parameters get."""
    (N, C), dtype, empty, contiguous = x.shape, x.dtype, np.empty, np.ascontiguousarray
    weight = np.ones(C, dtype) if weight is None else contiguous(weight)
    rows = max(BACKWARD_ROWS, -(-N // BACKWARD_CHUNKS))
    dx, partial = empty((N, C), dtype), empty((norm[2], -(-N // rows) or 1, C), dtype)
    norm[1].launch(dtype, shares(x.size), contiguous(dy), contiguous(x), weight, mean, rstd, dx, partial, rows)
    return dx, *reduce.sum(partial, (1,), False)
