"""What the row-wise kernels share: a block whose threads (x, y) work on ``blockDim.y`` rows, and how large to make it.

``blockDim.x`` is a multiple of 32, and ``blockDim.y`` is 1 where it is not 32: a warp or a block works on a row. The
warps of a row join their results in shared memory. All threads of the block must call, and all of a row get the result.
"""

from typing import Any, NamedTuple

import numpy as np

from ..platform.language import cuda
from ..pointwise.conversion import element_conversions
from ..ptx import ptx


def quotient(a: Any, b: Any) -> Any:
    """a // b of non-negative integers: quick where both fit 32 bits, else bit by bit, without a call."""
    if (a | b) >> 32 == 0:
        return np.int64(np.uint32(a) // np.uint32(b))
    q = np.int64(0)
    for k in range(62):
        if a >> (61 - k) >= b:
            a -= b << (61 - k)
            q += np.int64(1) << (61 - k)
    return q


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not less than n."""
    return 1 << max(n - 1, 0).bit_length()


def row_threads(N: int, C: int, values: int, most: int = 1024) -> tuple[int, int]:
    """A block (x, y) for rows of C elements of which each thread holds ``values``; ``most`` threads at most."""
    width = min(32 * max(1, ceil_div(C, 32 * values)), most)
    return width, min(4, power_of_two(N)) if width == 32 else 1


def row_kernel(kernels: Any, accesses: int, N: int, C: int, itemsize: int) -> tuple[Any, tuple[int, int]]:
    """Of the kernels (short, rows, long) the one for N rows of C elements, and its block.

    A thread of ``short`` holds one 128-bit access of a row, of ``rows`` so many ``accesses``; ``long`` holds none.
    """
    short, rows, long = kernels
    width = 16 // itemsize
    chosen, values = (short, width) if C <= short.threads[0] * width else (rows, accesses * width)
    if C > chosen.threads[0] * values:
        return long, (long.threads[0], 1)
    return chosen, row_threads(N, C, values)


def aligned(width: int, C: int, *arrays: Any) -> int:
    """1 if rows of C elements may be read ``width`` elements at a time, else 0."""
    return int(C % width == 0 and all(a is None or a.pointer % 16 == 0 for a in arrays))


class RowTile(NamedTuple):
    """How the threads of a row hold it: ``values`` elements each, in a local array of that length."""

    values: int
    read: Any  # (x, base, C, vectors, values, padding): values of x[base : base + C], padding behind them
    write: Any  # (y, base, C, vectors, values): the reverse
    inside: Any  # (k, C, vectors): whether values[k] is an element of the row


def row_tile(real: Any, accesses: int, word: str = "") -> RowTile:
    """The tile of ``accesses`` 128-bit accesses for each thread; ``vectors`` = 0 makes them single ones.

    ``word``: the dtype of rows that are read, where it is a half dtype, of four elements an access.
    """
    widen = element_conversions(word)[0]
    width = 16 // np.dtype(real).itemsize
    count = accesses * width
    four = width == 4
    load, store = (ptx.load4, ptx.store4) if four else (ptx.load2, ptx.store2)

    def get(values: Any, k: Any) -> Any:
        if four:
            return values[k], values[k + 1], values[k + 2], values[k + 3]
        return values[k], values[k + 1]

    def read(x: Any, base: Any, C: Any, vectors: Any, values: Any, padding: Any) -> None:
        if vectors:
            for k in range(accesses):
                j = (k * cuda.blockDim.x + cuda.threadIdx.x) * width
                for lane in range(width):
                    values[k * width + lane] = padding
                if j < C:
                    v = load(x, base + j)
                    for lane in range(width):
                        values[k * width + lane] = widen(v[lane])
        else:
            for k in range(count):
                j = k * cuda.blockDim.x + cuda.threadIdx.x
                values[k] = widen(x[base + j]) if j < C else padding

    def write(y: Any, base: Any, C: Any, vectors: Any, values: Any) -> None:
        if vectors:
            for k in range(accesses):
                j = (k * cuda.blockDim.x + cuda.threadIdx.x) * width
                if j < C:
                    store(y, base + j, get(values, k * width))
        else:
            for k in range(count):
                j = k * cuda.blockDim.x + cuda.threadIdx.x
                if j < C:
                    y[base + j] = values[k]

    def inside(k: Any, C: Any, vectors: Any) -> Any:
        if vectors:
            return (k // width * cuda.blockDim.x + cuda.threadIdx.x) * width < C
        return k * cuda.blockDim.x + cuda.threadIdx.x < C

    return RowTile(count, read, write, inside)
