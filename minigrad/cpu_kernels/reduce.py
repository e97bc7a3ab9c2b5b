"""Reductions by NumPy (pairwise sums, so the error grows with log n). ``axes`` is a tuple of non-negative ints."""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import kernel

quiet = np.errstate(all="ignore")


@quiet
def sum(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> np.ndarray:
    """Sum over ``axes`` in ``dtype`` (default: that of x)."""
    dtype = dtype or x.dtype
    # NumPy adds the rows of a matrix one after the other; the kernel keeps a strip of columns in registers.
    if (
        axes
        and axes == tuple(range(len(axes)))
        and len(axes) < x.ndim
        and x.flags.c_contiguous
        and dtype == x.dtype.type
    ):
        rows = int(np.prod(x.shape[: len(axes)]))
        if x.dtype.char in "fd" and rows > 1 and x.size:
            y = _column_sums(x.reshape(rows, -1)).reshape(x.shape[len(axes) :])
            return y.reshape((1,) * len(axes) + y.shape) if keepdim else y
    wide = np.float32 if dtype == np.float16 else dtype  # partial sums in float16 would soon stop growing
    return np.asarray(np.sum(x, axis=axes, dtype=wide, keepdims=keepdim), dtype=dtype)


@kernel
def _column_sums(x: np.ndarray) -> np.ndarray:
    """Column sums of a matrix: strips of rows first, then the strips (a fixed order, and shorter error chains)."""
    rows, columns = x.shape
    strip = 256
    total = np.zeros(columns, x.dtype)
    for start in range(0, rows, strip):
        part = x[start].copy()
        for row in x[start + 1 : start + strip]:
            for j in range(columns):
                part[j] += row[j]
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
    return np.asarray(np.max(x, axis=axes, keepdims=keepdim))


@quiet
def min(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Smallest value over ``axes``; NaN if there is one."""
    return np.asarray(np.min(x, axis=axes, keepdims=keepdim))


def argmax(x: np.ndarray, axis: int | None, keepdim: bool) -> np.ndarray:
    """Index (int64) of the first largest value along ``axis``, or in the flattened array."""
    return np.asarray(np.argmax(x, axis=axis, keepdims=keepdim), dtype=np.int64)


def argmin(x: np.ndarray, axis: int | None, keepdim: bool) -> np.ndarray:
    """Index (int64) of the first smallest value along ``axis``, or in the flattened array."""
    return np.asarray(np.argmin(x, axis=axis, keepdims=keepdim), dtype=np.int64)


def any(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Whether any value over ``axes`` is not zero."""
    return np.asarray(np.any(x, axis=axes, keepdims=keepdim))


def all(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """Whether all values over ``axes`` are not zero."""
    return np.asarray(np.all(x, axis=axes, keepdims=keepdim))


@quiet
def cumsum(x: np.ndarray, axis: int) -> np.ndarray:
    """Sums of the first 1, 2, ... values along ``axis``."""
    return np.cumsum(x, axis=axis, dtype=x.dtype)


def reverse_cumsum(x: np.ndarray, axis: int) -> np.ndarray:
    """Sums of the last n, n-1, ... values along ``axis``."""
    return np.flip(np.cumsum(np.flip(x, axis), axis=axis, dtype=x.dtype), axis)


@quiet
def logsumexp(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    """log(sum(exp(x))) over ``axes``, shifted by the maximum so that it cannot overflow."""
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0).astype(x.dtype)
    y = np.log(np.add.reduce(np.exp(x - shift), axis=axes, keepdims=True)) + shift
    return np.asarray(y if keepdim else np.squeeze(y, axis=axes))
