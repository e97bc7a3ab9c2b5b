"""The kernels of matrix products on tensor cores of compute capability 9.0: y = a b of half floats, by TMA and wgmma.

A block has two warpgroups and a further warp, and computes tiles of 128 rows and 256 or 128 columns, one after another.
A thread of that warp, the producer, lets TMA copy slices of 64 elements of k into a ring of 4 stages, as soon as one is
free. The two groups, the consumers, multiply 64 rows each: wgmma reads both operands where they lie in shared
memory and keeps 64 x 256 sums in the registers of 128 threads. So the threads that multiply copy nothing and compute no
addresses of elements, and slices of the next tile arrive while the last one is written.

    full[s]     the stage's bytes have arrived           one arrival (the producer's, which expects the bytes)
    empty[s]    nobody reads the stage any more          8 arrivals (of each consumers' warp)

An operand lies along k ("k") or along its rows or columns ("o"). A row of a box is 128 bytes, 64 elements of what lies
side by side; its 16-byte pieces are swizzled. Of "k" a box is 64 of k and all rows (or columns) of the tile; of "o" it
is 64 rows (columns) and 64 of k, and a tile has several. TMA writes zeros where the arrays end.

The sums go through shared memory, 32 columns of a warp's 16 rows at a time, so that each thread has 4 columns of a row,
and then through ``tensor_core_epilogue.py``. They are float32, in an order that the shapes decide.
"""

from __future__ import annotations

import functools

import numpy as np

from . import hopper_ptx, ptx
from .language import cuda, device_function
from .launch import LATER, Kernel, kernel
from .signatures import TENSOR_MAP
from .tensor_core_epilogue import PAIRS, epilogue_of

CAPABILITY = (9, 0)
ROWS = 128  # of a tile
COLUMNS = (256, 128)
DEPTH = 64  # elements of k in a slice
STAGES = 4
CONSUMERS = 8  # warps, which are the first
THREADS = 32 * (CONSUMERS + 1)
BLOCK = 64 * 128  # bytes of 64 rows of 128
GROUP = 8  # rows of tiles that blocks walk together, so that the slices of b that they share are found in L2
PITCH = 40  # floats of a row of 32 sums in shared memory
KINDS = ("kk", "ko", "ok", "oo")

# A descriptor's constant bits: the 128-byte swizzle, and 1024 bytes from 8 rows of 128 bytes to the next 8. Of "o" the
# leading offset is the one from 64 rows or columns to the next 64; of "k" it is not used, and 1 by convention.
DESCRIPTOR = {"k": 1 << 62 | 1024 >> 4 << 32 | 1 << 16, "o": 1 << 62 | 1024 >> 4 << 32 | BLOCK >> 4 << 16}
STEP = {"k": 32 >> 4, "o": 16 * 128 >> 4}  # from 16 elements of k to the next, in units of 16 bytes


@device_function
def _place(tile, row_tiles, column_tiles, splits, chunk, K, columns):
    """Which sums a tile is of: (part, matrix, first row, first column, first k, the k after the last)."""
    per_matrix = np.uint32(row_tiles * column_tiles)
    part = np.uint32(tile // per_matrix)
    rest = np.uint32(tile - part * per_matrix)
    matrix = np.uint32(part // splits)
    group = np.uint32(rest // np.uint32(GROUP * column_tiles))
    rest = np.uint32(rest - group * np.uint32(GROUP * column_tiles))
    height = np.uint32(min(np.uint32(GROUP), np.uint32(row_tiles - group * np.uint32(GROUP))))
    column = np.uint32(rest // height)
    row = np.int32((group * np.uint32(GROUP) + rest - column * height) * np.uint32(ROWS))
    k = np.int32(np.int32(part - matrix * splits) * chunk)
    return part, np.int32(matrix), row, np.int32(column * np.uint32(columns)), k, np.int32(min(K, np.int32(k + chunk)))


def _tiles(operand: str, out: str, columns: int, kinds: str) -> Kernel:
    """The kernel for tiles of ``columns``, operands that lie along ``kinds`` (of a, of b) and y of dtype ``out``."""
    a_bytes, b_bytes = ROWS * 128, columns * 128
    stage = a_bytes + b_bytes
    slots = 2 * STAGES
    a_along_k, b_along_k = (kind == "k" for kind in kinds)
    a_boxes, b_boxes = ROWS // 64, columns // 64
    a_bits, b_bits = (np.int64(DESCRIPTOR[kind]) for kind in kinds)
    a_step, b_step = (np.int64(STEP[kind]) for kind in kinds)
    multiply = hopper_ptx.wgmma(operand, columns, kinds)
    zeros = hopper_ptx.zeros(columns)
    store = hopper_ptx.store_columns(PITCH)
    finish = epilogue_of(operand, out)
    parts = columns // 32
    warp_floats = 16 * PITCH
    floats = CONSUMERS * warp_floats

    @kernel(
        TENSOR_MAP, TENSOR_MAP, f"{out}*", f"{operand}*", f"{out}*", f"{out}*",
        "int32", "int32", "int32", "int32", "int32", "int32", "uint32", "uint32", "uint32", "int32", "uint32",
        threads=THREADS,
        registers=168,
        resident=1,
        shared_bytes=STAGES * stage + 1024,
        name=f"tiles_{operand}_{out}_{columns}_{kinds}",
        capability=CAPABILITY,
        only=True,
        instructions=("HGMMA", "UTMALDG"),
        flops=lambda *args: 2 * args[2].size * args[8] // args[-3],
        nbytes=lambda *args: args[0].nbytes + args[1].nbytes + args[2].nbytes,
    )  # fmt: skip
    def tiles(
        a_map, b_map, y, bias, residual, before, M, N, K, a_matrices, b_matrices, epilogue, row_tiles, column_tiles,
        splits, chunk, count,
    ):  # fmt: skip
        memory = cuda.shared.array(0, np.uint64)
        barriers = cuda.shared.array(slots, np.uint64, alignment=16)
        staging = cuda.shared.array(floats, np.float32, alignment=16)
        ring = np.int32((ptx.shared_address(memory, 0) + 1023) & ~1023)
        full = np.int32(ptx.shared_address(barriers, 0))
        empty = np.int32(full + 8 * STAGES)
        t = np.int32(cuda.threadIdx.x)
        if t == 0:
            for n in range(STAGES):
                hopper_ptx.mbarrier_init(np.int32(full + 8 * n), np.int32(1))
                hopper_ptx.mbarrier_init(np.int32(empty + 8 * n), np.int32(CONSUMERS))
            hopper_ptx.fence_async()
        cuda.syncthreads()
        turn = np.int32(0)  # slices so far: the next one's stage in the lower 2 bits, then its phase's parity
        if t >= 32 * CONSUMERS:
            if t == 32 * CONSUMERS:
                tile = np.uint32(cuda.blockIdx.x)
                while tile < count:
                    part, matrix, row, column, k, k_end = _place(
                        tile, row_tiles, column_tiles, splits, chunk, K, columns
                    )
                    a_matrix = np.int32(matrix if a_matrices else 0)
                    b_matrix = np.int32(matrix if b_matrices else 0)
                    while k < k_end:
                        s = np.int32(turn & 3)
                        barrier = np.int32(full + 8 * s)
                        target = np.int32(ring + stage * s)
                        hopper_ptx.mbarrier_wait(np.int32(empty + 8 * s), np.int32(((turn >> 2) & 1) ^ 1))
                        hopper_ptx.mbarrier_expect(barrier, np.int32(stage))
                        if a_along_k:
                            hopper_ptx.tma_load(target, a_map, k, row, a_matrix, barrier)
                        else:
                            for n in range(a_boxes):
                                to = np.int32(target + BLOCK * n)
                                hopper_ptx.tma_load(to, a_map, np.int32(row + 64 * n), k, a_matrix, barrier)
                        target = np.int32(target + a_bytes)
                        if b_along_k:
                            hopper_ptx.tma_load(target, b_map, k, column, b_matrix, barrier)
                        else:
                            for n in range(b_boxes):
                                to = np.int32(target + BLOCK * n)
                                hopper_ptx.tma_load(to, b_map, np.int32(column + 64 * n), k, b_matrix, barrier)
                        k = np.int32(k + DEPTH)
                        turn = np.int32(turn + 1)
                    tile = np.uint32(tile + np.uint32(cuda.gridDim.x))
        else:
            lane = np.int32(t & 31)
            warp = np.int32(t >> 5)
            mine = np.int32(warp * warp_floats)
            write_at = np.int32(mine + (lane >> 2) * PITCH + (lane & 3) * 2)
            read_at = np.int32(mine + (lane & 7) * 4)
            a_first = np.int32(ring + (warp >> 2) * BLOCK)
            b_first = np.int32(ring + a_bytes)
            tile = np.uint32(cuda.blockIdx.x)
            while tile < count:
                part, matrix, row, column, k, k_end = _place(tile, row_tiles, column_tiles, splits, chunk, K, columns)
                sums = zeros()
                first = k
                while k < k_end:
                    s = np.int32(turn & 3)
                    hopper_ptx.mbarrier_wait(np.int32(full + 8 * s), np.int32((turn >> 2) & 1))
                    a = np.int64(((a_first + stage * s) & 0x3FFFF) >> 4) | a_bits
                    b = np.int64(((b_first + stage * s) & 0x3FFFF) >> 4) | b_bits
                    hopper_ptx.wgmma_fence()
                    sums = multiply(sums, a, b)
                    sums = multiply(sums, a + a_step, b + b_step)
                    sums = multiply(sums, a + np.int64(2) * a_step, b + np.int64(2) * b_step)
                    sums = multiply(sums, a + np.int64(3) * a_step, b + np.int64(3) * b_step)
                    hopper_ptx.wgmma_commit()
                    hopper_ptx.wgmma_wait1()
                    if k > first and lane == 0:  # the slice before was the last group's, which has ended
                        hopper_ptx.mbarrier_arrive(np.int32(empty + 8 * ((turn - 1) & 3)))
                    k = np.int32(k + DEPTH)
                    turn = np.int32(turn + 1)
                done = hopper_ptx.wgmma_wait0(sums)
                if lane == 0:
                    hopper_ptx.mbarrier_arrive(np.int32(empty + 8 * ((turn - 1) & 3)))

                row = np.int32(row + 16 * warp)
                height = np.int32(min(np.int32(16), np.int32(M - row)))
                line = np.int32(np.int32(part) * M + row)  # of all rows of y
                i = np.int32(0)
                while height > 0 and i < parts and column < N:
                    cuda.syncwarp()
                    store(staging, write_at, done, i)
                    cuda.syncwarp()
                    c = np.int32(column + (lane & 7) * 4)
                    r = np.int32(lane >> 3)
                    while r < height and c < N:
                        v = ptx.load4(staging, np.int32(read_at + r * PITCH))
                        place = np.int64(np.int32(line + r)) * N + c
                        finish(v, place, np.int64(c), np.int32(N - c), y, bias, residual, before, epilogue)
                        r = np.int32(r + 4)
                    i = np.int32(i + 1)
                    column = np.int32(column + 32)
                tile = np.uint32(tile + np.uint32(cuda.gridDim.x))

    return tiles


@functools.cache
def tiles_of(operand: str, out: str, columns: int, kinds: str) -> Kernel:
    """The kernel for half floats that lie along ``kinds``, for y of a dtype, and tiles of ``columns``."""
    return _tiles(operand, out, columns, kinds)


for operand, out in PAIRS:
    for columns in COLUMNS if operand != "float32" else ():
        for kinds in KINDS:
            if operand == "float16" or columns == 128:  # but for one instruction, or the size, the others
                name = f"hopper_product.tiles_{operand}_{out}_{columns}_{kinds}"
                LATER[name] = functools.partial(tiles_of, operand, out, columns, kinds)
            else:
                tiles_of(operand, out, columns, kinds)
