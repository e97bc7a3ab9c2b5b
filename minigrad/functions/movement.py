"""The same elements in another shape, order or number."""

from __future__ import annotations

from typing import Any

from ..shapes import Dim
from ..tensor import Tensor


def reshape(x: Tensor, shape: Any) -> Tensor:
    """The same elements in another shape (one size may be -1)."""
    return x.reshape(shape)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions from start_dim to end_dim, inclusive, as one."""
    return x.flatten(start_dim, end_dim)


def squeeze(x: Tensor, dim: Dim = None) -> Tensor:
    """Without the dimensions of size 1 (all, or those of ``dim``)."""
    return x.squeeze(dim)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """With a new dimension of size 1 at ``dim``."""
    return x.unsqueeze(dim)


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view with two dimensions exchanged."""
    return x.transpose(dim0, dim1)


def swapaxes(x: Tensor, axis0: int, axis1: int) -> Tensor:
    """A view with two dimensions exchanged."""
    return x.swapaxes(axis0, axis1)


def permute(x: Tensor, dims: Any) -> Tensor:
    """A view with the dimensions in the given order."""
    return x.permute(dims)


def movedim(x: Tensor, source: Dim, destination: Dim) -> Tensor:
    """A view with dimensions moved to new places; the others keep their order."""
    return x.movedim(source, destination)


def broadcast_to(x: Tensor, shape: Any) -> Tensor:
    """A read-only view with size-1 and new leading dimensions repeated."""
    return x.broadcast_to(shape)


def flip(x: Tensor, dims: Any) -> Tensor:
    """A copy with the order along ``dims`` reversed."""
    return x.flip(dims)


def roll(x: Tensor, shifts: Dim, dims: Dim = None) -> Tensor:
    """Elements moved on by ``shifts`` along ``dims``, around the end."""
    return x.roll(shifts, dims)


def tile(x: Tensor, dims: Any) -> Tensor:
    """Copies side by side along each dimension."""
    return x.tile(dims)


def repeat_interleave(x: Tensor, repeats: Any, dim: int | None = None) -> Tensor:
    """Each element (of ``dim``, else of the flattened tensor) ``repeats`` times in a row."""
    return x.repeat_interleave(repeats, dim)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonal of two dimensions as the last dimension."""
    return x.diagonal(offset, dim1, dim2)


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Lower triangle of the last two dimensions, zeros above ``diagonal``."""
    return x.tril(diagonal)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Upper triangle of the last two dimensions, zeros below ``diagonal``."""
    return x.triu(diagonal)


def split(x: Tensor, split_size: int | list[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Consecutive views along ``dim``, of one size or of the listed sizes."""
    return x.split(split_size, dim)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most ``chunks`` consecutive views of equal size along ``dim``."""
    return x.chunk(chunks, dim)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along ``dim``, without it."""
    return x.unbind(dim)
