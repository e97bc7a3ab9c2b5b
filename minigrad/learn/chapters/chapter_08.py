"""Chapter 8: tensor cores. A warp multiplies 16 x 16 by 16 x 8 at once, if every lane brings the right part."""

from typing import Any

import numpy as np

from minigrad.cuda_kernels.ptx import ptx
from minigrad.cuda_kernels.simulator import cuda  # on a GPU: from numba import cuda

SIDE = 16  # rows and columns of a tile
PIECE = 8  # uint16 of 16 bytes
STAGE = 256  # float32 of a tile of ``tile_sums``


def pair(low: Any, high: Any) -> Any:
    """Two uint16 in a register of 32 bits, ``low`` in the lower half."""
    return np.uint32(low) | np.uint32(high) << np.uint32(16)


def places_a(lane: int) -> Any:
    """A lane's elements (row, column) of a, 16 x 16: a tuple of 8, in the order of its 4 registers, lower half first.

    With i = lane // 4 and j = 2 (lane % 4): (i, j) and the one to its right; the same 8 rows below; then both again, 8
    columns to the right.
    """
    i, j = lane // 4, lane % 4 * 2  # given
    left = (i, j), (i, j + 1), (i + 8, j), (i + 8, j + 1)
    return (*left, (i, j + 8), (i, j + 9), (i + 8, j + 8), (i + 8, j + 9))


def places_b(lane: int) -> Any:
    """A lane's elements (row, column) of b, 16 x 8: a tuple of 4, in the order of its 2 registers.

    With i and j as before: (j, i) and the one below it; then both again, 8 rows below.
    """
    i, j = lane // 4, lane % 4 * 2  # given
    return (j, i), (j + 1, i), (j + 8, i), (j + 9, i)


def places_c(lane: int) -> Any:
    """A lane's elements (row, column) of the result, 16 x 8: the first 4 of ``places_a``."""
    return places_a(lane)[:4]


def multiply_tile(a: Any, b: Any, y: Any) -> None:
    """y = a b by one warp and one ``ptx.mma_float16(a, b, c)``: a (16, 16), b (16, 8) as bits of float16, y float32.

    The instruction takes 4 registers of a, 2 of b and 4 float32 of c, and returns 4 float32 of c + a b.
    """
    lane = cuda.threadIdx.x  # given
    of_a, of_b, of_c = places_a(lane), places_b(lane), places_c(lane)  # given
    left = (pair(a[of_a[0]], a[of_a[1]]), pair(a[of_a[2]], a[of_a[3]]),
            pair(a[of_a[4]], a[of_a[5]]), pair(a[of_a[6]], a[of_a[7]]))  # fmt: skip
    right = pair(b[of_b[0]], b[of_b[1]]), pair(b[of_b[2]], b[of_b[3]])
    zero = np.float32(0)
    total = ptx.mma_float16(left, right, (zero, zero, zero, zero))
    for n in range(4):
        y[of_c[n]] = total[n]


def row_of_lane(lane: int) -> int:
    """For ``ldmatrix`` of a tile of 16 x 16 uint16 in shared memory: where the row begins that a lane names.

    Lanes 0 to 7 name the rows of the first 8 x 8 matrix, 8 to 15 those of the second, and so on. The matrices are, in
    the order of the registers of a: top left, bottom left, top right, bottom right. A row of the tile has 16 elements.
    """
    return lane % SIDE * SIDE + lane // SIDE * PIECE


def multiply_shared(a: Any, b: Any, y: Any) -> None:
    """y = a b by one warp: a, b (16, 16) bits of float16, y (16, 16) float32. Fragments come through shared memory.

    Each lane copies 8 elements of a and 8 of b. Then ``ptx.ldmatrix`` gives the 4 registers of a, and
    ``ptx.ldmatrix_transposed`` those of b: 2 for its left half, 2 for its right half. Two products.
    """
    a_tile = cuda.shared.array(SIDE * SIDE, np.uint16, alignment=16)  # given
    b_tile = cuda.shared.array(SIDE * SIDE, np.uint16, alignment=16)  # given
    lane, zero = cuda.threadIdx.x, np.float32(0)  # given
    for n in range(lane, SIDE * SIDE, 32):
        a_tile[n] = a[n // SIDE, n % SIDE]
        b_tile[n] = b[n // SIDE, n % SIDE]
    cuda.syncthreads()
    left = ptx.ldmatrix(ptx.shared_address(a_tile, row_of_lane(lane)))
    right = ptx.ldmatrix_transposed(ptx.shared_address(b_tile, row_of_lane(lane)))
    of_c = places_c(lane)
    for half in range(2):
        total = ptx.mma_float16(left, right[2 * half : 2 * half + 2], (zero, zero, zero, zero))
        for n in range(4):
            y[of_c[n][0], of_c[n][1] + 8 * half] = total[n]


def swizzled(row: int, piece: int) -> int:
    """Where piece ``piece`` (0 to 7, 16 bytes each) of row ``row`` is kept, counted in pieces from the beginning.

    Each row keeps its 8 pieces within its own 8 places, in an order of its own: so that 8 lanes that write one row, and
    8 lanes that read one piece of 8 rows below each other, use all 32 banks.
    """
    return row * 8 + (piece ^ row % 8)


def tile_sums(x: Any, y: Any, tiles: int) -> None:
    """y[t] = the sum over all tiles of their elements t, t + 64, t + 128 and t + 192. A block of 64 threads.

    ``x``: ``tiles`` tiles of 256 float32. They come by asynchronous copies, of 16 bytes for each thread, to two stages
    in shared memory by turns: while a tile is added up, the next one is on its way.
    """
    stages = cuda.shared.array(2 * STAGE, np.float32, alignment=16)  # given
    t = cuda.threadIdx.x  # given
    total = np.float32(0)  # given
    ptx.cp_async(ptx.shared_address(stages, 4 * t), x, 4 * t, 16)
    ptx.cp_async_commit()
    for tile in range(tiles):
        if tile + 1 < tiles:
            there = (tile + 1) % 2 * STAGE + 4 * t
            ptx.cp_async(ptx.shared_address(stages, there), x, (tile + 1) * STAGE + 4 * t, 16)
        ptx.cp_async_commit()
        ptx.cp_async_wait1()
        cuda.syncthreads()
        for n in range(4):
            total += stages[tile % 2 * STAGE + 64 * n + t]
        cuda.syncthreads()
    y[t] = total


def matmul_tensor(a: Any, b: Any, y: Any) -> None:
    """y = a b, for bits of float16, a (M, K), b (K, N), to float32 y (M, N). M, N and K are multiples of 16.

    A warp, a block of its own, for each tile of 16 x 16 of y; block (bx, by) has the columns from 16 bx and the rows
    from 16 by on. As ``multiply_shared``, along K, and the sums stay in registers.
    """
    a_tile = cuda.shared.array(SIDE * SIDE, np.uint16, alignment=16)  # given
    b_tile = cuda.shared.array(SIDE * SIDE, np.uint16, alignment=16)  # given
    lane, zero = cuda.threadIdx.x, np.float32(0)  # given
    top, side = cuda.blockIdx.y * SIDE, cuda.blockIdx.x * SIDE  # given
    first_half, second_half = (zero, zero, zero, zero), (zero, zero, zero, zero)  # given
    for k in range(0, a.shape[1], SIDE):
        for n in range(lane, SIDE * SIDE, 32):
            a_tile[n] = a[top + n // SIDE, k + n % SIDE]
            b_tile[n] = b[k + n // SIDE, side + n % SIDE]
        cuda.syncthreads()
        left = ptx.ldmatrix(ptx.shared_address(a_tile, row_of_lane(lane)))
        right = ptx.ldmatrix_transposed(ptx.shared_address(b_tile, row_of_lane(lane)))
        first_half = ptx.mma_float16(left, right[:2], first_half)
        second_half = ptx.mma_float16(left, right[2:], second_half)
        cuda.syncthreads()
    of_c = places_c(lane)  # given
    for n in range(4):  # given
        y[top + of_c[n][0], side + of_c[n][1]] = first_half[n]  # given
        y[top + of_c[n][0], side + of_c[n][1] + 8] = second_half[n]  # given
