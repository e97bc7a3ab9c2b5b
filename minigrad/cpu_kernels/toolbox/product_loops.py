"""The loops of a matrix product around the register tile, for ``matmul`` and ``linear``.

Three nested blocks keep each operand in the cache level from which the register tile (``register_tile.py``) reads it:

    for columns of y in blocks of COLUMN_BLOCK:          # y, b
        for k in blocks of DEPTH_BLOCK:                  # pack b[k block, columns] into panels: stays in L2
            for rows of y in blocks of ROW_BLOCK:        # pack a[rows, k block] if it is transposed
                for each row tile, for its panels:       # the row tile of a stays in L1, panels stream from L2
                    multiply_tile                        # y tile (+)= a tile @ panels

A transposed a is packed once for each block of columns, so these are wider where those of k are shorter. Lines of a
large y are asked for before a tile is multiplied. They are there when it is done.

Few rows (decoding one token) do not repay packing b: ``multiply_thin`` reads b once, in place.

Parallel work is a grid over rows and columns; k is never divided between threads. So each element is summed in an order
that depends on the shapes only, and the result does not depend on the number of threads.
"""

from functools import lru_cache
from typing import Any

from .jit import L2_BYTES, inline, kernel
from .register_tile import (
    TILE_BYTES,
    TILE_PANELS,
    TILE_ROWS,
    add_edge,
    advance,
    aligned_empty,
    multiply_tile,
    not_inlined,
    pack_panels,
    pack_row_tiles,
    pointer,
    prefetch_tile,
    round_up,
    tile_columns,
)
from .threads import shares
from .vector_math import SUM, combined, term

# Packed panels take a half of L2, at least 512 KiB. How many columns are packed at a time changes no sum.
COLUMN_BLOCK, DEPTH_BLOCK = 512 if L2_BYTES >= 2 << 20 else 256, 512
COLUMN_BLOCK_TRANSPOSED, DEPTH_BLOCK_TRANSPOSED = 768 if L2_BYTES >= 2 << 20 else 512, 256
ROW_BLOCK = 8 * TILE_ROWS
THIN_ROWS = 2
FAR = 100_000  # elements; lines of a smaller result are near, and asking for them costs more than waiting
THIN_COLUMN_BLOCK = 512
# Below this many multiply-adds a launch on the pool (3 to 5 us, and b packed by each thread) costs more than the second
# core saves. A thin product, which waits for memory, does about a sixteenth as many in the same time.
PARALLEL_WORK, PARALLEL_WORK_THIN = 2_000_000, 125_000


@inline
def workspace(depth: int, columns: int, rows: int, like: Any) -> Any:
    """A tile's columns; ``small``, its zeros first, ``packed_a`` and ``packed_b`` of the functions below."""
    n = tile_columns(pointer(like))
    small = aligned_empty(max(TILE_PANELS * n * (1 + TILE_ROWS), THIN_COLUMN_BLOCK), like)
    small[: TILE_PANELS * n] = 0
    packed_a = aligned_empty(min(depth, DEPTH_BLOCK) * min(round_up(rows, TILE_ROWS), ROW_BLOCK), like)
    width = round_up(columns, n)
    wide, tall = min(depth, DEPTH_BLOCK_TRANSPOSED) * min(width, COLUMN_BLOCK_TRANSPOSED), min(depth, DEPTH_BLOCK)
    return n, small, packed_a, aligned_empty(max(wide, tall * min(width, COLUMN_BLOCK)), like)


@inline
def fold_columns(fold: int, x: Any, x_row: int, rows: int, columns: int, part: Any, shift: Any) -> None:
    """part (columns,) = the sums of the columns of x, or another fold; x has contiguous rows, ``x_row`` apart.
    ``shift`` (columns,) is read where the fold has one.

    Rows are added in order, four in one pass over the sums.
    """
    for c in range(columns):
        part[c] = term(fold, x[c], part, shift[c])
    i = 1
    while i < rows:
        a, step = advance(x, i * x_row), 4 if i + 4 <= rows else 1
        b, d, e = advance(a, x_row), advance(a, 2 * x_row), advance(a, 3 * x_row)
        for c in range(columns if step == 4 else 0):
            two = combined(fold, part[c], term(fold, a[c], part, shift[c]))
            two = combined(fold, two, term(fold, b[c], part, shift[c]))
            two = combined(fold, two, term(fold, d[c], part, shift[c]))
            part[c] = combined(fold, two, term(fold, e[c], part, shift[c]))
        for c in range(columns if step == 1 else 0):
            part[c] = combined(fold, part[c], term(fold, a[c], part, shift[c]))
        i += step


@kernel
def add_columns(x: Any, x_row: int, rows: int, columns: int, part: Any, total: Any, accumulate: bool) -> None:
    """total (columns,) = or += the sums of the columns of x, by way of ``part`` (columns,)."""
    not_inlined()
    fold_columns(SUM, x, x_row, rows, columns, part, part)
    for c in range(columns):
        total[c] = total[c] + part[c] if accumulate else part[c]


@inline
def multiply_packed(
    a: Any, a_row: int, a_column: int, b: Any, b_row: int, b_column: int, bias: Any, has_bias: bool, y: Any, y_row: int,
    rows: int, columns: int, depth: int, longest: int, packed_a: Any, packed_b: Any, small: Any,
    row_sums: Any, has_row_sums: bool,
) -> None:  # fmt: skip
    """y[:rows, :columns] = a[:rows, :depth] @ b[:depth, :columns] (+ bias): the loops of the module docstring.

    k is cut into equal blocks of at most ``longest``; their sums are added in order.
    With ``has_row_sums``, ``row_sums`` gets the sums of the rows of a, whose
    columns are contiguous.
    """
    n = tile_columns(y)
    panels, row_tiles, zeros = pointer(packed_b), pointer(packed_a), pointer(small)
    edge = advance(zeros, TILE_PANELS * n)
    far = rows * columns > FAR
    depth_blocks = (depth + longest - 1) // longest
    depth_block = (depth + depth_blocks - 1) // depth_blocks
    column_block = COLUMN_BLOCK
    if a_column != 1 and depth_block <= DEPTH_BLOCK_TRANSPOSED:
        column_block = COLUMN_BLOCK_TRANSPOSED
    for j in range(0, columns, column_block):
        width = min(column_block, columns - j)
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
                    for tile_j in range(0, width, TILE_PANELS * n):
                        count = TILE_PANELS if tile_j + (TILE_PANELS - 1) * n < width else 1
                        whole = tile_i + TILE_ROWS <= height and tile_j + count * n <= width
                        panel = advance(panels, tile_j * block_depth)
                        target = advance(y, (i + tile_i) * y_row + j + tile_j)
                        start, start_row = advance(bias, j + tile_j) if has_bias else zeros, 0
                        if k > 0:
                            start, start_row = target, y_row
                            if far:
                                prefetch_tile(target, y_row, count)
                        first, first_row, result, result_row = start, start_row, target, y_row
                        if not whole:
                            first, first_row, result, result_row = zeros, 0, edge, count * n
                        multiply_tile(
                            count, block_depth, a_tile, tile_row, tile_column, panel, block_depth * n,
                            first, first_row, result, result_row,
                        )  # fmt: skip
                        if not whole:
                            inside = min(TILE_ROWS, height - tile_i), min(count * n, width - tile_j)
                            add_edge(edge, count * n, start, start_row, target, y_row, inside)


@inline
def multiply_thin(
    a: Any, a_row: int, b: Any, b_row: int, b_column: int, bias: Any, has_bias: bool, y: Any, y_row: int, y_column: int,
    rows: int, columns: int, depth: int, sums: Any,
) -> None:  # fmt: skip
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


@lru_cache(maxsize=4096)
def grid_of(batch: int, rows: int, columns: int, tile_width: int, thread_count: int) -> tuple[int, int]:
    """Into how many row and column parts each matrix is divided: the fastest of the divisors of the thread count.

    Costs are in steps of k: a tile takes TILE_ROWS of them (two multiply-adds per cycle), touching a row tile about 1.
    Packing a panel takes about 4, as each cell packs the columns of b that it needs.
    """
    row_tiles, panels = -(-rows // TILE_ROWS), -(-columns // tile_width)

    def cost(parts: tuple[int, int]) -> int:
        cell_rows, cell_panels = -(-row_tiles // parts[0]), -(-panels // parts[1])
        cells_per_thread = -(-batch * parts[0] * parts[1] // thread_count)
        return cells_per_thread * (cell_rows * cell_panels * TILE_ROWS + 4 * cell_panels + cell_rows)

    divisors = [d for d in range(1, thread_count + 1) if thread_count % d == 0]
    choices = [(r, c) for r in divisors for c in divisors if r <= row_tiles and c <= panels and r * c <= thread_count]
    return min(choices, key=cost)


def division(batch: int, rows: int, columns: int, itemsize: int, work: int, thin: bool) -> tuple[tuple[int, int], int]:
    """The grid of a product and the number of tasks, if ``work`` multiply-adds are to be done in one launch."""
    count = shares(work, PARALLEL_WORK_THIN if thin else PARALLEL_WORK)
    return grid_of(batch, rows, columns, TILE_BYTES // itemsize, count), count
