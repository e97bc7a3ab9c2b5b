"""Reductions: the plain family, with sums over the first axes and the gradient of cumulative products compiled."""

import math
from typing import Any

import numpy as np

from ..plain_kernels import reduce as plain
from ..plain_kernels.elementwise import quiet
from .toolbox.jit import kernel
from .toolbox.product_epilogue import add_columns
from .toolbox.register_tile import keep_alive, pointer


@kernel
def _column_sums(x: np.ndarray) -> np.ndarray:
    """Column sums of a matrix: strips of rows first, then the strips (a fixed order, and shorter error chains)."""
    rows, columns = x.shape
    strip = 256
    total = np.zeros(columns, x.dtype)
    part = np.empty(columns, x.dtype)
    for start in range(0, rows, strip):
        strip_rows = min(strip, rows - start)
        add_columns(pointer(x[start]), columns, strip_rows, columns, pointer(part), pointer(total), True)
    keep_alive((part,))
    return total


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


class reduce(plain):
    """Reductions over ``axes``, a tuple of non-negative ints, or along one axis."""

    @staticmethod
    def sum(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> np.ndarray:
        """Sum over ``axes`` in ``dtype`` (default: that of x)."""
        dtype = dtype or x.dtype
        if x.dtype.char == "?" and len(axes) == x.ndim and not keepdim and np.dtype(dtype).kind in "iu":
            return np.asarray(np.count_nonzero(x), dtype)
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
                y = _column_sums(x.reshape(rows, -1))
                shape = (1,) * len(axes) + x.shape[len(axes) :] if keepdim else x.shape[len(axes) :]
                return y if y.shape == shape else y.reshape(shape)  # a view would not own its memory
        return plain.sum(x, axes, keepdim, dtype)

    @staticmethod
    @quiet
    def mean(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Mean over ``axes``; NaN for an empty one."""
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        return np.asarray(np.true_divide(reduce.sum(x, axes, keepdim), x.dtype.type(count)), dtype=x.dtype)

    @staticmethod
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
