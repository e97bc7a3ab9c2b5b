"""Attention on tiles: a block keeps the queries (or the keys) of one tile and walks over the tiles of the other side.

The formulas are those of ``attention.py``; the scores of a pair of tiles exist in registers and, to be multiplied
again, in shared memory. The forward pass keeps a running softmax: when a row's maximum grows, what was summed before
is scaled down. Pairs above the causal diagonal are skipped, the longest rows of tiles start first.

Past the end tiles are zeros, and scores minus infinity.
"""

from typing import Any

import numpy as np

from ..platform import libcuda, memory
from ..platform.toolbox import Array, Kernel, cuda, kernel, math
from .attention_rows import SIZES, Arrays, contiguous_rows, passes, steps_of
from .flash_tiles import flash_tiles, row_max, row_sum

LARGEST = {np.dtype(np.float32): 128, np.dtype(np.float64): 64}  # head sizes


def place_of_block(heads: Any, own_heads: Any) -> Any:
    """The batch, the head, and which of their tiles."""
    order = np.uint32(cuda.blockIdx.x) // np.uint32(heads)
    head = np.uint32(cuda.blockIdx.x) - order * np.uint32(heads)
    b = np.int64(head // np.uint32(own_heads))
    return b, np.int64(head) - b * own_heads, np.int32(order)


def _forward(f: Any) -> Kernel:
    real, word, R, side, size = f.real, np.dtype(f.real).name, f.R, f.side, f.size
    sums_size, scores_size = R * f.groups * 4, R * R
    load_tile, scores, put, drop = f.load_tile, f.scores, f.put, f.drop
    add_rows, store_rows = f.add_rows, f.store_rows
    exponential, unit, lowest = f.exponential, real(f.unit), -real(np.inf)

    @kernel(
        f"{word}* x5, {SIZES}, {word} x2, int64 x9, int32 x3",
        registers=128, resident=2, shared_bytes=f.nbytes(3), of=f"{word}_{f.DMAX}", vector_loads=True,
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
        b, h, order = place_of_block(heads, Hq)
        kv = np.int64(np.uint32(h) // np.uint32(np.uint32(Hq) // np.uint32(H)))
        first = np.int32((tiles - 1 - order) * side)
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
                drop(shared, p_tile, rows, count, mask, Tk, np.int64(1), threshold, seed, offset, kept)
            cuda.syncwarp()  # the 16 threads of a row are in one warp
            add_rows(sums, shared, p_tile, v_tile, min(side, keys - key))
        for i in range(R):
            total = row_sum(totals[i])
            row = ty * R + i
            if tx == 0 and row < rows:
                lse[(b * Hq + h) * Tq + first + row] = largest[i] * unit + math.log(total)
            totals[i] = real(1) / total
        store_rows(y, ((b * Tq + first) * Hq + h) * D, Hq * D, sums, totals, rows, D)

    return forward


def _gradient(f: Any, keeps_keys: bool) -> Kernel:
    """dk and dv where a block keeps keys, else dq; it writes delta too, which the other reads.

    One program with the sides exchanged. With the rows that a block keeps as x, x2, those of the other side as z, z2,

        queries   x = q, x2 = dy    z = k, z2 = v     s = x z^T, p of s, ds = p (x2 z2^T - delta);  dq = scale ds z
        keys      x = k, x2 = v     z = q, z2 = dy    the same, transposed;  dk = scale ds z, dv = p z2
    """
    real, word, R, side, size, pitch = f.real, np.dtype(f.real).name, f.R, f.side, f.size, f.pitch
    sums_size, scores_size = R * f.groups * 4, R * R
    sums2_size = sums_size if keeps_keys else 1
    load_tile, scores, put, get, drop = f.load_tile, f.scores, f.put, f.get, f.drop
    add_rows, store_rows, exponential = f.add_rows, f.store_rows, f.exponential
    unit, per_unit = real(f.unit), real(1 / f.unit)
    resident = 1 if keeps_keys and R < 4 else 2  # these sums need the registers of two blocks

    @kernel(
        f"{word}* x9, {SIZES}, {word} x2, int64 x15, int32 x3", registers={2: 128, 1: 200}[resident], resident=resident,
        shared_bytes=f.nbytes(4), name=f"{'dk_dv' if keeps_keys else 'dq'}_{word}_{f.DMAX}", vector_loads=True,
    )  # fmt: skip
    def gradient(
        dx, dx2, x, x2, z, z2, y, lse, delta, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        x_b, x_h, x_t, x2_b, x2_h, x2_t, z_b, z_h, z_t, z2_b, z2_h, z2_t, y_b, y_h, y_t, heads, tiles, wide,
    ):  # fmt: skip
        shared = cuda.shared.array(0, real, alignment=16)
        x_tile, x2_tile, z_tile, z2_tile, p_tile = 0, size, 2 * size, 3 * size, 4 * size
        s = cuda.local.array(scores_size, real)
        dp = cuda.local.array(scores_size, real)
        sums = cuda.local.array(sums_size, real)
        sums2 = cuda.local.array(sums2_size, real)
        lses = cuda.local.array(R, real)  # of the thread's R queries: rows, or columns
        deltas = cuda.local.array(R, real)
        own_heads, T, others = (H, Tk, Tq) if keeps_keys else (Hq, Tq, Tk)
        b, h, order = place_of_block(heads, own_heads)
        group = np.int64(np.uint32(Hq) // np.uint32(H))
        first = np.int32((order if keeps_keys else tiles - 1 - order) * side)
        rows = np.int32(min(side, T - first))
        ty, tx = np.int32(cuda.threadIdx.x // 16), np.int32(cuda.threadIdx.x % 16)
        zero = real(0)
        for i in range(sums_size):
            sums[i] = zero
        for i in range(sums2_size):
            sums2[i] = zero
        load_tile(shared, x_tile, x, b * x_b + h * x_h + first * x_t, x_t, rows, D, wide)
        load_tile(shared, x2_tile, x2, b * x2_b + h * x2_h + first * x2_t, x2_t, rows, D, wide)
        begin, end = np.int32(0), np.int32(others)
        z_first = h * group if keeps_keys else np.int64(np.uint32(h) // np.uint32(group))
        if keeps_keys:
            begin = np.int32(first if causal else 0)
        else:
            end = np.int32(min(Tk, first + rows) if causal else Tk)
            cuda.syncthreads()
            for i in range(R):
                row = ty * R + i
                part = zero
                lses[i] = zero
                place = (b * Hq + h) * Tq + first + row
                if row < rows:
                    lses[i] = lse[place] * per_unit
                    y_row = b * y_b + h * y_h + (first + row) * y_t
                    for c in range(tx, D, 16):
                        part += shared[x2_tile + row * pitch + c] * y[y_row + c]
                deltas[i] = row_sum(part)
                if row < rows and tx == 0:
                    delta[place] = deltas[i]
        for turn in range(group if keeps_keys else 1):
            z_head = np.int64(z_first + turn)
            for at in range(begin, end, side):
                place = np.int32(at)
                count = np.int32(min(side, others - place))
                cuda.syncthreads()
                load_tile(shared, z_tile, z, b * z_b + z_head * z_h + place * z_t, z_t, count, D, wide)
                load_tile(shared, z2_tile, z2, b * z2_b + z_head * z2_h + place * z2_t, z2_t, count, D, wide)
                cuda.syncthreads()
                scores(s, shared, x_tile, z_tile, D)
                scores(dp, shared, x2_tile, z2_tile, D)
                if keeps_keys:
                    query = (b * Hq + z_head) * Tq + place
                    mask, row_step, column_step = query * Tk + first, np.int64(1), Tk
                    for j in range(R):
                        lses[j], deltas[j] = zero, zero
                        if tx + 16 * j < count:
                            lses[j] = lse[query + tx + 16 * j] * per_unit
                            deltas[j] = delta[query + tx + 16 * j]
                else:
                    mask, row_step, column_step = ((b * Hq + h) * Tq + first) * Tk + place, Tk, np.int64(1)
                if threshold > np.float32(0):
                    put(dp, shared, p_tile)
                    drop(shared, p_tile, rows, count, mask, row_step, column_step, threshold, seed, offset, kept)
                    get(dp, shared, p_tile)
                for i in range(R):
                    low, high = np.int32(0), count
                    if causal:
                        diagonal = np.int32(first - place + ty * R + i)  # the column of the row's position
                        low, high = (diagonal, count) if keeps_keys else (low, np.int32(min(count, diagonal + 1)))
                    for j in range(R):
                        e, of_query = i * R + j, j if keeps_keys else i
                        seen = low <= tx + 16 * j and tx + 16 * j < high
                        p = exponential(s[e] * scale - lses[of_query]) if seen else zero
                        s[e] = p
                        dp[e] = p * (dp[e] - deltas[of_query]) if seen else zero
                many = min(side, end - place)
                if keeps_keys:
                    put(s, shared, p_tile)
                    if threshold > np.float32(0):
                        drop(shared, p_tile, rows, count, mask, row_step, column_step, threshold, seed, offset, kept)
                    cuda.syncwarp()  # the 16 threads of a row are in one warp
                    add_rows(sums2, shared, p_tile, z2_tile, many)
                    cuda.syncwarp()
                put(dp, shared, p_tile)
                cuda.syncwarp()
                add_rows(sums, shared, p_tile, z_tile, many)
        start, step = ((b * T + first) * own_heads + h) * D, own_heads * D
        if keeps_keys:
            for i in range(R):
                deltas[i] = real(1)
            store_rows(dx2, start, step, sums2, deltas, rows, D)
        for i in range(R):
            deltas[i] = scale * unit
        store_rows(dx, start, step, sums, deltas, rows, D)

    return gradient


_SIZES = [flash_tiles(np.float32, 64, 4), flash_tiles(np.float32, 128, 2), flash_tiles(np.float64, 64, 2)]
_KERNELS = {
    (np.dtype(f.real), f.DMAX): (f, _forward(f), *(_gradient(f, keeps_keys) for keeps_keys in (False, True)))
    for f in _SIZES
}
_LARGEST_BYTES = max(f.nbytes(4) for f in _SIZES)


def fits(device: int) -> bool:
    """Whether a block of the device may have the shared memory that the tiles need (cards from 2020 on)."""
    return memory.attribute(libcuda.SHARED_PER_BLOCK, device) >= _LARGEST_BYTES


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
    *operands, y, lse = *map(contiguous_rows, inputs[:-1]), inputs[-1]
    f, _, *kernels = _choose(y)
    settings, wide = _in_units(f, settings), int(all(map(_wide, operands)))
    for i, results, sides, heads, rows in passes(grads, tuple(operands)):
        tiles, steps = -(-rows // f.side), steps_of(*sides, y)
        kernels[i].launch(heads * tiles, *results, *sides, y, lse, delta, *settings, *steps, heads, tiles, wide)
