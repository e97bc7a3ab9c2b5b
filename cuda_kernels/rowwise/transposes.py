"""Transposes of matrices through tiles in shared memory; ``ladders/ladder_transpose.py`` leads up to them.

``padded``: a block reads a tile by rows and writes it by columns. Its rows are one element longer than the
tile, so that a column lies in 32 different banks of shared memory. ``wide``: 16 bytes for each load and store.

All take x as ``rows`` rows of ``columns`` elements, ``sx`` elements apart, and write rows of y ``sy`` apart; there are
several matrices, ``bx`` and ``by`` apart. A block has a tile, and the grid (columns, rows, matrices) of tiles.
"""

import numpy as np

from ..platform.toolbox import Kernel, cuda, kernel
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


def _wide(bits: int, registers: int) -> Kernel:
    """Tiles of 8 accesses of 16 bytes on a side: 32 x 32 elements of 4 bytes, 64 x 64 of 2."""
    count = 128 // bits  # elements of an access
    side, pitch, turns, dtype = 8 * count, 8 * count + 32 // bits, count // 4, np.dtype(f"uint{bits}").type
    load, store = (ptx.load_constant4, ptx.store4) if count == 4 else (ptx.load_constant8, ptx.store8)

    def column(square, i, k):
        four = square[i, k], square[i + 1, k], square[i + 2, k], square[i + 3, k]
        if count == 8:
            return four + (square[i + 4, k], square[i + 5, k], square[i + 6, k], square[i + 7, k])
        return four

    @kernel(
        f"bits{bits}* x2, int64 x6", threads=(8, 32), registers=registers, vector_loads=True, name=f"wide_{bits}_bits"
    )
    def transpose(y, x, rows, columns, sy, sx, by, bx):
        square = cuda.shared.array((side, pitch), dtype)
        i, z = count * np.int64(cuda.threadIdx.x), np.int64(cuda.blockIdx.z)
        left, top = np.int64(cuda.blockIdx.x) * side, np.int64(cuda.blockIdx.y) * side
        for turn in range(turns):
            k = cuda.threadIdx.y + 32 * turn
            if top + k < rows and left + i < columns:
                v = load(x, z * bx + (top + k) * sx + left + i)
                for e in range(count):
                    square[k, i + e] = v[e]
        cuda.syncthreads()
        for turn in range(turns):
            k = cuda.threadIdx.y + 32 * turn
            if left + k < columns and top + i < rows:
                store(y, z * by + (left + k) * sy + top + i, column(square, i, k))

    return transpose


WIDE_TILES: dict[int, tuple[Kernel, int]] = {4: (_wide(32, 24), TILE_SIDE), 2: (_wide(16, 34), 64)}
"""By bytes of an element: the kernel of 16-byte accesses, and the side of its tile."""
