"""Attention on tiles: a block keeps the queries (or the keys) of one tile and walks over the tiles of the other side.

The formulas are those of ``attention.py``; the scores of a pair of tiles exist in registers and, to be multiplied
again, in shared memory. The forward pass keeps a running softmax: when a row's maximum grows, what was summed before
is scaled down. Pairs above the causal diagonal are skipped, the longest rows of tiles start first.

Past the end tiles are zeros, and scores minus infinity.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..platform import libcuda
from ..platform.array import Array
from ..platform.language import SIMULATED, cuda, device_function, math
from ..platform.launch import Kernel, kernel
from .attention_rows import SIZES, Arrays, contiguous_rows, steps_of
from .flash_tiles import flash_tiles, row_max, row_sum

LARGEST = {np.dtype(np.float32): 128, np.dtype(np.float64): 64}  # head sizes


def _kernels(f: Any) -> tuple[Kernel, Kernel, Kernel]:
    real, word, R, side, size, pitch = f.real, np.dtype(f.real).name, f.R, f.side, f.size, f.pitch
    sums_size, scores_size = R * f.groups * 4, R * R
    load_tile, scores, put, get, drop = f.load_tile, f.scores, f.put, f.get, f.drop
    add_rows, add_columns, store_rows = f.add_rows, f.add_columns, f.store_rows
    exponential, unit, per_unit = f.exponential, real(f.unit), real(1 / f.unit)
    lowest, of = -real(np.inf), f"{word}_{f.DMAX}"
    two = R == 4  # two blocks share a multiprocessor; the others' sums need the registers of both

    @device_function
    def queries_of_block(heads, tiles, Hq, H, Tq, Tk, causal):
        """Their batch, head and head of the keys, the first, how many there are, and how many keys they see."""
        order = np.uint32(cuda.blockIdx.x) // np.uint32(heads)
        head = np.uint32(cuda.blockIdx.x) - order * np.uint32(heads)
        b = np.int64(head // np.uint32(Hq))
        h = np.int64(head) - b * Hq
        kv = np.int64(np.uint32(h) // np.uint32(np.uint32(Hq) // np.uint32(H)))
        first = np.int32((tiles - 1 - np.int32(order)) * side)
        rows = np.int32(min(side, Tq - first))
        keys = np.int32(min(Tk, first + rows) if causal else Tk)
        return b, h, kv, first, rows, keys

    @kernel(
        f"{word}* x5, {SIZES}, {word} x2, int64 x9, int32 x3",
        registers=128, resident=2, shared_bytes=f.nbytes(3), of=of, vector_loads=True,
    )  # fmt: skip
    def forward(
        y, lse, q, k, v, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, heads, tiles, wide,
    ):  # fmt: skip
        shared = cuda.shared.array(0, real, alignment=16)
        q_tile, k_tile, v_tile, p_tile = 0, size, 2 * size, 3 * size
        s = cuda.local.array(scores_size, real)
        sums = cuda.local.array(sums_size, real)
        largest = cuda.local.array(R, real)
        totals = cuda.local.array(R, real)
        b, h, kv, first, rows, keys = queries_of_block(heads, tiles, Hq, H, Tq, Tk, causal)
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

    @kernel(
        f"{word}* x8, {SIZES}, {word} x2, int64 x15, int32 x3",
        registers=128, resident=2, shared_bytes=f.nbytes(4), of=of, vector_loads=True,
    )  # fmt: skip
    def dq(
        grads, delta, dy, q, k, v, y, lse, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t, heads, tiles, wide,
    ):  # fmt: skip
        shared = cuda.shared.array(0, real, alignment=16)
        q_tile, dy_tile, k_tile, v_tile, p_tile = 0, size, 2 * size, 3 * size, 4 * size
        s = cuda.local.array(scores_size, real)
        dp = cuda.local.array(scores_size, real)
        sums = cuda.local.array(sums_size, real)
        row_lse = cuda.local.array(R, real)
        deltas = cuda.local.array(R, real)
        b, h, kv, first, rows, keys = queries_of_block(heads, tiles, Hq, H, Tq, Tk, causal)
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
        store_rows(grads, ((b * Tq + first) * Hq + h) * D, Hq * D, sums, deltas, rows, D)

    @kernel(
        f"{word}* x8, {SIZES}, {word} x2, int64 x12, int32 x2", registers=128 if two else 192, resident=1 + two,
        shared_bytes=f.nbytes(4), of=of, vector_loads=True,
    )  # fmt: skip
    def dk_dv(
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

    return forward, dq, dk_dv


_SIZES = [flash_tiles(np.float32, 64, 4), flash_tiles(np.float32, 128, 2), flash_tiles(np.float64, 64, 2)]
_KERNELS = {(np.dtype(f.real), f.DMAX): (f, *_kernels(f)) for f in _SIZES}
_LARGEST_BYTES = max(f.nbytes(4) for f in _SIZES)


@functools.cache
def fits(device: int) -> bool:
    """Whether a block of the device may have the shared memory that the tiles need (cards from 2020 on)."""
    return SIMULATED or libcuda.device_attribute(libcuda.SHARED_PER_BLOCK, device) >= _LARGEST_BYTES


def _choose(q: Array) -> tuple[Any, Kernel, Kernel, Kernel]:
    return _KERNELS[q.dtype, 64 if q.shape[-1] <= 64 else 128]


def _wide(x: Array) -> bool:
    """Whether all rows can be read 128 bits at once."""
    steps = [step for n, step in zip(x.shape[:-1], x.steps) if n > 1]
    return x.pointer % 16 == 0 and not any(step % 4 for step in (x.shape[-1], *steps))


def _in_units(f: Any, settings: tuple[Any, ...]) -> tuple[Any, ...]:
    """The settings with the scale that makes scores exponents of the kernels' base."""
    *rest, scale, kept = settings
    return *rest, scale / f.unit, kept


def forward(y: Array, lse: Array, inputs: Arrays, settings: tuple[Any, ...]) -> None:
    """``attention.forward`` of ``inputs``, q, k, v, into y (B, Tq, Hq, D) and lse; nothing empty."""
    q, k, v = map(contiguous_rows, inputs)
    f, run, _, _ = _choose(q)
    B, Hq, Tq, _ = q.shape
    tiles, wide = -(-Tq // f.side), int(all(map(_wide, (q, k, v))))
    run.launch(B * Hq * tiles, y, lse, q, k, v, *_in_units(f, settings), *steps_of(q, k, v), B * Hq, tiles, wide)


def backward(grads: Arrays, delta: Array, inputs: Arrays, settings: tuple[Any, ...]) -> None:
    """``attention.backward``, as ``attention_rows.backward``."""
    (dq, dk, dv), (*operands, lse) = grads, inputs
    dy, q, k, v, _ = operands = [contiguous_rows(x) for x in operands]
    f, _, queries, keys = _choose(q)
    (B, Hq, Tq, _), (H, Tk) = q.shape, k.shape[1:3]
    tiles, settings, wide = -(-Tq // f.side), _in_units(f, settings), int(all(map(_wide, (dy, q, k, v))))
    steps = steps_of(*operands)
    queries.launch(B * Hq * tiles, dq, delta, *operands, lse, *settings, *steps, B * Hq, tiles, wide)
    keys.launch(B * H * -(-Tk // f.side), dk, dv, dy, q, k, v, lse, delta, *settings, *steps[:-3], B * H, wide)
