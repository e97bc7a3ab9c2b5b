"""Reductions: the plain family, with rows and columns folded by compiled kernels, and a gradient of products."""

import functools
import math
from typing import Any

import numba
import numpy as np
from numba import types

from ..plain_kernels import reduce as plain
from .softmax import SUM_BLOCK
from .toolbox.jit import emits, kernel
from .toolbox.product_loops import add_columns
from .toolbox.register_tile import keep_alive, operand, pointer, whole_vectors
from .toolbox.strided_copy import copied
from .toolbox.threads import shares, task_kernel
from .toolbox.vector_math import exp_nonpositive, maxnum

LINE = 64  # columns, of which tasks get multiples
BLOCK = 16384  # elements of a row that one task folds
SUM, LARGEST, SMALLEST, PRODUCT, EXPONENTIALS, MEAN = 0, 1, -1, 2, 3, 4  # what is made of a row


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
        first = 0  # of the zeros: before it dx_i is a sum of dy_j y_j, divided by x_i
        while first < n and x_row[first] != 0:
            first += 1
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


@emits(lambda x, y: x(x, x))
def _quotient(context: Any, builder: Any, signature: Any, x: Any, y: Any) -> Any:
    """x / y; of a division in a kernel LLVM may make a product with 1 / y, which is rounded first. An integer: x."""
    return x if signature.return_type == types.int64 else builder.fdiv(x, y)


@task_kernel
def _add_rows(task, tasks, x, y, product, divisor):
    """y[i, b] = the sum of block b of row i of x over ``divisor``, or the product; integers become those of y."""
    whole_vectors()
    rows, blocks = y.shape
    number, columns = y.dtype.type, x.shape[1]
    for part in range(task * rows * blocks // tasks, (task + 1) * rows * blocks // tasks):
        i, b = part // blocks, part % blocks
        total, end = number(product), min(columns, (b + 1) * BLOCK)
        for start in range(b * BLOCK, end, SUM_BLOCK):
            strip, of_strip = x[i, start : min(end, start + SUM_BLOCK)], number(product)
            for j in range(strip.shape[0]):
                of_strip = of_strip * number(strip[j]) if product else of_strip + number(strip[j])
            total = total * of_strip if product else total + of_strip
        y[i, b] = _quotient(total, number(divisor))


@task_kernel
def _fold_rows(task, tasks, x, y, fold, _):
    """y[i, b] = the extreme value of block b of row i of x, or log(sum(exp(x)))."""
    whole_vectors()
    rows, blocks = y.shape
    real, columns = x.dtype.type, x.shape[1]
    for part in range(task * rows * blocks // tasks, (task + 1) * rows * blocks // tasks):
        i, b = part // blocks, part % blocks
        block, missing = x[i, b * BLOCK : min(columns, (b + 1) * BLOCK)], real(0)
        total, factor = -real(np.inf), real(-1 if fold == SMALLEST else 1)
        for j in range(block.shape[0]):
            total = maxnum(total, factor * block[j])
        for j in range(block.shape[0]):
            missing += real(0) if block[j] == block[j] else real(1)
        total = factor * total if missing == 0 else real(np.nan)
        if fold == EXPONENTIALS and abs(total) < real(np.inf):
            top, total = total, real(0)
            for start in range(0, block.shape[0], SUM_BLOCK):
                strip, of_strip = block[start : start + SUM_BLOCK], real(0)
                for j in range(strip.shape[0]):
                    of_strip += exp_nonpositive(strip[j] - top)
                total += of_strip
            total = top + real(math.log(total))
        y[i, b] = total


@task_kernel
def _scan_rows(task, tasks, x, y, start, product, backward):
    """y[i, j] = the sum (or the product) of x[i, 0] to x[i, j], or from the row's end on backward."""
    rows, n = x.shape
    for i in range(task * rows // tasks, (task + 1) * rows // tasks):
        total = start
        for k in range(n):
            j = n - 1 - k if backward else k
            total = total * x[i, j] if product else total + x[i, j]
            y[i, j] = total


def _scanned(function: Any, x: np.ndarray, axis: int, product: bool = False, backward: bool = False) -> np.ndarray:
    """The scan of an array along its last axis, with totals in float64 or int64; what ``function`` says of others."""
    if not x.size or x.dtype.char not in "fdlq" or axis != x.ndim - 1 or numba.config.DISABLE_JIT:
        return function(x, axis)
    y = np.empty(x.shape, x.dtype)
    rows, results = operand(np.ascontiguousarray(x)).reshape(-1, x.shape[-1]), y.reshape(-1, x.shape[-1])
    start = (np.float64 if x.dtype.kind == "f" else np.int64)(product)
    _scan_rows.launch(x.dtype, min(shares(x.size), len(rows)), rows, results, start, product, backward)
    return y


@functools.lru_cache(4096)
def _layout(shape: tuple[int, ...], given: Any, wanted: Any, axes: tuple[int, ...], keepdim: bool, fold: int) -> Any:
    """Of a contiguous array: the result's shape and dtype, the shape of a matrix, and whether its rows are what is
    folded, or its columns, of which there are sums of floats alone; None for what no kernel folds.
    """
    count, first = len(axes), len(shape) - len(axes)
    whole = given.kind in "iub" and wanted is not None
    dtype = np.dtype(np.int64) if whole else given
    folds = (whole or given.char in "fd") and (wanted is None or wanted == dtype) and not numba.config.DISABLE_JIT
    last = count > 0 and min(axes) == first
    columns = count > 0 and not whole and fold in (SUM, MEAN) and max(axes) < count
    if 0 in shape or not folds or not (last or columns):
        return None
    at, ones = first if last else count, (1,) * count if keepdim else ()
    result = shape[:at] + ones if last else ones + shape[at:]
    return result, dtype, (math.prod(shape[:at]), math.prod(shape[at:])), last


def _folded(function: Any, fold: int, x: np.ndarray, axes: tuple[int, ...], keepdim: bool, *dtypes: Any) -> Any:
    """``fold`` over axes of a contiguous array, in an order that depends on the shape only; or as ``function`` does."""
    flags = x.flags
    layout = _layout(x.shape, x.dtype, dtypes[0] if dtypes else None, axes, keepdim, fold)
    if layout is None or not (flags.carray or (flags.c_contiguous and flags.aligned)):
        return function(x, axes, keepdim, *dtypes)
    shape, dtype, matrix, last = layout
    y, divisor = np.empty(shape, dtype), matrix[last] if fold == MEAN else 1
    rows = (x if flags.carray else operand(x)).reshape(matrix)
    if not last:  # NumPy adds the rows of a matrix one after the other, and passes over the sums for each
        _column_sums.launch(dtype, min(shares(x.size, 2 * BLOCK), -(-y.size // LINE)), rows, y.reshape(-1))
        return np.true_divide(y, divisor, y) if fold == MEAN else y
    kernel, fold = (_add_rows, fold == PRODUCT) if fold in (SUM, MEAN, PRODUCT) else (_fold_rows, fold)
    while rows.shape[1] > BLOCK:
        rows, parts = np.empty((len(rows), -(-rows.shape[1] // BLOCK)), dtype), rows
        kernel.launch(parts.dtype, min(shares(parts.size), rows.size), parts, rows, fold, 1)
    tasks = min(shares(rows.size), y.size) if y.size > 1 else 1
    kernel.launch(rows.dtype, tasks, rows, y.reshape(-1, 1), fold, divisor)
    return y


def _of_moved(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """logsumexp, with the axes moved to the end."""
    last = tuple(range(x.ndim - len(axes), x.ndim))
    y = _folded(plain.logsumexp, EXPONENTIALS, copied(np.moveaxis(x, axes, last)), last, False)
    return np.expand_dims(y, axes) if keepdim else y


class reduce(plain):
    """Reductions over ``axes``, a tuple of non-negative ints, or along one axis."""

    def sum(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> np.ndarray:
        """Sum over ``axes`` in ``dtype`` (default: that of x)."""
        if x.dtype.char == "?" and len(axes) == x.ndim and not keepdim and dtype and np.dtype(dtype).kind in "iu":
            return np.asarray(np.count_nonzero(x), dtype)
        return _folded(plain.sum, SUM, x, axes, keepdim, dtype)

    def mean(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Mean over ``axes``; NaN for an empty one."""
        return _folded(plain.mean, MEAN, x, axes, keepdim)

    def max(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Largest value over ``axes``; NaN if there is one."""
        return _folded(plain.max, LARGEST, x, axes, keepdim)

    def min(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Smallest value over ``axes``; NaN if there is one."""
        return _folded(plain.min, SMALLEST, x, axes, keepdim)

    def prod(x: np.ndarray, axis: int, keepdim: bool, dtype: Any) -> np.ndarray:
        """Product along ``axis``, in ``dtype``."""
        return _folded(plain.prod, PRODUCT, x, (axis,), keepdim, dtype)

    def cumsum(x: np.ndarray, axis: int) -> np.ndarray:
        """Sums of the first 1, 2, ... values along ``axis``."""
        return _scanned(plain.cumsum, x, axis)

    def reverse_cumsum(x: np.ndarray, axis: int) -> np.ndarray:
        """Sums of the last n, n-1, ... values along ``axis``."""
        return _scanned(plain.reverse_cumsum, x, axis, backward=True)

    def cumprod(x: np.ndarray, axis: int) -> np.ndarray:
        """Products of the first 1, 2, ... values along ``axis``."""
        return _scanned(plain.cumprod, x, axis, product=True)

    def logsumexp(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """log(sum(exp(x))) over ``axes``, shifted by the maximum so that it cannot overflow."""
        return _folded(_of_moved, EXPONENTIALS, x, axes, keepdim)

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
