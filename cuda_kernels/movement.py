"""Rearranging memory, as ``minigrad.cpu_kernels.movement``: views are metadata, the rest is strided copies."""

from typing import Any

import numpy as np

from minigrad.plain_kernels import movement as plain
from minigrad.plain_kernels.arrays import pad_parts, padded_shape

from . import comparison, elementwise
from .platform.array import Array, empty, expand as expand, full
from .rowwise.scan import iota
from .rowwise.strided_copy import copy_into as copy_into

split: Any = plain.split


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` in another shape; a view if strides allow it."""
    return x.reshape(shape)


def permute(x: Array, order: tuple[int, ...]) -> Array:
    """A view with the axes in another order."""
    return x.transpose(*order)


def cat(arrays: tuple[Array, ...], axis: int) -> Array:
    """The arrays one after the other along ``axis``."""
    shape, sizes = list(arrays[0].shape), tuple(x.shape[axis] for x in arrays)
    shape[axis] = sum(sizes)
    y = empty(tuple(shape), arrays[0].dtype, arrays[0].device)
    for part, x in zip(split(y, sizes, axis % y.ndim), arrays, strict=True):
        copy_into(part, x)
    return y


def pad(x: Array, widths: tuple[tuple[int, int], ...], value: float) -> Array:
    """A copy with (before, after) elements of ``value`` added along each axis; negative numbers remove elements."""
    y = empty(padded_shape(x, widths), x.dtype, x.device)
    border = full(1, value, x.dtype, x.device)
    edges, inner, kept = pad_parts(y, x, widths)
    for edge in edges:
        copy_into(edge, border.view(edge.shape, (0,) * edge.ndim))
    copy_into(inner, kept)
    return y


def diagonal(x: Array, offset: int, axis1: int, axis2: int) -> Array:
    """A view of the diagonal of two axes as a new last axis, writeable if ``x`` is."""
    return x.seen(lambda a: np.diagonal(a, offset, axis1, axis2))


# Triangles ------------------------------------------------------------------------------------------------------------


def tril(x: Array, diagonal: int) -> Array:
    """The last two axes' lower triangle, zeros above ``diagonal``."""
    return elementwise.where(comparison.ge(diagonal, _diagonals(x)), x, _zero(x))


def triu(x: Array, diagonal: int) -> Array:
    """The last two axes' upper triangle, zeros below ``diagonal``."""
    return elementwise.where(comparison.ge(_diagonals(x), diagonal), x, _zero(x))


def _zero(x: Array) -> int:
    return False if x.dtype.kind == "b" else 0  # an int would make it int64


def _diagonals(x: Array) -> Array:
    """c - r for each row r and column c of the last two axes."""
    rows, columns = x.shape[-2:]
    return elementwise.sub(iota(columns, x.device), iota(rows, x.device).reshape(rows, 1))
