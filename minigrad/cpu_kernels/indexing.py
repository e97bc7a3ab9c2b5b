"""Reading and adding at positions: the plain family, with the sums at positions that may repeat compiled."""

from typing import Any

import numpy as np

from ..plain_kernels import indexing as plain
from . import embedding
from .toolbox.jit import kernel

FLOATS = (np.float32, np.float64)
globals().update(
    (name, getattr(plain, name)) for name in vars(plain) if name not in ("add_at", "scatter_add") and name[0] != "_"
)


@kernel
def _scatter_add(x, places, y):
    for o in range(places.shape[0]):
        for i in range(places.shape[1]):
            for j in range(places.shape[2]):
                x[o, places[o, i, j], j] += y[o, i, j]


def add_at(x: np.ndarray, where: Any, y: np.ndarray, distinct: bool) -> None:
    """x[where] += y. ``distinct`` promises that no position occurs twice; else repeated ones add up."""
    rows = where[0] if isinstance(where, tuple) and len(where) == 1 else where
    places = _places(rows, x, y) if isinstance(rows, np.ndarray) and not distinct else None
    if places is None or y.shape != (*places.shape, *x.shape[1:]):
        plain.add_at(x, where, y, distinct)
    else:
        embedding.backward_into(y.reshape(*places.shape, -1), places, x.reshape(len(x), -1))


def scatter_add(x: np.ndarray, axis: int, indices: np.ndarray, y: np.ndarray) -> None:
    """x[i][indices[i][j][k]][k] += y[i][j][k] (for axis 1), in place; repeated positions add up in order."""
    places = _places(indices, x, y, axis)
    expected = (*x.shape[:axis], *indices.shape[axis : axis + 1], *x.shape[axis + 1 :])
    if places is None or not indices.shape == y.shape == expected:
        plain.scatter_add(x, axis, indices, y)
        return
    inner = int(np.prod(x.shape[axis + 1 :]))
    folded = [np.ascontiguousarray(a).reshape(-1, a.shape[axis], inner) for a in (places, y)]
    _scatter_add(x.reshape(-1, x.shape[axis], inner), *folded)


def _places(indices: np.ndarray, x: np.ndarray, y: Any, axis: int = 0) -> np.ndarray | None:
    """The indices along ``axis``, counted from the front; None for what the plain kernels take, or refuse."""
    if not (x.ndim and x.dtype == getattr(y, "dtype", None) and x.dtype.type in FLOATS and x.flags.c_contiguous):
        return None
    if indices.dtype != np.int64 or not indices.size or not x.size:
        return None
    n, least, most = x.shape[axis], indices.min(), indices.max()
    if least < -n or most >= n:
        return None
    return np.where(indices < 0, indices + n, indices) if least < 0 else indices
