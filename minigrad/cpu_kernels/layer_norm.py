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
from .toolbox.vector_math import bits_of, numbers, rounded

BACKWARD_CHUNKS = 64  # at most; each has its own partial sums of dweight and dbias
BACKWARD_ROWS = 16  # at least, in each chunk


Norm = tuple[TaskKernel, TaskKernel, int]
"""Forward, backward, which leaves sums over each chunk of rows, and how many parameters there are."""


def kernels(name: str, centred: bool) -> Norm:
    """The kernels of rows from which the mean is subtracted, or not."""

    @task_kernel(name=f"{name}_forward")
    def forward(task, tasks, x, weight, bias, eps, y, mean, rstd):
        whole_vectors()
        real = rstd.dtype.type
        N, C = x.shape
        buffers, scale, m = np.empty((3, C), np.float32), real(1) / real(C), real(0)
        w, b = numbers(weight, buffers[1], True), numbers(bias, buffers[2], True)
        for i in range(task * N // tasks, (task + 1) * N // tasks):
            xi, yi = numbers(x[i], buffers[0], True), y[i]
            if centred:
                total = real(0)
                for j in range(C):
                    total += xi[j]
                mean[i] = m = total * scale
            squares = real(0)
            for j in range(C):
                distance = xi[j] - m
                squares += distance * distance
            # 1 / sqrt(inf) may be NaN in float32
            rstd[i] = r = real(1.0 / math.sqrt(np.float64(squares * scale) + eps))
            for j in range(C):
                xhat = (xi[j] - m) * r
                yi[j] = rounded(xhat * w[j] + b[j] if centred else xhat * w[j], y)

    @task_kernel(name=f"{name}_backward")
    def backward(task, tasks, dy, x, weight, mean, rstd, dx, partial, rows):
        whole_vectors()
        real = rstd.dtype.type
        N, C = x.shape
        buffers, scale, m = np.empty((3, C), np.float32), real(1) / real(C), real(0)
        w = numbers(weight, buffers[2], True)
        _, chunks, _ = partial.shape
        for chunk in range(task * chunks // tasks, (task + 1) * chunks // tasks):
            of_weight, of_bias = partial[0, chunk], partial[-1, chunk]
            partial[:, chunk] = real(0)
            for i in range(chunk * rows, min(N, (chunk + 1) * rows)):
                xi, dyi = numbers(x[i], buffers[0], True), numbers(dy[i], buffers[1], True)
                dxi, r = dx[i], rstd[i]
                if centred:
                    m = mean[i]
                sum_g, sum_g_xhat = real(0), real(0)
                for j in range(C):
                    xhat = (xi[j] - m) * r
                    g = dyi[j] * w[j]
                    sum_g_xhat += g * xhat
                    of_weight[j] += dyi[j] * xhat
                    if centred:
                        sum_g += g
                        of_bias[j] += dyi[j]
                mean_g, mean_g_xhat = sum_g * scale, sum_g_xhat * scale
                for j in range(C):
                    dxi[j] = rounded(r * (dyi[j] * w[j] - mean_g - (xi[j] - m) * r * mean_g_xhat), dx)

    return forward, backward, 1 + centred


_LAYER = kernels("layer_norm", centred=True)


def forward(x: Any, weight: Any, bias: Any, eps: float) -> tuple[np.ndarray, ...]:
    """x (N, C), weight and bias (C,) -> y (N, C), mean (N,), rstd (N,); all of x's dtype.

    Of half floats mean and rstd are float32. Inputs that are not contiguous are copied.
    """
    return normalised(_LAYER, x, weight, bias, eps)


def backward(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> tuple[np.ndarray, ...]:
    """dy, x (N, C), mean and rstd (N,) of forward -> dx (N, C), and of the parameters, dweight (C,) and dbias (C,)."""
    return gradients(_LAYER, dy, x, weight, mean, rstd)


def normalised(norm: Norm, x: Any, weight: Any, bias: Any, eps: float) -> tuple[np.ndarray, ...]:
    """What ``forward`` gives, by these kernels."""
    (N, C), dtype, empty = x.shape, x.dtype, np.empty
    of_row, contiguous = (np.float32, bits_of) if dtype.itemsize == 2 else (dtype, np.ascontiguousarray)
    y, mean, rstd = empty((N, C), dtype), empty(N, of_row), empty(N, of_row)
    arrays = contiguous(x), contiguous(weight), contiguous(bias), float(eps), contiguous(y), mean, rstd
    norm[0].launch(dtype, min(N, shares(x.size)), *arrays)
    return y, mean, rstd


def gradients(norm: Norm, dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> tuple[np.ndarray, ...]:
    """What ``backward`` gives, by these kernels."""
    (N, C), dtype, empty = x.shape, x.dtype, np.empty
    of_row, contiguous = (np.float32, bits_of) if dtype.itemsize == 2 else (dtype, np.ascontiguousarray)
    rows = max(BACKWARD_ROWS, -(-N // BACKWARD_CHUNKS))
    dx, partial = empty((N, C), dtype), empty((norm[2], -(-N // rows) or 1, C), of_row)
    arrays = contiguous(dy), contiguous(x), contiguous(weight), mean, rstd, contiguous(dx), partial
    norm[1].launch(dtype, shares(x.size), *arrays, rows)
    return dx, *reduce.sum(partial, (1,), False)
