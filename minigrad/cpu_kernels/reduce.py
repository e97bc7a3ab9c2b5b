"""Reductions by NumPy (pairwise sums, so the error grows with log n). ``axes`` is a tuple of non-negative ints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .jit import kernel
from .storage import is_half

quiet: np.errstate = np.errstate(all="ignore")
untyped: Any = np  # NumPy's type stubs have no overload for a ``keepdims`` that is a variable


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
    return _sum(x, axes, keepdim, dtype)


@quiet
def _sum(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, dtype: Any) -> np.ndarray:
    wide = np.float32 if is_half(np.dtype(dtype)) else dtype  # partial sums of such width would soon stop growing
    y = untyped.add.reduce(x, axes, wide, None, keepdim)  # np.sum, without a microsecond of Python
    return np.asarray(y, dtype=dtype)


@kernel
def _column_sums(x: np.ndarray) -> np.ndarray:
    """Column sums of a matrix: strips of rows first, then the strips (a fixed order, and shorter error chains)."""
    rows, columns = x.shape
    strip = 256
    total = np.zeros(columns, x.dtype)
    part = np.empty(columns, x.dtype)
    for start in range(0, rows, strip):
        end = start + strip if start + strip < rows else rows
        first = x[start]
        for j in range(columns):
            part[j] = first[j]
        i = start + 1
        while i + 4 <= end:  # four rows in one pass over the sums, which is two and a half times less to load and store
            a, b, c, d = x[i], x[i + 1], x[i + 2], x[i + 3]
            for j in range(columns):
                part[j] = part[j] + a[j] + b[j] + c[j] + d[j]
            i += 4
        while i < end:
            a = x[i]
            for j in range(columns):
                part[j] += a[j]
            i += 1
        for j in range(columns):
            total[j] += part[j]
    return total


@quiet
def mean(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Mean over ``axes``; NaN for an empty one."""
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return np.asarray(np.true_divide(sum(x, axes, keepdim), x.dtype.type(count)), dtype=x.dtype)


@quiet
def max(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Largest value over ``axes``; NaN if there is one."""
    return np.asarray(untyped.max(x, axis=axes, keepdims=keepdim))


@quiet
def min(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Smallest value over ``axes``; NaN if there is one."""
    return np.asarray(untyped.min(x, axis=axes, keepdims=keepdim))


def argmax(x: np.ndarray, axis: int | None, keepdim: bool) -> np.ndarray:
    """Index (int64) of the first largest value along ``axis``, or in the flattened array."""
    return np.asarray(untyped.argmax(x, axis=axis, keepdims=keepdim), dtype=np.int64)


def argmin(x: np.ndarray, axis: int | None, keepdim: bool) -> np.ndarray:
    """Index (int64) of the first smallest value along ``axis``, or in the flattened array."""
    return np.asarray(untyped.argmin(x, axis=axis, keepdims=keepdim), dtype=np.int64)


def any(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Whether any value over ``axes`` is not zero."""
    return np.asarray(untyped.any(x, axis=axes, keepdims=keepdim))


def all(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Whether all values over ``axes`` are not zero."""
    return np.asarray(untyped.all(x, axis=axes, keepdims=keepdim))


@quiet
def cumsum(x: np.ndarray, axis: int) -> np.ndarray:
    """Sums of the first 1, 2, ... values along ``axis``."""
    return np.cumsum(x, axis=axis, dtype=x.dtype)


def reverse_cumsum(x: np.ndarray, axis: int) -> np.ndarray:
    """Sums of the last n, n-1, ... values along ``axis``."""
    return np.flip(np.cumsum(np.flip(x, axis), axis=axis, dtype=x.dtype), axis)


@quiet
def prod(x: np.ndarray, axis: int, keepdim: bool, dtype: Any) -> np.ndarray:
    """Product along ``axis``, in ``dtype``."""
    return np.asarray(untyped.prod(x, axis=axis, dtype=dtype, keepdims=keepdim))


@quiet
def prod_of_others(x: np.ndarray, axis: int) -> np.ndarray:
    """For each place the product of all other values along ``axis``; no division, so zeros need no care."""
    rows = np.moveaxis(x, axis, -1)
    y = np.ones_like(rows)
    np.cumprod(rows[..., :-1], axis=-1, out=y[..., 1:])  # of those before
    if x.shape[axis] > 1:
        y[..., :-1] *= np.cumprod(rows[..., :0:-1], axis=-1, dtype=x.dtype)[..., ::-1]  # of those after
    return np.moveaxis(y, -1, axis)


@quiet
def cumprod(x: np.ndarray, axis: int) -> np.ndarray:
    """Products of the first 1, 2, ... values along ``axis``."""
    wide = np.float64 if x.dtype.kind == "f" else x.dtype  # so that a product may leave float32 and come back
    return np.cumprod(x, axis=axis, dtype=wide).astype(x.dtype, copy=False)


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


@quiet
def median(x: np.ndarray) -> np.ndarray:
    """The value in the middle (of an even number the lower one) of all; NaN if there is one, and of none."""
    if not x.size:
        return np.full((), np.nan, x.dtype)
    flat = x.reshape(-1)
    if x.dtype.kind in "fV" and np.isnan(flat).any():
        return np.full((), np.nan, x.dtype)
    middle = (x.size - 1) // 2
    return np.asarray(np.partition(flat, middle)[middle])


@quiet
def logsumexp(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """log(sum(exp(x))) over ``axes``, shifted by the maximum so that it cannot overflow."""
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0).astype(x.dtype)
    y = np.log(np.add.reduce(np.exp(x - shift), axis=axes, keepdims=True)) + shift
    return np.asarray(y if keepdim else np.squeeze(y, axis=axes))
