"""Matrix products of half floats by TMA and wgmma, for compute capability 9.0 (H100, H200) and no other.

A block has two warpgroups and a further warp, and computes tiles of 128 rows and 256 or 128 columns, one after another.
A thread of that warp, the producer, lets TMA copy slices of 64 elements of k into a ring of 4 stages. It does so as
soon as a stage is free. The two groups, the consumers, multiply 64 rows each: wgmma reads both operands where they lie
in shared memory and keeps 64 x 256 sums in the registers of 128 threads. So the threads that multiply copy nothing and
compute no addresses of elements. Slices of the next tile arrive while the last one is written.

    full[s]     the stage's bytes have arrived           one arrival (the producer's, which expects the bytes)
    empty[s]    nobody reads the stage any more          8 arrivals (of each consumers' warp)

An operand lies along k ("k") or along its rows or columns ("o"). A row of a box is 128 bytes, 64 elements of what lies
side by side; its 16-byte pieces are swizzled. Of "k" a box is 64 of k and all rows (or columns) of the tile; of "o" it
is 64 rows (columns) and 64 of k, and a tile has several. TMA writes zeros where the arrays end.

The sums go through shared memory, 32 columns of a warp's 16 rows at a time, so each thread has 4 columns of a row. Then
they go through ``epilogue.py``. They are float32, in an order that the shapes decide.

TMA reads an operand where it lies, transposed or not, if

    its elements are neighbours along k, or along the other one of its last two dimensions;
    its address and its steps along all other dimensions are multiples of 16 bytes (8 elements); and
    its leading dimensions are one at most, of any step, or it is the same for all of them.

Nothing is copied to make it so: ``tensor_core.py`` computes the others.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..platform import libcuda, memory
from ..platform.signatures import TENSOR_MAP
from ..platform.tensor_map import TensorMap
from ..platform.toolbox import Kernel, cuda, kernel, merged
from ..ptx import hopper_ptx, ptx
from . import tensor_core
from .epilogue import PAIRS, finish4, store_of, target
from .record import Problem
from .tiles import TILE_WORDS, declare, divide, tile_at

CAPABILITY = (9, 0)
ROWS = 128  # of a tile
COLUMNS = (256, 128)
HALF_PAIRS = PAIRS[:4]  # not float32
DEPTH = 64  # elements of k in a slice
STAGES = 4
CONSUMERS = 8  # warps, which are the first
THREADS = 32 * (CONSUMERS + 1)
BLOCK = 64 * 128  # bytes of 64 rows of 128
PITCH = 40  # floats of a row of 32 sums in shared memory

# A descriptor's constant bits: the 128-byte swizzle, and 1024 bytes from 8 rows of 128 bytes to the next 8. Of "o" the
# leading offset is the one from 64 rows or columns to the next 64; of "k" it is not used, and 1 by convention.
DESCRIPTOR = {"k": 1 << 62 | 1024 >> 4 << 32 | 1 << 16, "o": 1 << 62 | 1024 >> 4 << 32 | BLOCK >> 4 << 16}
STEP = {"k": 32 >> 4, "o": 16 * 128 >> 4}  # from 16 elements of k to the next, in units of 16 bytes

MULTIPROCESSORS = 132  # of an H100: what plans fill, so that they are the same on all devices
CYCLES = {256: 1024, 128: 640}  # of a slice of a tile: what the tensor cores need, and for 128 a loss on top
FINISH = 12  # cycles for each column of a tile, after its slices
LAUNCH, TRAFFIC = 5000, 2000  # of a divided sum: cycles of the second launch, and bytes that memory moves in a cycle
SHORTEST_PART, MOST_PARTS = 512, 32  # steps of a divided sum; parts
MOST_DIVIDED = 2**31  # elements of a product whose sums may be divided
MOST = 2**31 - 512  # of a dimension and of all rows: indices, and those that reach over an edge, are int32

Read = tuple[TensorMap, str, int]  # an operand: its map, along what it lies, whether it has several matrices


def supports_device(device: int) -> bool:
    """Whether the device has the instructions."""
    return memory.capability(device) == CAPABILITY


def supports(p: Problem) -> bool:
    """Whether TMA can read the operands of a product."""
    return _operands(p, COLUMNS[0]) is not None


def multiply(p: Problem) -> None:
    """Compute a product of half floats; what TMA cannot read ``tensor_core.py`` computes.

    bias is of the operands' dtype, other of y's, which is that or float32.
    """
    columns, splits = plan(*p.sizes, p.matrices)
    operands = _operands(p, columns)
    if operands is None:
        tensor_core.multiply(p)
        return
    (a_map, a_kind, a_matrices), (b_map, b_kind, b_matrices) = operands
    tiles = divide(p, ROWS, columns, splits)
    y, bias, other, epilogue = target(p, tiles.splits)
    count = p.matrices * tiles.splits * tiles.rows * tiles.columns
    kernel = tiles_of(p.a.dtype.name, y.dtype.name, columns, a_kind + b_kind)
    words = *p.sizes, a_matrices, b_matrices, epilogue, *tiles, count
    kernel.launch(min(count, multiprocessors(y.device)), a_map, b_map, y, bias, other, *words)
    if tiles.splits > 1:
        finish4(p, y, tiles.splits)


def _operands(p: Problem, columns: int) -> tuple[Read, Read] | None:
    """How TMA reads a and b in tiles of so many columns; None where it cannot."""
    halves = p.a.dtype == p.b.dtype and (p.a.dtype.name, p.y.dtype.name) in HALF_PAIRS
    fits = max(*p.sizes, p.matrices * p.sizes[0]) <= MOST and len(p.batch) < 2
    if not (halves and fits and p.y.size and p.sizes[2] and supports_device(p.y.device)):
        return None
    a, b = ((x.pointer, x.dtype.name, x.shape, x.steps, x.device) for x in (p.a, p.b))
    left, right = _read(a, p.y.shape[:-2], -1, ROWS), _read(b, p.y.shape[:-2], -2, columns)
    return None if left is None or right is None else (left, right)


@functools.lru_cache(maxsize=4096)
def _read(array: tuple[Any, ...], leading: tuple[int, ...], k_axis: int, rows: int) -> Read | None:
    """How TMA reads an operand in tiles of so many rows (of a) or columns (of b)."""
    pointer, dtype, shape, steps, device = array
    batch = merged(zip(leading, steps))
    if len(batch) > 1:
        return None
    count, step = batch[0] if batch else (1, 0)
    matrices = count if step else 1
    for kind, along in (("k", k_axis), ("o", -3 - k_axis)):
        across = -3 - along
        if steps[along] != 1 and shape[along] > 1:
            continue
        # A dimension of size 1 may have any step, which nobody takes; the driver wants a proper one.
        row = 2 * steps[across] if shape[across] > 1 else _rounded(2 * shape[along])
        far = 2 * step if matrices > 1 else _rounded(row * shape[across])
        box = (64, rows if kind == "k" else DEPTH, 1)
        found = TensorMap(pointer, dtype, (shape[along], shape[across], matrices), (row, far), box, device)
        if found.problem() is None:
            return found, kind, int(matrices > 1)
    return None


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


@functools.lru_cache(maxsize=4096)
def plan(M: int, N: int, K: int, count: int) -> tuple[int, int]:
    """(columns, splits): the tiles' columns, and into how many parts the sums of one matrix are divided.

    The least estimated time: blocks walk tiles in rounds of one for each multiprocessor.
    """
    found: list[tuple[int, int, int]] = []
    for columns in COLUMNS:
        tiles = count * -(-M // ROWS) * -(-N // columns)
        divisible = count == 1 and M * N < MOST_DIVIDED and M * MOST_PARTS <= MOST
        most = min(MOST_PARTS, K // SHORTEST_PART) if divisible else 1
        for splits in range(1, max(1, most) + 1):
            rounds = -(-tiles * splits // MULTIPROCESSORS)
            cycles = rounds * (-(-K // splits // DEPTH) * CYCLES[columns] + FINISH * columns)
            if splits > 1:
                cycles += LAUNCH + 4 * (splits + 1) * M * N // TRAFFIC
            found.append((cycles, -columns, splits))
    _, columns, splits = min(found)
    return -columns, splits


multiprocessors: Callable[[int], int] = functools.partial(memory.attribute, libcuda.MULTIPROCESSORS)
"""How many blocks run at a time on a device: one on each."""


@functools.cache
def tiles_of(operand: str, out: str, columns: int, kinds: str) -> Kernel:
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
    stage_columns = hopper_ptx.store_columns(PITCH)
    store = store_of(operand, out)
    parts = columns // 32
    warp_floats = 16 * PITCH
    floats = CONSUMERS * warp_floats

    @kernel(
        f"{TENSOR_MAP} x2, {out}*, {operand}*, {out}*, int32 x6, {TILE_WORDS}, uint32",
        threads=THREADS, registers=168, resident=1, shared_bytes=STAGES * stage + 1024, capability=CAPABILITY,
        only=True, instructions=("HGMMA", "UTMALDG"), of=f"{operand}_{out}_{columns}_{kinds}",
        flops=lambda *args: 2 * args[2].size * args[7] // args[-3],
        nbytes=lambda *args: args[0].nbytes + args[1].nbytes + args[2].nbytes,
    )  # fmt: skip
    def tiles(
        a_map, b_map, y, bias, other, M, N, K, a_matrices, b_matrices, epilogue, row_tiles, column_tiles, splits,
        chunk, count,
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
                    part, matrix, row, column, k, k_end = tile_at(
                        tile, row_tiles, column_tiles, splits, chunk, K, ROWS, columns
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
                part, matrix, row, column, k, k_end = tile_at(
                    tile, row_tiles, column_tiles, splits, chunk, K, ROWS, columns
                )
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
                    stage_columns(staging, write_at, done, i)
                    cuda.syncwarp()
                    c = np.int32(column + (lane & 7) * 4)
                    r = np.int32(lane >> 3)
                    while r < height and c < N:
                        v = ptx.load4(staging, np.int32(read_at + r * PITCH))
                        place = np.int64(np.int32(line + r)) * N + c
                        store(v, place, np.int64(c), np.int32(N - c), y, bias, other, epilogue)
                        r = np.int32(r + 4)
                    i = np.int32(i + 1)
                    column = np.int32(column + 32)
                tile = np.uint32(tile + np.uint32(cuda.gridDim.x))

    return tiles


declare("hopper", tiles_of, HALF_PAIRS, COLUMNS, COLUMNS[:1])
