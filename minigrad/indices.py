"""What stands between the brackets of ``x[...]``, and checks of the index tensors that methods take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import dtypes
from .autograd import TensorCore
from .errors import bad_index, bad_type, bad_value

if TYPE_CHECKING:
    from .tensor import Tensor


def bool_mask(name: str, mask: Tensor) -> Tensor:
    """The mask; TypeError, with the method's name, unless it is a bool tensor."""
    if not isinstance(mask, TensorCore) or mask.dtype != dtypes.bool_:
        found = f"a {mask.dtype} tensor" if isinstance(mask, TensorCore) else type(mask).__name__
        raise bad_type(f"{name} expects a bool tensor, not {found}; compare first (x > 0), or convert with .bool()")
    return mask


def check_range(name: str, index: Tensor, size: int) -> None:
    """TypeError unless ``index`` is of integers, IndexError unless all are in [0, size)."""
    if index.dtype.kind not in "iu":
        raise bad_type(f"{name}: indices must be integers, not {index.dtype}")
    bad = index.device.kernels.embedding.check_indices(index.long().data, size)
    if bad >= 0:
        raise bad_index(f"{name}: index {int(index.reshape(-1)[bad])} is out of range for size {size}")


def scatter_source(name: str, x: Tensor, axis: int, index: Tensor, source: Any) -> Any:
    """The part of ``source``, a number or a tensor, that goes to the places of ``index``; errors if it does not fit."""
    limits = [m if i != axis else n for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=False))]
    fits = index.ndim == x.ndim > 0 and all(n <= m for n, m in zip(index.shape, limits, strict=True))
    if not fits:
        raise bad_value(f"{name} along {axis}: index shape {index.shape} does not fit the tensor's {x.shape}")
    check_range(name, index, x.shape[axis])
    if not isinstance(source, TensorCore):
        return source
    if source.data.ndim != x.ndim or any(n > m for n, m in zip(index.shape, source.data.shape, strict=True)):
        raise bad_value(f"{name}: index shape {index.shape} is larger than the source's, {source.data.shape}")
    if source.data.dtype != x.dtype:
        raise bad_type(f"{name}: the source is {source.data.dtype}, the tensor {x.dtype}; convert with .to(dtype)")
    whole: Any = source  # a Tensor, which can be indexed
    return whole if whole.shape == index.shape else whole[tuple(slice(n) for n in index.shape)]


def repeated_positions(repeats: Any, size: int) -> np.ndarray:
    """0 ... size - 1, each as often as ``repeats`` (a number, or one for each) says."""
    counts = np.asarray(repeats.device.kernels.to_host(repeats.data) if isinstance(repeats, TensorCore) else repeats)
    counts = counts if counts.size else counts.astype(np.int64)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or counts.size not in (1, size) or (counts < 0).any():
        raise bad_value(f"repeat_interleave: repeats {repeats} of a dimension of size {size}; expected counts >= 0")
    return np.repeat(np.arange(size), counts)


def parse_index(where: Any) -> tuple[Any, Any, bool]:
    """The index with tensors and lists as arrays, and whether it is basic (a view, no position twice).

    Beside arrays NumPy takes an integer for one more array, which can move dimensions; PyTorch selects first. Then the
    integers are an index of their own, to be applied before the other; else the first result is None.
    """
    parts = where if isinstance(where, tuple) else (where,)
    basic, converted = True, []
    for part in parts:
        if isinstance(part, TensorCore):
            part = part.data
        elif isinstance(part, list | range):
            part = np.asarray(part, dtype=None if len(part) else np.int64)
        dtype = getattr(part, "dtype", None)
        if dtype is not None:
            if dtype.kind not in "iub":
                raise bad_type(f"an index must be integer or bool, not {dtype}; convert with .long()")
            if dtype.kind != "b" and part.ndim == 0:
                part = int(part)  # NumPy would copy where a number gives a view
            else:
                basic = basic and dtype.kind == "b"
        elif not (part is None or part is Ellipsis or isinstance(part, slice) or hasattr(part, "__index__")):
            raise bad_type(f"a tensor is indexed by integers, slices, None, ..., masks or arrays, not {part!r}")
        converted.append(part)
    if not isinstance(where, tuple):
        return None, converted[0], basic
    arrays = [getattr(part, "ndim", 0) > 0 for part in converted]
    integers = [not array and _is_integer(part) for part, array in zip(converted, arrays, strict=True)]
    if not (any(arrays) and any(integers)):
        return None, tuple(converted), basic
    first: list[Any] = []
    for part, array, integer in zip(converted, arrays, integers, strict=True):
        if integer or part is Ellipsis:
            first.append(part)
        elif array or isinstance(part, slice):
            first.extend([slice(None)] * (part.ndim if array and part.dtype.kind == "b" else 1))
    return tuple(first), tuple(part for part, integer in zip(converted, integers, strict=True) if not integer), basic


def _is_integer(part: Any) -> bool:
    dtype = getattr(part, "dtype", None)
    return hasattr(part, "__index__") and not isinstance(part, bool) and (dtype is None or dtype.kind in "iu")
