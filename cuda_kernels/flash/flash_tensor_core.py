"""Attention of half floats on tensor cores: ``attention.forward`` for heads of up to 128, float32 sums.

A block has 64 queries, 16 for each of its 4 warps, and walks over the keys in tiles of 64. The fragments of the queries
stay in registers. Tiles of k and v have two places each in shared memory, so the next ones are on their way while a
pair is used; the swizzle is that of ``products/tensor_core.py``. With s = scale log2(e) q k^T in registers, and for
each row

    m' = max(m, max s)      p = 2^(s - m')      l = 2^(m - m') l + sum p      o = 2^(m - m') o + p v

p, rounded to the half dtype, is the first operand of the second product as it lies: the fragments of c and of a are the
same. At the end y = o / l and lse = ln 2 (m + log2 l). Pairs above the causal diagonal are skipped, the longest rows of
tiles start first.

``flash_tensor_core_gradient.py`` has the gradient. ``attention.py`` computes the rest (dropout, other sizes of heads,
few scores) in float32, of copies.

Source: Dao, "FlashAttention-2" (2023).
"""

import math as python_math
from typing import Any, NamedTuple

import numpy as np

from ..platform.memory import TENSOR_CORES
from ..platform.toolbox import Array, Kernel, copy, cuda, kernel, math
from ..pointwise.conversion import conversions
from ..ptx import ptx
from ..rowwise.collective import across_lanes, add
from .attention_rows import Arrays, steps_of

LARGEST = 128  # head size
SIDE = 64  # queries, and keys, of a tile
THREADS = 128
SCORES = 32  # of a thread
LOWEST = np.float32(-1e30)  # what is not seen; its exponential beside any other is 0
LN2 = np.float32(python_math.log(2))
f32: type[np.float32] = np.float32
row_max: Any = across_lanes(lambda x, other: max(x, other), distances=(1, 2))
row_sum: Any = across_lanes(add, distances=(1, 2))


def tile_functions(DMAX: int, height: int = SIDE) -> tuple[Any, Any]:
    """``swizzled``, where 16 bytes of a row lie in a tile, and ``copy_tile``, of ``height`` rows of up to DMAX."""
    chunks = DMAX // 8  # 16 bytes each, of a row
    per_pass = THREADS // chunks  # rows

    def swizzled(r, c):
        return np.int32(r * (DMAX * 2) + ((c ^ (r & 7)) << 4))

    def copy_tile(target, x, place, step, rows, D, t):
        """The rows of a tile to shared memory, zeros after them."""
        r, c = np.int32(t // chunks), np.int32(t % chunks)
        to = np.int32(target + swizzled(r, c))
        place += np.int64(r) * step + c * 8
        for i in range(height // per_pass):
            inside = r + i * per_pass < rows and c * 8 < D
            ptx.cp_async(np.int32(to + i * per_pass * DMAX * 2), x, place, np.int32(16 if inside else 0))
            place += per_pass * step

    return swizzled, copy_tile


class Products(NamedTuple):
    """Device functions on fragments: what a warp's threads hold of a (16, 16) and b, of a dtype."""

    pack: Any  # (s, i): the first operand of the next product, from the 8 sums from 8 i on
    add_rows: Any  # (s, j, a, address): the sums from 8 j on += a b^T, where 16 rows of b are at ``address``
    add_columns: Any  # the same of a b


def products(word: str) -> Products:
    """Those of bfloat16 or float16."""
    pack_two = ptx.pack_bfloat16 if word == "bfloat16" else ptx.pack_float16
    add_product = ptx.adder(word)

    def pack(s, i):
        return (
            pack_two(s[8 * i], s[8 * i + 1]),
            pack_two(s[8 * i + 2], s[8 * i + 3]),
            pack_two(s[8 * i + 4], s[8 * i + 5]),
            pack_two(s[8 * i + 6], s[8 * i + 7]),
        )

    def add_rows(s, j, a, address):
        b = ptx.ldmatrix(address)
        add_product(s, 8 * j, a, b[0], b[2])
        add_product(s, 8 * j + 4, a, b[1], b[3])

    def add_columns(s, j, a, address):
        b = ptx.ldmatrix_transposed(address)
        add_product(s, 8 * j, a, b[0], b[1])
        add_product(s, 8 * j + 4, a, b[2], b[3])

    return Products(pack, add_rows, add_columns)


def _forward(word: str, DMAX: int, registers: int) -> Kernel:
    pack, add_rows, add_columns = products(word)
    _, narrow = conversions(word)
    swizzled, copy_tile = tile_functions(DMAX)
    tile_bytes = SIDE * DMAX * 2
    steps = DMAX // 16  # of a row's sum
    fragments, outputs = steps * 4, DMAX // 2

    @kernel(
        f"{word}*, float32*, {word}* x3, int32 x6, float32, int64 x9, int32 x2",
        threads=THREADS, registers=registers, resident=3 if DMAX == 64 else 2, shared_bytes=5 * tile_bytes,
        name=f"forward_{word}_{DMAX}", capability=TENSOR_CORES, instructions=("HMMA", "LDSM", "LDGSTS", "MUFU.EX2"),
        flops=lambda *args: 4 * args[0].size * args[8] // (1 + args[10]),
    )  # fmt: skip
    def forward_tiles(
        y, lse, q, k, v, Hq, H, Tq, Tk, D, causal, scale, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, heads, tiles
    ):
        memory = cuda.shared.array(0, np.float32, alignment=128)
        q_at = ptx.shared_address(memory, 0)
        k_at, v_at = np.int32(q_at + tile_bytes), np.int32(q_at + 3 * tile_bytes)
        queries = cuda.local.array(fragments, np.uint32)
        s = cuda.local.array(SCORES, np.float32)
        o = cuda.local.array(outputs, np.float32)
        order = np.uint32(np.uint32(cuda.blockIdx.x) // np.uint32(heads))
        head = np.uint32(np.uint32(cuda.blockIdx.x) - order * np.uint32(heads))
        b = np.uint32(head // np.uint32(Hq))
        h = np.uint32(head - b * np.uint32(Hq))
        kv = np.uint32(h // np.uint32(np.uint32(Hq) // np.uint32(H)))
        first = np.int32((tiles - 1 - np.int32(order)) * SIDE)
        keys = np.int32(min(Tk, first + SIDE) if causal else Tk)
        t = np.int32(cuda.threadIdx.x)
        lane, warp = np.int32(t & 31), np.int32(t >> 5)
        q_start = np.int64(b) * q_b + np.int64(h) * q_h + np.int64(first) * q_t
        k_start, v_start = np.int64(b) * k_b + np.int64(kv) * k_h, np.int64(b) * v_b + np.int64(kv) * v_h

        copy_tile(q_at, q, q_start, q_t, np.int32(Tq - first), D, t)
        copy_tile(k_at, k, k_start, k_t, Tk, D, t)
        ptx.cp_async_commit()
        copy_tile(v_at, v, v_start, v_t, Tk, D, t)
        ptx.cp_async_commit()
        for i in range(outputs):
            o[i] = f32(0)
        tops, totals = cuda.local.array(2, np.float32), cuda.local.array(2, np.float32)  # of its two rows, 8 apart
        largest = cuda.local.array(2, np.float32)
        for side in range(2):
            tops[side], totals[side] = LOWEST, f32(0)
        row, half = np.int32(lane & 15), np.int32(lane >> 4)
        ptx.cp_async_wait1()
        cuda.syncthreads()
        for i in range(steps):
            a = ptx.ldmatrix(q_at + swizzled(np.int32(warp * 16 + row), np.int32(2 * i + half)))
            for e in range(4):
                queries[4 * i + e] = a[e]
        mine = np.int32(first + warp * 16 + (lane >> 2))
        offset = np.int32(0)
        for key in range(0, keys, SIDE):
            following = np.int32(key + SIDE)
            if key > 0:
                ptx.cp_async_wait1()  # k is there, v on its way
                cuda.syncthreads()
            for i in range(SCORES):
                s[i] = f32(0)
            for i in range(steps):
                a = queries[4 * i], queries[4 * i + 1], queries[4 * i + 2], queries[4 * i + 3]
                for j in range(4):
                    add_rows(s, j, a, k_at + offset + swizzled(np.int32(16 * j + row), np.int32(2 * i + half)))
            if following < keys:
                place = k_start + np.int64(following) * k_t
                copy_tile(np.int32(k_at + tile_bytes - offset), k, place, k_t, np.int32(Tk - following), D, t)
            ptx.cp_async_commit()

            for i in range(SCORES):
                s[i] *= scale
            if following > Tk or (causal and following > first):
                column = np.int32(key + (lane & 3) * 2)
                for side in range(2):
                    end = np.int32(min(mine + 8 * side + 1, Tk) if causal else Tk)
                    for i in range(2 * side, SCORES, 4):
                        s[i] = s[i] if column + i // 4 * 8 < end else LOWEST
                        s[i + 1] = s[i + 1] if column + i // 4 * 8 + 1 < end else LOWEST
            for side in range(2):
                top = tops[side]
                for i in range(2 * side, SCORES, 4):
                    top = max(top, max(s[i], s[i + 1]))
                largest[side] = row_max(top)
            for side in range(2):
                top = largest[side]
                decay = ptx.exp2_approx(tops[side] - top)
                tops[side] = top
                totals[side] *= decay
                for i in range(2 * side, SCORES, 4):
                    s[i] = ptx.exp2_approx(s[i] - top)
                    s[i + 1] = ptx.exp2_approx(s[i + 1] - top)
                    totals[side] += s[i] + s[i + 1]
                for i in range(2 * side, outputs, 4):
                    o[i] *= decay
                    o[i + 1] *= decay

            ptx.cp_async_wait1()  # v is there, the next k on its way
            cuda.syncthreads()
            for i in range(4):
                a = pack(s, i)
                for j in range(steps):
                    add_columns(o, j, a, v_at + offset + swizzled(np.int32(16 * i + row), np.int32(2 * j + half)))
            if following < keys:
                place = v_start + np.int64(following) * v_t
                copy_tile(np.int32(v_at + tile_bytes - offset), v, place, v_t, np.int32(Tk - following), D, t)
            ptx.cp_async_commit()
            offset = np.int32(tile_bytes - offset)

        column = np.int32((lane & 3) * 2)
        for side in range(2):
            total, at_row = row_sum(totals[side]), np.int32(mine + 8 * side)
            if at_row < Tq:
                if lane & 3 == 0:
                    lse[np.int64(head) * Tq + at_row] = LN2 * (tops[side] + math.log2(total))
                factor = f32(1) / total
                place = ((np.int64(b) * Tq + at_row) * Hq + h) * D + column
                for j in range(outputs // 4):
                    if column + 8 * j < D:
                        i = 4 * j + 2 * side
                        ptx.store2(y, place + 8 * j, narrow(o[i] * factor, o[i + 1] * factor))

    return forward_tiles


FORWARD = {
    (word, DMAX): _forward(word, DMAX, registers)
    for word in ("bfloat16", "float16")
    for DMAX, registers in ((64, 160), (128, 236))
}


def forward(y: Array, lse: Array, inputs: Arrays, settings: tuple[Any, ...]) -> None:
    """``attention.forward`` of ``inputs``, q, k, v: halves, heads a multiple of 8 up to ``LARGEST``, without dropout.

    y (B, Tq, Hq, D), lse float32; nothing is empty.
    """
    (*sizes, _, _, _, scale, _), operands = settings, [aligned(x) for x in inputs]
    B, Hq, Tq, D = inputs[0].shape
    tiles, run = -(-Tq // SIDE), FORWARD[y.dtype.name, 64 if D <= 64 else 128]
    exponent = scale / python_math.log(2)
    run.launch(B * Hq * tiles, y, lse, *operands, *sizes, exponent, *steps_of(*operands), B * Hq, tiles)


def aligned(x: Array) -> Array:
    """x (B, heads, T, D), whose rows begin at multiples of 16 bytes, or such a copy."""
    fits = x.steps[-1] == 1 and all(n == 1 or step % 8 == 0 for n, step in zip(x.shape[:3], x.steps))
    return x if fits and x.pointer % 16 == 0 else copy(x)
