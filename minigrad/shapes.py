"""Checks of dims, shapes and indices that the tensor methods share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import capturing, dtypes
from .autograd import TensorCore
from .device import CPU
from .errors import bad_index, bad_type, bad_value, operation
from .modes import of_thread

if TYPE_CHECKING:
    from .tensor import Tensor

Dim = int | Sequence[int] | None
Axis = int | None
Sizes = int | tuple[int, ...]
_ALL = [tuple(range(n)) for n in range(65)]  # dimensions, of which NumPy has 64 at most


class Size(tuple[int, ...]):
    """A shape, with PyTorch's ``numel()``."""

    __slots__ = ()

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self)


def normalize_dim(dim: Any, ndim: int) -> int:
    """``dim`` as an index from the front; IndexError if there is no such dimension."""
    if type(dim) is int and -ndim <= dim < ndim:  # the usual case, quickly
        return dim % ndim
    limit = max(ndim, 1)
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise bad_type(f"{operation()}dim must be an integer, not {dim!r}")
    index: int = dim.__index__()
    if not -limit <= index < limit:
        dimensions = f"{ndim} dimensions ({-limit} to {limit - 1})"
        raise bad_index(f"{operation()}dim {index} is out of range for a tensor of {dimensions}")
    return index % limit


def normalize_dims(dim: Dim, axis: Dim, ndim: int) -> tuple[int, ...]:
    """The dimensions to reduce, sorted; all for None. ``axis`` is NumPy's name of ``dim``."""
    if dim is axis is None:
        return _ALL[ndim]
    dim = _either(dim, axis)
    if type(dim) is int and ndim:
        return (normalize_dim(dim, ndim),)
    if dim is None or (isinstance(dim, Iterable) and not tuple(dim)):
        return tuple(range(ndim))
    dims = [normalize_dim(d, ndim) for d in (dim if isinstance(dim, Iterable) else (dim,))]
    if len(set(dims)) != len(dims):
        raise bad_value(f"{operation()}dim {dim} names a dimension twice")
    return tuple(sorted(dims)) if ndim else ()


def some_dim(name: str, dim: Axis, axis: Axis, ndim: int) -> int:
    """One dimension from ``dim`` or ``axis``; TypeError if neither is given."""
    found = one_dim(dim, axis, ndim)
    if found is None:
        raise bad_type(f"{name} wants a dimension, such as dim=-1")
    return found


def one_dim(dim: Axis, axis: Axis, ndim: int) -> Axis:
    """One dimension from ``dim`` or ``axis``, or None if neither is given."""
    found = dim if axis is None else _either(dim, axis)
    return None if found is None else normalize_dim(found, ndim)


def _either(dim: Any, axis: Any) -> Any:
    if dim is not None and axis is not None:
        raise bad_type("pass dim or axis (NumPy's name for it), not both")
    return dim if axis is None else axis


def shape_argument(args: tuple[Any, ...], size: Any = None) -> tuple[int, ...]:
    """``f(2, 3)``, ``f((2, 3))`` and ``f(size=(2, 3))`` all mean the shape (2, 3)."""
    if args and size is not None:
        raise bad_type(f"pass the shape {args!r} or size={size!r}, not both")
    args = args if size is None else (size,)
    try:
        if len(args) == 1 and not hasattr(args[0], "__index__"):
            args = tuple(args[0])
        return tuple([n.__index__() for n in args])
    except (AttributeError, TypeError):
        raise bad_type(f"a shape is integers, not {args!r}") from None


def new_shape(args: tuple[Any, ...], size: Any = None) -> tuple[int, ...]:
    """``shape_argument`` of a new tensor."""
    shape = shape_argument(args, size)
    if min(shape, default=0) < 0:
        raise bad_value(f"{operation()}the shape {shape} has a negative size")
    return shape


def infer_shape(shape: tuple[int, ...], size: int, old: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with its -1, if any, replaced so that it holds ``size`` elements."""
    unknown = shape.count(-1)
    known = -math.prod(shape) if unknown else math.prod(shape)
    if unknown > 1 or (shape and min(shape) < -1):
        raise bad_value(f"shape {shape}: at most one dimension may be -1, and no other negative")
    if unknown:
        if known == 0 or size % known:
            raise bad_value(f"cannot view shape {old} ({size} elements) as {shape}: {size} is no multiple of {known}")
        return tuple(size // known if n == -1 else n for n in shape)
    if known != size:
        raise bad_value(f"cannot view shape {old} ({size} elements) as {shape} ({known} elements)")
    return shape


def expanded_shape(shape: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with each -1 replaced by the old size; ValueError if ``old`` does not broadcast to it."""
    extra = len(shape) - len(old)
    new = tuple(old[i - extra] if n == -1 and i >= extra else n for i, n in enumerate(shape))
    if extra < 0 or any(n < 0 for n in new) or any(o not in (1, n) for o, n in zip(old, new[extra:], strict=True)):
        raise bad_value(f"cannot expand shape {old} to {shape}: only size-1 and new leading dimensions can grow")
    return new


def broadcast(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which two shapes broadcast; ValueError if they do not."""
    n = max(len(x), len(y))
    x, y = (1,) * (n - len(x)) + x, (1,) * (n - len(y)) + y
    if any(a != b and 1 not in (a, b) for a, b in zip(x, y, strict=True)):
        raise bad_value(f"shapes {x} and {y} do not broadcast")
    return tuple(b if a == 1 else a for a, b in zip(x, y, strict=True))


def moved_order(source: Dim, destination: Dim, ndim: int) -> tuple[int, ...]:
    """The order of dimensions after ``source`` has moved to ``destination`` and the others have closed up."""
    lists = [[d] if isinstance(d, int) else list(d or ()) for d in (source, destination)]
    old, new = ([normalize_dim(d, ndim) for d in dims] for dims in lists)
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise bad_value(f"movedim from {source} to {destination}: expected as many different dimensions on both sides")
    order = [d for d in range(ndim) if d not in old]
    for place, d in sorted(zip(new, old, strict=True)):
        order.insert(place, d)
    return tuple(order) if ndim else ()


def pad_widths(pad: Sequence[int], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(before, after) for each dimension from PyTorch's order: (last before, last after, last but one before, ...)."""
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise bad_value(f"pad {tuple(pad)} of shape {shape}: expected (before, after) for the last dimensions")
    pairs = [(int(pad[i]), int(pad[i + 1])) for i in range(0, len(pad), 2)]
    widths = ((0, 0),) * (len(shape) - len(pairs)) + tuple(reversed(pairs))
    if any(n + min(b, 0) + min(a, 0) < 0 for n, (b, a) in zip(shape, widths, strict=True)):
        raise bad_value(f"pad {tuple(pad)} removes more than there is of shape {shape}")
    return widths


def roll_arguments(shifts: Dim, dims: Dim, ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shifts and their dimensions as tuples of one length."""
    shifts, dims = [(d,) if isinstance(d, int) else tuple(d or ()) for d in (shifts, dims)]
    if len(shifts) != len(dims) or not dims:
        raise bad_value(f"roll by {shifts} along {dims}: expected one dimension for each shift")
    return shifts, tuple([normalize_dim(d, ndim) for d in dims])


def broadcast_except(axis: int, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of one length, broadcast against each other in all dimensions but ``axis``."""
    without = [(*shape[:axis], 1, *shape[axis + 1 :]) for shape in (x, y)]
    both = broadcast(*without)
    return (*both[:axis], x[axis], *both[axis + 1 :]), (*both[:axis], y[axis], *both[axis + 1 :])


# Indices: what stands between the brackets of x[...], and index tensors -----------------------------------------------


def bool_mask(name: str, mask: Tensor) -> Tensor:
    """The mask; TypeError, with the method's name, unless it is a bool tensor."""
    if not isinstance(mask, TensorCore) or mask.data.dtype != dtypes.bool_:
        found = f"a {mask.dtype} tensor" if isinstance(mask, TensorCore) else type(mask).__name__
        raise bad_type(f"{name} expects a bool tensor, not {found}; compare first (x > 0), or convert with .bool()")
    return mask


def check_range(name: str, index: Tensor, size: int | None, moved: bool = False) -> None:
    """TypeError unless ``index`` is of integers, IndexError unless all are in [0, size).

    The CPU's kernels check what is ``moved`` along a dimension themselves.
    """
    if index.data.dtype.kind not in "iu":
        raise bad_type(f"{name}: indices must be integers, not {index.dtype}")
    if size is None or (moved and index.device is CPU and of_thread.mode.kernels is None):
        return
    bad = index.device.kernels.embedding.check_indices(index.long().data, size)
    if bad >= 0:
        raise bad_index(f"{name}: index {int(index.reshape(-1)[bad])} is out of range for size {size}")


def check_places(name: str, x: Tensor, axis: int, index: Tensor) -> None:
    """Errors if the index does not name places of x along an axis, for each of some others."""
    sizes, wanted = x.data.shape, index.data.shape
    if sizes != wanted or not sizes:
        limits = (*sizes[:axis], math.inf, *sizes[axis + 1 :])
        if len(wanted) != len(sizes) or not sizes or any(n > m for n, m in zip(wanted, limits)):
            raise bad_value(f"{name} along {axis}: index shape {wanted} does not fit the tensor's {sizes}")
    check_range(name, index, sizes[axis], moved=True)


def scatter_source(name: str, x: Tensor, axis: int, index: Tensor, source: Any) -> Any:
    """The part of ``source``, a number or a tensor, that goes to the places of ``index``; errors if it does not fit."""
    check_places(name, x, axis, index)
    if not isinstance(source, TensorCore):
        dtypes.check_number(name, source, x.data.dtype)
        return source
    shape, wanted = source.data.shape, index.data.shape
    if shape != wanted and (len(shape) != len(wanted) or any(n > m for n, m in zip(wanted, shape))):
        raise bad_value(f"{name}: index shape {wanted} is larger than the source's, {shape}")
    if source.data.dtype != x.data.dtype:
        raise bad_type(f"{name}: the source is {source.data.dtype}, the tensor {x.dtype}; convert with .to(dtype)")
    whole: Any = source  # a Tensor, which can be indexed
    return whole if shape == wanted else whole[tuple([slice(n) for n in wanted])]


def repeated_positions(repeats: Any, size: int) -> np.ndarray:
    """0 ... size - 1, each as often as ``repeats`` (a number, or one for each) says."""
    counts = np.asarray(repeats.device.kernels.to_host(repeats.data) if isinstance(repeats, TensorCore) else repeats)
    counts = counts if counts.size else counts.astype(np.int64)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or counts.size not in (1, size) or (counts < 0).any():
        raise bad_value(f"repeat_interleave: repeats {repeats} of a dimension of size {size}; expected counts >= 0")
    return np.repeat(np.arange(size), counts)


_PLAIN = frozenset((int, slice, type(None), type(Ellipsis)))  # the types of most indices, which NumPy takes as they are


def parse_index(where: Any) -> tuple[Any, Any, bool]:
    """The index with tensors and lists as arrays, and whether it is a view's: a tuple with an ellipsis, no arrays.

    Beside arrays NumPy takes an integer for one more array, which can move dimensions; PyTorch selects first. Then the
    integers are an index of their own, to be applied before the other; else the first result is None.
    """
    parts = where if isinstance(where, tuple) else (where,)
    if _PLAIN.issuperset(map(type, parts)):
        return None, parts if Ellipsis in parts else (*parts, ...), True
    is_view, converted = True, []
    for given in parts:
        part = given
        if isinstance(part, TensorCore):
            part = part.data
        elif isinstance(part, list | range):
            part = np.asarray(part, dtype=None if len(part) else np.int64)
        dtype = getattr(part, "dtype", None)
        if dtype is not None:
            if dtype.kind not in "iub":
                raise bad_type(f"an index must be integer or bool, not {dtype}; convert with .long()")
            if dtype.kind != "b" and part.ndim == 0:
                if given is not part:
                    capturing.refuse("it reads an index", capturing.INDEXING)
                part = int(part)  # NumPy would copy where a number gives a view
            else:
                is_view = False
        elif isinstance(part, bool):
            is_view = False
        elif not (part is None or part is Ellipsis or isinstance(part, slice) or hasattr(part, "__index__")):
            raise bad_type(f"a tensor is indexed by integers, slices, None, ..., masks or arrays, not {part!r}")
        converted.append(part)
    if is_view:
        return None, tuple(converted) if Ellipsis in converted else (*converted, ...), True
    if not isinstance(where, tuple):
        return None, converted[0], False
    arrays = [getattr(part, "ndim", 0) > 0 for part in converted]
    integers = [not array and _is_integer(part) for part, array in zip(converted, arrays, strict=True)]
    if not (any(arrays) and any(integers)):
        return None, tuple(converted), False
    first: list[Any] = []
    for part, array, integer in zip(converted, arrays, integers, strict=True):
        if integer or part is Ellipsis:
            first.append(part)
        elif array or isinstance(part, slice):
            first.extend([slice(None)] * (part.ndim if array and part.dtype.kind == "b" else 1))
    return tuple(first), tuple(part for part, integer in zip(converted, integers, strict=True) if not integer), False


def _is_integer(part: Any) -> bool:
    dtype = getattr(part, "dtype", None)
    return hasattr(part, "__index__") and not isinstance(part, bool) and (dtype is None or dtype.kind in "iu")
