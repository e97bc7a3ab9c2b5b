"""The kernels of matrix products: y = a b, for operands of any strides, batches of matrices, and any sizes.

    tiled     a tile of y for each block: ``tiled_product.py``
    dot       a warp computes an element of y: few rows or columns, and long sums (decoding one token).
    small     a thread computes an element of y: what is so small that only the number of launches counts, and integers.
    sum_parts y = the sum over the parts of a product whose inner dimension was divided between blocks.

Element (r, c) of matrix z of the batch is the sum over k of a[r a_row + k a_depth] b[k b_depth + c b_column], where a
and b begin at (z // inner) outer + (z % inner) inner steps of theirs. k is walked in order and divided by the shapes
alone: the result has the same bits at each run. Then the epilogue of ``matmul_operands.py``. ``other`` is the array
before of its steps GELU and SLOPE, and the residual of ADD; no product has two of these steps. GELU is that of "tanh"
(``gelu.py``).
"""

from __future__ import annotations

import math as python_math
from typing import Any

import numpy as np

from . import ptx
from .collective import warp_sum
from .language import cuda, device_function, math
from .launch import Kernel, kernel

BIAS, ADD, GELU, SLOPE = 1, 2, 4, 8  # bits of an epilogue
TWICE, CUBIC = 2 * python_math.sqrt(2 / python_math.pi), 0.044715  # 2u = TWICE s (1 + CUBIC s^2)

# What every kernel here takes: arrays, sizes, steps in elements, the batch, the epilogue.
WORDS = ("int32",) * 3 + ("int64",) * 4 + ("uint32",) + ("int64",) * 4 + ("int32",)


def arrays(real: Any) -> tuple[str, ...]:
    return (f"{np.dtype(real).name}*",) * 5  # y, a, b, bias, other


def _gelu(real: Any) -> Any:
    one, twice, cubic = real(1), real(TWICE), real(CUBIC)

    @device_function
    def gelu(s):
        return s / (one + math.exp(-twice * s * (one + cubic * s * s)))

    return gelu


def _gelu_slope(real: Any) -> Any:
    one, twice, cubic, cubic3 = real(1), real(TWICE), real(CUBIC), real(3 * CUBIC)

    @device_function
    def slope(s):
        square = s * s
        half = one / (one + math.exp(-twice * s * (one + cubic * square)))
        return half + s * half * (one - half) * twice * (one + cubic3 * square)

    return slope


GELU_OF = {real: _gelu(real) for real in (np.float32, np.float64)}


def _epilogue(real: Any) -> Any:
    gelu, slope = GELU_OF[real], _gelu_slope(real)

    @device_function
    def finish(s, place, column, bias, other, epilogue):
        if epilogue & BIAS:
            s += bias[column]
        if epilogue & GELU:
            other[place] = s
            s = gelu(s)
        if epilogue & SLOPE:
            s *= slope(other[place])
        if epilogue & ADD:
            s += other[place]
        return s

    return finish


@device_function
def _finish_integer(s, place, column, bias, other, epilogue):
    return s + bias[column] if epilogue & BIAS else s


_FINISH = {real: _epilogue(real) for real in (np.float32, np.float64)}


@device_function
def start(matrix: Any, inner: Any, outer_step: Any, inner_step: Any) -> Any:
    """Where a matrix of the batch begins."""
    outer = matrix // inner
    return np.int64(outer) * outer_step + np.int64(matrix - outer * inner) * inner_step


# One element for a warp, or for a thread ------------------------------------------------------------------------------


def _dot(real: Any, vector: bool) -> Kernel:
    """A warp's 32 lanes share a sum; with ``vector`` each reads 4 elements at once, which K and the steps allow."""
    finish = _FINISH[real]
    count = 4 if vector else 1

    @kernel(
        *arrays(real),
        *WORDS,
        "uint32",
        threads=128,
        registers=48,
        name=f"dot_{np.dtype(real).name}{'_wide' * vector}",
        vector_loads=vector,
    )
    def dot(
        y, a, b, bias, other, M, N, K, a_row, a_depth, b_depth, b_column, inner, a_outer, a_inner, b_outer, b_inner,
        epilogue, n,
    ):  # fmt: skip
        element = np.uint32(cuda.grid(1) // 32)
        if element < n:
            outer = element // np.uint32(N)
            column = np.int64(element - outer * np.uint32(N))
            matrix = outer // np.uint32(M)
            row = np.int64(outer - matrix * np.uint32(M))
            a_start = start(matrix, inner, a_outer, a_inner) + row * a_row
            b_start = start(matrix, inner, b_outer, b_inner) + column * b_column
            s = real(0)
            lane = cuda.threadIdx.x % 32
            for k in range(lane * count, K, 32 * count):
                if vector:
                    p, q = ptx.load_constant4(a, a_start + k), ptx.load_constant4(b, b_start + k)
                    s += p[0] * q[0] + p[1] * q[1] + (p[2] * q[2] + p[3] * q[3])
                else:
                    s += a[a_start + k * a_depth] * b[b_start + k * b_depth]
            s = warp_sum(s)
            if lane == 0:
                y[element] = finish(s, np.int64(element), column, bias, other, epilogue)

    return dot


DOT = {np.dtype(real): _dot(real, False) for real in (np.float32, np.float64)}
WIDE_DOT = _dot(np.float32, True)


def _small(dtype: Any) -> Kernel:
    finish = _FINISH.get(dtype, _finish_integer)
    logical = dtype is np.bool_
    zero = np.uint8(0) if logical else dtype(0)

    @kernel(*arrays(dtype), *WORDS, "uint32", threads=128, registers=32, name=f"small_{np.dtype(dtype).name}")
    def small(
        y, a, b, bias, other, M, N, K, a_row, a_depth, b_depth, b_column, inner, a_outer, a_inner, b_outer, b_inner,
        epilogue, n,
    ):  # fmt: skip
        element = np.uint32(cuda.grid(1))
        if element < n:
            outer = element // np.uint32(N)
            column = np.int64(element - outer * np.uint32(N))
            matrix = outer // np.uint32(M)
            row = np.int64(outer - matrix * np.uint32(M))
            i = start(matrix, inner, a_outer, a_inner) + row * a_row
            j = start(matrix, inner, b_outer, b_inner) + column * b_column
            s = zero
            for _ in range(K):
                if logical:
                    s |= a[i] & b[j]
                else:
                    s += a[i] * b[j]
                i += a_depth
                j += b_depth
            y[element] = finish(s, np.int64(element), column, bias, other, epilogue)

    return small


SMALL = {np.dtype(dtype): _small(dtype) for dtype in (np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_)}


def _sum_parts(real: Any) -> Kernel:
    word = f"{np.dtype(real).name}*"
    finish = _FINISH[real]

    @kernel(
        word, word, word, word, "uint32", "uint32", "int32", "int32",
        threads=256, registers=32, name=f"sum_parts_{np.dtype(real).name}",
    )  # fmt: skip
    def sum_parts(y, parts, bias, other, n, N, splits, epilogue):
        """parts (splits, n), y (n,) of rows of N."""
        i = cuda.grid(1)
        if i < n:
            s = parts[i]
            for split in range(1, splits):
                s += parts[i + np.int64(split) * n]
            y[i] = finish(s, i, np.uint32(i) % N, bias, other, epilogue)

    return sum_parts


SUM_PARTS = {np.dtype(real): _sum_parts(real) for real in (np.float32, np.float64)}
