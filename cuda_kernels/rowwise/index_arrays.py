"""What stands between the brackets of x[...], as places along one dimension: NumPy's rules of advanced indexing.

Slices and None are applied first, as a view. The dimensions that arrays index become one, of K elements: they are
neighbours, or NumPy moves them to the front. The arrays broadcast to a shape S and are combined to places in [0, K).
Masks become the places where they hold, by a prefix sum; their number is copied back, since shapes depend on it.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from ..platform import families, recording
from ..platform.toolbox import Array, contiguous, cuda, empty, expand, from_host, full, kernel, to_host
from ..pointwise.pointwise import Pointwise, floating
from ..pointwise.rules import of_numbers
from ..ptx import ptx

# Kernels --------------------------------------------------------------------------------------------------------------


@kernel("int64* x2, int64 x4", registers=14)
def first_outside(flag, indices, n, low, high, kept):
    i = cuda.grid(1)
    if i < n and (indices[i] < low or indices[i] >= high) and indices[i] != kept:
        ptx.atomic_min(flag, 0, i)


@kernel("int64*, bool*, int64*, int64", registers=14)
def compact(places, mask, ends, n):
    """The places where the mask holds; ``ends`` counts them up to and with each."""
    i = cuda.grid(1)
    if i < n and mask[i] != 0:
        places[ends[i] - 1] = i


def find_outside(indices: Array, low: int, high: int, kept: int | None = None) -> int:
    """The first position of int64 indices, contiguous, that is neither ``kept`` nor in [low, high); -1 if there is
    none. Copies one number."""
    n = indices.size
    if not n or (kept is None and low >= high):
        return 0 if n else -1
    flag = full(1, n, np.int64, indices.device)
    kept = low if kept is None else kept
    first_outside.launch_each(n, flag, indices, n, low, high, kept)
    graph = recording.current()
    if graph is not None:  # each launch checks its own
        graph.in_range(flag, n)
        return -1
    found = int(to_host(flag)[0])
    return -1 if found == n else found


def harmless(indices: Array, low: int, high: int, kept: int = 0) -> Array:
    """During capture int64 indices, contiguous, with 0 in place of those that are neither ``kept`` nor in [low, high).

    What a launch checks the host does not know yet, and no kernel may go outside of an array meanwhile.
    """
    return indices if recording.current() is None else _REPLACE_OUTSIDE(indices, low, high, kept)


def nonzero(mask: Array) -> Array:
    """int64 (count,): the flat places where a bool array holds, in order."""
    n = mask.size
    if not n:
        return empty(0, np.int64, mask.device)
    flat = contiguous(mask).reshape(n)
    ends = families.reduce.cumsum(families.elementwise.cast(flat, np.dtype(np.int64)), 0)
    places = empty(int(to_host(ends[n - 1 :])[0]), np.int64, mask.device)
    compact.launch_each(n, places, flat, ends, n)
    return places


_INSIDE = of_numbers(lambda x, low, high, kept: x if x == kept or (low <= x and x < high) else np.int64(0))
_REPLACE_OUTSIDE = Pointwise("replace_outside", _INSIDE, floating, 4, eager=("int64",), lazy=())
_APPENDED = of_numbers(lambda places, i, size: places * size + (i + size if i < np.int64(0) else i))
APPEND_INDEX = Pointwise("append_index", _APPENDED, floating, 3, eager=("int64",), lazy=())


# Brackets -------------------------------------------------------------------------------------------------------------


class Selection(NamedTuple):
    """x[where]: the dimensions first to last of ``view`` are indexed by ``places``, whose result has ``shape``."""

    view: Array
    first: int
    last: int
    places: Array
    shape: tuple[int, ...]
    distinct: bool


class _Part(NamedTuple):
    """An array among the indices: where it stands, the view's dimensions that it indexes, x's first of them."""

    position: int
    dims: tuple[int, ...]
    axis: int
    array: Any


def is_basic(where: Any) -> bool:
    """Whether the index has no arrays and no bools, so that it gives a view."""
    parts = where if isinstance(where, tuple) else (where,)
    return not any(_is_array(part) for part in parts)


def _is_array(part: Any) -> bool:
    return isinstance(part, bool | np.bool_ | np.ndarray | Array | list)


def select(x: Array, where: Any) -> Selection:
    """Resolve an index with arrays. Raises NumPy's IndexError."""
    parts = _complete(x, [_host_array(p) for p in (where if isinstance(where, tuple) else (where,))])
    view_index: list[Any] = []
    arrays: list[_Part] = []
    axis = 0
    for position, part in enumerate(parts):
        out = len(view_index)
        if part is None or isinstance(part, slice):
            view_index.append(part)
            axis += part is not None
            continue
        array = part if _is_array(part) else np.asarray(part)
        width = _width(array)
        if array.dtype.kind == "b":
            _check_mask(array, x, axis)
        view_index += [slice(None)] * width
        arrays.append(_Part(position, tuple(range(out, out + width)), axis, array))
        axis += width
    view = x[tuple(view_index)]
    places, shape = _places(x, view, arrays)
    dims = [d for part in arrays for d in part.dims]
    if arrays[-1].position - arrays[0].position == len(arrays) - 1:
        first = dims[0] if dims else sum(p is None or isinstance(p, slice) for p in parts[: arrays[0].position])
    else:  # as NumPy: what arrays that stand apart select comes first
        first = 0
        view = view.transpose(*dims, *(d for d in range(view.ndim) if d not in dims))
    last = first + len(dims)
    result = (*view.shape[:first], *shape, *view.shape[last:])
    return Selection(view, first, last, places, result, all(p.array.dtype.kind == "b" for p in arrays))


def _host_array(part: Any) -> Any:
    """A part of an index, as an array of the host if it is an array that is not the device's."""
    if isinstance(part, Array) or not _is_array(part):
        return part
    array = np.asarray(part)
    return array if array.dtype.kind == "b" else array.astype(np.int64)


def _width(part: Any) -> int:
    """How many of x's dimensions a part of an index takes; a mask has as many."""
    masks = isinstance(part, Array | np.ndarray) and part.dtype.kind == "b"
    return part.ndim if masks else int(part is not None)


def _complete(x: Array, parts: list[Any]) -> list[Any]:
    """The parts of an index, with slices for the Ellipsis and for the dimensions that are not named."""
    ellipses = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    named = sum(_width(part) for part in parts if part is not Ellipsis)
    if named > x.ndim:
        raise IndexError(f"too many indices for array: array is {x.ndim}-dimensional, but {named} were indexed")
    at = ellipses[0] if ellipses else len(parts)
    return [*parts[:at], *[slice(None)] * (x.ndim - named), *parts[at + 1 :]]


def _check_mask(mask: Any, x: Array, axis: int) -> None:
    for i, (n, m) in enumerate(zip(x.shape[axis:], mask.shape, strict=False)):
        if n != m:
            along = f"along axis {axis + i}; size of axis is {n} but size of corresponding boolean axis is {m}"
            raise IndexError(f"boolean index did not match indexed array {along}")


def _places(x: Array, view: Array, arrays: list[_Part]) -> tuple[Array, tuple[int, ...]]:
    """The places of all arrays together, int64 (n,), and the shape that the arrays broadcast to."""
    found = [_indices(part, x) for part in arrays]
    try:
        shape = np.broadcast_shapes(*(indices.shape for indices in found))
    except ValueError:
        shapes = " ".join(str(indices.shape) for indices in found)
        what = "indexing arrays could not be broadcast together"
        raise IndexError(f"shape mismatch: {what} with shapes {shapes}") from None
    places: Any = 0
    for part, indices in zip(arrays, found, strict=True):
        places = APPEND_INDEX(places, indices, math.prod(view.shape[d] for d in part.dims))
    return contiguous(expand(places, shape)).reshape(-1), shape


def _indices(part: _Part, x: Array) -> Array:
    """int64 indices on the device, all in range; a mask's are places in its dimensions together."""
    array = part.array
    if array.dtype.kind == "b":
        return from_host(np.flatnonzero(array), x.device) if isinstance(array, np.ndarray) else nonzero(array)
    size = x.shape[part.axis]
    if isinstance(array, np.ndarray):
        outside = array[(array < -size) | (array >= size)]
        if outside.size:
            raise _out_of_bounds(int(outside.reshape(-1)[0]), part.axis, size)
        return from_host(array, x.device)
    array = as_indices(array)
    bad = find_outside(array, -size, size)
    if bad >= 0:
        raise _out_of_bounds(int(to_host(array.reshape(array.size)[bad : bad + 1])[0]), part.axis, size)
    return harmless(array, -size, size)


def as_indices(indices: Array) -> Array:
    """Integers as contiguous int64."""
    return contiguous(indices if indices.dtype == np.int64 else families.elementwise.cast(indices, np.dtype(np.int64)))


def _out_of_bounds(index: int, axis: int, size: int) -> IndexError:
    return IndexError(f"index {index} is out of bounds for axis {axis} with size {size}")
