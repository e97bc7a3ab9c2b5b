"""The gradient of attention of half floats on tensor cores, for heads of up to 128, with float32 sums.

The formulas are those of ``attention.py``. For dq a block keeps 64 queries and walks over the keys. For dk and dv it
keeps 64 keys and walks over the queries of all heads that share them: both are one program, with the sides exchanged.
With the rows that a block keeps as x, x' and the rows of a tile as z, z',

    queries   x = q, x' = dy    z = k, z' = v     s = x z^T, p = 2^(s - lse), ds = p (x' z'^T - delta);  dq = scale ds z
    keys      x = k, x' = v     z = q, z' = dy    the same, transposed;  dk = scale ds z, dv = p z'

p and ds are rounded to the half dtype and multiplied as they lie in registers. Tiles of z and z' have two places each
in shared memory. Each sum is a block's own, in a fixed order, without atomics.

A thread's registers hold 16 x D / 32 numbers of each sum. For heads of up to 64 the fragments of x and x' stay there
too, and tiles have 64 rows. For larger heads the sums of dk and dv alone take half of the registers, so tiles have 32
rows. The fragments of k and v are then read again for each tile: a quarter more shared memory is read.

float16 overflows where ds exceeds 65504: a loss scale has to be below that.

Source: Dao, "FlashAttention-2" (2023).
"""

import math as python_math
from typing import Any

import numpy as np

from ..platform.memory import TENSOR_CORES
from ..platform.toolbox import Array, Kernel, cuda, kernel
from ..pointwise.conversion import conversions
from ..ptx import ptx
from .attention_rows import Arrays, passes, steps_of
from .flash_tensor_core import SIDE, THREADS, aligned, products, row_sum, tile_functions

f32: type[np.float32] = np.float32


def _gradient(word: str, DMAX: int, keeps_keys: bool, height: int, in_registers: bool, registers: int) -> Kernel:
    """``height``: rows of a tile of z. ``in_registers``: the fragments of x and x' stay there.

    The pass over the queries writes delta, which the one over the keys reads.
    """
    pack, add_rows, add_columns = products(word)
    widen, narrow = conversions(word)
    swizzled, copy_kept = tile_functions(DMAX)
    _, copy_tile = tile_functions(DMAX, height)
    kept_bytes, tile_bytes = SIDE * DMAX * 2, height * DMAX * 2
    steps, pairs = DMAX // 16, height // 16  # of 16 columns, of 16 rows of a tile
    fragments_of_x = 4 * steps if in_registers else 1
    scores, outputs = height // 2, DMAX // 2  # of a thread

    @kernel(
        f"{word}* x7, float32* x2, int32 x6, float32 x2, int64 x15, int32 x2",
        threads=THREADS, registers=registers, resident=2, shared_bytes=2 * kept_bytes + 4 * tile_bytes,
        name=f"{'keys' if keeps_keys else 'queries'}_{word}_{DMAX}", capability=TENSOR_CORES,
        instructions=("HMMA", "LDSM", "LDGSTS", "MUFU.EX2"),
    )  # fmt: skip
    def gradient_tiles(
        dx, dx2, x, x2, z, z2, y, lse, delta, Hq, H, Tq, Tk, D, causal, exponent, scale,
        x_b, x_h, x_t, x2_b, x2_h, x2_t, z_b, z_h, z_t, z2_b, z2_h, z2_t, y_b, y_h, y_t, heads, tiles,
    ):  # fmt: skip
        memory = cuda.shared.array(0, np.float32, alignment=128)
        x_at = ptx.shared_address(memory, 0)
        x2_at, z_at = np.int32(x_at + kept_bytes), np.int32(x_at + 2 * kept_bytes)
        z2_at = np.int32(z_at + 2 * tile_bytes)
        fragments = cuda.local.array(fragments_of_x, np.uint32)
        fragments2 = cuda.local.array(fragments_of_x, np.uint32)
        s = cuda.local.array(scores, np.float32)
        ds = cuda.local.array(scores, np.float32)
        sums = cuda.local.array(outputs, np.float32)
        sums2 = cuda.local.array(outputs, np.float32)
        order = np.uint32(np.uint32(cuda.blockIdx.x) // np.uint32(heads))
        head = np.uint32(np.uint32(cuda.blockIdx.x) - order * np.uint32(heads))
        own_heads = np.uint32(H if keeps_keys else Hq)
        b = np.uint32(head // own_heads)
        h = np.uint32(head - b * own_heads)
        group = np.uint32(np.uint32(Hq) // np.uint32(H))
        rows = np.int32(Tk if keeps_keys else Tq)
        first = np.int32(np.int32(order) * SIDE if keeps_keys else (tiles - 1 - np.int32(order)) * SIDE)
        if keeps_keys:
            begin, end = np.int32(first if causal else 0), np.int32(Tq)
        else:
            begin, end = np.int32(0), np.int32(min(Tk, first + SIDE) if causal else Tk)
        count = np.uint32((end - begin + height - 1) // height if end > begin else 0)
        turns = np.int32(count * group if keeps_keys else count)
        t = np.int32(cuda.threadIdx.x)
        lane, warp = np.int32(t & 31), np.int32(t >> 5)
        row, half = np.int32(lane & 15), np.int32(lane >> 4)
        mine = np.int32(first + warp * 16 + (lane >> 2))
        place = np.int64(b) * x_b + np.int64(h) * x_h + np.int64(first) * x_t
        copy_kept(x_at, x, place, x_t, np.int32(rows - first), D, t)
        place = np.int64(b) * x2_b + np.int64(h) * x2_h + np.int64(first) * x2_t
        copy_kept(x2_at, x2, place, x2_t, np.int32(rows - first), D, t)
        for i in range(outputs):
            sums[i] = f32(0)
            sums2[i] = f32(0)
        lses, deltas = cuda.local.array(2, np.float32), cuda.local.array(2, np.float32)  # of its two rows, 8 apart
        log2e = f32(1.4426950408889634)
        for side in range(2):
            at_row, part = np.int32(mine + 8 * side), f32(0)
            lses[side] = f32(0)
            if not keeps_keys:
                place = np.int64(head) * Tq + at_row
                if at_row < Tq:
                    lses[side] = lse[place] * log2e
                    dy_row = np.int64(b) * x2_b + np.int64(h) * x2_h + np.int64(at_row) * x2_t
                    y_row = np.int64(b) * y_b + np.int64(h) * y_h + np.int64(at_row) * y_t
                    for e in range(lane & 3, D, 4):
                        part += widen(x2[dy_row + e]) * widen(y[y_row + e])
                part = row_sum(part)
                if at_row < Tq and lane & 3 == 0:
                    delta[place] = part
            deltas[side] = part
        key, z_head = begin, h  # of the tile that is multiplied
        next_key, next_head = begin, h
        offset = np.int32(0)
        for n in range(-1, turns):
            if n >= 0:
                ptx.cp_async_wait0()
                cuda.syncthreads()
                key, z_head = next_key, next_head
            if n + 1 < turns:
                turn = np.uint32(np.uint32(n + 1) // count)
                next_head = np.uint32(h * group + turn if keeps_keys else h // group)
                next_key = np.int32(begin + np.int32(np.uint32(n + 1) - turn * count) * height)
                to = np.int32(tile_bytes - offset if n >= 0 else 0)
                place = np.int64(b) * z_b + np.int64(next_head) * z_h + np.int64(next_key) * z_t
                copy_tile(np.int32(z_at + to), z, place, z_t, np.int32(end - next_key), D, t)
                place = np.int64(b) * z2_b + np.int64(next_head) * z2_h + np.int64(next_key) * z2_t
                copy_tile(np.int32(z2_at + to), z2, place, z2_t, np.int32(end - next_key), D, t)
            ptx.cp_async_commit()
            if n >= 0:
                if in_registers and n == 0:
                    for i in range(steps):
                        at = swizzled(np.int32(warp * 16 + row), np.int32(2 * i + half))
                        a, c = ptx.ldmatrix(x_at + at), ptx.ldmatrix(x2_at + at)
                        for e in range(4):
                            fragments[4 * i + e], fragments2[4 * i + e] = a[e], c[e]
                for i in range(scores):
                    s[i] = f32(0)
                    ds[i] = f32(0)
                for i in range(steps):
                    if in_registers:
                        a = fragments[4 * i], fragments[4 * i + 1], fragments[4 * i + 2], fragments[4 * i + 3]
                        c = fragments2[4 * i], fragments2[4 * i + 1], fragments2[4 * i + 2], fragments2[4 * i + 3]
                    else:
                        at = swizzled(np.int32(warp * 16 + row), np.int32(2 * i + half))
                        a, c = ptx.ldmatrix(x_at + at), ptx.ldmatrix(x2_at + at)
                    for j in range(pairs):
                        at = np.int32(offset + swizzled(np.int32(16 * j + row), np.int32(2 * i + half)))
                        add_rows(s, j, a, z_at + at)
                        add_rows(ds, j, c, z2_at + at)
                for j in range(2 * pairs):
                    for e in range(2):
                        column = np.int32(key + 8 * j + (lane & 3) * 2 + e)
                        if keeps_keys:
                            one_lse, one_delta = f32(0), f32(0)
                            if column < Tq:
                                at_query = (np.int64(b) * Hq + z_head) * Tq + column
                                one_lse, one_delta = lse[at_query] * log2e, delta[at_query]
                        for side in range(2):
                            i, at_row = 4 * j + 2 * side + e, np.int32(mine + 8 * side)
                            if keeps_keys:
                                seen = column < Tq and (not causal or at_row <= column)
                                of_lse, of_delta = one_lse, one_delta
                            else:
                                seen = column < Tk and (not causal or column <= at_row)
                                of_lse, of_delta = lses[side], deltas[side]
                            p = ptx.exp2_approx(s[i] * exponent - of_lse) if seen else f32(0)
                            s[i], ds[i] = p, p * (ds[i] - of_delta)
                for i in range(pairs):
                    a = pack(ds, i)
                    for j in range(steps):
                        at = np.int32(offset + swizzled(np.int32(16 * i + row), np.int32(2 * j + half)))
                        add_columns(sums, j, a, z_at + at)
                if keeps_keys:
                    for i in range(pairs):
                        a = pack(s, i)
                        for j in range(steps):
                            at = np.int32(offset + swizzled(np.int32(16 * i + row), np.int32(2 * j + half)))
                            add_columns(sums2, j, a, z2_at + at)
                offset = np.int32(tile_bytes - offset)

        for side in range(2):
            at_row = np.int32(mine + 8 * side)
            if at_row < rows:
                place = ((np.int64(b) * rows + at_row) * own_heads + h) * D + (lane & 3) * 2
                for j in range(outputs // 4):
                    if (lane & 3) * 2 + 8 * j < D:
                        i = 4 * j + 2 * side
                        ptx.store2(dx, place + 8 * j, narrow(sums[i] * scale, sums[i + 1] * scale))
                        if keeps_keys:
                            ptx.store2(dx2, place + 8 * j, narrow(sums2[i], sums2[i + 1]))

    return gradient_tiles


WORDS = ("bfloat16", "float16")
# Of the passes over the queries and over the keys: rows of a tile, whether fragments stay in registers, registers.
PASSES = [
    {(word, DMAX): _gradient(word, DMAX, keeps_keys, *budget) for word in WORDS for DMAX, budget in budgets.items()}
    for keeps_keys, budgets in (
        (False, {64: (64, True, 208), 128: (32, True, 248)}),
        (True, {64: (64, True, 248), 128: (32, False, 248)}),
    )
]


def backward(grads: Arrays, delta: Array, inputs: Arrays, settings: tuple[Any, ...]) -> None:
    """``attention.backward``, as ``attention_rows.backward``; of what ``flash_tensor_core.forward`` takes."""
    (*sizes, _, _, _, scale, _), lse = settings, inputs[-1]
    *operands, y = (aligned(x) for x in inputs[:-1])
    D, scales = y.shape[-1], (scale / python_math.log(2), scale)
    kernels = [of[y.dtype.name, 64 if D <= 64 else 128] for of in PASSES]
    for i, results, sides, heads, rows in passes(grads, tuple(operands)):
        tiles, steps = -(-rows // SIDE), steps_of(*sides, y)
        kernels[i].launch(heads * tiles, *results, *sides, y, lse, delta, *sizes, *scales, *steps, heads, tiles)
