"""Matrix product ``y = a @ b (+ bias)`` for operands of any strides, batched and broadcast.

The loops are in ``product_loops.py``. Parallel work is a grid over batch, rows and columns.
"""

import functools
import math
from typing import Any

import numpy as np

from ..plain_kernels.transformer import check_shapes
from .elementwise import cast, mul
from .toolbox import bfloat16_product
from .toolbox.formula import as_launches
from .toolbox.jit import inline, kernel
from .toolbox.multi_tensor import pointer_at
from .toolbox.numpy_loops import array_at
from .toolbox.product_loops import (
    DEPTH_BLOCK,
    DEPTH_BLOCK_TRANSPOSED,
    PARALLEL_WORK_THIN,
    THIN_ROWS,
    division,
    multiply_packed,
    multiply_thin,
    workspace,
)
from .toolbox.program_code import ufunc_of_kernel
from .toolbox.register_tile import TILE_ROWS, advance, aligned_empty, cell_of, first_element, keep_alive, pointer
from .toolbox.threads import constant, recording, task_kernel


@inline
def _multiply_one(
    thin, a, a_row, a_column, b, b_row, b_column, bias, has_bias, y, y_row, y_column, rows, columns, depth,
    small, packed_a, packed_b,
):  # fmt: skip
    if thin:
        multiply_thin(
            a, a_row, b, b_row, b_column, bias, has_bias, y, y_row, y_column, rows, columns, depth, small,
        )  # fmt: skip
    else:
        multiply_packed(
            a, a_row, a_column, b, b_row, b_column, bias, has_bias, y, y_row, rows, columns, depth,
            DEPTH_BLOCK if a_column == 1 else DEPTH_BLOCK_TRANSPOSED, packed_a, packed_b, small, y, False,
        )  # fmt: skip


@task_kernel
def _multiply_cells(task, tasks, a, b, bias, has_bias, y, a_offsets, b_offsets, strides, sizes, grid, thin):
    """One task's share of the grid's cells. A cell is a block of rows and columns of one matrix of the batch.

    ``a``, ``b``, ``y`` are arrays that hold only the first element of the operands: the address in one type.
    """
    a_row, a_column, b_row, b_column, y_row, y_column = strides
    rows, columns, depth = sizes
    n, small, packed_a, packed_b = workspace(0 if thin else depth, columns, rows, y)

    parts = grid[0] * grid[1]
    cells = len(a_offsets) * parts
    for cell in range(task * cells // tasks, (task + 1) * cells // tasks):
        batch = cell // parts
        i, j, height, width = cell_of(cell % parts, grid, rows, columns, TILE_ROWS, n)
        a_cell = advance(pointer(a), a_offsets[batch] + i * a_row)
        b_cell = advance(pointer(b), b_offsets[batch] + j * b_column)
        y_cell = advance(pointer(y), batch * rows * columns + i * y_row + j * y_column)
        bias_cell = advance(pointer(bias), j)
        _multiply_one(
            thin, a_cell, a_row, a_column, b_cell, b_row, b_column, bias_cell, has_bias, y_cell, y_row, y_column,
            height, width, depth, small, packed_a, packed_b,
        )  # fmt: skip
    keep_alive((small, packed_a, packed_b))


@kernel
def _multiply_few(args, n, strides, kind):
    """Products of small matrices, as NumPy calls the loop of a generalized ufunc: addresses, sizes, strides."""
    at, steps = array_at(args, 3, np.int64), array_at(strides, 9, np.int64)
    batch, rows, depth, columns = array_at(n, 4, np.int64)
    like = array_at(at[2], 1, kind)
    first, second, a_step, b_step = at[0], at[1], steps[0], steps[1]
    a_row, a_column, b_row, b_column, y_row, y_column = steps[3:] // like.itemsize
    if columns <= THIN_ROWS < rows and 1 in (a_row, a_column):
        first, second, a_step, b_step, rows, columns = second, first, b_step, a_step, columns, rows
        a_row, a_column, b_row, b_column = b_column, b_row, a_column, a_row
        y_row, y_column = y_column, y_row
    thin = rows <= THIN_ROWS and 1 in (b_row, b_column)
    _, small, packed_a, packed_b = workspace(0 if thin else depth, columns, rows, like)
    few = aligned_empty(rows * depth if thin and a_column != 1 else 0, like)
    for i in range(batch):
        a, b, y = first + i * a_step, second + i * b_step, at[2] + i * steps[2]
        a, b, y = pointer_at(a, like), pointer_at(b, like), pointer_at(y, like)
        if len(few):
            for row in range(rows):
                for k in range(depth):
                    few[row * depth + k] = a[row * a_row + k * a_column]
            a = pointer(few)
        _multiply_one(
            thin, a, depth if len(few) else a_row, a_column, b, b_row, b_column, y, False, y, y_row, y_column,
            rows, columns, depth, small, packed_a, packed_b,
        )  # fmt: skip
    keep_alive((small, packed_a, packed_b, few))


# ---------------------------------------------------------------- launchers

FLOATS, WHOLE = (np.dtype(np.float32), np.dtype(np.float64)), np.dtype(np.int64)
HALF = np.dtype(np.uint16)  # the bits of bfloat16
KNOWN = (*FLOATS, WHOLE)
NO_BIAS = {dtype.char: np.zeros(1, dtype) for dtype in KNOWN}
SINGLE = np.zeros(1, np.int64)  # the offsets of a batch of one


def matmul(a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """``np.matmul(a, b)`` for operands of at least two dimensions, plus ``bias`` on each row.

    Args:
        a: (..., M, K), b: (..., K, N); leading dimensions broadcast; any strides, nothing is copied to be transposed.
        bias: (N,), of the operands' dtype.

    Returns: a new C-contiguous array (..., M, N). float32, float64 and int64 run on the register tile, other
    integers as int64; bool, and operands of different dtypes, are NumPy's. With
    ``set_float32_matmul_precision("medium")``, float32 products of more than THIN_ROWS rows and columns round their
    operands to bfloat16; thinner ones wait for memory and stay float32.

    Raises ValueError if the shapes do not fit.
    """
    check_shapes(a, b, bias)
    narrow, whole = a.dtype, a.dtype.kind in "iu"
    if narrow not in KNOWN and b.dtype == narrow and (whole or supports_half(a)):
        convert, wide = as_launches(cast), WHOLE if whole else FLOATS[0]
        as_they_are = not whole and a.shape[-1] > 1 and min(a.shape[-2], b.shape[-1]) > THIN_ROWS
        a, b = (x.view(HALF) if as_they_are else convert(x, wide) for x in (a, b))
        return convert(product(a, b, bias if bias is None else convert(bias, wide), True), narrow)
    return product(a, b, bias, bfloat16_product.precision == "medium")


def product(a: np.ndarray, b: np.ndarray, bias: np.ndarray | None, rounded: bool) -> np.ndarray:
    """``matmul``, of float32 operands that may be rounded to bfloat16, or of the bits of bfloat16 to float32."""
    dtype = FLOATS[0] if a.dtype == HALF else a.dtype
    if dtype not in KNOWN or b.dtype != a.dtype:
        y = np.matmul(a, b)
        return y if bias is None else y + bias
    if a.flags.c_contiguous and a.ndim > 2 and b.ndim == 2:  # one matrix for all rows: no batch at all
        rows = math.prod(a.shape[:-1])
        return product(a.reshape(rows, a.shape[-1]), b, bias, rounded).reshape(*a.shape[:-1], b.shape[-1])

    if a.shape[-1] == 1 and bias is None and bfloat16_product.precision != "medium":
        return np.ascontiguousarray(as_launches(mul)(a, b))
    shape: tuple[int, ...] = (*a.shape[:-1], b.shape[-1])
    if b.ndim > 2:
        batch = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        shape = (*batch, a.shape[-2], b.shape[-1])
    y = np.empty(shape, dtype)
    few = 0 < y.size * a.shape[-1] < PARALLEL_WORK_THIN and bias is None and recording.launches is None
    if few and not (rounded and min(shape[-2:]) > THIN_ROWS):
        multiply, failed = _of_few(dtype)
        multiply(a, b, y)
        if failed[1]:
            failed[1] = 0
            raise MemoryError("no memory for a product's workspace")
    elif y.size == 0 or a.shape[-1] == 0:
        y[...] = 0 if bias is None else bias
    elif shape[-1] <= THIN_ROWS < shape[-2] and a.itemsize in a.strides[-2:]:
        # Few columns are few rows of the transposed product.
        _multiply(b.swapaxes(-1, -2), a.swapaxes(-1, -2), None, y.swapaxes(-1, -2), rounded)
        if bias is not None:
            y += bias
    else:
        _multiply(a, b, bias, y, rounded)
    return y


@functools.cache
def _of_few(dtype: np.dtype) -> Any:
    return ufunc_of_kernel(_multiply_few, dtype, "(m,k),(k,n)->(m,n)")


def supports_half(x: np.ndarray) -> bool:
    """Whether there are instructions for products of arrays like this; else they arrive as float32."""
    return x.dtype.kind == "V" and bfloat16_product.AVAILABLE


def _multiply(a: np.ndarray, b: np.ndarray, bias: np.ndarray | None, y: np.ndarray, rounded: bool) -> None:
    """y = a @ b (+ bias), nothing empty. y is C-contiguous; in a thin product its transpose may be so instead."""
    if not (a.flags.aligned and b.flags.aligned):
        a, b = np.require(a, requirements="A"), np.require(b, requirements="A")
    rows, columns = y.shape[-2:]
    depth, item = a.shape[-1], y.itemsize
    thin = rows <= THIN_ROWS and item in b.strides[-2:]
    if thin and a.strides[-1] != item:
        a = np.ascontiguousarray(a)
    strides = tuple([step // x.itemsize for x in (a, b, y) for step in x.strides[-2:]])
    a_offsets, b_offsets = _batch_offsets(a, y.shape[:-2]), _batch_offsets(b, y.shape[:-2])
    batch, has_bias = len(a_offsets), bias is not None
    bias = NO_BIAS.get(y.dtype.char, NO_BIAS[WHOLE.char]) if bias is None else np.ascontiguousarray(bias, y.dtype)
    grid, count = division(batch, rows, columns, item, batch * rows * columns * depth, thin)
    tasks = min(count, batch * grid[0] * grid[1])
    arguments = (
        first_element(a), first_element(b), first_element(bias), has_bias, first_element(y),
        a_offsets, b_offsets, strides, (rows, columns, depth), grid,
    )  # fmt: skip
    if rounded and item == 4 and rows > THIN_ROWS and columns > THIN_ROWS:
        bfloat16_product.multiply_cells.launch(a.dtype, tasks, *arguments)
    else:
        _multiply_cells.launch(y.dtype, tasks, *arguments, thin)


def _batch_offsets(x: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """The offsets, in elements, of the matrices of ``x`` broadcast to the leading dimensions ``batch``."""
    if not batch:
        return SINGLE
    steps = np.broadcast_to(x, (*batch, *x.shape[-2:])).strides
    rows = [np.arange(n) * (step // x.itemsize) for n, step in zip(batch, steps)]
    return constant(functools.reduce(np.add.outer, rows).reshape(-1))
