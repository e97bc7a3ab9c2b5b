"""The kernels of ``layer_norm`` (centred) and ``rms_norm`` (not centred), on the rows of x (N, C).

Forward keeps a row in the registers of a warp or a block: one read, one write. Backward does so with rows of x and dy,
and a block takes a part of the rows: each thread sums dweight and dbias of its columns over them, and writes them once;
``fold`` adds the parts. How many parts there are depends on the shape only. Rows that are too long for registers are
normalised in steps: elementwise kernels and folds, which batch and group norm are made of too.
"""

from typing import Any, NamedTuple

import numpy as np

from ..platform import families
from ..platform.toolbox import Array, Kernel, contiguous, cuda, empty, kernel, math
from ..pointwise.pointwise import Pointwise, floating
from ..pointwise.rules import of_numbers, rule
from .collective import block_sum, row_sums, warp_sums
from .fold import fold
from .rows import aligned, ceil_div, row_kernel, row_threads, row_tile

MOST_PARTS = 1024  # at most
PART_ROWS = 4  # at least

_Y = of_numbers(lambda x, mean, scale, shift: (x - mean) * scale + shift)
_DY_XHAT = of_numbers(lambda dy, x, mean, rstd: dy * ((x - mean) * rstd))
_DX = of_numbers(lambda dy, x, mean, rstd, slope, shift, scale: (dy - (x - mean) * rstd * slope - shift) * scale)
RSTD = Pointwise("rstd", rule(lambda real: lambda var, eps: real(1) / math.sqrt(var + eps)), floating, 2)
SQUARE = Pointwise("square", of_numbers(lambda x, mean: (x - mean) * (x - mean)), floating, 2)
AFFINE = Pointwise("affine", _Y, floating, 4, registers=64)
TIMES_XHAT = Pointwise("times_xhat", _DY_XHAT, floating, 4, registers=64)
GRADIENT = Pointwise("gradient", _DX, floating, 7, width=1, registers=64)


class RowNormKernels(NamedTuple):
    """The kernels for one dtype. A thread holds 1 or 4 128-bit accesses of a row, in backward 1 or 2."""

    short: Kernel
    rows: Kernel
    backward_short: Kernel
    backward_rows: Kernel


def _forward_rows(label: str, real: Any, accesses: int, centred: bool, residual: str = "") -> Kernel:
    """``residual``: its dtype, or "" without."""
    word = real.__name__
    tile = row_tile(real, accesses)
    count, read, write, inside = tile.values, tile.read, tile.write, tile.inside
    added, half = bool(residual), residual not in ("", word)
    read_residual = row_tile(real, accesses, residual).read

    @kernel(
        f"{word}*, {residual or word}*, {word}* x6, int64 x2, {word}, int32 x2",
        threads=1024 if accesses > 1 else 128, registers=64, vector_loads=True,
        name=f"{label}_rows_{count}_{word}" + (f"_{residual}" if half else ""),
    )  # fmt: skip
    def forward_rows(x, r, weight, bias, y, h, mean, rstd, N, C, eps, vectors, affine):
        """h = x + r with a residual r, and y = norm(h)."""
        partial = cuda.shared.array(32, real)
        values = cuda.local.array(count, real)
        others = cuda.local.array(count, real)
        row = np.int64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y
        stop = C if row < N else 0
        scale = real(1) / real(C)
        read(x, row * C, stop, vectors, values, real(0))
        if added:
            read_residual(r, row * C, stop, vectors, others, real(0))
            for k in range(count):
                values[k] += others[k]
            write(h, row * C, stop, vectors, values)
        if centred:
            total = real(0)
            for k in range(count):
                total += values[k]
            m = block_sum(total, partial) * scale
            for k in range(count):
                values[k] = values[k] - m if inside(k, stop, vectors) else real(0)
            if row < N and cuda.threadIdx.x == 0:
                mean[row] = m
        squares = real(0)
        for k in range(count):
            squares += values[k] * values[k]
        factor = real(1) / math.sqrt(block_sum(squares, partial) * scale + eps)
        if row < N and cuda.threadIdx.x == 0:
            rstd[row] = factor
        for k in range(count):
            values[k] *= factor
        if affine:
            read(weight, 0, stop, vectors, others, real(0))
            for k in range(count):
                values[k] *= others[k]
            if centred:
                read(bias, 0, stop, vectors, others, real(0))
                for k in range(count):
                    values[k] += others[k]
        write(y, row * C, stop, vectors, values)

    return forward_rows


def _backward_rows(label: str, real: Any, accesses: int, centred: bool) -> Kernel:
    tile = row_tile(real, accesses)
    count, read, write = tile.values, tile.read, tile.write
    sums, word = 2 if centred else 1, real.__name__
    single, blocks = real is np.float32, accesses > 1  # a warp has the short rows
    threads = (1024 if single else 512) if blocks else 32

    @kernel(
        f"{word}* x7, int64 x3, int32 x2", threads=threads, registers=64 if single else 80, vector_loads=True,
        name=f"{label}_backward_rows_{count}_{word}",
    )  # fmt: skip
    def backward_rows(dy, x, weight, mean, rstd, dx, partials, N, C, part, vectors, affine):
        """dx of the rows [part blockIdx.x, ...), and their sums for dweight and dbias: partials (parts, 1 or 2, C)."""
        shared = cuda.shared.array(32, real), cuda.shared.array(32, real)
        xhat = cuda.local.array(count, real)
        slopes = cuda.local.array(count, real)
        weights = cuda.local.array(count, real)
        dweight = cuda.local.array(count, real)
        dbias = cuda.local.array(count, real)
        scale = real(1) / real(C)
        for k in range(count):
            weights[k], dweight[k], dbias[k] = real(1), real(0), real(0)
        if affine:
            read(weight, 0, C, vectors, weights, real(0))
        start = cuda.blockIdx.x * part
        for row in range(start, min(N, start + part)):
            read(x, row * C, C, vectors, xhat, real(0))
            read(dy, row * C, C, vectors, slopes, real(0))
            factor = rstd[row]
            m = real(0)
            if centred:
                m = mean[row]
            total, total_xhat = real(0), real(0)
            for k in range(count):
                xhat[k] = (xhat[k] - m) * factor
                dweight[k] += slopes[k] * xhat[k]
                if centred:
                    dbias[k] += slopes[k]
                slopes[k] *= weights[k]
                total += slopes[k]
                total_xhat += slopes[k] * xhat[k]
            if centred:
                pair = total, total_xhat
                total, total_xhat = row_sums(pair, shared) if blocks else warp_sums(pair)
                total *= scale
            else:
                total, total_xhat = real(0), block_sum(total_xhat, shared[0])
            total_xhat *= scale
            for k in range(count):
                slopes[k] = factor * (slopes[k] - total - xhat[k] * total_xhat)
            write(dx, row * C, C, vectors, slopes)
        write(partials, cuda.blockIdx.x * sums * C, C, vectors, dweight)
        if centred:
            write(partials, (cuda.blockIdx.x * sums + 1) * C, C, vectors, dbias)

    return backward_rows


def _forwards(label: str, real: Any, centred: bool, residual: str = "") -> tuple[Kernel, Kernel]:
    """``short`` and ``rows`` of the forward pass."""
    return _forward_rows(label, real, 1, centred, residual), _forward_rows(label, real, 4, centred, residual)


def norm_kernels(label: str, centred: bool) -> dict[Any, RowNormKernels]:
    """All kernels of a normalisation by dtype; their names begin with ``label``."""
    return {
        np.dtype(real): RowNormKernels(
            *_forwards(label, real, centred), *(_backward_rows(label, real, accesses, centred) for accesses in (1, 2))
        )
        for real in (np.float32, np.float64)
    }


def residual_kernels(label: str, centred: bool) -> dict[Any, tuple[Kernel, Kernel]]:
    """Those of the forward pass that adds a residual first, by its dtype and that of x."""
    pairs = [(np.float32, word) for word in ("float32", "bfloat16", "float16")] + [(np.float64, "float64")]
    return {(np.dtype(real), residual): _forwards(label, real, centred, residual) for real, residual in pairs}


def forward(
    kernels: Any, x: Array, residual: Array | None, weight: Array | None, bias: Array | None, eps: float, centred: bool
) -> tuple[Array, Array, Any, Array]:
    """``kernels``: (short, rows, ...) -> y, x + residual (or x), mean, rstd. Any strides, which are copied."""
    N, C = x.shape
    x = contiguous(x)
    residual, weight, bias = (None if a is None else contiguous(a) for a in (residual, weight, bias))
    width = 16 // x.itemsize
    if C > 4 * width * kernels[1].threads[0]:
        return _forward_steps(x, residual, weight, bias, float(eps), centred)
    y, mean, rstd = (empty(shape, x.dtype, x.device) for shape in (x.shape, N, N))
    h = x if residual is None else empty(x.shape, x.dtype, x.device)
    chosen, threads = row_kernel((*kernels[:2], None), 4, N, C, x.itemsize)
    pointers = (x, *(x if a is None else a for a in (residual, weight, bias)), y, h, mean, rstd)
    vectors = aligned(width, C, *pointers[:6])
    if x.size:
        numbers = N, C, float(eps), vectors, int(weight is not None)
        chosen.launch(ceil_div(N, threads[1]), *pointers, *numbers, threads=threads)
    return y, h, mean, rstd


def backward(
    kernels: RowNormKernels, centred: bool, dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array
) -> tuple[Array, tuple[Array, ...]]:
    """-> dx and the gradients of the parameters (if not ``centred``, of one), (C,) each. Any strides."""
    (N, C), sums = x.shape, 1 + centred
    dy, x, weight = contiguous(dy), contiguous(x), None if weight is None else contiguous(weight)
    width = 16 // x.itemsize
    chosen, accesses = (kernels.backward_short, 1) if C <= 32 * width else (kernels.backward_rows, 2)
    threads = row_threads(1, C, accesses * width, chosen.threads[0])[0]
    if C > threads * accesses * width:
        return _backward_steps(dy, x, weight, mean.reshape(N, 1) if centred else 0.0, rstd.reshape(N, 1))
    dx = empty(x.shape, x.dtype, x.device)
    part = max(PART_ROWS, ceil_div(N, MOST_PARTS))
    parts = ceil_div(N, part)
    partials = empty(parts * sums * C, x.dtype, x.device)
    w, affine = (x, 0) if weight is None else (weight, 1)
    if x.size:
        vectors = aligned(width, C, dy, x, w, dx, partials)
        chosen.launch(parts, dy, x, w, mean, rstd, dx, partials, N, C, part, vectors, affine, threads=threads)
    total = partials if parts == 1 else fold("sum", partials, 1, parts, sums * C, x.dtype)
    return dx, tuple(
        Array(total.memory, (C,), x.dtype, pointer=total.pointer + i * C * x.itemsize) for i in range(sums)
    )


# Long rows, in steps --------------------------------------------------------------------------------------------------


def _row_means(x: Array) -> Array:
    """(N, 1) of x (N, C)."""
    N, C = x.shape
    return families.elementwise.div(fold("sum", x, N, C, 1, x.dtype), x.dtype.type(C)).reshape(N, 1)


def _forward_steps(
    x: Array, residual: Array | None, weight: Array | None, bias: Array | None, eps: float, centred: bool
) -> tuple[Array, Array, Any, Array]:
    h = x if residual is None else families.elementwise.add(x, residual)
    mean = _row_means(h) if centred else 0.0
    rstd = RSTD(_row_means(SQUARE(h, mean)), eps)
    y = AFFINE(h, mean, rstd, 0.0)
    if weight is not None:
        AFFINE(y, 0.0, weight, 0.0 if bias is None else bias, out=y)
    return y, h, mean.reshape(-1) if isinstance(mean, Array) else mean, rstd.reshape(-1)


def _backward_steps(
    dy: Array, x: Array, weight: Array | None, mean: Any, rstd: Array
) -> tuple[Array, tuple[Array, ...]]:
    """``mean`` and ``rstd`` (N, 1); a mean of 0.0 is that of rows that are not centred."""
    g = dy if weight is None else families.elementwise.mul(dy, weight)
    (N, C), centred = x.shape, isinstance(mean, Array)
    slope, shift = _row_means(TIMES_XHAT(g, x, mean, rstd)), _row_means(g) if centred else 0.0
    sums = (TIMES_XHAT(dy, x, mean, rstd), dy)[: 1 + centred]
    return GRADIENT(g, x, mean, rstd, slope, shift, rstd), tuple(fold("sum", a, 1, N, C, x.dtype) for a in sums)
