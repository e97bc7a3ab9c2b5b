"""Rearranging memory: the plain family, whose large copies are made by all threads."""

import numba
import numpy as np

from ..plain_kernels import movement as plain
from .toolbox.register_tile import operand
from .toolbox.strided_copy import FEW, MANY, copied, copy_into
from .toolbox.threads import shares, task_kernel

globals().update((name, getattr(plain, name)) for name in vars(plain) if name[0] != "_")


def copy(x: np.ndarray) -> np.ndarray:
    """A new C-contiguous array of the same values."""
    return copied(x, MANY)


def contiguous(x: np.ndarray) -> np.ndarray:
    """``x`` itself if it is C-contiguous, else a copy that is; keeps 0-d arrays 0-d."""
    return x if x.flags.c_contiguous else copied(x, FEW)


def cat(arrays: tuple[np.ndarray, ...], axis: int) -> np.ndarray:
    """The arrays one after the other along ``axis``."""
    if sum([x.nbytes for x in arrays]) < MANY or len({x.dtype for x in arrays}) > 1 or numba.config.DISABLE_JIT:
        return np.concatenate(arrays, axis)
    shape, dtype = list(arrays[0].shape), arrays[0].dtype
    shape[axis] = sum([x.shape[axis] for x in arrays])
    y, before, end = np.empty(shape, dtype), (slice(None),) * (axis % len(shape)), 0
    for x in arrays:
        start, end = end, end + x.shape[axis]
        copy_into(y[(*before, slice(start, end))], x)
    return y


def flip(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """A copy with the order along ``axes`` reversed."""
    order = [slice(None, None, -1) if axis in axes else slice(None) for axis in range(x.ndim)]
    return copied(x[tuple(order)], FEW)


def roll(x: np.ndarray, shifts: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """A copy, elements moved on by the shifts along the axes; what leaves at the end enters at the start."""
    for axis, shift in zip(axes, shifts) if x.size else ():
        before = (slice(None),) * (axis % x.ndim)
        at = -shift % x.shape[axis]
        x = cat((x[(*before, slice(at, None))], x[(*before, slice(at))]), axis)
    return x if shifts and x.size else x.copy()


@task_kernel
def _triangle(task, tasks, x, y, diagonal, upper):
    """y[b, i, j] = x[b, i, j] for j <= i + ``diagonal``, or j >= that, else 0."""
    rows, columns = x.shape[1:]
    for part in range(task * x.shape[0] * rows // tasks, (task + 1) * x.shape[0] * rows // tasks):
        source, target = x[part // rows, part % rows], y[part // rows, part % rows]
        end = min(max(part % rows + diagonal + (0 if upper else 1), 0), columns)
        for j in range(0 if upper else end, end if upper else columns):
            target[j] = 0
        for j in range(end if upper else 0, columns if upper else end):
            target[j] = source[j]


def _triangle_of(x: np.ndarray, diagonal: int, upper: bool) -> np.ndarray:
    y, word = np.empty(x.shape, x.dtype), f"u{x.itemsize}"
    if x.size:
        arrays = [a.view(word).reshape(-1, *x.shape[-2:]) for a in (operand(contiguous(x)), y)]
        _triangle.launch(word, shares(x.size), *arrays, diagonal, upper)
    return y


def tril(x: np.ndarray, diagonal: int) -> np.ndarray:
    """The last two axes' lower triangle, zeros above ``diagonal``."""
    return _triangle_of(x, diagonal, False)


def triu(x: np.ndarray, diagonal: int) -> np.ndarray:
    """The last two axes' upper triangle, zeros below ``diagonal``."""
    return _triangle_of(x, diagonal, True)
