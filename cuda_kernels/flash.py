"""Attention on tiles: a block keeps the queries (or the keys) of one tile and walks over the tiles of the other side.

The formulas are those of ``attention.py``; the scores of a pair of tiles exist in registers and, to be multiplied again, in
shared memory. The forward pass keeps a running softmax: when a row's maximum grows, what was summed before is scaled
down. Pairs above the causal diagonal are skipped, the longest rows of tiles start first.

A tile has 16 R rows; the 256 threads are a square of 16 x 16. Thread (ty, tx) computes the scores of the rows ty R + i
and the keys tx + 16 j, and the columns 4 tx + 64 g of what is summed over keys. Tiles lie in shared memory as they do in
device memory, rows of D padded to DMAX + 4: then 128-bit reads along D (scores) and along columns (sums) both meet no
bank twice. Past the end tiles are zeros, and scores minus infinity.

Exponentials are powers of 2 in float32 (one instruction) and of e in float64.
"""

from __future__ import annotations

import functools
import math as python_math
from typing import Any

import numpy as np

from . import libcuda, ptx
from .array import DeviceArray
from .attention_rows import SIZES, dropped, strides
from .language import FULL_WARP, SIMULATED, cuda, device_function, math
from .launch import Kernel, kernel

LARGEST = {np.dtype(np.float32): 128, np.dtype(np.float64): 64}  # head sizes
THREADS = 256
MAX_SHARED_BYTES = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


@device_function
def _load4_float64(p: Any, i: Any) -> Any:
    a, b = ptx.load2(p, i), ptx.load2(p, i + 2)
    return a[0], a[1], b[0], b[1]


@device_function
def _store4_float64(p: Any, i: Any, values: Any) -> None:
    ptx.store2(p, i, (values[0], values[1]))
    ptx.store2(p, i + 2, (values[2], values[3]))


@device_function
def _constant4_float64(p: Any, i: Any) -> Any:
    a, b = ptx.load_constant2(p, i), ptx.load_constant2(p, i + 2)
    return a[0], a[1], b[0], b[1]


@device_function
def row_max(x: Any) -> Any:
    """The largest over the 16 threads of a row; NaN is passed over, it returns with the exponentials."""
    for step in (8, 4, 2, 1):
        other = cuda.shfl_xor_sync(FULL_WARP, x, step)
        x = other if other > x else x
    return x


@device_function
def row_sum(x: Any) -> Any:
    """The sum over the 16 threads of a row."""
    for step in (8, 4, 2, 1):
        x += cuda.shfl_xor_sync(FULL_WARP, x, step)
    return x


class Tiles:
    """The device functions and sizes that the three kernels of a dtype and a largest head size share."""

    def __init__(self, real: Any, DMAX: int, R: int) -> None:
        self.real, self.DMAX, self.R = real, DMAX, R
        self.side = side = 16 * R
        self.pitch = pitch = DMAX + 4  # of a tile of rows
        self.p_pitch = p_pitch = side + 4  # of a tile of scores
        self.size, self.p_size = side * pitch, side * p_pitch
        self.groups = groups = DMAX // 64
        self.word = np.dtype(real).name
        self.unit = python_math.log(2) if real is np.float32 else 1.0  # scores are in units of this
        single = real is np.float32
        load4 = ptx.load4 if single else _load4_float64
        load_constant4 = ptx.load_constant4 if single else _constant4_float64
        store4 = ptx.store4 if single else _store4_float64
        chunks = DMAX // 4  # of a row
        R4 = 4 * R

        @device_function
        def load_tile(shared, base, x, start, step, rows, D, wide):
            """Rows of x from ``start`` on into shared memory, ``step`` apart, zeros behind them."""
            for chunk in range(cuda.threadIdx.x, side * chunks, THREADS):
                row, c = np.int32(chunk // chunks), np.int32(chunk % chunks * 4)
                zero = real(0)
                values = (zero, zero, zero, zero)
                place = start + row * step + c
                if row < rows and c < D:
                    if wide:
                        values = load_constant4(x, place)
                    else:
                        values = (
                            x[place],
                            x[place + 1] if c + 1 < D else zero,
                            x[place + 2] if c + 2 < D else zero,
                            x[place + 3] if c + 3 < D else zero,
                        )
                store4(shared, base + row * pitch + c, values)

        @device_function
        def scores(s, shared, x, y, D):
            """s[i R + j] = the product of row ty R + i of tile x and row tx + 16 j of tile y."""
            rows = cuda.local.array(R4, real)
            x += cuda.threadIdx.x // 16 * (R * pitch)
            y += cuda.threadIdx.x % 16 * pitch
            for i in range(R * R):
                s[i] = real(0)
            for c in range(0, D, 4):
                for i in range(R):
                    a = load4(shared, x + i * pitch + c)
                    rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3] = a[0], a[1], a[2], a[3]
                for j in range(R):
                    b = load4(shared, y + j * (16 * pitch) + c)
                    for i in range(R):
                        s[i * R + j] += rows[4 * i] * b[0]
                        s[i * R + j] += rows[4 * i + 1] * b[1]
                        s[i * R + j] += rows[4 * i + 2] * b[2]
                        s[i * R + j] += rows[4 * i + 3] * b[3]

        @device_function
        def put(s, shared, p):
            """The thread's scores into the tile p of shared memory."""
            p += cuda.threadIdx.x // 16 * (R * p_pitch) + cuda.threadIdx.x % 16
            for i in range(R):
                for j in range(R):
                    shared[p + i * p_pitch + 16 * j] = s[i * R + j]

        @device_function
        def get(s, shared, p):
            """And back."""
            p += cuda.threadIdx.x // 16 * (R * p_pitch) + cuda.threadIdx.x % 16
            for i in range(R):
                for j in range(R):
                    s[i * R + j] = shared[p + i * p_pitch + 16 * j]

        @device_function
        def drop(shared, p, rows, keys, first, Tk, threshold, seed, offset, kept):
            """Dropout of the thread's own scores in the tile p of rows x keys; its first is element ``first`` of the mask."""
            ty, tx = cuda.threadIdx.x // 16, cuda.threadIdx.x % 16
            for e in range(R * R):
                row, column = ty * R + e // R, tx + e % R * 16
                place = p + row * p_pitch + column
                if row < rows and column < keys:
                    gone = dropped(first + row * Tk + column, threshold, seed, offset)
                    shared[place] = real(0) if gone else shared[place] * kept

        @device_function
        def add_rows(sums, shared, p, x, keys):
            """sums[(i groups + g) 4 + c] += the sum over keys of p[ty R + i, key] x[key, 4 tx + 64 g + c]."""
            weights = cuda.local.array(R4, real)
            p += cuda.threadIdx.x // 16 * (R * p_pitch)
            x += cuda.threadIdx.x % 16 * 4
            for key in range(0, keys, 4):
                for i in range(R):
                    a = load4(shared, p + i * p_pitch + key)
                    weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3] = a[0], a[1], a[2], a[3]
                for e in range(4):
                    for g in range(groups):
                        b = load4(shared, x + (key + e) * pitch + 64 * g)
                        for i in range(R):
                            place = (i * groups + g) * 4
                            sums[place] += weights[4 * i + e] * b[0]
                            sums[place + 1] += weights[4 * i + e] * b[1]
                            sums[place + 2] += weights[4 * i + e] * b[2]
                            sums[place + 3] += weights[4 * i + e] * b[3]

        @device_function
        def add_columns(sums, shared, p, x, rows):
            """sums[(j groups + g) 4 + c] += the sum over rows of p[row, ty R + j] x[row, 4 tx + 64 g + c]."""
            weights = cuda.local.array(R, real)
            p += cuda.threadIdx.x // 16 * R
            x += cuda.threadIdx.x % 16 * 4
            for row in range(rows):
                for j in range(0, R, 2):
                    pair = ptx.load2(shared, p + row * p_pitch + j)
                    weights[j], weights[j + 1] = pair[0], pair[1]
                for g in range(groups):
                    b = load4(shared, x + row * pitch + 64 * g)
                    for j in range(R):
                        place = (j * groups + g) * 4
                        sums[place] += weights[j] * b[0]
                        sums[place + 1] += weights[j] * b[1]
                        sums[place + 2] += weights[j] * b[2]
                        sums[place + 3] += weights[j] * b[3]

        @device_function
        def store_rows(y, start, step, sums, factors, rows, D):
            """y[start + row step ...] = sums times the row's factor, for the thread's R rows."""
            first = cuda.threadIdx.x // 16 * R
            for i in range(R):
                if first + i < rows:
                    for g in range(groups):
                        for c in range(4):
                            column = cuda.threadIdx.x % 16 * 4 + 64 * g + c
                            if column < D:
                                y[start + (first + i) * step + column] = sums[(i * groups + g) * 4 + c] * factors[i]

        @device_function
        def exponential(x):
            return ptx.exp2_approx(x) if single else math.exp(x)

        self.load_tile, self.scores, self.store_rows = load_tile, scores, store_rows
        self.put, self.get, self.drop = put, get, drop
        self.add_rows, self.add_columns, self.exponential = add_rows, add_columns, exponential

    def bytes(self, tiles: int) -> int:
        """Shared memory of so many tiles of rows and one of scores."""
        return (tiles * self.size + self.p_size) * np.dtype(self.real).itemsize


def _forward(f: Tiles) -> Kernel:
    real, R, side, size = f.real, f.R, f.side, f.size
    sums_size, scores_size = R * f.groups * 4, R * R
    load_tile, scores, add_rows, store_rows = f.load_tile, f.scores, f.add_rows, f.store_rows
    put, drop = f.put, f.drop
    exponential, unit = f.exponential, real(f.unit)
    lowest = -real(np.inf)

    @kernel(
        *[f"{f.word}*"] * 5, *SIZES, f.word, f.word, *strides(3), "int32", "int32", "int32",
        threads=THREADS, registers=128, resident=2, shared_bytes=f.bytes(3), name=f"forward_{f.word}_{f.DMAX}",
        vector_loads=True,
    )  # fmt: skip
    def flash_forward(
        y, lse, q, k, v, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, heads, tiles, wide,
    ):  # fmt: skip
        shared = cuda.shared.array(0, real, alignment=16)
        q_tile, k_tile, v_tile, p_tile = 0, size, 2 * size, 3 * size
        s = cuda.local.array(scores_size, real)
        sums = cuda.local.array(sums_size, real)
        largest = cuda.local.array(R, real)
        totals = cuda.local.array(R, real)
        order = np.uint32(cuda.blockIdx.x) // np.uint32(heads)
        head = np.uint32(cuda.blockIdx.x) - order * np.uint32(heads)
        b = np.int64(head // np.uint32(Hq))
        h = np.int64(head) - b * Hq
        kv = np.int64(np.uint32(h) // np.uint32(np.uint32(Hq) // np.uint32(H)))
        first = np.int32((tiles - 1 - np.int32(order)) * side)
        rows = np.int32(min(side, Tq - first))
        keys = np.int32(min(Tk, first + rows) if causal else Tk)
        ty, tx = np.int32(cuda.threadIdx.x // 16), np.int32(cuda.threadIdx.x % 16)
        zero = real(0)
        for i in range(R):
            largest[i] = lowest
            totals[i] = zero
        for i in range(sums_size):
            sums[i] = zero
        load_tile(shared, q_tile, q, b * q_b + h * q_h + first * q_t, q_t, rows, D, wide)
        for place in range(0, keys, side):
            key = np.int32(place)
            count = np.int32(min(side, Tk - key))
            cuda.syncthreads()
            load_tile(shared, k_tile, k, b * k_b + kv * k_h + key * k_t, k_t, count, D, wide)
            load_tile(shared, v_tile, v, b * v_b + kv * v_h + key * v_t, v_t, count, D, wide)
            cuda.syncthreads()
            scores(s, shared, q_tile, k_tile, D)
            for i in range(R):
                end = np.int32(min(count, first - key + ty * R + i + 1) if causal else count)
                top = largest[i]
                for j in range(R):
                    seen = tx + 16 * j < end
                    s[i * R + j] = s[i * R + j] * scale if seen else lowest
                    top = s[i * R + j] if s[i * R + j] > top else top
                top = row_max(top)
                shift = top if top > lowest else zero  # -inf - -inf would be NaN
                decay = exponential(largest[i] - shift)
                largest[i] = top
                totals[i] *= decay
                for j in range(R):
                    p = exponential(s[i * R + j] - shift)
                    totals[i] += p
                    s[i * R + j] = p
                for c in range(sums_size // R):
                    sums[i * (sums_size // R) + c] *= decay
            put(s, shared, p_tile)
            if threshold > np.float32(0):
                mask = ((b * Hq + h) * Tq + first) * Tk + key
                drop(shared, p_tile, rows, count, mask, Tk, threshold, seed, offset, kept)
            cuda.syncwarp()  # the 16 threads of a row are in one warp
            add_rows(sums, shared, p_tile, v_tile, min(side, keys - key))
        for i in range(R):
            total = row_sum(totals[i])
            row = ty * R + i
            if tx == 0 and row < rows:
                lse[(b * Hq + h) * Tq + first + row] = largest[i] * unit + math.log(total)
            totals[i] = real(1) / total
        store_rows(y, ((b * Tq + first) * Hq + h) * D, Hq * D, sums, totals, rows, D)

    return flash_forward


def _queries(f: Tiles) -> Kernel:
    real, R, side, size = f.real, f.R, f.side, f.size
    sums_size, scores_size = R * f.groups * 4, R * R
    load_tile, scores, add_rows, store_rows = f.load_tile, f.scores, f.add_rows, f.store_rows
    put, get, drop = f.put, f.get, f.drop
    exponential, unit, per_unit, pitch = f.exponential, real(f.unit), real(1 / f.unit), f.pitch

    @kernel(
        *[f"{f.word}*"] * 8, *SIZES, f.word, f.word, *strides(5), "int32", "int32", "int32",
        threads=THREADS, registers=128, resident=2, shared_bytes=f.bytes(4), name=f"dq_{f.word}_{f.DMAX}",
        vector_loads=True,
    )  # fmt: skip
    def flash_dq(
        dq, delta, dy, q, k, v, y, lse, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t, heads, tiles, wide,
    ):  # fmt: skip
        shared = cuda.shared.array(0, real, alignment=16)
        q_tile, dy_tile, k_tile, v_tile, p_tile = 0, size, 2 * size, 3 * size, 4 * size
        s = cuda.local.array(scores_size, real)
        dp = cuda.local.array(scores_size, real)
        sums = cuda.local.array(sums_size, real)
        row_lse = cuda.local.array(R, real)
        deltas = cuda.local.array(R, real)
        order = np.uint32(cuda.blockIdx.x) // np.uint32(heads)
        head = np.uint32(cuda.blockIdx.x) - order * np.uint32(heads)
        b = np.int64(head // np.uint32(Hq))
        h = np.int64(head) - b * Hq
        kv = np.int64(np.uint32(h) // np.uint32(np.uint32(Hq) // np.uint32(H)))
        first = np.int32((tiles - 1 - np.int32(order)) * side)
        rows = np.int32(min(side, Tq - first))
        keys = np.int32(min(Tk, first + rows) if causal else Tk)
        ty, tx = np.int32(cuda.threadIdx.x // 16), np.int32(cuda.threadIdx.x % 16)
        zero = real(0)
        for i in range(sums_size):
            sums[i] = zero
        load_tile(shared, q_tile, q, b * q_b + h * q_h + first * q_t, q_t, rows, D, wide)
        load_tile(shared, dy_tile, dy, b * dy_b + h * dy_h + first * dy_t, dy_t, rows, D, wide)
        cuda.syncthreads()
        for i in range(R):
            row = ty * R + i
            part = zero
            row_lse[i] = zero
            place = (b * Hq + h) * Tq + first + row
            if row < rows:
                row_lse[i] = lse[place] * per_unit
                y_row = b * y_b + h * y_h + (first + row) * y_t
                for c in range(tx, D, 16):
                    part += shared[dy_tile + row * pitch + c] * y[y_row + c]
            deltas[i] = row_sum(part)
            if row < rows and tx == 0:
                delta[place] = deltas[i]
        for place in range(0, keys, side):
            key = np.int32(place)
            count = np.int32(min(side, Tk - key))
            cuda.syncthreads()
            load_tile(shared, k_tile, k, b * k_b + kv * k_h + key * k_t, k_t, count, D, wide)
            load_tile(shared, v_tile, v, b * v_b + kv * v_h + key * v_t, v_t, count, D, wide)
            cuda.syncthreads()
            scores(s, shared, q_tile, k_tile, D)
            scores(dp, shared, dy_tile, v_tile, D)
            if threshold > np.float32(0):
                put(dp, shared, p_tile)
                mask = ((b * Hq + h) * Tq + first) * Tk + key
                drop(shared, p_tile, rows, count, mask, Tk, threshold, seed, offset, kept)
                get(dp, shared, p_tile)
            for i in range(R):
                end = np.int32(min(count, first - key + ty * R + i + 1) if causal else count)
                for j in range(R):
                    seen = tx + 16 * j < end
                    p = exponential(s[i * R + j] * scale - row_lse[i])
                    s[i * R + j] = p * (dp[i * R + j] - deltas[i]) if seen else zero
            put(s, shared, p_tile)
            cuda.syncwarp()
            add_rows(sums, shared, p_tile, k_tile, min(side, keys - key))
        for i in range(R):
            deltas[i] = scale * unit
        store_rows(dq, ((b * Tq + first) * Hq + h) * D, Hq * D, sums, deltas, rows, D)

    return flash_dq


def _keys(f: Tiles) -> Kernel:
    real, R, side, size = f.real, f.R, f.side, f.size
    sums_size, scores_size = R * f.groups * 4, R * R
    load_tile, scores, add_columns, store_rows = f.load_tile, f.scores, f.add_columns, f.store_rows
    put, get, drop = f.put, f.get, f.drop
    exponential, unit, per_unit = f.exponential, real(f.unit), real(1 / f.unit)
    two = R == 4  # two blocks share a multiprocessor; the others' sums need the registers of both

    @kernel(
        *[f"{f.word}*"] * 8, *SIZES, f.word, f.word, *strides(4), "int32", "int32",
        threads=THREADS, registers=128 if two else 192, resident=1 + two, shared_bytes=f.bytes(4), name=f"dk_dv_{f.word}_{f.DMAX}",
        vector_loads=True,
    )  # fmt: skip
    def flash_dk_dv(
        dk, dv, dy, q, k, v, lse, delta, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, heads, wide,
    ):  # fmt: skip
        shared = cuda.shared.array(0, real, alignment=16)
        k_tile, v_tile, q_tile, dy_tile, p_tile = 0, size, 2 * size, 3 * size, 4 * size
        s = cuda.local.array(scores_size, real)
        dp = cuda.local.array(scores_size, real)
        k_sums = cuda.local.array(sums_size, real)
        v_sums = cuda.local.array(sums_size, real)
        factors = cuda.local.array(R, real)
        order = np.uint32(cuda.blockIdx.x) // np.uint32(heads)
        head = np.uint32(cuda.blockIdx.x) - order * np.uint32(heads)
        b = np.int64(head // np.uint32(H))
        kv = np.int64(head) - b * H
        group = np.int64(np.uint32(Hq) // np.uint32(H))
        key = np.int32(np.int32(order) * side)
        count = np.int32(min(side, Tk - key))
        ty, tx = np.int32(cuda.threadIdx.x // 16), np.int32(cuda.threadIdx.x % 16)
        zero = real(0)
        for i in range(sums_size):
            k_sums[i] = zero
            v_sums[i] = zero
        load_tile(shared, k_tile, k, b * k_b + kv * k_h + key * k_t, k_t, count, D, wide)
        load_tile(shared, v_tile, v, b * v_b + kv * v_h + key * v_t, v_t, count, D, wide)
        for h in range(kv * group, kv * group + group):
            for place in range(key if causal else 0, Tq, side):
                first = np.int32(place)
                rows = np.int32(min(side, Tq - first))
                cuda.syncthreads()
                load_tile(shared, q_tile, q, b * q_b + h * q_h + first * q_t, q_t, rows, D, wide)
                load_tile(shared, dy_tile, dy, b * dy_b + h * dy_h + first * dy_t, dy_t, rows, D, wide)
                cuda.syncthreads()
                scores(s, shared, q_tile, k_tile, D)
                scores(dp, shared, dy_tile, v_tile, D)
                mask = ((b * Hq + h) * Tq + first) * Tk + key
                if threshold > np.float32(0):
                    put(dp, shared, p_tile)
                    drop(shared, p_tile, rows, count, mask, Tk, threshold, seed, offset, kept)
                    get(dp, shared, p_tile)
                for i in range(R):
                    row = ty * R + i
                    place = (b * Hq + h) * Tq + first + row
                    row_lse = lse[place] * per_unit if row < rows else zero
                    row_delta = delta[place] if row < rows else zero
                    end = np.int32(min(count, first - key + row + 1) if causal else count)
                    end = end if row < rows else np.int32(0)
                    for j in range(R):
                        seen = tx + 16 * j < end
                        p = exponential(s[i * R + j] * scale - row_lse) if seen else zero
                        s[i * R + j] = p
                        dp[i * R + j] = p * (dp[i * R + j] - row_delta)
                put(s, shared, p_tile)
                if threshold > np.float32(0):
                    drop(shared, p_tile, rows, count, mask, Tk, threshold, seed, offset, kept)
                cuda.syncthreads()
                add_columns(v_sums, shared, p_tile, dy_tile, rows)
                cuda.syncthreads()
                put(dp, shared, p_tile)
                cuda.syncthreads()
                add_columns(k_sums, shared, p_tile, q_tile, rows)
        place, step = ((b * Tk + key) * H + kv) * D, H * D
        for i in range(R):
            factors[i] = real(1)
        store_rows(dv, place, step, v_sums, factors, count, D)
        for i in range(R):
            factors[i] = scale * unit
        store_rows(dk, place, step, k_sums, factors, count, D)

    return flash_dk_dv


_SIZES = [Tiles(np.float32, 64, 4), Tiles(np.float32, 128, 2), Tiles(np.float64, 64, 2)]
_KERNELS = {(np.dtype(f.real), f.DMAX): (f, _forward(f), _queries(f), _keys(f)) for f in _SIZES}
_LARGEST_BYTES = max(f.bytes(4) for f in _SIZES)


@functools.cache
def fits(device: int) -> bool:
    """Whether a block of the device may have the shared memory that the tiles need (cards from 2020 on)."""
    return SIMULATED or libcuda.device_attribute(MAX_SHARED_BYTES, device) >= _LARGEST_BYTES


def _choose(q: DeviceArray) -> tuple[Tiles, Kernel, Kernel, Kernel]:
    return _KERNELS[q.dtype, 64 if q.shape[-1] <= 64 else 128]


def _wide(*operands: DeviceArray) -> int:
    """Whether all rows can be read 128 bits at once."""
    return int(
        all(
            x.shape[-1] % 4 == 0
            and x.pointer % 16 == 0
            and all(n == 1 or step % 4 == 0 for n, step in zip(x.shape[:-1], x.steps))
            for x in operands
        )
    )


def _in_units(f: Tiles, settings: tuple[Any, ...]) -> tuple[Any, ...]:
    """The settings with the scale that makes scores exponents of the kernels' base."""
    *rest, scale, kept = settings
    return *rest, scale / f.unit, kept


def _steps(*operands: DeviceArray) -> list[int]:
    return [step for x in operands for step in x.steps[:3]]


def forward(
    y: DeviceArray, lse: DeviceArray, q: DeviceArray, k: DeviceArray, v: DeviceArray, settings: tuple[Any, ...]
) -> None:
    """``attention.forward`` into y (B, Tq, Hq, D) and lse; rows contiguous, nothing empty."""
    f, kernel_, _, _ = _choose(q)
    B, Hq, Tq, _ = q.shape
    tiles = -(-Tq // f.side)
    arguments = (*_in_units(f, settings), *_steps(q, k, v), B * Hq, tiles, _wide(q, k, v))
    kernel_.launch(B * Hq * tiles, y, lse, q, k, v, *arguments)


def backward(
    dq: DeviceArray,
    dk: DeviceArray,
    dv: DeviceArray,
    delta: DeviceArray,
    dy: DeviceArray,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    y: DeviceArray,
    lse: DeviceArray,
    settings: tuple[Any, ...],
) -> None:
    """``attention.backward`` into dq, dk, dv (B, T, heads, D); delta (B, Hq, Tq) is scratch."""
    f, _, queries, keys = _choose(q)
    B, Hq, Tq, _ = q.shape
    H, Tk = k.shape[1:3]
    tiles, settings, wide = -(-Tq // f.side), _in_units(f, settings), _wide(dy, q, k, v)
    steps = _steps(dy, q, k, v, y)
    queries.launch(B * Hq * tiles, dq, delta, dy, q, k, v, y, lse, *settings, *steps, B * Hq, tiles, wide)
    keys.launch(B * H * -(-Tk // f.side), dk, dv, dy, q, k, v, lse, delta, *settings, *steps[:-3], B * H, wide)
