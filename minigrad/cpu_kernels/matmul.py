"""Matrix product ``y = a @ b (+ bias)`` for float32 and float64 operands of any strides.

Three nested blocks keep each operand in the cache level from which the register tile (``register_tile.py``) reads it:

    for columns of y in blocks of COLUMN_BLOCK:          # y, b
        for k in blocks of DEPTH_BLOCK:                  # pack b[k block, columns] into panels: stays in L2
            for rows of y in blocks of ROW_BLOCK:        # pack a[rows, k block] if it is transposed
                for each row tile, for each panel:       # the row tile of a stays in L1, panels stream from L2
                    multiply_tile                        # y tile (+)= a tile @ panel

Few rows (decoding one token) do not repay packing b: ``_multiply_thin`` reads b once, in place.

Parallel work is a grid over batch, rows and columns; k is never divided between threads, so each element is summed in
an order that depends on the shapes only and the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from . import bfloat16_product, threads
from .jit import inline
from .product_epilogue import add_columns, finish_rows
from .register_tile import (
    TILE_BYTES,
    TILE_ROWS,
    add_edge,
    advance,
    aligned_empty,
    bound,
    first_element,
    keep_alive,
    multiply_tile,
    pack_panels,
    pack_row_tiles,
    pointer,
    round_up,
    tile_columns,
)
from .task_pool import task_kernel

DEPTH_BLOCK = 512
COLUMN_BLOCK = 256
ROW_BLOCK = 8 * TILE_ROWS
THIN_ROWS = 2
THIN_COLUMN_BLOCK = 512
# Below this many multiply-adds a launch on the pool (3 to 5 us, and b packed by each thread) costs more than the second
# core saves. A thin product, which waits for memory, does about a sixteenth as many in the same time.
PARALLEL_WORK, PARALLEL_WORK_THIN = 2_000_000, 125_000


# ---------------------------------------------------------------- kernels


@inline
def _multiply_packed(
    a, a_row, a_column, b, b_row, b_column, bias, has_bias, y, y_row, rows, columns, depth, depth_block,
    packed_a, packed_b, small, accumulate, epilogue, other, extra, row_sums, has_row_sums,
):  # fmt: skip
    """y[:rows, :columns] = a[:rows, :depth] @ b[:depth, :columns] (+ bias): the loops of the module docstring.

    With ``accumulate`` it is added to y. Finished rows go through the ``epilogue`` (``product_epilogue.py``) while they
    are in the L1 cache; ``other`` and ``extra`` are as y. With ``has_row_sums``, ``row_sums`` gets the sums of the rows
    of a, whose columns are contiguous.
    """
    n = tile_columns(y)
    panels, row_tiles, zeros = pointer(packed_b), pointer(packed_a), pointer(small)
    edge = advance(zeros, n)
    for j in range(0, columns, COLUMN_BLOCK):
        width = min(COLUMN_BLOCK, columns - j)
        for k in range(0, depth, depth_block):
            block_depth = min(depth_block, depth - k)
            pack_panels(advance(b, k * b_row + j * b_column), b_row, b_column, block_depth, width, panels)
            for i in range(0, rows, ROW_BLOCK):
                height = min(ROW_BLOCK, rows - i)
                a_block = advance(a, i * a_row + k * a_column)
                # Full tiles of contiguous rows are read where they are.
                in_place = height // TILE_ROWS * TILE_ROWS if a_column == 1 else 0
                rest = advance(a_block, in_place * a_row)
                pack_row_tiles(rest, a_row, a_column, height - in_place, block_depth, row_tiles)
                if has_row_sums and j == 0:
                    add_columns(a_block, a_column, block_depth, height, edge, advance(row_sums, i), k > 0)
                for tile_i in range(0, height, TILE_ROWS):
                    a_tile, tile_row, tile_column = advance(a_block, tile_i * a_row), a_row, 1
                    if tile_i >= in_place:
                        a_tile = advance(row_tiles, (tile_i - in_place) * block_depth)
                        tile_row, tile_column = 1, TILE_ROWS
                    for tile_j in range(0, width, n):
                        panel = advance(panels, tile_j * block_depth)
                        target = advance(y, (i + tile_i) * y_row + j + tile_j)
                        if k > 0 or accumulate:
                            start, start_row = target, y_row
                        elif has_bias:
                            start, start_row = advance(bias, j + tile_j), 0
                        else:
                            start, start_row = zeros, 0
                        if tile_i + TILE_ROWS <= height and tile_j + n <= width:
                            multiply_tile(
                                block_depth, a_tile, tile_row, tile_column, panel, start, start_row, target, y_row
                            )
                        else:
                            multiply_tile(block_depth, a_tile, tile_row, tile_column, panel, zeros, 0, edge, n)
                            rows_inside, columns_inside = min(TILE_ROWS, height - tile_i), min(n, width - tile_j)
                            add_edge(edge, start, start_row, target, y_row, rows_inside, columns_inside)
                    if epilogue and k + block_depth == depth:
                        corner = (i + tile_i) * y_row + j
                        finish_rows(
                            epilogue, min(TILE_ROWS, height - tile_i), width, y_row,
                            advance(y, corner), advance(other, corner), advance(extra, corner), small,
                        )  # fmt: skip


@inline
def _multiply_thin(a, a_row, b, b_row, b_column, bias, has_bias, y, y_row, y_column, rows, columns, depth, sums):
    """The same for a few contiguous rows of a, reading b once in its own order: its rows or columns are contiguous."""
    if b_row == 1:
        for j in range(0, columns, 4):  # four columns at a time; the last of them may be the same column again
            j1, j2, j3 = min(j + 1, columns - 1), min(j + 2, columns - 1), min(j + 3, columns - 1)
            b0, b1 = advance(b, j * b_column), advance(b, j1 * b_column)
            b2, b3 = advance(b, j2 * b_column), advance(b, j3 * b_column)
            for i in range(rows):
                a_vector, target = advance(a, i * a_row), advance(y, i * y_row)
                s0 = s1 = s2 = s3 = sums.dtype.type(0)
                for k in range(depth):
                    s0 += a_vector[k] * b0[k]
                    s1 += a_vector[k] * b1[k]
                    s2 += a_vector[k] * b2[k]
                    s3 += a_vector[k] * b3[k]
                target[j * y_column] = s0 + bias[j] if has_bias else s0
                target[j1 * y_column] = s1 + bias[j1] if has_bias else s1
                target[j2 * y_column] = s2 + bias[j2] if has_bias else s2
                target[j3 * y_column] = s3 + bias[j3] if has_bias else s3
        return
    for j in range(0, columns, THIN_COLUMN_BLOCK):
        width = min(THIN_COLUMN_BLOCK, columns - j)
        for i in range(rows):
            for c in range(width):
                sums[c] = bias[j + c] if has_bias else 0
            for k in range(depth):
                factor = a[i * a_row + k]
                b_vector = advance(b, k * b_row + j)
                for c in range(width):
                    sums[c] += factor * b_vector[c]
            for c in range(width):
                y[i * y_row + (j + c) * y_column] = sums[c]


@task_kernel
def _multiply_cells(task, tasks, a, b, bias, has_bias, y, a_offsets, b_offsets, strides, sizes, grid, thin):
    """One task's share of the grid's cells. A cell is a block of rows and columns of one matrix of the batch.

    ``a``, ``b``, ``y`` are arrays that hold only the first element of the operands: the address in one type.
    """
    a_row, a_column, b_row, b_column, y_row, y_column = strides
    rows, columns, depth = sizes
    row_parts, column_parts = grid
    n = tile_columns(pointer(y))
    depth_blocks = (depth + DEPTH_BLOCK - 1) // DEPTH_BLOCK
    depth_block = (depth + depth_blocks - 1) // depth_blocks
    small = aligned_empty(max(n + TILE_ROWS * n, THIN_COLUMN_BLOCK), y)
    small[:n] = 0
    packed_b = aligned_empty(0 if thin else depth_block * min(round_up(columns, n), COLUMN_BLOCK), y)
    packed_a = aligned_empty(0 if thin else depth_block * min(round_up(rows, TILE_ROWS), ROW_BLOCK), y)

    parts = row_parts * column_parts
    cells = len(a_offsets) * parts
    for cell in range(task * cells // tasks, (task + 1) * cells // tasks):
        batch, part = cell // parts, cell % parts
        row_part, column_part = part // column_parts, part % column_parts
        i = bound(row_part, row_parts, rows, TILE_ROWS)
        j = bound(column_part, column_parts, columns, n)
        height = bound(row_part + 1, row_parts, rows, TILE_ROWS) - i
        width = bound(column_part + 1, column_parts, columns, n) - j
        a_cell = advance(pointer(a), a_offsets[batch] + i * a_row)
        b_cell = advance(pointer(b), b_offsets[batch] + j * b_column)
        y_cell = advance(pointer(y), batch * rows * columns + i * y_row + j * y_column)
        bias_cell = advance(pointer(bias), j)
        if thin:
            _multiply_thin(
                a_cell, a_row, b_cell, b_row, b_column, bias_cell, has_bias, y_cell, y_row, y_column,
                height, width, depth, small,
            )  # fmt: skip
        else:
            _multiply_packed(
                a_cell, a_row, a_column, b_cell, b_row, b_column, bias_cell, has_bias, y_cell, y_row,
                height, width, depth, depth_block, packed_a, packed_b, small, False, 0, y_cell, y_cell, y_cell, False,
            )  # fmt: skip
    keep_alive(small)
    keep_alive(packed_a)
    keep_alive(packed_b)


# ---------------------------------------------------------------- launchers

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
NO_BIAS = {dtype.char: np.zeros(1, dtype) for dtype in FLOATS}
SINGLE = np.zeros(1, np.int64)  # the offsets of a batch of one


def matmul(a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """``np.matmul(a, b)`` for operands of at least two dimensions, plus ``bias`` on each row.

    Args:
        a: (..., M, K), b: (..., K, N); leading dimensions broadcast; any strides, nothing is copied to be transposed.
        bias: (N,), of the operands' dtype.

    Returns: a new C-contiguous array (..., M, N). float32 and float64 run on the register tile; other dtypes, and
    operands of different dtypes, are NumPy's. With ``set_float32_matmul_precision("medium")``, float32 products of more
    than THIN_ROWS rows and columns round their operands to bfloat16; thinner ones wait for memory and stay float32.

    Raises ValueError if the shapes do not fit.
    """
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul of {a.shape} and {b.shape}: expected (..., M, K) and (..., K, N) with the same K and "
            "broadcastable leading dimensions"
        )
    if bias is not None and bias.shape != b.shape[-1:]:
        raise ValueError(f"matmul: bias of shape {bias.shape}, expected {b.shape[-1:]}, one value per column of b")
    dtype = a.dtype
    if dtype not in FLOATS or b.dtype != dtype:
        y = np.matmul(a, b)
        return y if bias is None else y + bias
    if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous:  # one matrix for all rows: no batch at all
        rows = math.prod(a.shape[:-1])
        return matmul(a.reshape(rows, a.shape[-1]), b, bias).reshape(*a.shape[:-1], b.shape[-1])

    if a.ndim == b.ndim == 2:
        shape: tuple[int, ...] = (a.shape[0], b.shape[1])
    else:
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    y = np.empty(shape, dtype)
    if y.size == 0 or a.shape[-1] == 0:
        y[...] = 0 if bias is None else bias
    elif shape[-1] <= THIN_ROWS < shape[-2] and a.itemsize in a.strides[-2:]:
        # Few columns are few rows of the transposed product.
        _multiply(b.swapaxes(-1, -2), a.swapaxes(-1, -2), None, y.swapaxes(-1, -2))
        if bias is not None:
            y += bias
    else:
        _multiply(a, b, bias, y)
    return y


def takes_halves(x: np.ndarray) -> bool:
    """False: float16 and bfloat16 are multiplied as float32."""
    return False


def _multiply(a: np.ndarray, b: np.ndarray, bias: np.ndarray | None, y: np.ndarray) -> None:
    """y = a @ b (+ bias), nothing empty. y is C-contiguous; in a thin product its transpose may be so instead."""
    if not (a.flags.aligned and b.flags.aligned):
        a, b = np.require(a, requirements="A"), np.require(b, requirements="A")
    rows, columns = y.shape[-2:]
    depth = a.shape[-1]
    item = y.itemsize
    thin = rows <= THIN_ROWS and item in b.strides[-2:]
    if thin and a.strides[-1] != item:
        a = np.ascontiguousarray(a)
    strides = (
        a.strides[-2] // item, a.strides[-1] // item, b.strides[-2] // item, b.strides[-1] // item,
        y.strides[-2] // item, y.strides[-1] // item,
    )  # fmt: skip
    a_offsets, b_offsets = _batch_offsets(a, y.shape[:-2]), _batch_offsets(b, y.shape[:-2])
    batch = len(a_offsets)
    has_bias = bias is not None
    bias = np.ascontiguousarray(bias, y.dtype) if has_bias else NO_BIAS[y.dtype.char]
    grid, tasks = (1, 1), 1
    if batch * rows * columns * depth >= (PARALLEL_WORK_THIN if thin else PARALLEL_WORK):
        thread_count = threads.get_num_threads()
        grid = _grid(batch, rows, columns, TILE_BYTES // item, thread_count)
        tasks = min(thread_count, batch * grid[0] * grid[1])
    arguments = (
        first_element(a), first_element(b), first_element(bias), has_bias, first_element(y),
        a_offsets, b_offsets, strides, (rows, columns, depth), grid,
    )  # fmt: skip
    if bfloat16_product.precision == "medium" and item == 4 and rows > THIN_ROWS and columns > THIN_ROWS:
        bfloat16_product.multiply_cells.launch(y.dtype, tasks, *arguments)
    else:
        _multiply_cells.launch(y.dtype, tasks, *arguments, thin)


def _batch_offsets(x: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """The offsets, in elements, of the matrices of ``x`` broadcast to the leading dimensions ``batch``."""
    if not batch:
        return SINGLE
    leading = x.ndim - 2
    offsets = SINGLE
    for axis, size in zip(range(leading - len(batch), leading), batch, strict=True):
        stride = x.strides[axis] // x.itemsize if axis >= 0 and x.shape[axis] > 1 else 0
        offsets = np.add.outer(offsets, np.arange(size) * stride).reshape(-1)
    return offsets


@lru_cache(maxsize=4096)
def _grid(batch: int, rows: int, columns: int, tile_width: int, thread_count: int) -> tuple[int, int]:
    """Into how many row and column parts each matrix is divided: the fastest of the divisors of the thread count.

    Costs are in steps of k: a tile takes TILE_ROWS of them (two multiply-adds per cycle), packing a panel about 4 (each
    cell packs the columns of b that it needs), touching a row tile about 1.
    """
    row_tiles, panels = -(-rows // TILE_ROWS), -(-columns // tile_width)

    def cost(parts: tuple[int, int]) -> int:
        cell_rows, cell_panels = -(-row_tiles // parts[0]), -(-panels // parts[1])
        cells_per_thread = -(-batch * parts[0] * parts[1] // thread_count)
        return cells_per_thread * (cell_rows * cell_panels * TILE_ROWS + 4 * cell_panels + cell_rows)

    divisors = [d for d in range(1, thread_count + 1) if thread_count % d == 0]
    choices = [(r, c) for r in divisors for c in divisors if r <= row_tiles and c <= panels and r * c <= thread_count]
    return min(choices, key=cost)
