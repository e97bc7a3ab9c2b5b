"""Matrix product of float32 operands that are rounded to bfloat16, summed in float32, by AVX-512 or AMX.

bfloat16 is the upper half of a float32: 8 bits of exponent, 8 of significand. A vector of 32 of them takes the place of
16 floats, and one instruction multiplies two such vectors and adds neighbouring products:

    sums[c] += a[2p + 1] * b[2p + 1, c] + a[2p] * b[2p, c]          for 16 columns c at once

So the unit of everything below is a *pair* of bfloat16 that follow each other along k. It fills the place of one
float32, and a product of depth k is one of k / 2 pairs. Both operands are rounded while they are packed (``matmul.py``
tells why there is packing): weights, activations and results stay float32.

    panel of b                                            a: the same, of its transpose; the tile's rows are columns
    pair 0:  b[0, 0] b[1, 0] | b[0, 1] b[1, 1] | ...      of the panel
    pair 1:  b[2, 0] b[3, 0] | b[2, 1] b[3, 1] | ...

AVX-512's instruction for that is ``vdpbf16ps``. AMX has eight registers that are tiles of 16 rows of 64 bytes. Its
``tdpbf16ps`` makes 256 sums at once: a tile of 16 rows of 16 pairs along k, times one of 16 pairs of 16 columns. The
panels are the same, but the squares of 16 x 16 pairs in those of a are transposed. Source: Intel's "Software
Developer's Manual", volume 1, chapter "Programming with Intel AMX".

**Error.** Rounding to nearest, ties to even, changes an operand by at most 2^-8 of itself, so an element of the product
by at most (2^-7 + 2^-16) sum |a b|, besides the roundings of the float32 sum. NaN and infinities propagate; magnitudes
from 3.396e38 become infinite. The instructions treat denormal numbers (below 1.2e-38) as zero, also in their results.

Each element is summed over k in order, so its bits depend neither on its neighbours nor on the number of threads.
"""

import ctypes
import os
import sys
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from .jit import emits, inline, kernel
from .register_tile import (
    INT32,
    INT64,
    TILE_VECTORS,
    VECTOR_BYTES,
    Vectors,
    advance,
    aligned_empty,
    cell_of,
    cpu_has,
    emit_tile,
    keep_alive,
    not_inlined,
    pointer,
    round_up,
    transpose_registers,
)
from .threads import task_kernel
from .vector_math import widened

AVAILABLE = VECTOR_BYTES == 64 and cpu_has("avx512bf16")
AMX = AVAILABLE and cpu_has("amx-bf16")
LANES = 16  # pairs in a vector
PANEL = TILE_VECTORS * LANES  # columns in a panel
ROWS = 2 * LANES if AMX else 8  # of a tile of the result
STEP = LANES if AMX else 1  # pairs that a tile takes at once
DEPTH_BLOCK = 512  # of k: with COLUMN_BLOCK, 512 KiB of packed b, which stay in L2 (CPUs with AMX have 2 MiB of it)
COLUMN_BLOCK = 1024 if AMX else 512
ROW_BLOCK = 2 * PANEL

# Declared as older LLVM has them, with integers for bfloat16; newer LLVM converts such declarations.
_PAIRS: Any = ir.VectorType(INT32, LANES)
_HALVES: Any = ir.VectorType(ir.IntType(16), 2 * LANES)


# ---------------------------------------------------------------- instructions


def _round(builder: Any, context: Any, signature: Any, first: Any, second: Any) -> Any:
    """32 bfloat16: those of 16 numbers at ``first``, then those at ``second``."""
    vectors = Vectors(builder, context, signature.args[0].dtype, LANES)
    loaded = [vectors.load(address, INT64(0)) for address in (second, first)]
    if vectors.element_bytes == 2:
        return builder.shuffle_vector(*loaded[::-1], ir.Constant(ir.VectorType(INT32, 2 * LANES), [*range(2 * LANES)]))
    function_type = ir.FunctionType(_HALVES, [vectors.type] * 2)
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), loaded)


@emits(lambda x, following, y: types.void(x, following, y))
def _round_two_rows(context: Any, builder: Any, signature: Any, x: Any, following: Any, y: Any) -> None:
    """Pair 16 numbers at x with the 16 of the next row: y[j] = (x[j], following[j])."""
    vectors = Vectors(builder, context, types.float32)
    pairs = _round(builder, context, signature, x, following)
    alternate = [half * LANES + j for j in range(LANES) for half in (0, 1)]
    pairs = builder.shuffle_vector(pairs, pairs, ir.Constant(ir.VectorType(INT32, 2 * LANES), alternate))
    vectors.store(builder.bitcast(pairs, vectors.type), y, INT64(0))


@emits(lambda x, x_column, y: types.void(x, types.int64, y))
def _round_columns(context: Any, builder: Any, signature: Any, x: Any, x_column: Any, y: Any) -> None:
    """Pair 16 columns of 32 contiguous numbers: y[p, j] = (x[j, 2p], x[j, 2p + 1]), rows of y are a panel apart."""
    vectors = Vectors(builder, context, types.float32)
    rows = []
    for j in range(LANES):
        start = builder.mul(x_column, INT64(j))
        halves = (builder.gep(x, [builder.add(start, INT64(h * LANES))]) for h in (0, 1))
        rows.append(builder.bitcast(_round(builder, context, signature, *halves), _PAIRS))
    transpose_registers(builder, rows)
    for p, row in enumerate(rows):
        vectors.store(builder.bitcast(row, vectors.type), y, INT64(p * PANEL))


def _types_of_tile(pairs: Any, a: Any, b: Any, start: Any, start_row: Any, y: Any, y_row: Any) -> Any:
    return types.void(types.int64, a, b, start, types.int64, y, types.int64)


@emits(_types_of_tile)
def _multiply_tile(
    context: Any, builder: Any, signature: Any,
    pairs: Any, a: Any, b: Any, start: Any, start_row: Any, y: Any, y_row: Any,
) -> None:  # fmt: skip
    """y[r, c] = start[r, c] + sum_k a[r, k] b[k, c]   for r < ROWS, c < PANEL, k < 2 pairs.

    ``b`` is a panel, ``a`` the first of ROWS columns of one. ``y`` and ``start`` are as in ``multiply_tile``.
    """
    vectors = Vectors(builder, context, types.float32)
    function_type = ir.FunctionType(vectors.type, [vectors.type, _PAIRS, _PAIRS])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    multiply_add = cgutils.get_or_insert_function(builder.module, function_type, name)

    def add(total: Any, a_value: Any, b_vector: Any) -> Any:
        return builder.call(multiply_add, [total, *(builder.bitcast(x, _PAIRS) for x in (a_value, b_vector))])

    a_offsets = [INT64(r) for r in range(ROWS)]
    emit_tile(vectors, pairs, (a, a_offsets, INT64(PANEL)), (b, [INT64(0)]), add, (start, start_row), (y, y_row))


# ---------------------------------------------------------------- instructions of AMX

_BYTE = ir.IntType(8)
_SIZES = bytearray([1, *[0] * 15, *8 * [64, 0], *[0] * 16, *8 * [16], *[0] * 8])
"""What the registers are: palette 1, then the bytes of a row (16 bits each) and the rows of all eight."""


def _amx(builder: Any, name: str, *arguments: Any) -> None:
    values = [_BYTE(x) if isinstance(x, int) else x for x in arguments]
    function_type = ir.FunctionType(ir.VoidType(), [x.type for x in values])
    builder.call(cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.{name}"), values)


@emits(lambda: types.void())
def _begin_tiles(context: Any, builder: Any, signature: Any) -> None:
    """Let this thread's registers be tiles of 16 rows of 64 bytes."""
    sizes = cgutils.global_constant(builder, "minigrad.amx", ir.Constant(ir.ArrayType(_BYTE, len(_SIZES)), _SIZES))
    _amx(builder, "ldtilecfg", builder.bitcast(sizes, _BYTE.as_pointer()))


@emits(lambda: types.void())
def _end_tiles(context: Any, builder: Any, signature: Any) -> None:
    _amx(builder, "tilerelease")


@emits(_types_of_tile)
def _multiply_by_amx(
    context: Any, builder: Any, signature: Any,
    pairs: Any, a: Any, b: Any, start: Any, start_row: Any, y: Any, y_row: Any,
) -> None:  # fmt: skip
    """As ``_multiply_tile``, for 32 rows; ``a`` is a panel whose squares are transposed, ``pairs`` a multiple of 16."""
    halves = (0, 1)

    def tile(address: Any, row: Any, i: int, j: int) -> tuple[Any, Any]:
        """Where 16 rows and columns of one are, and the bytes between its rows."""
        offset = builder.add(builder.mul(row, INT64(i * LANES)), INT64(j * LANES))
        place = builder.bitcast(builder.gep(address, [offset]), _BYTE.as_pointer())
        return place, builder.mul(row, INT64(4))

    for i in halves:
        for j in halves:
            _amx(builder, "tileloadd64", 2 * i + j, *tile(start, start_row, i, j))
    with cgutils.for_range_slice(builder, INT64(0), pairs, INT64(LANES)) as (pair, _):
        step = builder.mul(pair, INT64(PANEL))
        for half in halves:
            _amx(builder, "tileloadd64", 4 + half, *tile(builder.gep(a, [step]), INT64(PANEL), 0, half))
            _amx(builder, "tileloadd64", 6 + half, *tile(builder.gep(b, [step]), INT64(PANEL), 0, half))
        for i in halves:
            for j in halves:
                _amx(builder, "tdpbf16ps", 2 * i + j, 4 + i, 6 + j)
    for i in halves:
        for j in halves:
            _amx(builder, "tilestored64", 2 * i + j, *tile(y, y_row, i, j))


@emits(lambda x: types.void(x))
def _transpose_square(context: Any, builder: Any, signature: Any, x: Any) -> None:
    """Transpose 16 x 16 pairs in a panel, in place."""
    vectors = Vectors(builder, context, types.float32)
    rows = [vectors.load(x, INT64(r * PANEL)) for r in range(LANES)]
    transpose_registers(builder, rows)
    for r, row in enumerate(rows):
        vectors.store(row, x, INT64(r * PANEL))


_multiply: Any = _multiply_by_amx if AMX else _multiply_tile

# ---------------------------------------------------------------- loops


@kernel
def _round_panels(b, b_row, b_column, depth, width, pairs, packed, corner):
    """Round b[:depth, :width] into panels of pairs, padded with zeros to whole panels and ``pairs``.

    The panel of column j starts at j * pairs. ``corner`` is room for two vectors.
    """
    not_inlined()
    for j in range(0, round_up(width, PANEL), LANES):
        source = advance(b, j * b_column)
        target = advance(packed, j // PANEL * PANEL * pairs + j % PANEL)
        used = max(0, min(LANES, width - j))
        done = 0  # pairs
        if used == LANES and b_column == 1:
            done = depth // 2
            for p in range(done):
                row = advance(source, 2 * p * b_row)
                _round_two_rows(row, advance(row, b_row), advance(target, p * PANEL))
        elif used == LANES and b_row == 1:
            done = depth // (2 * LANES) * LANES
            for p in range(0, done, LANES):
                _round_columns(advance(source, 2 * p), b_column, advance(target, p * PANEL))
        for r in range(2 * done, 2 * pairs, 2):
            for c in range(2 * LANES):
                k, i = r + c // LANES, c % LANES
                corner[c] = widened(source[k * b_row + i * b_column], corner) if i < used and k < depth else 0
            _round_two_rows(corner, advance(corner, LANES), advance(target, r // 2 * PANEL))


@inline
def _copy(x, x_row, y, y_row, rows, columns):
    for r in range(rows):
        for c in range(columns):
            y[r * y_row + c] = x[r * x_row + c]


@inline
def _multiply_rounded(
    a, a_row, a_column, b, b_row, b_column, bias, has_bias, y, y_row, rows, columns, depth, packed_a, packed_b, small
):
    """y[:rows, :columns] = a[:rows, :depth] @ b[:depth, :columns] (+ bias)."""
    corner, zeros, edge = small, advance(small, 2 * LANES), advance(small, 2 * LANES + PANEL)
    for j in range(0, columns, COLUMN_BLOCK):
        width = min(COLUMN_BLOCK, columns - j)
        for k in range(0, depth, DEPTH_BLOCK):
            block_depth = min(DEPTH_BLOCK, depth - k)
            pairs = round_up((block_depth + 1) // 2, STEP)
            b_block = advance(b, k * b_row + j * b_column)
            _round_panels(b_block, b_row, b_column, block_depth, width, pairs, packed_b, corner)
            for i in range(0, rows, ROW_BLOCK):
                height = min(ROW_BLOCK, rows - i)
                a_block = advance(a, i * a_row + k * a_column)
                _round_panels(a_block, a_column, a_row, block_depth, height, pairs, packed_a, corner)
                if AMX:  # a constant: what is not for this CPU is not compiled
                    for square in range(0, round_up(height, PANEL) * pairs, LANES * PANEL):
                        for column in range(0, PANEL, LANES):
                            _transpose_square(advance(packed_a, square + column))
                for tile_i in range(0, height, ROWS):
                    a_tile = advance(packed_a, tile_i // PANEL * PANEL * pairs + tile_i % PANEL)
                    for tile_j in range(0, width, PANEL):
                        panel = advance(packed_b, tile_j * pairs)
                        target = advance(y, (i + tile_i) * y_row + j + tile_j)
                        start, start_row = advance(bias, j + tile_j) if has_bias else zeros, 0
                        if k > 0:
                            start, start_row = target, y_row
                        if tile_i + ROWS <= height and tile_j + PANEL <= width:
                            _multiply(pairs, a_tile, panel, start, start_row, target, y_row)
                        else:
                            rows_inside, columns_inside = min(ROWS, height - tile_i), min(PANEL, width - tile_j)
                            _copy(start, start_row, edge, PANEL, rows_inside, columns_inside)
                            _multiply(pairs, a_tile, panel, edge, PANEL, edge, PANEL)
                            _copy(edge, PANEL, target, y_row, rows_inside, columns_inside)


@task_kernel
def multiply_cells(
    task: int, tasks: int, a: Any, b: Any, bias: Any, has_bias: bool, y: Any, a_offsets: Any, b_offsets: Any,
    strides: Any, sizes: Any, grid: Any,
) -> None:  # fmt: skip
    """One task's share of the grid's cells; the arguments are those of the kernel of the same name in ``matmul.py``."""
    a_row, a_column, b_row, b_column, y_row, _ = strides
    rows, columns, depth = sizes
    pairs = round_up((min(depth, DEPTH_BLOCK) + 1) // 2, STEP)
    small = aligned_empty(2 * LANES + PANEL + ROWS * PANEL, y)
    small[2 * LANES : 2 * LANES + PANEL] = 0
    packed_b = aligned_empty(pairs * min(round_up(columns, PANEL), COLUMN_BLOCK), y)
    packed_a = aligned_empty(pairs * min(round_up(rows, PANEL), ROW_BLOCK), y)
    if AMX:
        _begin_tiles()
    parts = grid[0] * grid[1]
    cells = len(a_offsets) * parts
    for cell in range(task * cells // tasks, (task + 1) * cells // tasks):
        batch = cell // parts
        i, j, height, width = cell_of(cell % parts, grid, rows, columns, ROWS, PANEL)
        _multiply_rounded(
            advance(pointer(a), a_offsets[batch] + i * a_row), a_row, a_column,
            advance(pointer(b), b_offsets[batch] + j * b_column), b_row, b_column,
            advance(pointer(bias), j), has_bias,
            advance(pointer(y), batch * rows * columns + i * y_row + j), y_row,
            height, width, depth, pointer(packed_a), pointer(packed_b), pointer(small),
        )  # fmt: skip
    if AMX:
        _end_tiles()
    keep_alive((small, packed_a, packed_b))


# ---------------------------------------------------------------- the choice

precision: str = "highest"


def set_float32_matmul_precision(word: str) -> None:
    """Let float32 products round their operands to bfloat16 ("medium") or not ("highest", "high").

    Raises ValueError for another word, RuntimeError for "medium" where the CPU has no instruction for it.
    """
    global precision
    if word not in ("highest", "high", "medium"):
        raise ValueError(f'set_float32_matmul_precision({word!r}): expected "highest", "high" or "medium"')
    if word == "medium" and not AVAILABLE:
        raise RuntimeError(
            'set_float32_matmul_precision("medium"): this CPU, or the one that NUMBA_CPU_FEATURES names, has no '
            'avx512_bf16, the instruction vdpbf16ps; "highest" and "high" work everywhere'
        )
    # Linux lets a process use tiles when it has asked (arch_prctl: ARCH_REQ_XCOMP_PERM, XTILEDATA).
    if word == "medium" and AMX and sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(158, 0x1023, 18):
            raise RuntimeError(
                f'set_float32_matmul_precision("medium"): Linux refuses AMX ({os.strerror(ctypes.get_errno())}); with '
                "NUMBA_CPU_FEATURES set to this CPU's features but amx-bf16, AVX-512 computes"
            )
    precision = word
