"""Copies between arrays of any strides, by all threads; a transposed array goes block by block, as caches like it."""

import functools
from typing import Any

import numpy as np
from numba import types

from .array_program import ZERO as ZERO, layout_of
from .jit import emits, kernel
from .multi_tensor import addresses_of
from .numpy_loops import array_at
from .program_code import HEADER, copy_row, over_tables
from .register_tile import INT64, Vectors, transpose_registers
from .threads import compiled_address, constant, known_by_address, lasting_words, shares

FEW = 65536  # bytes that NumPy rearranges in the time of a launch
MANY = 1 << 19  # bytes in order that it copies in that time
RUN = 16384  # elements of a row that are a block
ROWS, COLUMNS, TILE = 16, 512, 8  # of a block of a transposed array; a tile's lines find room in the first cache


@kernel
def _block(args, n, rows, strides, data, workspace):
    size, columns = array_at(data, HEADER, np.int64)[3], array_at(n, 1, np.int64)[0]
    first_x, first_y = array_at(args, 2, np.int64)
    x_step, y_step, x_row, y_row = array_at(strides, 4, np.int64)
    if columns < min(TILE, rows):  # long rows of a few elements each are a few long rows
        columns, rows, x_step, x_row, y_step, y_row = rows, columns, x_row, x_step, y_row, y_step
    turned = abs(x_row) < abs(x_step) and abs(x_step) > size and rows > 1
    adjacent = turned and x_row == size and y_step == size
    width, tile = (COLUMNS, TILE) if turned else (columns, columns)
    across = (columns + width - 1) // width
    for part in range((rows + ROWS - 1) // ROWS * across):
        i, first = part // across * ROWS, part % across * width
        for j in range(first, min(first + width, columns), tile):
            count = min(tile, columns - j)
            for r in range(i, min(i + ROWS, rows), TILE):
                x, y, lines = first_x + r * x_row + j * x_step, first_y + r * y_row + j * y_step, min(TILE, rows - r)
                if adjacent and count == TILE and lines == TILE:
                    _transpose(x, x_step, y, y_row, size)
                else:
                    for k in range(lines):
                        copy_row(y + k * y_row, y_step, x + k * x_row, x_step, count, size)


@emits(lambda x, x_step, y, y_row, size: types.void(*[types.int64] * 5))
def _transpose(context: Any, builder: Any, signature: Any, x: Any, x_step: Any, y: Any, y_row: Any, size: Any) -> None:
    """TILE elements from each of the addresses x, x + x_step, ... as the columns of TILE rows at y, y + y_row, ..."""

    def place(address: Any, step: Any, i: int) -> Any:
        return builder.inttoptr(builder.add(address, builder.mul(step, INT64(i))), vectors.scalar.as_pointer())

    for kind in (types.uint8, types.uint16, types.uint32, types.uint64):
        with builder.if_then(builder.icmp_signed("==", size, INT64(kind.bitwidth // 8))):
            vectors = Vectors(builder, context, kind, TILE)
            lines = [vectors.load(place(x, x_step, i), INT64(0)) for i in range(TILE)]
            transpose_registers(builder, lines)
            for i, line in enumerate(lines):
                vectors.store(line, place(y, y_row, i), INT64(0))


def copy_into(*arrays: np.ndarray) -> None:
    """y[...] = x for each two arrays y, x, of the same shape and dtype, which share no memory; all of one dtype. As a
    launch, but for objects and odd layouts.
    """
    tables: list[int] = []
    size, total = arrays[0].itemsize, 0
    for y, x in zip(arrays[::2], arrays[1::2]):
        if x.shape != y.shape or x.dtype != y.dtype:
            raise ValueError(f"an array {x.dtype} {x.shape} is no copy of one {y.dtype} {y.shape}")
        known = size in (1, 2, 4, 8) and not y.dtype.hasobject
        if not (known and y.size and x.flags.aligned and y.flags.aligned):
            np.copyto(y, x)
            continue
        tables += (RUN, *layout_of((x.shape, x.strides), (y.shape, y.strides))[0], *addresses_of((x, y)))
        total += y.nbytes
    if tables:
        over_tables.launch(None, shares(total, FEW), _data(size), constant(np.array(tables, np.int64)))
        known_by_address(arrays)


_data = functools.cache(lambda size: lasting_words([compiled_address(_block, *[types.int64] * 6), 2, 0, size]))


def copied(x: np.ndarray, few: int = FEW) -> np.ndarray:
    """A new C-contiguous array of the same values; NumPy's copy of less than ``few`` bytes, or of more in order."""
    if x.nbytes < (MANY if few == FEW and x.flags.c_contiguous else few):
        return np.array(x, order="C", copy=True)
    y = np.empty(x.shape, x.dtype)
    copy_into(y, x)
    return y
