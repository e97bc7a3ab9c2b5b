"""Methods of Tensor: the same elements in another shape, order or number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import dtypes, shapes
from ..errors import bad_value
from ..ops import indexing, movement
from ..shapes import Axis, Dim, repeated_positions
from .combine import combine

if TYPE_CHECKING:
    from ..tensor import Tensor


class ShapeMethods:
    """See the module."""

    __slots__ = ()

    def reshape(self: Tensor, *shape: Any) -> Tensor:
        """The same elements in another shape (one size may be -1); a view where memory allows, else a copy."""
        new = shapes.infer_shape(shapes.shape_argument(shape), self.numel(), self.shape)
        return combine(movement.Reshape, self, shape=new)

    def reshape_as(self: Tensor, other: Tensor) -> Tensor:
        """``reshape`` to the shape of ``other``."""
        return self.reshape(*other.shape)

    def view(self: Tensor, *shape: Any) -> Tensor:
        """``reshape`` that never copies: ValueError if the memory layout does not allow a view."""
        y = self.reshape(*shape)
        if y._version is not self._version and self.numel():
            raise bad_value(f"view of {self.shape}, strides {self.data.strides}, as {y.shape} needs a copy: .reshape")
        return y

    def view_as(self: Tensor, other: Tensor) -> Tensor:
        """``view`` in the shape of ``other``."""
        return self.view(*other.shape)

    def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """Dimensions from start_dim to end_dim, inclusive, as one."""
        start, end = shapes.normalize_dim(start_dim, self.ndim), shapes.normalize_dim(end_dim, self.ndim)
        if start > end:
            raise bad_value(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
        shape = self.data.shape
        new = (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])
        return combine(movement.Reshape, self, shape=new if shape else (1,))

    def ravel(self: Tensor) -> Tensor:
        """All dimensions as one."""
        return self.flatten()

    def unflatten(self: Tensor, dim: int, sizes: Any) -> Tensor:
        """One dimension as several of the given sizes, one of which may be -1."""
        at = shapes.normalize_dim(dim, self.ndim)
        inner = shapes.infer_shape(shapes.shape_argument((sizes,)), self.shape[at], (self.shape[at],))
        return self.reshape(*self.shape[:at], *inner, *self.shape[at + 1 :])

    def squeeze(self: Tensor, dim: Dim = None) -> Tensor:
        """Without the dimensions of size 1 (all, or those of ``dim``)."""
        axes = shapes.normalize_dims(dim, None, self.ndim)
        return self.reshape(*(n for i, n in enumerate(self.shape) if n != 1 or i not in axes))

    def unsqueeze(self: Tensor, dim: int) -> Tensor:
        """With a new dimension of size 1 at ``dim``."""
        at = shapes.normalize_dim(dim, self.ndim + 1)
        return combine(movement.Reshape, self, shape=(*self.data.shape[:at], 1, *self.data.shape[at:]))

    def transpose(self: Tensor, dim0: int, dim1: int) -> Tensor:
        """A view with two dimensions exchanged."""
        order = list(range(self.ndim))
        i, j = shapes.normalize_dim(dim0, self.ndim), shapes.normalize_dim(dim1, self.ndim)
        if order:
            order[i], order[j] = j, i
        return combine(movement.Permute, self, order=tuple(order))

    def movedim(self: Tensor, source: Dim, destination: Dim) -> Tensor:
        """A view with the dimensions ``source`` at the places ``destination``; the others keep their order."""
        return combine(movement.Permute, self, order=shapes.moved_order(source, destination, self.ndim))

    def permute(self: Tensor, *dims: Any) -> Tensor:
        """A view with the dimensions in the given order."""
        order = tuple(shapes.normalize_dim(d, self.ndim) for d in shapes.shape_argument(dims))
        if sorted(order) != list(range(self.ndim)):
            raise bad_value(f"permute{dims}: expected each of the {self.ndim} dimensions once")
        return combine(movement.Permute, self, order=order)

    swapaxes = transpose
    swapdims = transpose
    moveaxis = movedim

    def t(self: Tensor) -> Tensor:
        """A matrix transposed (a view); tensors of fewer dimensions as they are."""
        if self.ndim > 2:
            raise bad_value(f"t of shape {self.shape}: expected at most two dimensions; use .mT or .permute")
        return self.transpose(0, 1) if self.ndim == 2 else self

    @property
    def T(self: Tensor) -> Tensor:
        """A matrix transposed (a view)."""
        if self.ndim != 2:
            raise bad_value(f".T of shape {self.shape}: expected a matrix; use .mT or .permute")
        return self.transpose(0, 1)

    @property
    def mT(self: Tensor) -> Tensor:
        """The last two dimensions exchanged (a view)."""
        return _matrices(".mT", self).transpose(-2, -1)

    def expand(self: Tensor, *shape: Any) -> Tensor:
        """A read-only view with size-1 and new leading dimensions repeated; -1 keeps a size."""
        return combine(movement.Expand, self, shape=shapes.expanded_shape(shapes.shape_argument(shape), self.shape))

    def expand_as(self: Tensor, other: Tensor) -> Tensor:
        """``expand`` to the shape of ``other``."""
        return self.expand(*other.shape)

    broadcast_to = expand

    def contiguous(self: Tensor) -> Tensor:
        """Itself if row-major in memory, else a copy that is."""
        return self if self.is_contiguous() else self.clone()

    def flip(self: Tensor, *dims: Any) -> Tensor:
        """A copy with the order along ``dims`` reversed."""
        axes = tuple([shapes.normalize_dim(d, self.ndim) for d in shapes.shape_argument(dims)])
        if len(set(axes)) != len(axes):
            raise bad_value(f"flip{dims} names a dimension twice")
        return combine(movement.Flip, self, axes=axes if self.ndim else ())

    def roll(self: Tensor, shifts: Dim, dims: Dim = None) -> Tensor:
        """Elements moved on by ``shifts`` along ``dims``, around the end; without ``dims`` in the flattened tensor."""
        if dims is not None:
            self._needs_dimension("roll with dims")
        shifts, axes = shapes.roll_arguments(shifts, 0 if dims is None else dims, self.ndim or 1)
        return combine(movement.Roll, self, shifts=shifts, axes=None if dims is None else axes)

    def repeat(self: Tensor, *sizes: Any) -> Tensor:
        """Copies side by side: ``sizes[i]`` of them along dimension i; more sizes than dimensions add leading ones."""
        repeats = shapes.shape_argument(sizes)
        if len(repeats) < self.ndim or any(n < 0 for n in repeats):
            raise bad_value(f"repeat{repeats} of shape {self.shape}: expected a count for each dimension, or more")
        return combine(movement.Tile, self, repeats=repeats)

    def tile(self: Tensor, *dims: Any) -> Tensor:
        """``repeat`` that takes fewer counts, too: they are for the last dimensions."""
        repeats = shapes.shape_argument(dims)
        return self.repeat(*((1,) * (self.ndim - len(repeats)) + repeats))

    def repeat_interleave(self: Tensor, repeats: Any, dim: Axis = None) -> Tensor:
        """Each element (of ``dim``, else of the flattened tensor) ``repeats`` times in a row; a number or one each."""
        if dim is None:
            return self.flatten().repeat_interleave(repeats, 0)
        at = shapes.normalize_dim(dim, self.ndim)
        if isinstance(repeats, int) and repeats > 0:
            once = (1,) * self.ndim
            return combine(movement.Tile, self, repeats=once, each=(*once[:at], repeats, *once[at + 1 :]))
        return self.index_select(at, self.tensor_type(repeated_positions(repeats, self.shape[at]), device=self.device))

    def pad(self: Tensor, pad: Sequence[int], value: float = 0.0) -> Tensor:
        """With borders of ``value``: ``pad`` is (before, after) of the last dimension, then of the last but one, ...

        Negative numbers remove elements.
        """
        dtypes.check_number("pad", value, self.dtype)
        return combine(movement.Pad, self, widths=shapes.pad_widths(pad, self.shape), value=value)

    def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """A view of the diagonal of two dimensions, ``offset`` above the main one, as the last dimension."""
        axis1, axis2 = shapes.normalize_dim(dim1, self.ndim), shapes.normalize_dim(dim2, self.ndim)
        if axis1 == axis2:
            raise bad_value(f"diagonal of dimensions {dim1} and {dim2} of shape {self.shape}: they are the same")
        return combine(movement.Diagonal, self, offset=offset, axis1=axis1, axis2=axis2)

    def tril(self: Tensor, diagonal: int = 0) -> Tensor:
        """Lower triangle of the last two dimensions, zeros above ``diagonal``."""
        return combine(movement.Tril, _matrices("tril", self), diagonal=diagonal)

    def triu(self: Tensor, diagonal: int = 0) -> Tensor:
        """Upper triangle of the last two dimensions, zeros below ``diagonal``."""
        return combine(movement.Triu, _matrices("triu", self), diagonal=diagonal)

    def narrow(self: Tensor, dim: int, start: int, length: int) -> Tensor:
        """A view of ``length`` places of a dimension from ``start`` on."""
        at = shapes.normalize_dim(dim, self.ndim)
        size = self.size(at)
        start = start + size if start < 0 else start
        if not 0 <= start <= start + length <= size:
            raise bad_value(f"narrow: {length} places from {start} on are not in dimension {dim} of shape {self.shape}")
        return self[(slice(None),) * at + (slice(start, start + length),)]

    def select(self: Tensor, dim: int, index: int) -> Tensor:
        """A view of one place of a dimension, without it."""
        return self[(slice(None),) * shapes.normalize_dim(dim, self.ndim) + (index,)]

    def split(self: Tensor, split_size: int | list[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Consecutive views along ``dim``: of ``split_size`` (the last may be smaller), or of the listed sizes."""
        self._needs_dimension("split")
        dim = shapes.normalize_dim(dim, self.ndim)
        total = self.data.shape[dim]
        if isinstance(split_size, int):
            if split_size <= 0:
                raise bad_value(f"split: split_size {split_size} must be positive")
            sizes = [min(split_size, total - start) for start in range(0, total, split_size)] or [0]
        else:
            sizes = list(split_size)
            if sum(sizes) != total or any(n < 0 for n in sizes):
                raise bad_value(f"split: sizes {sizes} do not add up to {total}, the size of dim {dim}")
        before, end = (slice(None),) * dim, 0
        places = [(*before, slice(end, end := end + n), ...) for n in sizes]
        return tuple([combine(indexing.Slice, self, place) for place in places])

    def chunk(self: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """At most ``chunks`` consecutive views of equal size (the last may be smaller) along ``dim``."""
        if chunks <= 0:
            raise bad_value(f"chunk: {chunks} chunks; expected at least 1")
        self._needs_dimension("chunk")
        total = self.shape[shapes.normalize_dim(dim, self.ndim)]
        return self.split(max(-(-total // chunks), 1) if total else [0] * chunks, dim)

    def unbind(self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """The slices along ``dim``, without it."""
        self._needs_dimension("unbind")
        before = (slice(None),) * shapes.normalize_dim(dim, self.ndim)
        return tuple([combine(indexing.Slice, self, (*before, i, ...)) for i in range(self.data.shape[len(before)])])

    def _needs_dimension(self: Tensor, name: str) -> None:
        if not self.ndim:
            raise bad_value(f"{name} of a 0-d tensor: it has no dimension")


def _matrices(name: str, x: Tensor) -> Tensor:
    if x.ndim < 2:
        raise bad_value(f"{name} of shape {x.shape}: expected at least two dimensions")
    return x
