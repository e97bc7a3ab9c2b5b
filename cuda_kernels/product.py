"""The kernels of matrix products: y = a b, for operands of any strides, batches of matrices, and any sizes.

    tiled     a block computes a square tile of y (128, 64 or 32 on a side), a thread 8 x 8, 4 x 4 or 2 x 2 of it, in
              registers. Slices of a and b come through shared memory, the next one while this one is multiplied.
    dot       a warp computes an element of y: few rows or columns, and long sums (decoding one token).
    small     a thread computes an element of y: what is so small that only the number of launches counts, and integers.
    sum_parts y = the sum over the parts of a product whose inner dimension was divided between blocks.

Element (r, c) of matrix z of the batch is the sum over k of a[r a_row + k a_depth] b[k b_depth + c b_column], where a and
b begin at (z // inner) outer + (z % inner) inner steps of theirs. k is walked in order and divided by the shapes alone: the
result has the same bits at each run and on each card. Then the epilogue, for each element s of the product:

    BIAS  s += bias[c]      ADD  s += y[r, c]      GELU  before[r, c] = s;  s = s sigmoid(2u) as in ``gelu.py``

``ladder_matmul.py`` comes to ``tiled`` from three plain lines, step by step.
"""

from __future__ import annotations

import math as python_math
from typing import Any

import numpy as np

from . import ptx
from .collective import warp_sum
from .language import cuda, device_function, math
from .launch import Kernel, kernel

BIAS, ADD, GELU = 1, 2, 4  # bits of an epilogue
GROUP = 8  # rows of tiles that blocks walk together, so that the slices of b that they share are found in L2
SLOPE, CUBIC = 2 * python_math.sqrt(2 / python_math.pi), 0.044715

# What every kernel here takes: arrays, sizes, steps in elements, the batch, the epilogue.
WORDS = ("int32",) * 3 + ("int64",) * 4 + ("uint32",) + ("int64",) * 4 + ("int32",)


def _arrays(real: Any) -> tuple[str, ...]:
    return (f"{np.dtype(real).name}*",) * 5  # y, a, b, bias, before


def _gelu(real: Any) -> Any:
    one, slope, cubic = real(1), real(SLOPE), real(CUBIC)

    @device_function
    def gelu(s):
        return s / (one + math.exp(-slope * s * (one + cubic * s * s)))

    return gelu


_GELU = {real: _gelu(real) for real in (np.float32, np.float64)}


def _epilogue(real: Any) -> Any:
    gelu = _GELU[real]

    @device_function
    def finish(s, place, column, y, bias, before, epilogue):
        if epilogue & BIAS:
            s += bias[column]
        if epilogue & ADD:
            s += y[place]
        if epilogue & GELU:
            before[place] = s
            s = gelu(s)
        return s

    return finish


@device_function
def _finish_integer(s, place, column, y, bias, before, epilogue):
    return s + bias[column] if epilogue & BIAS else s


_FINISH = {real: _epilogue(real) for real in (np.float32, np.float64)}


@device_function
def _start(matrix, inner, outer_step, inner_step):
    """Where a matrix of the batch begins."""
    outer = matrix // inner
    return np.int64(outer) * outer_step + np.int64(matrix - outer * inner) * inner_step


# Tiles ----------------------------------------------------------------------------------------------------------------


def _tiled(real: Any, T: int, registers: int, contiguous: str = "", with_gelu: bool = False) -> Kernel:
    """The kernel with T x T elements of y for each of the 256 threads.

    ``contiguous`` (two of "k" and "o") says along which dimension, the common or the other one, a and b are read 128 bits
    at once; the caller has checked addresses and sizes. Without it they are read element by element at any strides.
    GELU is the epilogue of the kernel ``with_gelu`` only, with fast exponentials: a large one would not stay in registers.
    """
    side = 16 * T
    depth = 1024 // side  # 4 elements of each operand for each thread
    width = min(T, 4)  # elements that lie together in a thread's fragment; the rest of its T lie 16 widths further
    pitch = side + 4  # rows of a slice in shared memory: still aligned, and a column's banks differ
    half = depth * pitch
    accumulators, halves = T * T, 2 * half
    gelu = _GELU[real]
    vector = bool(contiguous)
    vector_fragments = real is np.float32 and T >= 4
    a_along, b_along = (kind == "k" for kind in contiguous or "kk")

    def operand(along: bool) -> tuple[Any, Any, Any, Any]:
        """How a thread carries 4 elements of a slice from device to shared memory.

        They follow on one another along k if ``along`` (a kernel without vector loads decides when it runs: ``k_first``),
        else along the other dimension. (lane: where they begin in the slice, valid: how many of them exist, read, write)
        """

        @device_function
        def lane(t, k_first):
            if along if vector else k_first:
                return np.int32(t // (depth // 4)), np.int32(t % (depth // 4) * 4)
            return np.int32(t % (side // 4) * 4), np.int32(t // (side // 4))

        @device_function
        def valid(room, k_room, k_first):
            if along if vector else k_first:
                return k_room if room > 0 else np.int32(0)
            return room if k_room > 0 else np.int32(0)

        @device_function
        def read(x, place, o_step, k_step, count, k_first):
            zero = real(0)
            if vector:
                if count > 0:
                    return ptx.load_constant4(x, place)
                return zero, zero, zero, zero
            step = k_step if k_first else o_step
            return (
                x[place] if count > 0 else zero,
                x[place + step] if count > 1 else zero,
                x[place + 2 * step] if count > 2 else zero,
                x[place + 3 * step] if count > 3 else zero,
            )

        @device_function
        def write(tile, base, o, k, values, k_first):
            place = base + k * pitch + o
            if vector and not along:
                ptx.store4(tile, place, values)
            else:
                step = pitch if along and vector or k_first and not vector else 1
                tile[place] = values[0]
                tile[place + step] = values[1]
                tile[place + 2 * step] = values[2]
                tile[place + 3 * step] = values[3]

        return lane, valid, read, write

    lane_a, valid_a, read_a, write_a = operand(a_along)
    lane_b, valid_b, read_b, write_b = operand(b_along)

    @device_function
    def fragment(values, tile, base):
        """A thread's T of the 16 T values of a row of a slice."""
        if vector_fragments:
            for group in range(T // 4):
                lanes = ptx.load4(tile, base + group * 64)
                values[group * 4] = lanes[0]
                values[group * 4 + 1] = lanes[1]
                values[group * 4 + 2] = lanes[2]
                values[group * 4 + 3] = lanes[3]
        else:
            for group in range(T // 2):  # pairs of the T values, which lie together
                lanes = ptx.load2(tile, base + group * 2)
                values[group * 2] = lanes[0]
                values[group * 2 + 1] = lanes[1]

    # What follows walks the thread's elements: ``rows`` and ``columns`` are how many there are from its first one on,
    # ``place`` is where that one is, of rows of N.

    @device_function
    def add_bias(sums, bias, column, columns):
        for j in range(T):
            lane = j // width * 16 * width + j % width
            if lane < columns:
                for i in range(T):
                    sums[i * T + j] += bias[column + lane]

    @device_function
    def add(sums, y, place, N, rows, columns):
        for i in range(T):
            row = i // width * 16 * width + i % width
            if row < rows:
                first = place + row * N
                for j in range(T):
                    lane = j // width * 16 * width + j % width
                    if lane < columns:
                        sums[i * T + j] += y[first + lane]

    @device_function
    def store(sums, y, place, N, rows, columns):
        for i in range(T):
            row = i // width * 16 * width + i % width
            if row < rows:
                first = place + row * N
                for j in range(T):
                    lane = j // width * 16 * width + j % width
                    if lane < columns:
                        y[first + lane] = sums[i * T + j]

    @kernel(
        *_arrays(real),
        *WORDS,
        *["uint32"] * 3,
        "int32",
        threads=256,
        registers=registers,
        resident=2 if vector and not with_gelu else 1,
        name=f"tiled_{np.dtype(real).name}_{side}{'_' * vector}{contiguous}{'_gelu' * with_gelu}",
        fastmath=with_gelu,
        vector_loads=vector,
    )
    def tiled(
        y, a, b, bias, before, M, N, K, a_row, a_depth, b_depth, b_column, inner, a_outer, a_inner, b_outer, b_inner,
        epilogue, row_tiles, column_tiles, splits, chunk,
    ):  # fmt: skip
        a_slices = cuda.shared.array(halves, real, alignment=16)
        b_slices = cuda.shared.array(halves, real, alignment=16)
        sums = cuda.local.array(accumulators, real)
        rows = cuda.local.array(T, real)
        columns = cuda.local.array(T, real)

        # Which tile: blocks go down GROUP rows of tiles, then to the next column of tiles.
        tiles = np.uint32(row_tiles * column_tiles)
        block = np.uint32(cuda.blockIdx.x)
        part = block // tiles
        tile = block - part * tiles
        matrix = part // splits
        split = part - matrix * splits
        group_tiles = np.uint32(GROUP * column_tiles)
        group = tile // group_tiles
        tile -= group * group_tiles
        height = np.uint32(min(GROUP, row_tiles - group * GROUP))
        column_tile = np.uint32(tile) // height
        first_row = np.int32((group * GROUP + tile - column_tile * height) * side)
        first_column = np.int32(column_tile * side)
        k = np.int32(np.int32(split) * chunk)
        k_end = np.int32(min(K, k + chunk))
        a_k_first, b_k_first = a_depth == 1, b_depth == 1

        t = cuda.threadIdx.x
        ty, tx = np.int32(t // 16 * width), np.int32(t % 16 * width)
        a_o, a_k = lane_a(t, a_k_first)
        b_o, b_k = lane_b(t, b_k_first)
        a_place = _start(matrix, inner, a_outer, a_inner) + np.int64(first_row + a_o) * a_row + (k + a_k) * a_depth
        b_place = (
            _start(matrix, inner, b_outer, b_inner) + np.int64(first_column + b_o) * b_column + (k + b_k) * b_depth
        )
        a_room, b_room = np.int32(M - first_row - a_o), np.int32(N - first_column - b_o)
        for i in range(accumulators):
            sums[i] = real(0)
        from_a = read_a(a, a_place, a_row, a_depth, valid_a(a_room, k_end - k - a_k, a_k_first), a_k_first)
        from_b = read_b(b, b_place, b_column, b_depth, valid_b(b_room, k_end - k - b_k, b_k_first), b_k_first)
        write_a(a_slices, 0, a_o, a_k, from_a, a_k_first)
        write_b(b_slices, 0, b_o, b_k, from_b, b_k_first)
        cuda.syncthreads()
        base = np.int32(0)
        while k < k_end:
            k = np.int32(k + depth)
            if k < k_end:
                a_place += depth * a_depth
                b_place += depth * b_depth
                from_a = read_a(a, a_place, a_row, a_depth, valid_a(a_room, k_end - k - a_k, a_k_first), a_k_first)
                from_b = read_b(b, b_place, b_column, b_depth, valid_b(b_room, k_end - k - b_k, b_k_first), b_k_first)
            for d in range(depth):
                fragment(rows, a_slices, base + d * pitch + ty)
                fragment(columns, b_slices, base + d * pitch + tx)
                for i in range(T):
                    for j in range(T):
                        sums[i * T + j] += rows[i] * columns[j]
            if k < k_end:
                base = np.int32(half - base)
                write_a(a_slices, base, a_o, a_k, from_a, a_k_first)
                write_b(b_slices, base, b_o, b_k, from_b, b_k_first)
                cuda.syncthreads()

        row, column = np.int32(first_row + ty), np.int32(first_column + tx)
        place = np.int64(part) * M * N + np.int64(row) * N + column
        N64, rows_left, columns_left = np.int64(N), np.int32(M - row), np.int32(N - column)
        if epilogue & BIAS:
            add_bias(sums, bias, column, columns_left)
        if epilogue & ADD:
            add(sums, y, place, N64, rows_left, columns_left)
        if with_gelu:
            store(sums, before, place, N64, rows_left, columns_left)
            for i in range(accumulators):
                sums[i] = gelu(sums[i])
        store(sums, y, place, N64, rows_left, columns_left)

    return tiled


# T, and how a and b are read. The plain ones take any strides.
TILED = {
    (np.dtype(np.float32), 8): _tiled(np.float32, 8, 136),
    (np.dtype(np.float32), 4): _tiled(np.float32, 4, 88),
    (np.dtype(np.float32), 2): _tiled(np.float32, 2, 72),
    (np.dtype(np.float64), 4): _tiled(np.float64, 4, 128),
    (np.dtype(np.float64), 2): _tiled(np.float64, 2, 96),
}
WIDE = {kinds: _tiled(np.float32, 8, 124, kinds) for kinds in ("kk", "ko", "ok", "oo")}
WIDE_GELU = _tiled(np.float32, 8, 168, "kk", with_gelu=True)  # a linear layer: rows times rows of the weight


# One element for a warp, or for a thread -------------------------------------------------------------------------------


def _dot(real: Any, vector: bool) -> Kernel:
    """A warp's 32 lanes share a sum; with ``vector`` each reads 4 elements at once, which K and the steps allow."""
    finish = _FINISH[real]
    count = 4 if vector else 1

    @kernel(
        *_arrays(real),
        *WORDS,
        "uint32",
        threads=128,
        registers=64,
        name=f"dot_{np.dtype(real).name}{'_wide' * vector}",
        vector_loads=vector,
    )
    def dot(
        y, a, b, bias, before, M, N, K, a_row, a_depth, b_depth, b_column, inner, a_outer, a_inner, b_outer, b_inner,
        epilogue, n,
    ):  # fmt: skip
        element = np.uint32(cuda.grid(1) // 32)
        if element < n:
            outer = element // np.uint32(N)
            column = np.int64(element - outer * np.uint32(N))
            matrix = outer // np.uint32(M)
            row = np.int64(outer - matrix * np.uint32(M))
            a_start = _start(matrix, inner, a_outer, a_inner) + row * a_row
            b_start = _start(matrix, inner, b_outer, b_inner) + column * b_column
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
                y[element] = finish(s, np.int64(element), column, y, bias, before, epilogue)

    return dot


DOT = {np.dtype(real): _dot(real, False) for real in (np.float32, np.float64)}
WIDE_DOT = _dot(np.float32, True)


def _small(dtype: Any) -> Kernel:
    finish = _FINISH.get(dtype, _finish_integer)
    logical = dtype is np.bool_
    zero = np.uint8(0) if logical else dtype(0)

    @kernel(*_arrays(dtype), *WORDS, "uint32", threads=128, registers=64, name=f"small_{np.dtype(dtype).name}")
    def small(
        y, a, b, bias, before, M, N, K, a_row, a_depth, b_depth, b_column, inner, a_outer, a_inner, b_outer, b_inner,
        epilogue, n,
    ):  # fmt: skip
        element = np.uint32(cuda.grid(1))
        if element < n:
            outer = element // np.uint32(N)
            column = np.int64(element - outer * np.uint32(N))
            matrix = outer // np.uint32(M)
            row = np.int64(outer - matrix * np.uint32(M))
            i = _start(matrix, inner, a_outer, a_inner) + row * a_row
            j = _start(matrix, inner, b_outer, b_inner) + column * b_column
            s = zero
            for _ in range(K):
                if logical:
                    s |= a[i] & b[j]
                else:
                    s += a[i] * b[j]
                i += a_depth
                j += b_depth
            y[element] = finish(s, np.int64(element), column, y, bias, before, epilogue)

    return small


SMALL = {np.dtype(dtype): _small(dtype) for dtype in (np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_)}


def _sum_parts(real: Any) -> Kernel:
    word = f"{np.dtype(real).name}*"
    finish = _FINISH[real]

    @kernel(
        word, word, word, word, "uint32", "uint32", "int32", "int32",
        threads=256, registers=32, name=f"sum_parts_{np.dtype(real).name}",
    )  # fmt: skip
    def sum_parts(y, parts, bias, before, n, N, splits, epilogue):
        """parts (splits, n), y (n,) of rows of N."""
        i = cuda.grid(1)
        if i < n:
            s = parts[i]
            for split in range(1, splits):
                s += parts[i + np.int64(split) * n]
            y[i] = finish(s, i, np.uint32(i) % N, y, bias, before, epilogue)

    return sum_parts


SUM_PARTS = {np.dtype(real): _sum_parts(real) for real in (np.float32, np.float64)}
