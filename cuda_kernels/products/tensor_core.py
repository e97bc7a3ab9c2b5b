"""Matrix products on tensor cores: y = a b of float16, bfloat16, or float32 rounded to tf32 (10 bits of mantissa).

Float32 is rounded for callers who ask for it. Sums and epilogues are float32, and y is rounded once, or stays float32.
An operand is read where it lies, transposed or not, if its rows or columns begin at multiples of 16 bytes; others are
copied to such places first. The kernels need compute capability 8.0; for older cards operations widen half floats.

A block computes a square tile of y, 128 or 64 on a side. Each of its warps computes 64 x 32 or 32 x 32 of it:
``ptx.mma`` takes 16 x 16 of a and 16 x 8 of b from the registers of a warp. Slices of 64 bytes of k come to shared
memory by asynchronous copies, which write zeros where the matrices end. Three slices of each operand have room, so two
are on their way while one is multiplied, and one barrier a slice is enough.

An operand is read along the dimension in which it lies in memory: along k ("k"), or along its rows or columns ("o").
In shared memory a line is what is read: 64 bytes of k for each row, or 128 (64) rows for each k. ``ldmatrix`` gives a
warp the registers that ``mma`` takes from the one, ``ldmatrix_transposed`` from the other; of float32, which it cannot
transpose, four reads do. The 16 bytes c of line r lie at place c ^ f(r), so that the 8 lines of a matrix lie in
different banks. Nothing is padded.

The warp's sums go through shared memory once more, to become 4 columns of a row for each thread, and then through
``epilogue.py``. Sums are in an order that the shapes decide: the same bits at each run.
"""

import functools
from typing import Any

import numpy as np

from ..platform.memory import TENSOR_CORES
from ..platform.toolbox import Array, Kernel, cuda, empty, expand, kernel, libdevice
from ..ptx import ptx
from ..rowwise.strided_copy import copy_into
from .epilogue import PAIRS, finish4, store_of, target
from .record import Problem, problem
from .tiles import TILE_WORDS, WORDS, along, declare, divide, plan, start, tile_at

STAGES = 3
LINE = 64  # bytes of k in a slice
SIDES = (128, 64)
PITCH = 40  # floats of a row of 32 sums in shared memory
f32: type[np.float32] = np.float32


def multiply(p: Problem) -> None:
    """Compute a product of half floats, or of float32 that are rounded to tf32; y is of their dtype or float32.

    bias is of the operands' dtype, other of y's. Raises TypeError for other dtypes.
    """
    operand, out = p.a.dtype.name, p.y.dtype.name
    if p.a.dtype != p.b.dtype or (operand, out) not in PAIRS:
        known = "two arrays of one dtype, bfloat16, float16 or float32, to that or float32"
        raise TypeError(f"tensor cores multiply {known}; got {operand} and {p.b.dtype.name} to {out}")
    a_kind, b_kind = along(p.a, -1), along(p.b, -2)
    if not a_kind or not b_kind:
        a, b = (x if kind else _aligned(x) for x, kind in ((p.a, a_kind), (p.b, b_kind)))
        p = problem(p.y, a, b, *p[3:6])
        a_kind, b_kind = along(a, -1), along(b, -2)
    side, splits = plan(*p.sizes, p.matrices, SIDES)
    tiles = divide(p, side, side, splits)
    y, bias, other, epilogue = target(p, tiles.splits)
    kernel = tiles_of(operand, y.dtype.name, side, a_kind + b_kind)
    grid = p.matrices * tiles.splits * tiles.rows * tiles.columns
    kernel.launch(grid, y, p.a, p.b, bias, other, *p.words, epilogue, *tiles)
    if tiles.splits > 1:
        finish4(p, y, tiles.splits)


def _aligned(x: Array) -> Array:
    """A copy whose rows, or columns if these are contiguous, begin at multiples of 16 bytes."""
    transposed = x.steps[-2] == 1
    once = x.view(tuple(1 if step == 0 else n for n, step in zip(x.shape[:-2], x.steps)) + x.shape[-2:], x.strides)
    once = once.swapaxes(-1, -2) if transposed else once
    n, elements = once.shape[-1], 16 // x.itemsize
    room = empty((*once.shape[:-1], -(-n // elements) * elements), x.dtype, x.device)
    aligned = room.view(once.shape, room.strides)
    copy_into(aligned, once)
    return expand(aligned.swapaxes(-1, -2) if transposed else aligned, x.shape)


# An operand's slices --------------------------------------------------------------------------------------------------


def _slices(kind: str, itemsize: int, side: int) -> tuple[Any, Any, Any, Any]:
    """How ``side`` rows (of a) or columns (of b) of a slice come to shared memory, and from there to registers.

    A thread copies 16 bytes twice, the second time to 32 ``side`` bytes further on. Returns ``first``, the row and k of
    its first 16 bytes, ``place``, where they go, ``copy``, of those that exist, and ``fragment``.
    """
    elements = 16 // itemsize
    along_k = kind == "k"
    chunks = LINE // 16 if along_k else side // elements  # of a line
    line = LINE if along_k else side * itemsize

    def first(t):
        r, c = np.int32(t // chunks), np.int32(t % chunks * elements)
        return (r, c) if along_k else (c, r)

    def swizzled(r, c):
        if along_k:
            c ^= (r >> 1) & 3
        elif itemsize == 2:
            c ^= r & 7
        else:
            c ^= (r & 3) << 1
        return np.int32(r * line + (c << 4))

    def place(t):
        return swizzled(np.int32(t // chunks), np.int32(t % chunks))

    def nbytes(o_left, k_left):
        along, across = (k_left, o_left) if along_k else (o_left, k_left)
        return np.int32(max(min(along, elements), 0) * itemsize) if across > 0 else np.int32(0)

    def copy(target, x, place, step, o_left, k_left):
        ptx.cp_async(target, x, place, nbytes(o_left, k_left))
        if along_k:
            there = nbytes(np.int32(o_left - side // 2), k_left)
        else:
            there = nbytes(o_left, np.int32(k_left - LINE // itemsize // 2))
        ptx.cp_async(np.int32(target + side * 32), x, place + step, there)

    def rounded(word):
        return ptx.round_tf32(libdevice.int_as_float(word)) if itemsize == 4 else word

    def fragment(memory, base, offset, o, step, lane):
        """The 16 rows from ``o`` on, at 32 bytes of k: the matrices (o, k), (o + 8, k), (o, later k), (o + 8, ...)."""
        if along_k:
            v = ptx.ldmatrix(base + offset + swizzled(np.int32(o + (lane & 15)), np.int32(2 * step + (lane >> 4))))
            return rounded(v[0]), rounded(v[1]), rounded(v[2]), rounded(v[3])
        if itemsize == 2:
            k = np.int32(16 * step + (lane & 7) + ((lane >> 4) << 3))
            return ptx.ldmatrix_transposed(base + offset + swizzled(k, np.int32((o >> 3) + ((lane >> 3) & 1))))
        k, o = np.int32(8 * step + (lane & 3)), np.int32(o + (lane >> 2))
        near = (offset + swizzled(k, o >> 2)) // 4 + (o & 3)
        far = (offset + swizzled(k, (o + 8) >> 2)) // 4 + (o & 3)
        below = side * 4  # floats of 4 lines, after which the swizzle is the same
        return (
            ptx.round_tf32(memory[near]),
            ptx.round_tf32(memory[far]),
            ptx.round_tf32(memory[near + below]),
            ptx.round_tf32(memory[far + below]),
        )

    return first, place, copy, fragment


# Tiles ----------------------------------------------------------------------------------------------------------------


@functools.cache
def tiles_of(operand: str, out: str, side: int, kinds: str) -> Kernel:
    """The kernel for tiles of ``side``, operands read along ``kinds`` (of a, of b) and y of dtype ``out``."""
    itemsize, add_product = 4 if operand == "float32" else 2, ptx.adder(operand)
    registers = {(128, 2): 124, (128, 4): 128, (64, 2): 104, (64, 4): 128}[side, itemsize]
    depth = LINE // itemsize  # of a slice
    slice_bytes = side * 64  # of one operand
    stage = 2 * slice_bytes
    floats = STAGES * stage // 4
    heights = side // 32  # matrices of 16 rows of a warp, which are 4 or 2
    accumulators = heights * 16
    passes = heights // 2
    warp_floats = 32 * PITCH
    a_along_k, b_along_k = (kind == "k" for kind in kinds)
    first_a, place_a, copy_a, fragment_a = _slices(kinds[0], itemsize, side)
    first_b, place_b, copy_b, fragment_b = _slices(kinds[1], itemsize, side)
    store = store_of(operand, out)
    a_half, b_half = (side // 2 if along else depth // 2 for along in (a_along_k, b_along_k))
    uses_ldmatrix = itemsize == 2 or "k" in kinds
    product = {2: "HMMA.16816.F32", 4: "HMMA.1688.F32.TF32"}[itemsize]

    @kernel(
        f"{out}*, {operand}* x3, {out}*, {WORDS}, {TILE_WORDS}",
        threads=2 * side, registers=registers, resident=256 // side, of=f"{operand}_{out}_{side}_{kinds}",
        capability=TENSOR_CORES, instructions=(product, "LDGSTS", *["LDSM"] * uses_ldmatrix),
        flops=lambda *args: 2 * args[0].size * args[7] // args[-2],
    )  # fmt: skip
    def tiles(
        y, a, b, bias, other, M, N, K, a_row, a_depth, b_depth, b_column, inner, a_outer, a_inner, b_outer, b_inner,
        epilogue, row_tiles, column_tiles, splits, chunk,
    ):  # fmt: skip
        memory = cuda.shared.array(floats, np.float32, alignment=128)
        sums = cuda.local.array(accumulators, np.float32)
        base = ptx.shared_address(memory, 0)

        block = np.uint32(cuda.blockIdx.x)
        part, matrix, first_row, first_column, k, k_end = tile_at(
            block, row_tiles, column_tiles, splits, chunk, K, side, side
        )
        count = np.int32((k_end - k + depth - 1) // depth)

        # What this thread copies.
        t = np.int32(cuda.threadIdx.x)
        a_o, a_k = first_a(t)
        b_o, b_k = first_b(t)
        a_place = start(matrix, inner, a_outer, a_inner) + np.int64(first_row + a_o) * a_row
        a_place += np.int64(k + a_k) * a_depth
        b_place = start(matrix, inner, b_outer, b_inner) + np.int64(first_column + b_o) * b_column
        b_place += np.int64(k + b_k) * b_depth
        a_step = np.int64(a_half) * (a_row if a_along_k else a_depth)
        b_step = np.int64(b_half) * (b_column if b_along_k else b_depth)
        a_left, b_left = np.int32(M - first_row - a_o), np.int32(N - first_column - b_o)
        a_k_left, b_k_left = np.int32(k_end - k - a_k), np.int32(k_end - k - b_k)
        a_target = np.int32(base + place_a(t))
        b_target = np.int32(base + slice_bytes + place_b(t))
        for i in range(accumulators):
            sums[i] = f32(0)

        lane = np.int32(t & 31)
        warp = np.int32(t >> 5)
        warp_row = np.int32((warp & 1) * (16 * heights))
        warp_column = np.int32((warp >> 1) * 32)
        inside = first_row + warp_row < M and first_column + warp_column < N
        writes, reads = np.int32(0), np.int32(0)  # the slices that come next, in bytes
        for n in range(-2, count):
            if n >= 0:
                ptx.cp_async_wait1()
                cuda.syncthreads()
            if n + 2 < count:
                copy_a(np.int32(a_target + writes), a, a_place, a_step, a_left, a_k_left)
                copy_b(np.int32(b_target + writes), b, b_place, b_step, b_left, b_k_left)
                a_place += np.int64(depth) * a_depth
                b_place += np.int64(depth) * b_depth
                a_k_left = np.int32(a_k_left - depth)
                b_k_left = np.int32(b_k_left - depth)
                writes = np.int32(writes + stage if writes < (STAGES - 1) * stage else 0)
            ptx.cp_async_commit()
            if n >= 0:
                if inside:
                    for step in range(2):
                        b_at = np.int32(reads + slice_bytes)
                        b0 = fragment_b(memory, base, b_at, warp_column, step, lane)
                        b1 = fragment_b(memory, base, b_at, np.int32(warp_column + 16), step, lane)
                        for i in range(heights):
                            p = fragment_a(memory, base, reads, np.int32(warp_row + 16 * i), step, lane)
                            add_product(sums, 16 * i, p, b0[0], b0[2])
                            add_product(sums, 16 * i + 4, p, b0[1], b0[3])
                            add_product(sums, 16 * i + 8, p, b1[0], b1[2])
                            add_product(sums, 16 * i + 12, p, b1[1], b1[3])
                reads = np.int32(reads + stage if reads < (STAGES - 1) * stage else 0)

        # 32 rows of the warp's sums at a time, 4 columns of a row for each thread.
        ptx.cp_async_wait0()
        cuda.syncthreads()
        if inside:
            column = np.int32(first_column + warp_column + (lane & 7) * 4)
            columns_left = np.int32(N - column)
            mine = np.int32(warp * warp_floats)
            write_at = np.int32(mine + (lane >> 2) * PITCH + (lane & 3) * 2)
            read_at = np.int32(mine + (lane & 7) * 4)
            for turn in range(passes):
                for i in range(2):
                    for j in range(4):
                        s = (turn * 2 + i) * 16 + j * 4
                        ptx.store2(memory, write_at + i * 16 * PITCH + j * 8, (sums[s], sums[s + 1]))
                        ptx.store2(memory, write_at + (i * 16 + 8) * PITCH + j * 8, (sums[s + 2], sums[s + 3]))
                cuda.syncwarp()
                row = np.int32(first_row + warp_row + turn * 32)
                if columns_left > 0:
                    for r in range(lane >> 3, min(np.int32(32), np.int32(M - row)), 4):
                        v = ptx.load4(memory, read_at + r * PITCH)
                        place = (np.int64(part) * M + row + r) * N + column
                        store(v, place, np.int64(column), columns_left, y, bias, other, epilogue)
                cuda.syncwarp()

    return tiles


declare("tensor_core", tiles_of, PAIRS, SIDES, SIDES)
