"""Rearranging memory: views where NumPy can give one, copies where it cannot."""

from __future__ import annotations

import numpy as np


def reshape(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``x`` in another shape; a view if strides allow it."""
    return x.reshape(shape)


def permute(x: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """A view with the axes in another order."""
    return x.transpose(order)


def expand(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A read-only view with size-1 and new leading axes repeated (stride 0)."""
    return np.broadcast_to(x, shape)


def cat(arrays: tuple[np.ndarray, ...], axis: int) -> np.ndarray:
    """The arrays one after the other along ``axis``."""
    return np.concatenate(arrays, axis)


def split(x: np.ndarray, sizes: tuple[int, ...], axis: int) -> list[np.ndarray]:
    """Consecutive views of the given sizes along ``axis``."""
    return np.split(x, np.cumsum(sizes)[:-1].tolist(), axis)


def flip(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """A copy with the order along ``axes`` reversed."""
    return np.flip(x, axes).copy()


def tril(x: np.ndarray, diagonal: int) -> np.ndarray:
    """The last two axes' lower triangle, zeros above ``diagonal``."""
    return np.tril(x, diagonal)


def triu(x: np.ndarray, diagonal: int) -> np.ndarray:
    """The last two axes' upper triangle, zeros below ``diagonal``."""
    return np.triu(x, diagonal)


def roll(x: np.ndarray, shifts: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """A copy with the elements moved on by the shifts along the axes; what leaves at the end comes in at the start."""
    return np.roll(x, shifts, axes)


def tile(x: np.ndarray, repeats: tuple[int, ...]) -> np.ndarray:
    """Copies of ``x`` side by side, ``repeats`` of them along each axis; there may be more repeats than axes."""
    return np.tile(x, repeats)


def pad(x: np.ndarray, widths: tuple[tuple[int, int], ...], value: float) -> np.ndarray:
    """A copy with (before, after) elements of ``value`` added along each axis; negative numbers remove elements."""
    y = np.full([n + before + after for n, (before, after) in zip(x.shape, widths)], value, x.dtype)
    inner = tuple(slice(max(b, 0), n - max(a, 0)) for n, (b, a) in zip(y.shape, widths))
    y[inner] = x[tuple(slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.shape, widths))]
    return y


def diagonal(x: np.ndarray, offset: int, axis1: int, axis2: int) -> np.ndarray:
    """A view of the diagonal of two axes as a new last axis, writeable if ``x`` is."""
    y = np.diagonal(x, offset, axis1, axis2)
    y.flags.writeable = x.flags.writeable
    return y
