"""y = a b for row-major float32 matrices in six steps, each little more than the one before; a (M, K), b (K, N).

    1 naive        a thread for each element. Neighbouring threads have neighbouring rows: each reads a line of its own
    2 coalesced    neighbouring threads have neighbouring columns: a warp reads one line of b, and one element of a
    3 shared       a block first copies a 16 x 16 tile of a and of b, and each copied element is used 16 times
    4 column       a thread computes 4 elements of a column: one read of b serves 4 multiplications
    5 square       a thread computes 4 x 4: 8 reads serve 16 multiplications
    6 vectors      the same reads, four elements at a time

What a step gains is what it no longer reads: a multiply-add takes 2 reads of device memory in the first two steps; then
2, 1 + 1/4, 1/2 and 1/8 reads of shared memory. ``simt_tiles.py`` is the next step: larger tiles, the next slices on
their way while these are multiplied, and any strides.
"""

from typing import Any

import numpy as np

from ..platform.toolbox import Array, Kernel, cuda, empty, kernel
from ..ptx import ptx

SIDE = 16  # threads of a block: 16 x 16
TILE = 64  # rows and columns of the tiles of steps 5 and 6
SLICE = 16  # k of the tiles of step 6
FOUR, SIXTEEN = 4, 16
PITCH = TILE + 4
SLICE_SIZE = SLICE * PITCH
f32: type[np.float32] = np.float32


def _of_memory(name: str, by_columns: bool) -> Kernel:
    """Steps 1 and 2, which differ in what neighbouring threads have: rows, or columns."""

    @kernel("float32* x3, int64 x3", threads=(SIDE, SIDE), registers=40, name=name)
    def multiply(y, a, b, M, N, K):
        column, row = cuda.threadIdx.y, cuda.threadIdx.x
        if by_columns:
            column, row = row, column
        row += cuda.blockIdx.x * SIDE
        column += cuda.blockIdx.y * SIDE
        if row < M and column < N:
            s = f32(0)
            for k in range(K):
                s += a[row * K + k] * b[k * N + column]
            y[row * N + column] = s

    return multiply


def _of_tiles(name: str, R: int, S: int, registers: int) -> Kernel:
    """Steps 3 to 5, which differ in how many elements a thread computes: R x S, each SIDE from its neighbour."""
    rows, columns, elements = SIDE * R, SIDE * S, R * S

    @kernel("float32* x3, int64 x3", threads=(SIDE, SIDE), registers=registers, name=name)
    def multiply(y, a, b, M, N, K):
        a_tile = cuda.shared.array((rows, SIDE), f32)
        b_tile = cuda.shared.array((SIDE, columns), f32)
        s = cuda.local.array(elements, f32)
        factors = cuda.local.array(S, f32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        column = cuda.blockIdx.y * columns + tx
        row = cuda.blockIdx.x * rows + ty
        for i in range(elements):
            s[i] = f32(0)
        for first in range(0, K, SIDE):
            for i in range(R):
                inside = row + SIDE * i < M and first + tx < K
                a_tile[ty + SIDE * i, tx] = a[(row + SIDE * i) * K + first + tx] if inside else f32(0)
            for j in range(S):
                inside = first + ty < K and column + SIDE * j < N
                b_tile[ty, tx + SIDE * j] = b[(first + ty) * N + column + SIDE * j] if inside else f32(0)
            cuda.syncthreads()
            for k in range(SIDE):
                for j in range(S):
                    factors[j] = b_tile[k, tx + SIDE * j]
                for i in range(R):
                    factor = a_tile[ty + SIDE * i, k]
                    for j in range(S):
                        s[S * i + j] += factor * factors[j]
            cuda.syncthreads()
        for i in range(R):
            for j in range(S):
                if row + SIDE * i < M and column + SIDE * j < N:
                    y[(row + SIDE * i) * N + column + SIDE * j] = s[S * i + j]

    return multiply


@kernel("float32* x3, int64 x3", threads=(SIDE, SIDE), registers=64, vector_loads=True)
def vectors(y, a, b, M, N, K):
    """K and N are multiples of 4. The tile of a is stored by columns, so that its reads are vectors too."""
    a_tile = cuda.shared.array(SLICE_SIZE, f32, alignment=16)
    b_tile = cuda.shared.array(SLICE_SIZE, f32, alignment=16)
    s = cuda.local.array(SIXTEEN, f32)
    factors = cuda.local.array(FOUR, f32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    t = ty * SIDE + tx
    column = cuda.blockIdx.y * TILE + 4 * tx
    row = cuda.blockIdx.x * TILE + 4 * ty
    a_row, a_k = t // 4, t % 4 * 4  # what this thread copies
    b_k, b_column = t // SIDE, t % SIDE * 4
    zero = f32(0)
    for i in range(16):
        s[i] = zero
    for first in range(0, K, SLICE):
        four = (zero, zero, zero, zero)
        if cuda.blockIdx.x * TILE + a_row < M and first + a_k < K:
            four = ptx.load_constant4(a, (cuda.blockIdx.x * TILE + a_row) * K + first + a_k)
        a_tile[a_k * PITCH + a_row] = four[0]
        a_tile[(a_k + 1) * PITCH + a_row] = four[1]
        a_tile[(a_k + 2) * PITCH + a_row] = four[2]
        a_tile[(a_k + 3) * PITCH + a_row] = four[3]
        four = (zero, zero, zero, zero)
        if first + b_k < K and cuda.blockIdx.y * TILE + b_column < N:
            four = ptx.load_constant4(b, (first + b_k) * N + cuda.blockIdx.y * TILE + b_column)
        ptx.store4(b_tile, b_k * PITCH + b_column, four)
        cuda.syncthreads()
        for k in range(SLICE):
            p = ptx.load4(a_tile, k * PITCH + 4 * ty)
            q = ptx.load4(b_tile, k * PITCH + 4 * tx)
            factors[0], factors[1], factors[2], factors[3] = p[0], p[1], p[2], p[3]
            for i in range(4):
                s[4 * i] += factors[i] * q[0]
                s[4 * i + 1] += factors[i] * q[1]
                s[4 * i + 2] += factors[i] * q[2]
                s[4 * i + 3] += factors[i] * q[3]
        cuda.syncthreads()
    for i in range(4):
        if row + i < M and column < N:
            ptx.store4(y, (row + i) * N + column, (s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]))


# name: (kernel, rows and columns of y that a block computes)
STEPS: dict[str, Any] = {
    "naive": (_of_memory("naive", False), SIDE, SIDE),
    "coalesced": (_of_memory("coalesced", True), SIDE, SIDE),
    "shared": (_of_tiles("shared", 1, 1, 40), SIDE, SIDE),
    "column": (_of_tiles("column_of_four", 4, 1, 48), TILE, SIDE),
    "square": (_of_tiles("square_of_four", 4, 4, 64), TILE, TILE),
    "vectors": (vectors, TILE, TILE),
}


def multiply(step: str, a: Array, b: Array) -> Array:
    """a @ b by one step; a (M, K) and b (K, N) C-contiguous float32, K and N multiples of 4 for "vectors"."""
    (M, K), N = a.shape, b.shape[1]
    y = empty((M, N), a.dtype, a.device)
    run, rows, columns = STEPS[step]
    run.launch((-(-M // rows), -(-N // columns)), y, a, b, M, N, K)
    return y
