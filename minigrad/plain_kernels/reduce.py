"""Reductions, by NumPy's pairwise sums, whose error grows with log n."""

from __future__ import annotations

from typing import Any

import numpy as np

from .elementwise import quiet
from .shape import is_half

untyped: Any = np  # NumPy's type stubs have no overload for a ``keepdims`` that is a variable


class reduce:
    """Over ``axes``, a tuple of non-negative ints, or along one axis. NaN goes through."""

    @staticmethod
    @quiet
    def sum(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> np.ndarray:
        """Sum over ``axes`` in ``dtype`` (default: that of x)."""
        dtype = dtype or x.dtype
        wide = np.float32 if is_half(np.dtype(dtype)) else dtype  # partial sums of such width would soon stop growing
        y = untyped.add.reduce(x, axes, wide, None, keepdim)  # np.sum, without a microsecond of Python
        return np.asarray(y, dtype=dtype)

    @staticmethod
    @quiet
    def mean(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Mean over ``axes``; NaN for an empty one."""
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        return np.asarray(np.true_divide(reduce.sum(x, axes, keepdim), x.dtype.type(count)), dtype=x.dtype)

    @staticmethod
    @quiet
    def max(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Largest value over ``axes``; NaN if there is one."""
        return np.asarray(untyped.max(x, axis=axes, keepdims=keepdim))

    @staticmethod
    @quiet
    def min(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Smallest value over ``axes``; NaN if there is one."""
        return np.asarray(untyped.min(x, axis=axes, keepdims=keepdim))

    @staticmethod
    def argmax(x: np.ndarray, axis: int | None, keepdim: bool) -> np.ndarray:
        """Index (int64) of the first largest value along ``axis``, or in the flattened array."""
        return np.asarray(untyped.argmax(x, axis=axis, keepdims=keepdim), dtype=np.int64)

    @staticmethod
    def argmin(x: np.ndarray, axis: int | None, keepdim: bool) -> np.ndarray:
        """Index (int64) of the first smallest value along ``axis``, or in the flattened array."""
        return np.asarray(untyped.argmin(x, axis=axis, keepdims=keepdim), dtype=np.int64)

    @staticmethod
    def any(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Whether any value over ``axes`` is not zero."""
        return np.asarray(untyped.any(x, axis=axes, keepdims=keepdim))

    @staticmethod
    def all(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Whether all values over ``axes`` are not zero."""
        return np.asarray(untyped.all(x, axis=axes, keepdims=keepdim))

    @staticmethod
    @quiet
    def cumsum(x: np.ndarray, axis: int) -> np.ndarray:
        """Sums of the first 1, 2, ... values along ``axis``."""
        return np.cumsum(x, axis=axis, dtype=x.dtype)

    @staticmethod
    def reverse_cumsum(x: np.ndarray, axis: int) -> np.ndarray:
        """Sums of the last n, n-1, ... values along ``axis``."""
        return np.flip(np.cumsum(np.flip(x, axis), axis=axis, dtype=x.dtype), axis)

    @staticmethod
    @quiet
    def prod(x: np.ndarray, axis: int, keepdim: bool, dtype: Any) -> np.ndarray:
        """Product along ``axis``, in ``dtype``."""
        return np.asarray(untyped.prod(x, axis=axis, dtype=dtype, keepdims=keepdim))

    @staticmethod
    @quiet
    def prod_of_others(x: np.ndarray, axis: int) -> np.ndarray:
        """For each place the product of all other values along ``axis``; no division, so zeros need no care."""
        rows = np.moveaxis(x, axis, -1)
        y = np.ones_like(rows)
        np.cumprod(rows[..., :-1], axis=-1, out=y[..., 1:])  # of those before
        if x.shape[axis] > 1:
            y[..., :-1] *= np.cumprod(rows[..., :0:-1], axis=-1, dtype=x.dtype)[..., ::-1]  # of those after
        return np.moveaxis(y, -1, axis)

    @staticmethod
    @quiet
    def cumprod(x: np.ndarray, axis: int) -> np.ndarray:
        """Products of the first 1, 2, ... values along ``axis``."""
        wide = np.float64 if x.dtype.kind == "f" else x.dtype  # so that a product may leave float32 and come back
        return np.cumprod(x, axis=axis, dtype=wide).astype(x.dtype, copy=False)

    @staticmethod
    @quiet
    def cumprod_backward(dy: np.ndarray, x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        """dx of y = ``cumprod(x)``: of each x_i the sum over j >= i of dy_j times the product without x_i."""
        dy, x = np.moveaxis(dy, axis, -1), np.moveaxis(x, axis, -1)
        dx = np.empty(x.shape, x.dtype)
        for i in range(x.shape[-1]):
            others = x.copy()
            others[..., i] = 1
            dx[..., i] = (dy * np.cumprod(others, -1, np.float64))[..., i:].sum(-1)
        return np.moveaxis(dx, -1, axis)

    @staticmethod
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

    @staticmethod
    @quiet
    def logsumexp(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """log(sum(exp(x))) over ``axes``, shifted by the maximum so that it cannot overflow."""
        top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(top), top, 0).astype(x.dtype)
        y = np.log(np.add.reduce(np.exp(x - shift), axis=axes, keepdims=True)) + shift
        return np.asarray(y if keepdim else np.squeeze(y, axis=axes))
