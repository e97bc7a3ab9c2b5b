"""The kernels of large matrix products, with the arguments and epilogues of ``simt.py``.

A block computes a square tile of y, 128, 64 or 32 on a side. Each of its 256 threads computes 8 x 8, 4 x 4 or 2 x 2 of
it, in registers. Slices of a and b of 1024 elements come through shared memory, the next ones while these are
multiplied: there are two of each, so one barrier a slice is enough. ``ladder_matmul.py`` comes here step by step.
"""

from typing import Any

import numpy as np

from ..platform.toolbox import Kernel, cuda, kernel
from ..ptx import ptx
from ..ptx.fours import load_inside
from .record import ADD, BIAS
from .tiles import KINDS, TILE_WORDS, WORDS, start, tile_at

PADDING = 4  # elements that follow a row of a slice in shared memory: still aligned, and a column's banks differ


def _operand(real: Any, side: int, vector: bool, along: bool) -> tuple[Any, Any, Any, Any]:
    """How a thread carries 4 elements of a slice from device to shared memory.

    They follow on one another along k if ``along`` (a kernel without vector loads is told when it runs:
    ``k_first``), else along the other dimension. Returns ``lane``, where they begin in the slice, ``valid``, how
    many of them exist, ``read`` and ``write``.
    """
    depth, pitch = 1024 // side, side + PADDING

    def lane(t, k_first):
        if along if vector else k_first:
            return np.int32(t // (depth // 4)), np.int32(t % (depth // 4) * 4)
        return np.int32(t % (side // 4) * 4), np.int32(t // (side // 4))

    def valid(room, k_room, k_first):
        if along if vector else k_first:
            return k_room if room > 0 else np.int32(0)
        return room if k_room > 0 else np.int32(0)

    def read(x, place, o_step, k_step, count, k_first):
        zero = real(0)
        if vector:
            if count > 0:
                return ptx.load_constant4(x, place)
            return zero, zero, zero, zero
        return load_inside(x, place, k_step if k_first else o_step, count, zero)

    def write(tile, base, o, k, values, k_first):
        place = base + k * pitch + o
        if vector and not along:
            ptx.store4(tile, place, values)
        else:
            step = pitch if (along if vector else k_first) else 1
            for e in range(4):
                tile[place + e * step] = values[e]

    return lane, valid, read, write


def _tiled(real: Any, T: int, registers: int, contiguous: str = "") -> Kernel:
    """The kernel with T x T elements of y for each of the 256 threads.

    ``contiguous`` (two of "k" and "o") says along which dimension, the common or the other one, a and b are read 128
    bits at once; the caller has checked addresses and sizes. Without it they are read one by one at any strides.
    With GELU in the epilogue the sums would not stay in the registers of two blocks: it is a pass of its own.
    """
    word, side = np.dtype(real).name, 16 * T
    depth = 1024 // side  # 4 elements of each operand for each thread
    width = min(T, 4)  # elements that lie together in a thread's fragment; the rest of its T lie 16 widths further
    pitch = side + PADDING  # of rows of a slice in shared memory
    half = depth * pitch
    accumulators, halves = T * T, 2 * half
    vector = bool(contiguous)
    vector_fragments = real is np.float32 and T >= 4

    lane_a, valid_a, read_a, write_a = _operand(real, side, vector, contiguous[:1] != "o")
    lane_b, valid_b, read_b, write_b = _operand(real, side, vector, contiguous[1:] != "o")

    def fragment(values, tile, base):
        """A thread's T of the 16 T values of a row of a slice."""
        if vector_fragments:
            for group in range(T // 4):
                lanes = ptx.load4(tile, base + group * 64)
                for e in range(4):
                    values[group * 4 + e] = lanes[e]
        else:
            for group in range(T // 2):  # pairs of the T values, which lie together
                lanes = ptx.load2(tile, base + group * 2)
                values[group * 2] = lanes[0]
                values[group * 2 + 1] = lanes[1]

    # What follows walks the thread's elements: ``rows`` and ``columns`` are how many there are from its first one on,
    # ``place`` is where that one is, of rows of N.

    def add_bias(sums, bias, column, columns):
        for j in range(T):
            lane = j // width * 16 * width + j % width
            if lane < columns:
                for i in range(T):
                    sums[i * T + j] += bias[column + lane]

    def exchange(sums, y, place, N, rows, columns, adds):
        """sums += y if ``adds``, else y = sums."""
        for i in range(T):
            row = i // width * 16 * width + i % width
            if row < rows:
                first = place + row * N
                for j in range(T):
                    lane = j // width * 16 * width + j % width
                    if lane < columns:
                        if adds:
                            sums[i * T + j] += y[first + lane]
                        else:
                            y[first + lane] = sums[i * T + j]

    @kernel(
        f"{word}* x5, {WORDS}, {TILE_WORDS}", registers=registers, resident=2 if vector else 1,
        of=f"{word}_{side}{'_' * vector}{contiguous}", vector_loads=vector,
        flops=lambda *args: 2 * args[0].size * args[7] // args[-2],
    )  # fmt: skip
    def tiled(
        y, a, b, bias, other, M, N, K, a_row, a_depth, b_depth, b_column, inner, a_outer, a_inner, b_outer, b_inner,
        epilogue, row_tiles, column_tiles, splits, chunk,
    ):  # fmt: skip
        a_slices = cuda.shared.array(halves, real, alignment=16)
        b_slices = cuda.shared.array(halves, real, alignment=16)
        sums = cuda.local.array(accumulators, real)
        rows = cuda.local.array(T, real)
        columns = cuda.local.array(T, real)

        block = np.uint32(cuda.blockIdx.x)
        part, matrix, first_row, first_column, k, k_end = tile_at(
            block, row_tiles, column_tiles, splits, chunk, K, side, side
        )
        a_k_first, b_k_first = a_depth == 1, b_depth == 1

        t = cuda.threadIdx.x
        ty, tx = np.int32(t // 16 * width), np.int32(t % 16 * width)
        a_o, a_k = lane_a(t, a_k_first)
        b_o, b_k = lane_b(t, b_k_first)
        a_place = start(matrix, inner, a_outer, a_inner) + np.int64(first_row + a_o) * a_row + (k + a_k) * a_depth
        b_place = start(matrix, inner, b_outer, b_inner) + np.int64(first_column + b_o) * b_column + (k + b_k) * b_depth
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
            exchange(sums, other, place, N64, rows_left, columns_left, True)
        exchange(sums, y, place, N64, rows_left, columns_left, False)

    return tiled


# By dtype and side, and how a and b are read. The plain ones take any strides.
PLAIN = (np.float32, 8, 136), (np.float32, 4, 88), (np.float32, 2, 72), (np.float64, 4, 128), (np.float64, 2, 96)
TILED = {(np.dtype(real), 16 * T): _tiled(real, T, registers) for real, T, registers in PLAIN}
WIDE = {kinds: _tiled(np.float32, 8, 124, kinds) for kinds in KINDS}
