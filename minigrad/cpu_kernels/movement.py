"""Rearranging memory: the plain family, whose large copies are made by all threads."""

import numpy as np

from ..plain_kernels import movement as plain
from ..plain_kernels.arrays import pad_parts, padded_shape
from .elementwise import select
from .toolbox.strided_copy import FEW, MANY, copied, copy_into
from .toolbox.threads import constant

globals().update((name, getattr(plain, name)) for name in vars(plain) if name[0] != "_")


def copy(x: np.ndarray) -> np.ndarray:
    """A new C-contiguous array of the same values."""
    return copied(x)


def contiguous(x: np.ndarray) -> np.ndarray:
    """``x`` itself if it is C-contiguous and aligned, else a copy that is; keeps 0-d arrays 0-d."""
    return x if x.flags.carray or (x.flags.c_contiguous and x.flags.aligned) else copied(x)


def cat(arrays: tuple[np.ndarray, ...], axis: int) -> np.ndarray:
    """The arrays one after the other along ``axis``."""
    total = sum([x.nbytes for x in arrays])
    if total < MANY // 2 * len(arrays) or len({x.dtype for x in arrays}) > 1:
        return np.concatenate(arrays, axis)
    shape, sizes = list(arrays[0].shape), tuple([x.shape[axis] for x in arrays])
    shape[axis] = sum(sizes)
    y = np.empty(shape, arrays[0].dtype)
    parts = plain.split(y, sizes, axis % len(shape))
    copy_into(*[x for pair in zip(parts, arrays) for x in pair])
    return y


def pad(x: np.ndarray, widths: tuple[tuple[int, int], ...], value: float) -> np.ndarray:
    """A copy with (before, after) elements of ``value`` added along each axis; negative numbers remove elements."""
    if x.nbytes < FEW:
        return plain.pad(x, widths, value)
    y, border = np.empty(padded_shape(x, widths), x.dtype), constant(np.full((), value, x.dtype))
    edges, inner, kept = pad_parts(y, x, widths)
    copy_into(*[part for edge in edges for part in (edge, np.broadcast_to(border, edge.shape))], inner, kept)
    return y


def _below(x: np.ndarray, diagonal: int) -> np.ndarray:
    """Whether the places of the last two axes are on or below ``diagonal``: all rows are parts of the longest one."""
    rows, columns = x.shape[-2:]
    row = np.arange(1 - rows, columns + 1) <= diagonal
    return copied(np.ndarray((rows, columns), bool, row, max(rows - 1, 0), (-1, 1)))


def tril(x: np.ndarray, diagonal: int) -> np.ndarray:
    """The last two axes' lower triangle, zeros above ``diagonal``."""
    return select(constant(_below(x, diagonal)), x)


def triu(x: np.ndarray, diagonal: int) -> np.ndarray:
    """The last two axes' upper triangle, zeros below ``diagonal``."""
    return select(constant(~_below(x, diagonal - 1)), x)
