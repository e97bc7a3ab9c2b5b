"""Linear layers: y = x W^T + b for x (N, K), W (M, K), with what usually follows, and their gradients.

    forward         y = x W^T + b (+ residual)                                a product, and a sum
    forward_gelu    h = x W^T + b,  y = gelu(h)                               h is kept for backward
    backward        dx = dy W,  dW = dy^T x,  db = sum of dy's rows           one launch for all three
    backward_gelu   dh = (dy W) gelu'(h),  g = gelu(h)                        the layer that follows the GELU

The gradients of contiguous float32 and float64 matrices are one compiled function, with the loops of
``product_loops.py``; db is summed from the blocks of dy that dW reads. Other operands take the functions of ``matmul``
and ``reduce`` one after the other.

Each task takes a share of the rows or columns of dx and then of dW, so two threads wait for each other once. No
element's sum is divided in another way for more threads (``_depth_block``), so bits do not depend on their number.
"""

import numpy as np

from . import gelu
from .elementwise import add_into
from .matmul import FLOATS, NO_BIAS, matmul
from .reduce import reduce
from .toolbox import bfloat16_product
from .toolbox.formula import as_launches
from .toolbox.product_loops import (
    DEPTH_BLOCK,
    DEPTH_BLOCK_TRANSPOSED,
    THIN_ROWS,
    division,
    grid_of,
    multiply_packed,
    workspace,
)
from .toolbox.register_tile import TILE_BYTES, TILE_ROWS, advance, cell_of, keep_alive, pointer
from .toolbox.threads import task_kernel

FAR_WEIGHTS = 1 << 20  # elements; more are in no cache when the next block's sums are added to them


@task_kernel
def _products(task, tasks, a, b, y, grid, c, z, sums, has_sums, longest, sums_grid):
    """y = a @ b, z = a^T @ c, and sums = the column sums of a.

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
            a_row, a_column, block = depth, 1, DEPTH_BLOCK
            right, target, with_sums = pointer(b), pointer(y), False
        else:
            parts = sums_grid
            rows, columns, depth = z.shape[0], z.shape[1], c.shape[0]
            a_row, a_column, block = 1, rows, longest
            right, target, with_sums = pointer(c), pointer(z), has_sums
        cells = parts[0] * parts[1]
        for cell in range(task * cells // tasks, (task + 1) * cells // tasks):
            i, j, height, width = cell_of(cell, parts, rows, columns, TILE_ROWS, n)
            a_cell, b_cell, y_cell = advance(pointer(a), i * a_row), advance(right, j), advance(target, i * columns + j)
            multiply_packed(
                a_cell, a_row, a_column, b_cell, columns, 1, y_cell, False, y_cell, columns, height, width, depth,
                block, packed_a, packed_b, small, advance(pointer(sums), i if with_sums else 0), with_sums and j == 0,
            )  # fmt: skip
    keep_alive((small, packed_a, packed_b))


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
    if not of_weight or min(rows, inputs) <= THIN_ROWS or not _plain(*operands):
        return _backward_apart(dy, x, weight, needs)
    dtype = dy.dtype
    none, no_sums = EMPTY[dtype.char], NO_BIAS[dtype.char]
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
        dtype, count, dy, none if dx is None else weight, target, grid,
        x, dweight, no_sums if dbias is None else dbias, of_bias, _depth_block(outputs, inputs), sums_grid,
    )  # fmt: skip
    return dx, dweight, dbias


def add_weight_gradient(dweight: np.ndarray, dy: np.ndarray, x: np.ndarray) -> None:
    """dW += dy^T x: dW (M, K), dy (N, M), x (N, K), all of one floating dtype."""
    as_launches(add_into)(dweight, matmul(dy.T, x))


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
