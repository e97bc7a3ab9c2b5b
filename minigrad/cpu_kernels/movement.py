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
