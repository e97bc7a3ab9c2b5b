"""What the kernels of ``flash.py`` do with tiles, as functions of a dtype, the largest head size and R.

A tile has 16 R rows; the 256 threads are a square of 16 x 16. Thread (ty, tx) computes the scores of the rows ty R + i
and the keys tx + 16 j. Of what is summed over keys it computes the columns 4 tx + 64 g. Tiles lie in shared memory as
they do in device memory, rows of D padded to DMAX + 4: then 128-bit reads along D (scores) and along columns (sums)
both meet no bank twice.

Exponentials are powers of 2 in float32 (one instruction) and of e in float64.
"""

import math as python_math
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..platform.language import cuda, math
from ..ptx import ptx
from ..ptx.fours import fours, load_inside
from ..rowwise.collective import across_lanes, add
from .attention_rows import dropped

THREADS = 256


ROW = (8, 4, 2, 1)  # of the 16 threads of a row
row_max: Any = across_lanes(lambda x, other: other if other > x else x, distances=ROW)
"""The largest over the 16 threads of a row; NaN is passed over, it returns with the exponentials."""
row_sum: Any = across_lanes(add, distances=ROW)
"""The sum over the 16 threads of a row."""


def flash_tiles(real: Any, DMAX: int, R: int) -> Any:
    """The device functions and sizes that the three kernels of a dtype and a largest head size share."""
    side, pitch, groups = 16 * R, DMAX + 4, DMAX // 64  # pitch: of a tile of rows
    p_pitch = side + 4  # of a tile of scores
    size, itemsize, single = side * pitch, np.dtype(real).itemsize, real is np.float32
    unit = python_math.log(2) if single else 1.0  # scores are in units of this
    load4, load_constant4, store4 = fours(itemsize)
    chunks = DMAX // 4  # of a row
    R4 = 4 * R

    def load_tile(shared, base, x, start, step, rows, D, wide):
        """Rows of x from ``start`` on into shared memory, ``step`` apart, zeros behind them."""
        for chunk in range(cuda.threadIdx.x, side * chunks, THREADS):
            row, c = np.int32(chunk // chunks), np.int32(chunk % chunks * 4)
            zero = real(0)
            values = (zero, zero, zero, zero)
            place = start + row * step + c
            if row < rows and c < D:
                values = load_constant4(x, place) if wide else load_inside(x, place, 1, D - c, zero)
            store4(shared, base + row * pitch + c, values)

    def scores(s, shared, x, y, D):
        """s[i R + j] = the product of row ty R + i of tile x and row tx + 16 j of tile y."""
        rows = cuda.local.array(R4, real)
        x += cuda.threadIdx.x // 16 * (R * pitch)
        y += cuda.threadIdx.x % 16 * pitch
        for i in range(R * R):
            s[i] = real(0)
        for c in range(0, D, 4):
            for i in range(R):
                a = load4(shared, x + i * pitch + c)
                rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3] = a[0], a[1], a[2], a[3]
            for j in range(R):
                b = load4(shared, y + j * (16 * pitch) + c)
                for i in range(R):
                    s[i * R + j] += rows[4 * i] * b[0]
                    s[i * R + j] += rows[4 * i + 1] * b[1]
                    s[i * R + j] += rows[4 * i + 2] * b[2]
                    s[i * R + j] += rows[4 * i + 3] * b[3]

    def put(s, shared, p):
        """The thread's scores into the tile p of shared memory."""
        p += cuda.threadIdx.x // 16 * (R * p_pitch) + cuda.threadIdx.x % 16
        for i in range(R):
            for j in range(R):
                shared[p + i * p_pitch + 16 * j] = s[i * R + j]

    def get(s, shared, p):
        """And back."""
        p += cuda.threadIdx.x // 16 * (R * p_pitch) + cuda.threadIdx.x % 16
        for i in range(R):
            for j in range(R):
                s[i * R + j] = shared[p + i * p_pitch + 16 * j]

    def drop(shared, p, rows, columns, first, row_step, column_step, threshold, seed, offset, kept):
        """Dropout of the thread's own scores in the tile p; ``first`` is its place in the mask, which has the steps."""
        ty, tx = cuda.threadIdx.x // 16, cuda.threadIdx.x % 16
        for e in range(R * R):
            row, column = ty * R + e // R, tx + e % R * 16
            place = p + row * p_pitch + column
            if row < rows and column < columns:
                gone = dropped(first + row * row_step + column * column_step, threshold, seed, offset)
                shared[place] = real(0) if gone else shared[place] * kept

    def add_rows(sums, shared, p, x, keys):
        """sums[(i groups + g) 4 + c] += the sum over keys of p[ty R + i, key] x[key, 4 tx + 64 g + c]."""
        weights = cuda.local.array(R4, real)
        p += cuda.threadIdx.x // 16 * (R * p_pitch)
        x += cuda.threadIdx.x % 16 * 4
        for key in range(0, keys, 4):
            for i in range(R):
                a = load4(shared, p + i * p_pitch + key)
                weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3] = a[0], a[1], a[2], a[3]
            for e in range(4):
                for g in range(groups):
                    b = load4(shared, x + (key + e) * pitch + 64 * g)
                    for i in range(R):
                        place = (i * groups + g) * 4
                        sums[place] += weights[4 * i + e] * b[0]
                        sums[place + 1] += weights[4 * i + e] * b[1]
                        sums[place + 2] += weights[4 * i + e] * b[2]
                        sums[place + 3] += weights[4 * i + e] * b[3]

    def store_rows(y, start, step, sums, factors, rows, D):
        """y[start + row step ...] = sums times the row's factor, for the thread's R rows."""
        first = cuda.threadIdx.x // 16 * R
        for i in range(R):
            if first + i < rows:
                for g in range(groups):
                    for c in range(4):
                        column = cuda.threadIdx.x % 16 * 4 + 64 * g + c
                        if column < D:
                            y[start + (first + i) * step + column] = sums[(i * groups + g) * 4 + c] * factors[i]

    def exponential(x):
        return ptx.exp2_approx(x) if single else math.exp(x)

    def nbytes(tiles: int) -> int:
        """Shared memory of so many tiles of rows and one of scores."""
        return (tiles * size + side * p_pitch) * itemsize

    return SimpleNamespace(
        real=real, DMAX=DMAX, R=R, side=side, pitch=pitch, size=size, groups=groups, unit=unit, nbytes=nbytes,
        load_tile=load_tile, scores=scores, store_rows=store_rows, put=put, get=get, drop=drop,
        add_rows=add_rows, exponential=exponential,
    )  # fmt: skip
