"""Linear layers: y = x W^T + b for x (N, K), W (M, K), with what usually follows, and their gradients.

    forward         y = x W^T + b (+ residual)
    forward_gelu    h = x W^T + b,  y = gelu(h)                               h is kept for backward
    backward        dx = dy W,  dW = dy^T x,  db = sum of dy's rows           one launch for all three
    backward_gelu   dh = (dy W) gelu'(h),  g = gelu(h)                        the layer that follows the GELU

Contiguous float32 and float64 matrices run in one compiled function, with the loops of ``product_loops.py``; db is
summed from the blocks of dy that dW reads. Other operands take the functions of ``matmul`` and ``reduce`` one after the
other.

Each task takes a share of the rows or columns of dx and then of dW, so two threads wait for each other once. No
element's sum is divided in another way for more threads (``_depth_block``), so bits do not depend on their number.
"""

import numpy as np  # noqa: I001
from numba.core import types

from . import gelu
from .elementwise import add_into
from .matmul import FLOATS, NO_BIAS, matmul
from .reduce import reduce
from .toolbox import bfloat16_product
from .toolbox.array_program import as_launches
from .toolbox.jit import inline
from .toolbox.product_loops import (
    DEPTH_BLOCK, DEPTH_BLOCK_TRANSPOSED, THIN_ROWS, division, grid_of, multiply_packed, multiply_thin, workspace,
)  # fmt: skip
from .toolbox.register_tile import TILE_BYTES, TILE_PANELS, TILE_ROWS, advance, cell_of, keep_alive, pointer
from .toolbox.threads import StageKernel, call_at, task_kernel

FAR_WEIGHTS = 1 << 20  # elements; more are in no cache when the next block's sums are added to them


@task_kernel
def _products(
    task, tasks, a, b, transposed, bias, has_bias, y, grid, c, z, sums, has_sums, accumulate, longest, sums_grid,
):  # fmt: skip
    """y = a @ b or a @ b^T, with bias; z = or += a^T @ c, and sums = the column sums of a.

    ``longest`` are the rows of a and c that are summed, at most, before they are added to z and sums.
    Each product is a grid of cells, of which a task takes its share; (0, 0) leaves a product out.
    """
    depth_limit = max(a.shape[0] if sums_grid[0] else 0, a.shape[1] if grid[0] else 0)
    column_limit = max(c.shape[1] if sums_grid[0] else 0, y.shape[1] if grid[0] else 0)
    row_limit = max(a.shape[1] if sums_grid[0] else 0, a.shape[0] if grid[0] else 0)
    n, small, packed_a, packed_b = workspace(depth_limit, column_limit, row_limit, a)
    for product in range(2):
        if product == 0:
            parts = grid
            rows, columns, depth = y.shape[0], y.shape[1], a.shape[1]
            a_row, a_column, b_row, b_column = depth, 1, columns, 1
            if transposed:
                b_row, b_column = 1, depth
            left, right, target, with_sums = pointer(a), pointer(b), pointer(y), False
        else:
            parts = sums_grid
            rows, columns, depth = z.shape[0], z.shape[1], c.shape[0]
            a_row, a_column, b_row, b_column = 1, rows, columns, 1
            left, right, target, with_sums = pointer(a), pointer(c), pointer(z), has_sums
        small[: TILE_PANELS * n] = 0  # the zeros that tiles begin with; a thin product has its sums there
        thin = product == 0 and rows <= THIN_ROWS
        cells = parts[0] * parts[1]
        for cell in range(task * cells // tasks, (task + 1) * cells // tasks):
            i, j, height, width = cell_of(cell, parts, rows, columns, TILE_ROWS, n)
            a_cell, b_cell = advance(left, i * a_row), advance(right, j * b_column)
            y_cell, bias_cell = advance(target, i * columns + j), advance(pointer(bias), j if has_bias else 0)
            if thin:
                multiply_thin(
                    a_cell, a_row, b_cell, b_row, b_column, bias_cell, has_bias, y_cell, columns, 1,
                    height, width, depth, small,
                )  # fmt: skip
            else:
                multiply_packed(
                    a_cell, a_row, a_column, b_cell, b_row, b_column, bias_cell, has_bias and product == 0, y_cell,
                    columns, height, width, depth, DEPTH_BLOCK if product == 0 else longest, packed_a, packed_b, small,
                    accumulate and product == 1,
                    advance(pointer(sums), i if with_sums else 0), with_sums and j == 0,
                )  # fmt: skip
    keep_alive((small, packed_a, packed_b))


# Within other kernels, at the ``address`` of this one.

_PAIRS = (0, 0), (1, 1)  # the grids of no product and of an undivided one
_multiply_both = _products.kernel
_INTEGER, _FLAG, _PAIR = types.int64, types.boolean, types.UniTuple(types.int64, 2)
PRODUCTS = StageKernel(
    _multiply_both,
    lambda array: (
        _INTEGER, _INTEGER, array(2), array(2), _FLAG, array(1), _FLAG, array(2), _PAIR,
        array(2), array(2), array(1), _FLAG, _FLAG, _INTEGER, _PAIR,
    ),
)  # fmt: skip


@inline
def _product_rows(products, a, b, transposed, y):
    """y = a @ b or a @ b^T, as one task.

    ``products``: the address of `_products`, an empty matrix and vector for what it is not given, and `_PAIRS`.
    """
    address, none, no_bias, pairs = products
    return call_at(
        address, _multiply_both,
        (0, 1, a, b, transposed, no_bias, False, y, pairs[1], none, none, no_bias, False, False, 1, pairs[0]),
    )  # fmt: skip


# ---------------------------------------------------------------- launchers

NONE = (0, 0)
EMPTY = {dtype.char: np.zeros((1, 1), dtype) for dtype in FLOATS}


def _plain(*operands: np.ndarray) -> bool:
    """Whether the compiled function takes these matrices: contiguous, of one floating dtype, no side very short."""
    dtype = operands[0].dtype
    if dtype not in FLOATS or (bfloat16_product.precision == "medium" and dtype.itemsize == 4):
        return False
    return all([x.flags.carray and x.dtype == dtype and x.size > 0 for x in operands])


def _depth_block(outputs: int, inputs: int) -> int:
    """How many rows of dy and x are summed, at most, before they are added to dW (outputs, inputs).

    More where dW is large, which is read and written for each block. It depends on the sizes only, so bits do not
    depend on the threads.
    """
    return DEPTH_BLOCK if outputs * inputs > FAR_WEIGHTS else DEPTH_BLOCK_TRANSPOSED


def forward(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, residual: np.ndarray | None = None
) -> np.ndarray:
    """x (N, K), weight (M, K), bias (M,), residual (N, M), all of one dtype -> residual + x W^T + b (N, M), new."""
    if weight.shape[0] > THIN_ROWS and _plain(x, weight, *([] if bias is None else [bias])):
        (rows, depth), columns = x.shape, weight.shape[0]
        y = np.empty((rows, columns), x.dtype)
        grid, count = division(1, rows, columns, y.itemsize, rows * columns * depth, rows <= THIN_ROWS)
        none, no_bias = EMPTY[y.dtype.char], NO_BIAS[y.dtype.char]
        _products.launch(
            y.dtype, count, x, weight, True, no_bias if bias is None else bias, bias is not None, y, grid,
            none, none, no_bias, False, False, 1, NONE,
        )  # fmt: skip
    else:
        y = matmul(x, weight.T, bias)
    if residual is not None:
        as_launches(add_into)(y, residual)
    return y


def forward_gelu(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, approximate: str
) -> tuple[np.ndarray, np.ndarray]:
    """x (N, K), weight (M, K), bias (M,) -> gelu(h) and h = x W^T + b, both (N, M); ``approximate`` as in ``gelu``."""
    before = forward(x, weight, bias)
    return as_launches(gelu.forward)(before, approximate), before


def backward(
    dy: np.ndarray, x: np.ndarray | None, weight: np.ndarray | None, needs: tuple[bool, bool, bool]
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """dy (N, M), x (N, K), weight (M, K) -> dx, dW and db (M,), of which ``needs`` tells the wanted; others are None.

    x may be None unless dW is wanted, weight unless dx is.
    """
    of_x, of_weight, of_bias = needs
    operands = [z for z, wanted in ((dy, True), (weight, of_x), (x, of_weight)) if wanted and z is not None]
    rows, outputs = dy.shape
    inputs = weight.shape[1] if weight is not None else x.shape[1] if x is not None else 0
    if not of_weight or inputs <= THIN_ROWS or not _plain(*operands):
        return _backward_apart(dy, x, weight, needs)
    dtype = dy.dtype
    none, no_bias = EMPTY[dtype.char], NO_BIAS[dtype.char]
    work = rows * outputs * inputs * (2 if of_x else 1)
    dweight = np.empty((outputs, inputs), dtype)
    dbias = np.empty(outputs, dtype) if of_bias else None
    sums_grid, count = division(1, outputs, inputs, dtype.itemsize, work, outputs <= THIN_ROWS)
    grid, dx = NONE, None
    if of_x:
        dx = np.empty((rows, inputs), dtype)
        grid = (1, 1) if count == 1 else grid_of(1, rows, inputs, TILE_BYTES // dtype.itemsize, count)
    target = none if dx is None else dx
    _products.launch(
        dtype, count, dy, none if dx is None else weight, False, no_bias, False, target, grid,
        x, dweight, no_bias if dbias is None else dbias, of_bias, False, _depth_block(outputs, inputs), sums_grid,
    )  # fmt: skip
    return dx, dweight, dbias


def add_weight_gradient(dweight: np.ndarray, dy: np.ndarray, x: np.ndarray) -> None:
    """dW += dy^T x in one pass: dW (M, K) C-contiguous, dy (N, M), x (N, K), all of one floating dtype."""
    if dweight.shape[1] <= THIN_ROWS or not _plain(dweight, dy, x):
        dweight += matmul(dy.T, x)
        return
    (outputs, inputs), rows = dweight.shape, len(dy)
    grid, count = division(1, outputs, inputs, dy.itemsize, rows * outputs * inputs, outputs <= THIN_ROWS)
    none, no_bias = EMPTY[dy.dtype.char], NO_BIAS[dy.dtype.char]
    _products.launch(
        dy.dtype, count, dy, none, False, no_bias, False, none, NONE,
        x, dweight, no_bias, False, True, _depth_block(outputs, inputs), grid,
    )  # fmt: skip


def _backward_apart(
    dy: np.ndarray, x: np.ndarray | None, weight: np.ndarray | None, needs: tuple[bool, bool, bool]
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    dx = matmul(dy, weight) if needs[0] and weight is not None else None
    dweight = matmul(dy.T, x) if needs[1] and x is not None else None
    return dx, dweight, reduce.sum(dy, (0,), False) if needs[2] else None


def backward_gelu(
    dy: np.ndarray, weight: np.ndarray, before: np.ndarray, approximate: str
) -> tuple[np.ndarray, np.ndarray]:
    """For y = gelu(h) W^T: dy (N, M), weight (M, K), before = h (N, K) -> dh = (dy W) gelu'(h), and gelu(h).

    gelu(h), which dW = dy^T gelu(h) needs, need not be kept.
    """
    backward, forward = as_launches(gelu.backward), as_launches(gelu.forward)
    return backward(matmul(dy, weight), before, approximate), forward(before, approximate)
