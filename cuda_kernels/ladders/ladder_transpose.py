"""Transposing matrices in four steps, y[c, r] = x[r, c]; the last two are ``rowwise/transposes.py``.

A warp reads or writes 32 neighbouring addresses as one access; addresses far apart cost an access each.

1. ``naive``: neighbours of a warp read neighbours of x, but write a column of y: 32 accesses for 128 bytes.
2. ``tile``: a block reads a 32 x 32 tile by rows into shared memory and writes it by rows of y. Reading the tile by
   columns, the 32 lanes want the same one of the 32 banks of shared memory and wait for one another.
3. ``padded``: rows of 33 elements; a column lies in 32 different banks.
4. ``wide``: 16 bytes for each load and store, so a quarter of the instructions. 8 threads make a row of 128 bytes.

All take x as ``rows`` rows of ``columns`` elements, ``sx`` elements apart, and write rows of y ``sy`` apart; there are
several matrices, ``bx`` and ``by`` apart. A block has a tile, and the grid (columns, rows, matrices) of tiles.
"""

import numpy as np

from ..platform.toolbox import Kernel, cuda, kernel
from ..rowwise.transposes import TILE_SIDE, TILE_THREADS, through_tile


@kernel("bits32* x2, int64 x6", threads=TILE_THREADS, registers=30)
def naive(y, x, rows, columns, sy, sx, by, bx):
    c = np.int64(cuda.blockIdx.x) * TILE_SIDE + cuda.threadIdx.x
    first = np.int64(cuda.blockIdx.y) * TILE_SIDE
    z = np.int64(cuda.blockIdx.z)
    for k in range(cuda.threadIdx.y, TILE_SIDE, 8):
        r = first + k
        if r < rows and c < columns:
            y[z * by + c * sy + r] = x[z * bx + r * sx + c]


tile: Kernel = through_tile("tile", 32, TILE_SIDE)
