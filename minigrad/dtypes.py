"""The dtypes of tensors, and PyTorch's rules for which dtype an operation computes in.

A dtype is NumPy's: ``minigrad.float32`` is ``numpy.dtype("float32")``. NumPy has no bfloat16; ``minigrad.bfloat16`` is
the one that the package ml_dtypes adds to it, so ``.numpy()`` of such a tensor is an array of that dtype.
"""

import functools
import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from .errors import bad_type, bad_value, located
from .plain_kernels.arrays import is_half as is_half

__all__ = [
    "bfloat16", "bool_", "default_dtype", "finfo", "float16", "float32", "float64", "iinfo", "int32", "int64",
    "promote_types", "set_default_dtype", "uint8",
]  # fmt: skip

bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
float16: np.dtype[Any] = np.dtype(np.float16)
float32: np.dtype[Any] = np.dtype(np.float32)
float64: np.dtype[Any] = np.dtype(np.float64)
int32: np.dtype[Any] = np.dtype(np.int32)
int64: np.dtype[Any] = np.dtype(np.int64)
uint8: np.dtype[Any] = np.dtype(np.uint8)
bool_: np.dtype[Any] = np.dtype(np.bool_)
SUPPORTED = (float32, float64, float16, bfloat16, int64, int32, uint8, bool_)

_default = float32
_NUMBERS = {"b": bool, "u": int, "i": int, "f": (float, int), "V": (float, int)}  # which a dtype's tensors outrank
_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2}  # V: to NumPy, ml_dtypes' bfloat16 is of no kind of its own


def default_dtype() -> np.dtype[Any]:
    """The dtype of tensors made from Python floats: float32 unless ``set_default_dtype`` said otherwise."""
    return _default


def set_default_dtype(dtype: Any) -> None:
    """Make float32 or float64 the dtype of tensors and parameters that do not name one."""
    global _default
    dtype = as_dtype(dtype)
    if dtype not in (float32, float64):
        raise bad_value(f"set_default_dtype({dtype}): expected float32 or float64")
    _default = dtype


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """A supported dtype from a dtype, a NumPy type, a name, or Python's float, int, bool.

    Raises TypeError naming the supported ones.
    """
    if dtype is float:
        return _default
    try:
        found: np.dtype[Any] | None = np.dtype(dtype)
    except TypeError:
        found = None
    if dtype is None or found is None or found not in SUPPORTED:  # to NumPy, None equals float64
        name = repr(dtype) if found is None or dtype is None else str(found)
        device = "" if found is not None or not isinstance(dtype, str) else "; devices are 'cpu', 'cuda' and 'cuda:N'"
        raise bad_type(f"unsupported dtype {name}: expected one of {', '.join(map(str, SUPPORTED))}{device}")
    return found


def check_numbers(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
    """OverflowError if ``array``, made of Python's numbers, holds one that the integer ``dtype`` cannot."""
    if dtype.kind not in "iu" or array.dtype.kind not in "iuf" or not array.size:
        return
    limits = np.iinfo(dtype)
    for value in (array.min().item(), array.max().item()):  # NaN, if there is one
        if not limits.min - 1 < value < limits.max + 1:  # the fraction is cut off
            raise located(OverflowError(f"{value} does not fit {dtype}, which holds {limits.min} to {limits.max}"))


def check_number(name: str, value: float, dtype: np.dtype[Any]) -> float:
    """The number as the dtype's kind. TypeError, with the method's name, for no number; ValueError for NaN or an
    infinity that goes into integers; OverflowError for others."""
    if not hasattr(value, "__float__"):
        raise bad_type(f"{name}: the value is {value!r}, expected a number")
    if dtype.kind in "iu":
        if not math.isfinite(value):
            raise bad_value(f"{name}: no {dtype} is {value}; convert the tensor with .float() first")
        check_numbers(np.asarray(value), dtype)
    return {"b": bool, "i": int, "u": int}.get(dtype.kind, float)(value)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype is a floating one (only such tensors can require grad)."""
    return dtype.kind in "fV"


def finfo(dtype: np.dtype[Any]) -> SimpleNamespace:
    """``numpy.finfo`` that knows bfloat16, with Python's numbers: ``eps``, ``max``, ``min``, ..."""
    return _limits(dtype)


@functools.cache
def _limits(dtype: np.dtype[Any]) -> SimpleNamespace:
    found = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes' has no types
    names = ["eps", "max", "min", "tiny", "smallest_normal", "smallest_subnormal", "resolution"]
    return SimpleNamespace(bits=found.bits, dtype=found.dtype, **{name: float(getattr(found, name)) for name in names})


def iinfo(dtype: Any) -> np.iinfo[Any]:
    """``numpy.iinfo``: ``bits``, ``min`` and ``max`` of an integer dtype; TypeError for others."""
    found = as_dtype(dtype)
    if found.kind not in "iu":
        raise bad_type(f"iinfo of {found}: expected an integer dtype; finfo is for floating ones")
    return np.iinfo(found)


def promote_types(type1: Any, type2: Any) -> np.dtype[Any]:
    """The dtype of an operation on tensors of these two, as in PyTorch: int64 and float16 give float16."""
    return _promote(as_dtype(type1), as_dtype(type2))


def category(dtype: np.dtype[Any]) -> int:
    """0 for bool, 1 for integers, 2 for floats: an in-place result may lose precision, but never category."""
    return _CATEGORY[dtype.kind]


def _promote(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    if a == b:
        return a
    if is_floating(a) != is_floating(b):  # an integer never widens a float: int64 with float32 is float32
        return a if is_floating(a) else b
    if bfloat16 in (a, b):
        other = b if a == bfloat16 else a
        return float32 if other == float16 else other  # neither of the two halves holds the other
    return np.promote_types(a, b)


def result_dtype(values: Any) -> np.dtype[Any]:
    """PyTorch's promotion for arrays and Python numbers.

    Arrays with dimensions decide; a 0-d array, and below it a Python number, count only if they are of a higher kind
    (bool < integer < float).
    """
    first: Any = getattr(values[0], "dtype", None)
    numbers: Any = () if first is None or values[0].ndim == 0 else _NUMBERS[first.kind]
    for x in values:  # the common case: nothing outranks the first
        if (x.dtype != first) if hasattr(x, "dtype") else not isinstance(x, numbers):
            break
    else:
        return first
    best: np.dtype[Any] | None = None
    for rank in range(3):
        group: np.dtype[Any] | None = None
        for x in values:
            if not hasattr(x, "dtype"):
                found = (2, _default if isinstance(x, float) else bool_ if isinstance(x, bool) else int64)
            else:
                found = (0 if x.ndim else 1, x.dtype)
            if found[0] == rank:
                group = found[1] if group is None else _promote(group, found[1])
        if group is not None and (best is None or _CATEGORY[group.kind] > _CATEGORY[best.kind]):
            best = group
    if best is None:
        raise bad_type("no dtype: expected at least one array or number")
    return best
