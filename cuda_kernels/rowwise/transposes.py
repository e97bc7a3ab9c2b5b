"""Transposes of matrices through tiles in shared memory; ``ladders/ladder_transpose.py`` leads up to them.

``padded``: a block reads a tile by rows and writes it by columns. Its rows are one element longer than the
tile, so that a column lies in 32 different banks of shared memory. ``wide``: 16 bytes for each load and store.

All take x as ``rows`` rows of ``columns`` elements, ``sx`` elements apart, and write rows of y ``sy`` apart; there are
several matrices, ``bx`` and ``by`` apart. A block has a tile, and the grid (columns, rows, matrices) of tiles.
"""

import numpy as np

from ..platform.language import cuda
from ..platform.launch import Kernel, kernel
from ..ptx import ptx

TILE_SIDE = 32  # of a tile
TILE_PITCH = TILE_SIDE + 1  # of a tile's rows, where they are padded
TILE_THREADS = (32, 8)  # each moves 4 elements of a tile


def through_tile(name: str, bits: int, pitch: int) -> Kernel:
    """``pitch``: from a row of the tile to the next."""
    dtype = np.dtype(f"uint{bits}").type

    @kernel(f"bits{bits}* x2, int64 x6", threads=TILE_THREADS, registers=32, name=f"{name}_{bits}_bits")
    def transpose(y, x, rows, columns, sy, sx, by, bx):
        square = cuda.shared.array((TILE_SIDE, pitch), dtype)
        i, z = np.int64(cuda.threadIdx.x), np.int64(cuda.blockIdx.z)
        left, top = np.int64(cuda.blockIdx.x) * TILE_SIDE, np.int64(cuda.blockIdx.y) * TILE_SIDE
        for k in range(cuda.threadIdx.y, TILE_SIDE, 8):
            if top + k < rows and left + i < columns:
                square[k, i] = x[z * bx + (top + k) * sx + left + i]
        cuda.syncthreads()
        for k in range(cuda.threadIdx.y, TILE_SIDE, 8):
            if left + k < columns and top + i < rows:
                y[z * by + (left + k) * sy + top + i] = square[i, k]

    return transpose


PADDED_TILES: dict[int, Kernel] = {bits // 8: through_tile("padded", bits, TILE_PITCH) for bits in (8, 16, 32, 64)}


@kernel("bits32* x2, int64 x6", threads=(8, 32), registers=24, vector_loads=True)
def wide_32_bits(y, x, rows, columns, sy, sx, by, bx):
    square = cuda.shared.array((TILE_SIDE, TILE_PITCH), np.uint32)
    i, k, z = 4 * np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y), np.int64(cuda.blockIdx.z)
    left, top = np.int64(cuda.blockIdx.x) * TILE_SIDE, np.int64(cuda.blockIdx.y) * TILE_SIDE
    if top + k < rows and left + i < columns:
        v0, v1, v2, v3 = ptx.load_constant4(x, z * bx + (top + k) * sx + left + i)
        square[k, i], square[k, i + 1], square[k, i + 2], square[k, i + 3] = v0, v1, v2, v3
    cuda.syncthreads()
    if left + k < columns and top + i < rows:
        values = square[i, k], square[i + 1, k], square[i + 2, k], square[i + 3, k]
        ptx.store4(y, z * by + (left + k) * sy + top + i, values)


@kernel("bits16* x2, int64 x6", threads=(8, 32), registers=34, vector_loads=True)
def wide_16_bits(y, x, rows, columns, sy, sx, by, bx):
    """A tile of 64 x 64 elements of 2 bytes: two rows for each thread."""
    square = cuda.shared.array((64, 66), np.uint16)
    i, z = 8 * np.int64(cuda.threadIdx.x), np.int64(cuda.blockIdx.z)
    left, top = np.int64(cuda.blockIdx.x) * 64, np.int64(cuda.blockIdx.y) * 64
    for k in range(cuda.threadIdx.y, 64, 32):
        if top + k < rows and left + i < columns:
            v0, v1, v2, v3, v4, v5, v6, v7 = ptx.load_constant8(x, z * bx + (top + k) * sx + left + i)
            square[k, i], square[k, i + 1], square[k, i + 2], square[k, i + 3] = v0, v1, v2, v3
            square[k, i + 4], square[k, i + 5], square[k, i + 6], square[k, i + 7] = v4, v5, v6, v7
    cuda.syncthreads()
    for k in range(cuda.threadIdx.y, 64, 32):
        if left + k < columns and top + i < rows:
            v0, v1, v2, v3 = square[i, k], square[i + 1, k], square[i + 2, k], square[i + 3, k]
            v4, v5, v6, v7 = square[i + 4, k], square[i + 5, k], square[i + 6, k], square[i + 7, k]
            ptx.store8(y, z * by + (left + k) * sy + top + i, (v0, v1, v2, v3, v4, v5, v6, v7))


WIDE_TILES: dict[int, tuple[Kernel, int]] = {4: (wide_32_bits, TILE_SIDE), 2: (wide_16_bits, 64)}
"""By bytes of an element: the kernel of 16-byte accesses, and the side of its tile."""
