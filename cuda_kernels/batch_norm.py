"""Batch normalisation of x (N, C, S) by channel:

    rstd = 1 / sqrt(var + eps)      xhat = (x - mean) rstd      y = xhat * weight + bias
    dweight = sum over N and S of dy * xhat      dbias = of dy
    dx = weight rstd dy                                                  where mean and var are given
    dx = weight rstd (dy - dbias / n - xhat dweight / n),  n = N S      where they are those of x

The variance is the two-pass one, which does not cancel. The sums over channels are those of ``channel_sums.py``.

Source: Ioffe & Szegedy, "Batch normalization" (2015).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import elementwise
from .platform.array import DeviceArray, contiguous, empty
from .platform.language import THREADS, cuda, math
from .platform.launch import Kernel, kernel
from .rowwise import channel_sums
from .rowwise.fold import fold
from .rowwise.rows import ceil_div, quotient


class BatchNormKernels(NamedTuple):
    """The kernels for one dtype."""

    factors: Kernel
    backward: Kernel


def _kernels(real: Any) -> BatchNormKernels:
    word = real.__name__

    @kernel(*(f"{word}*",) * 4, "int64", word, threads=THREADS, registers=24, name=f"factors_{word}")
    def factors(var, weight, rstd, scale, C, eps):
        """rstd = 1 / sqrt(var + eps), scale = rstd weight."""
        c = cuda.grid(1)
        if c < C:
            rstd[c] = real(1) / math.sqrt(var[c] + eps)
            scale[c] = rstd[c] * weight[c]

    @kernel(*(f"{word}*",) * 8, *("int64",) * 4, word, threads=THREADS, registers=40, name=f"backward_{word}")
    def backward(dy, x, weight, mean, rstd, dweight, dbias, dx, N, C, S, tiles, n):
        """dx where mean and rstd are those of x; n = N S."""
        tile = quotient(np.int64(cuda.blockIdx.x), tiles)
        s = (cuda.blockIdx.x - tile * tiles) * cuda.blockDim.x + cuda.threadIdx.x
        row = tile * cuda.blockDim.y + cuda.threadIdx.y
        if s < S and row < N * C:
            c = row - quotient(row, C) * C
            xhat = (x[row * S + s] - mean[c]) * rstd[c]
            slope = dy[row * S + s] - xhat * (dweight[c] / n) - dbias[c] / n
            dx[row * S + s] = slope * (rstd[c] * weight[c])

    return BatchNormKernels(factors, backward)


_KERNELS: dict[Any, BatchNormKernels] = {np.dtype(real): _kernels(real) for real in (np.float32, np.float64)}


def statistics(x: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Mean and (biased) variance (C,) of the channels of x (N, C, S)."""
    x = contiguous(x)
    N, C, S = x.shape
    rows = x if S == 1 else fold("sum", x, N * C, S, 1, x.dtype)
    n = x.dtype.type(N * S)
    mean = elementwise.div(fold("sum", rows, 1, N, C, x.dtype), n)
    squares, _ = channel_sums.sums("squares", x, x, mean, mean, 0, 1)
    return mean, elementwise.div(squares, n)


def _factors(var: DeviceArray, weight: DeviceArray, eps: float) -> tuple[DeviceArray, DeviceArray]:
    rstd, scale = (empty(var.shape, var.dtype, var.device) for _ in range(2))
    C = var.size
    _KERNELS[var.dtype].factors.launch(ceil_div(C, THREADS), var, weight, rstd, scale, C, float(eps))
    return rstd, scale


def forward(
    x: DeviceArray, weight: DeviceArray, bias: DeviceArray, mean: DeviceArray, var: DeviceArray, eps: float
) -> tuple[DeviceArray, DeviceArray]:
    """x (N, C, S), the others (C,) -> y (N, C, S), rstd (C,); all of x's dtype."""
    x, weight, bias, mean, var = (contiguous(a) for a in (x, weight, bias, mean, var))
    rstd, scale = _factors(var, weight, eps)
    return channel_sums.affine(x, mean, scale, bias, 0, 1), rstd


def backward(
    dy: DeviceArray, x: DeviceArray, weight: DeviceArray, mean: DeviceArray, rstd: DeviceArray, of_batch: bool
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """dy, x (N, C, S) -> dx (N, C, S), dweight (C,), dbias (C,); ``of_batch``: mean and rstd depend on x."""
    dy, x, weight, mean, rstd = (contiguous(a) for a in (dy, x, weight, mean, rstd))
    dbias, dweight = channel_sums.sums("slopes", dy, x, mean, rstd, 0, 1)
    if not of_batch:
        return channel_sums.times(channel_sums.times(dy, rstd), weight), dweight, dbias
    N, C, S = x.shape
    dx = empty(x.shape, x.dtype, x.device)
    if x.size:
        grid, along, threads = channel_sums.tiles(N, C, S)
        pointers = dy, x, weight, mean, rstd, dweight, dbias, dx
        _KERNELS[x.dtype].backward.launch(grid, *pointers, N, C, S, along, float(N * S), threads=threads)
    return dx, dweight, dbias
