"""Softmax and log-softmax along one axis:

    y = exp(x - m) / s,   log y = x - m - log s,   m = max(x),  s = sum(exp(x - m))
    softmax:      dx = y (dy - sum(dy y))
    log_softmax:  dx = dy - exp(y) sum(dy)

``rows``: along the last axis, a warp or a block keeps a row (N, C) in registers: one read, one write. ``long``: rows
that are too long for that, a block goes over each; maximum and sum in one pass (Milakov & Gimelshein, "Online
normalizer calculation for softmax", 2018), then a second one. Along any other axis: the rows of a transposed copy.
``ladder_softmax.py`` leads to ``rows`` in steps.

As in PyTorch a row that holds NaN or +inf, or only -inf, gives NaN (log_softmax keeps -inf beside finite values).
"""

from typing import Any

import numpy as np

from .platform.toolbox import Array, Kernel, contiguous, cuda, empty, kernel, math
from .pointwise.rules import larger_of as larger
from .rowwise.argmax_fold import add_exponentials
from .rowwise.collective import block_max, block_sum
from .rowwise.rows import aligned, ceil_div, row_kernel, row_tile

LONG_THREADS = 512


SoftmaxKernels = tuple[tuple[Kernel, Kernel, Kernel], int]
"""For short rows, rows and long rows; and how many 128-bit accesses a thread of ``rows`` has."""


def _forward_rows(real: Any, accesses: int) -> Kernel:
    word = real.__name__
    tile = row_tile(real, accesses)
    count, read, write = tile.values, tile.read, tile.write
    threads = 1024 if accesses > 1 else 128

    @kernel(f"{word}* x2, int64 x2, int32 x2", threads=threads, registers=64, vector_loads=True, of=f"{count}_{word}")
    def forward_rows(x, y, N, C, vectors, log):
        partial = cuda.shared.array(32, real)
        values = cuda.local.array(count, real)
        row = np.int64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y
        read(x, row * C, C if row < N else 0, vectors, values, real(-np.inf))
        m = values[0]
        for k in range(1, count):
            m = larger(m, values[k])
        m = block_max(m, partial)
        s = real(0)
        for k in range(count):
            values[k] -= m
            e = math.exp(values[k])
            s += e
            if not log:
                values[k] = e
        s = block_sum(s, partial)
        if log:
            s = math.log(s)
            for k in range(count):
                values[k] -= s
        else:
            s = real(1) / s
            for k in range(count):
                values[k] *= s
        write(y, row * C, C if row < N else 0, vectors, values)

    return forward_rows


def _backward(real: Any, accesses: int, threads: int, kept: bool = True) -> Kernel:
    """``kept``: a row stays in registers; else a block reads it twice, in tiles."""
    word = real.__name__
    tile = row_tile(real, accesses)
    count, read, write = tile.values, tile.read, tile.write

    @kernel(
        f"{word}* x3, int64 x2, int32 x2", threads=threads, registers=64, vector_loads=True,
        name=f"backward_rows_{count}_{word}" if kept else f"backward_long_{word}",
    )  # fmt: skip
    def backward(dy, y, dx, N, C, vectors, log):
        partial = cuda.shared.array(32, real)
        slopes = cuda.local.array(count, real)
        values = cuda.local.array(count, real)
        row = np.int64(cuda.blockIdx.x)
        if kept:
            row = row * cuda.blockDim.y + cuda.threadIdx.y
        base, stop = row * C, C if not kept or row < N else 0
        total = real(0)
        for start in range(0, 1 if kept else stop, 1 if kept else count * cuda.blockDim.x):
            read(dy, base + start, stop - start, vectors, slopes, real(0))
            if kept or not log:
                read(y, base + start, stop - start, vectors, values, real(0))
            for k in range(count):
                total += slopes[k] if log else slopes[k] * values[k]
        total = block_sum(total, partial)
        for start in range(0, 1 if kept else stop, 1 if kept else count * cuda.blockDim.x):
            if not kept:
                read(dy, base + start, stop - start, vectors, slopes, real(0))
                read(y, base + start, stop - start, vectors, values, real(0))
            for k in range(count):
                dy_one, y_one = slopes[k], values[k]
                slopes[k] = dy_one - math.exp(y_one) * total if log else y_one * (dy_one - total)
            write(dx, base + start, stop - start, vectors, slopes)

    return backward


def _forward_long(real: Any) -> Kernel:
    word = real.__name__
    tile = row_tile(real, 2)
    count, read, write = tile.values, tile.read, tile.write

    @kernel(f"{word}* x2, int64 x2, int32 x2", threads=LONG_THREADS, registers=64, vector_loads=True, of=word)
    def forward_long(x, y, N, C, vectors, log):
        partial = cuda.shared.array(32, real)
        values = cuda.local.array(count, real)
        base = np.int64(cuda.blockIdx.x) * C
        mine, s = real(-np.inf), real(0)
        for start in range(0, C, count * cuda.blockDim.x):
            read(x, base + start, C - start, vectors, values, real(-np.inf))
            for k in range(count):
                mine, s = add_exponentials(mine, s, values[k], real(1))
        m = block_max(mine, partial)
        s = block_sum(s if mine == m else s * math.exp(mine - m), partial)
        s += m - m  # NaN where m is infinite
        s = math.log(s) if log else real(1) / s
        for start in range(0, C, count * cuda.blockDim.x):
            read(x, base + start, C - start, vectors, values, real(0))
            for k in range(count):
                centred = values[k] - m
                values[k] = centred - s if log else math.exp(centred) * s
            write(y, base + start, C - start, vectors, values)

    return forward_long


def _kernels(real: Any, most: int) -> tuple[SoftmaxKernels, SoftmaxKernels]:
    """Those of forward, and of backward, whose threads have room for two rows of ``most`` accesses."""
    forward = _forward_rows(real, 1), _forward_rows(real, 4), _forward_long(real)
    backward = _backward(real, 1, 128), _backward(real, most, 1024), _backward(real, 2, LONG_THREADS, kept=False)
    return (forward, 4), (backward, most)


_KERNELS = {np.dtype(real): _kernels(real, most) for real, most in ((np.float32, 4), (np.float64, 2))}
_FORWARD: dict[Any, SoftmaxKernels] = {real: forward for real, (forward, _) in _KERNELS.items()}
_BACKWARD: dict[Any, SoftmaxKernels] = {real: backward for real, (_, backward) in _KERNELS.items()}


def _along(kernels: dict[Any, SoftmaxKernels], inputs: tuple[Array, ...], axis: int, log: int) -> Array:
    """Run a kernel along ``axis`` of equally shaped inputs -> a new array."""
    shape, dtype = inputs[0].shape, inputs[0].dtype
    arrays = [contiguous((x if shape else x.reshape(1)).swapaxes(axis, -1)) for x in inputs]  # 0-d: a row of one
    out = empty(arrays[0].shape, dtype, arrays[0].device)
    (chosen, accesses), C = kernels[dtype], out.shape[-1]
    if out.size:
        N = out.size // C
        kernel_, threads = row_kernel(chosen, accesses, N, C, dtype.itemsize)
        vectors = aligned(16 // dtype.itemsize, C, *arrays, out)
        kernel_.launch(ceil_div(N, threads[1]), *arrays, out, N, C, vectors, log, threads=threads)
    return out.swapaxes(axis, -1) if shape else out.reshape(())


def forward(x: Array, axis: int) -> Array:
    """softmax(x) along ``axis``; x float32 or float64, any shape and strides."""
    return _along(_FORWARD, (x,), axis, 0)


def backward(dy: Array, y: Array, axis: int) -> Array:
    """dx from dy and the result y of ``forward``."""
    return _along(_BACKWARD, (dy, y), axis, 0)


def log_forward(x: Array, axis: int) -> Array:
    """log(softmax(x)) along ``axis``."""
    return _along(_FORWARD, (x,), axis, 1)


def log_backward(dy: Array, y: Array, axis: int) -> Array:
    """dx from dy and the result y of ``log_forward``."""
    return _along(_BACKWARD, (dy, y), axis, 1)
