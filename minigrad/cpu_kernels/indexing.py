"""Reading and adding at positions. An index is anything NumPy accepts: ints, slices, None, Ellipsis, bool or int
arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def index(x: np.ndarray, where: Any) -> np.ndarray:
    """x[where]: a view for basic indices, a copy if arrays are among them."""
    return np.asarray(x[where])


def add_at(x: np.ndarray, where: Any, y: np.ndarray, distinct: bool) -> None:
    """x[where] += y. ``distinct`` promises that no position occurs twice; else repeated ones add up."""
    if distinct:
        x[where] += y
    else:
        np.add.at(x, where, y)


def assign_at(x: np.ndarray, where: Any, y: Any) -> None:
    """x[where] = y."""
    x[where] = y


def gather(x: np.ndarray, axis: int, indices: np.ndarray) -> np.ndarray:
    """y[i][j][k] = x[i][indices[i][j][k]][k] (for axis 1), the shape of ``indices``."""
    return x[_grid(indices, axis)]


def scatter_add(x: np.ndarray, axis: int, indices: np.ndarray, y: np.ndarray) -> None:
    """x[i][indices[i][j][k]][k] += y[i][j][k] (for axis 1), in place; repeated positions add up in order."""
    np.add.at(x, _grid(indices, axis), y)


def scatter(x: np.ndarray, axis: int, indices: np.ndarray, y: Any) -> None:
    """x[i][indices[i][j][k]][k] = y[i][j][k] (for axis 1), in place; of repeated positions the last one wins."""
    x[_grid(indices, axis)] = y


def scatter_reduce(x: np.ndarray, axis: int, indices: np.ndarray, y: np.ndarray, reduce: str) -> None:
    """x[i][indices[i][j][k]][k] = f(itself, y[i][j][k]) (for axis 1), in place, one after the other.

    f is the product, the larger or the smaller one for ``reduce`` "prod", "amax" or "amin"; NaN stays.
    """
    with np.errstate(all="ignore"):
        REDUCTIONS[reduce].at(x, _grid(indices, axis), y)


REDUCTIONS: dict[str, np.ufunc] = {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}


def scatter_winners(shape: tuple[int, ...], axis: int, indices: np.ndarray) -> np.ndarray:
    """bool, of the shape of ``indices``: whose value ``scatter`` into an array of ``shape`` leaves there."""
    order = np.arange(indices.size).reshape(indices.shape)
    last = np.empty(shape, np.int64)
    scatter(last, axis, indices, order)
    return gather(last, axis, indices) == order


def _grid(indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    grid = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    grid[axis] = indices
    return tuple(grid)


def argsort(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Indices (int64) that sort ``x`` stably along ``axis``; NaN counts as the largest."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # A stable descending order: reverse, sort ascending (stable), reverse back.
    n = x.shape[axis]
    return np.flip(n - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


def one_hot(indices: np.ndarray, classes: int) -> np.ndarray:
    """int64, a new last axis with 1 at the index."""
    return (indices[..., None] == np.arange(classes)).astype(np.int64)
