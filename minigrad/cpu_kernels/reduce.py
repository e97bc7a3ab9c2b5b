"""Reductions: the plain family, with rows and columns folded by compiled kernels, and a gradient of products."""

import math
from typing import Any

import numba
import numpy as np

from ..plain_kernels import reduce as plain
from ..plain_kernels.elementwise import quiet
from .elementwise import fused
from .softmax import SUM_BLOCK
from .toolbox.jit import kernel
from .toolbox.product_epilogue import add_columns
from .toolbox.register_tile import keep_alive, operand, pointer, whole_vectors
from .toolbox.threads import get_num_threads, shares, task_kernel
from .toolbox.vector_math import maxnum

FEW = 4096  # elements that NumPy folds in the time of a launch
LINE = 64  # columns, of which tasks get multiples
BLOCK = 16384  # elements of a row that one task folds
SUM, LARGEST, SMALLEST, PRODUCT = 0, 1, -1, 2  # what _fold_rows makes of a row


@task_kernel
def _column_sums(task, tasks, x, total):
    """Column sums of a matrix: strips of rows first, then the strips (a fixed order, and shorter error chains)."""
    rows, columns = x.shape
    lines, strip = (columns + LINE - 1) // LINE, 256
    first, end = task * lines // tasks * LINE, min(columns, (task + 1) * lines // tasks * LINE)
    part = np.empty(end - first, x.dtype)
    total[first:end] = 0
    for start in range(0, rows, strip):
        source, strip_rows = pointer(x[start, first:]), min(strip, rows - start)
        add_columns(source, columns, strip_rows, end - first, pointer(part), pointer(total[first:]), True)
    keep_alive((part,))


@kernel
def _cumprod_backward(dy, x, y, dx):
    for r in range(x.shape[0]):
        dy_row, x_row, y_row, dx_row = dy[r], x[r], y[r], dx[r]
        n = x.shape[1]
        first = n  # of the zeros: before it dx_i is a sum of dy_j y_j, divided by x_i
        for i in range(n - 1, -1, -1):
            if x_row[i] == 0:
                first = i
        total = 0.0
        for i in range(first - 1, -1, -1):
            total += dy_row[i] * y_row[i]
            dx_row[i] = total / x_row[i]
        if first < n:  # at the first zero the products without it count, up to the next zero; behind it nothing does
            product, total = 1.0, float(dy_row[first])
            dx_row[first:] = 0
            for i in range(first + 1, n):
                if x_row[i] == 0:
                    total += 0 * product  # NaN if the product is infinite, as in PyTorch
                    break
                product *= x_row[i]
                total += dy_row[i] * x.dtype.type(product)
            dx_row[first] = total * y_row[first - 1] if first else total


@task_kernel
def _fold_rows(task, tasks, x, y, fold):
    """y[i, b] = the sum of block b of row i of x, or what else ``fold`` says."""
    whole_vectors()
    rows, blocks = y.shape
    real, columns = x.dtype.type, x.shape[1]
    for part in range(task * rows * blocks // tasks, (task + 1) * rows * blocks // tasks):
        i, b = part // blocks, part % blocks
        end = min(columns, (b + 1) * BLOCK)
        total = real(0)
        if fold == SUM:
            for start in range(b * BLOCK, end, SUM_BLOCK):
                block, strip = x[i, start : min(end, start + SUM_BLOCK)], real(0)
                for j in range(block.shape[0]):
                    strip += block[j]
                total += strip
        elif fold == PRODUCT:
            block, total = x[i, b * BLOCK : end], real(1)
            for j in range(block.shape[0]):
                total *= block[j]
        else:
            block, missing = x[i, b * BLOCK : end], real(0)
            total, factor = -real(np.inf), real(fold)
            for j in range(block.shape[0]):
                total = maxnum(total, factor * block[j])
            for j in range(block.shape[0]):
                missing += real(0) if block[j] == block[j] else real(1)
            total = factor * total if missing == 0 else real(np.nan)
        y[i, b] = total


@task_kernel
def _scan_rows(task, tasks, x, y, product, backward):
    """y[i, j] = the sum (or the product) of x[i, 0] to x[i, j], or from the row's end on backward."""
    rows, n = x.shape
    for i in range(task * rows // tasks, (task + 1) * rows // tasks):
        total = 1.0 if product else 0.0
        for k in range(n):
            j = n - 1 - k if backward else k
            total = total * x[i, j] if product else total + x[i, j]
            y[i, j] = total


def _scanned(x: np.ndarray, axis: int, product: bool = False, backward: bool = False) -> np.ndarray | None:
    """The scan of a large floating array along its last axis, with totals in float64; None of others."""
    if x.size < FEW or x.dtype.char not in "fd" or axis != x.ndim - 1 or numba.config.DISABLE_JIT:
        return None
    y = np.empty(x.shape, x.dtype)
    rows, results = (a.reshape(-1, x.shape[-1]) for a in (operand(np.ascontiguousarray(x)), y))
    _scan_rows.launch(x.dtype, min(get_num_threads(), len(rows)), rows, results, product, backward)
    return y


def _folded(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, kind: int, fold: np.ufunc) -> np.ndarray | None:
    """``fold`` over the last axes of a large contiguous array, whose order depends on the shape only; else None."""
    first = x.ndim - len(axes)
    simple = x.dtype.char in "fd" and x.flags.c_contiguous and x.flags.aligned and not numba.config.DISABLE_JIT
    if x.size < FEW or not simple or axes != tuple(range(first, x.ndim)):
        return None
    y = np.empty(x.shape[:first] + (1,) * len(axes) if keepdim else x.shape[:first], x.dtype)
    columns = x.size // y.size
    blocks = -(-columns // BLOCK)
    parts = np.empty((y.size, blocks), x.dtype) if blocks > 1 else y.reshape(-1, 1)
    tasks = min(parts.size, get_num_threads(), -(-x.size // BLOCK))
    _fold_rows.launch(x.dtype, tasks, operand(x).reshape(-1, columns), parts, kind)
    if blocks > 1:
        fold.reduce(parts, 1, None, y.reshape(-1))
    return y


def _shifted(k: Any, x: Any, shift: Any) -> Any:
    return k.exp(k.sub(x, shift))


class reduce(plain):
    """Reductions over ``axes``, a tuple of non-negative ints, or along one axis."""

    def sum(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> np.ndarray:
        """Sum over ``axes`` in ``dtype`` (default: that of x)."""
        dtype = dtype or x.dtype
        if x.dtype.char == "?" and len(axes) == x.ndim and not keepdim and np.dtype(dtype).kind in "iu":
            return np.asarray(np.count_nonzero(x), dtype)
        if dtype == x.dtype and (y := _folded(x, axes, keepdim, SUM, np.add)) is not None:
            return y
        # NumPy adds the rows of a matrix one after the other, and passes over the sums for each.
        if (
            x.dtype.char in "fd"
            and 0 < len(axes) < x.ndim
            and axes == tuple(range(len(axes)))
            and x.flags.c_contiguous
            and dtype == x.dtype
        ):
            rows = math.prod(x.shape[: len(axes)])
            if rows > 1 and x.size:
                matrix = operand(x).reshape(rows, -1)
                y = np.empty(matrix.shape[1], x.dtype)
                tasks = min(shares(x.size, 2 * BLOCK), -(-y.size // LINE))
                _column_sums.launch(x.dtype, tasks, matrix, y)
                shape = (1,) * len(axes) + x.shape[len(axes) :] if keepdim else x.shape[len(axes) :]
                return y if y.shape == shape else y.reshape(shape)  # a view would not own its memory
        return plain.sum(x, axes, keepdim, dtype)

    @quiet
    def mean(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Mean over ``axes``; NaN for an empty one."""
        count = math.prod(x.shape[axis] for axis in axes)
        return np.asarray(np.true_divide(reduce.sum(x, axes, keepdim), x.dtype.type(count)), dtype=x.dtype)

    def max(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Largest value over ``axes``; NaN if there is one."""
        y = _folded(x, axes, keepdim, LARGEST, np.maximum)
        return plain.max(x, axes, keepdim) if y is None else y

    def min(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Smallest value over ``axes``; NaN if there is one."""
        y = _folded(x, axes, keepdim, SMALLEST, np.minimum)
        return plain.min(x, axes, keepdim) if y is None else y

    @quiet
    def prod(x: np.ndarray, axis: int, keepdim: bool, dtype: Any) -> np.ndarray:
        """Product along ``axis``, in ``dtype``."""
        y = _folded(x, (axis,), keepdim, PRODUCT, np.multiply) if x.dtype == dtype else None
        return plain.prod(x, axis, keepdim, dtype) if y is None else y

    def cumsum(x: np.ndarray, axis: int) -> np.ndarray:
        """Sums of the first 1, 2, ... values along ``axis``."""
        y = _scanned(x, axis)
        return plain.cumsum(x, axis) if y is None else y

    def reverse_cumsum(x: np.ndarray, axis: int) -> np.ndarray:
        """Sums of the last n, n-1, ... values along ``axis``."""
        y = _scanned(x, axis, backward=True)
        return plain.reverse_cumsum(x, axis) if y is None else y

    def cumprod(x: np.ndarray, axis: int) -> np.ndarray:
        """Products of the first 1, 2, ... values along ``axis``."""
        y = _scanned(x, axis, product=True)
        return plain.cumprod(x, axis) if y is None else y

    @quiet
    def logsumexp(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """log(sum(exp(x))) over ``axes``, shifted by the maximum so that it cannot overflow."""
        if x.size < FEW:
            return plain.logsumexp(x, axes, keepdim)
        top = reduce.max(x, axes, True)
        shift = np.where(np.isfinite(top), top, 0).astype(x.dtype)
        y = np.log(reduce.sum(fused(_shifted, x, shift), axes, True)) + shift
        return np.asarray(y if keepdim else np.squeeze(y, axis=axes))

    def cumprod_backward(dy: np.ndarray, x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        """dx of y = ``cumprod(x)``, in time n, by PyTorch's formula; float32 or float64. Any strides."""
        n = x.shape[axis]
        if n == 1:
            return dy
        dy_rows, x_rows, y_rows = (np.ascontiguousarray(np.moveaxis(a, axis, -1), x.dtype) for a in (dy, x, y))
        dx = np.empty(x_rows.shape, x.dtype)
        if x.size:
            _cumprod_backward(*(a.reshape(-1, n) for a in (dy_rows, x_rows, y_rows, dx)))
        return np.moveaxis(dx, -1, axis)
