"""The Python array API standard, version 2024.12, over tensors (https://data-apis.org/array-api/2024.12/).

``x.__array_namespace__()`` is this module, so code that is written for any array library takes tensors. It has the
standard's names and arguments, and the standard's promotion, in which a 0-d tensor counts like any other. What it
computes is minigrad's, and recorded like that. The extensions (linalg, fft) and complex dtypes are not there.
"""

import inspect
import math
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import creation, cuda, dtypes, einstein_sum, functions
from .creation import from_dlpack as from_dlpack
from .device import CPU, Device
from .dtypes import bool_, float32, float64, iinfo as iinfo, int32, int64, uint8
from .errors import bad_type, bad_value, check_option
from .tensor import Tensor

__array_api_version__ = "2024.12"

e: float = math.e
inf: float = math.inf
nan: float = math.nan
newaxis: None = None
pi: float = math.pi

KINDS: dict[str, tuple[np.dtype[Any], ...]] = {
    "bool": (bool_,),
    "signed integer": (int32, int64),
    "unsigned integer": (uint8,),
    "integral": (uint8, int32, int64),
    "real floating": (float32, float64),
    "complex floating": (),
    "numeric": (uint8, int32, int64, float32, float64),
}

# ------------------------------------------------------------------ the methods, with the standard's arguments

# The standard's name, where it is not the method's, is before the colon.
OF_ONE = """
    abs acos acosh asin asinh atan atanh bitwise_invert:bitwise_not ceil cos cosh exp expm1 floor isfinite isinf isnan
    log log10 log1p log2 logical_not negative positive:clone real:clone conj:clone reciprocal round sin sinh sqrt square
    tan tanh trunc
"""
OF_TWO = """
    add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor divide equal:eq greater:gt
    greater_equal:ge less:lt less_equal:le logaddexp logical_and logical_or logical_xor matmul maximum minimum multiply
    not_equal:ne pow remainder subtract
"""
REDUCTIONS = "all any argmax argmin max:amax mean min:amin prod sum"
CREATIONS = "empty ones zeros"

# The others whose arguments have other names or places.
OTHERS: dict[str, Callable[..., Any]] = {
    "arange": lambda start, /, stop=None, step=1, *, dtype=None, device=None: creation.arange(
        start, stop, step, dtype=dtype, device=device or CPU
    ),
    "argsort": lambda x, /, *, axis=-1, descending=False, stable=True: x.argsort(axis, descending),
    "broadcast_to": lambda x, /, shape: x.broadcast_to(shape),
    "expand_dims": lambda x, /, axis: x.unsqueeze(axis),
    "eye": lambda n_rows, n_cols=None, /, *, k=0, dtype=None, device=None: asarray(
        np.eye(n_rows, n_cols, k), dtype=dtype or dtypes.default_dtype(), device=device
    ),
    "flip": lambda x, /, *, axis=None: x.flip(_axes(x, axis)),
    "full": lambda shape, fill_value, *, dtype=None, device=None: creation.full(
        shape, fill_value, dtype=dtype, device=device or CPU
    ),
    "full_like": lambda x, /, fill_value, *, dtype=None, device=None: creation.full(
        x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device
    ),
    "linspace": lambda start, stop, /, num, *, dtype=None, device=None, endpoint=True: asarray(
        np.linspace(start, stop, num, endpoint=endpoint), dtype=dtype or dtypes.default_dtype(), device=device
    ),
    "matrix_transpose": lambda x, /: x.mT,
    "meshgrid": lambda *arrays, indexing="xy": list(creation.meshgrid(*arrays, indexing=indexing)),
    "moveaxis": lambda x, source, destination, /: x.moveaxis(source, destination),
    "permute_dims": lambda x, /, axes: x.permute(axes),
    "repeat": lambda x, repeats, /, *, axis=None: x.repeat_interleave(repeats, axis),
    "sort": lambda x, /, *, axis=-1, descending=False, stable=True: x.sort(axis, descending).values,
    "std": lambda x, /, *, axis=None, correction=0.0, keepdims=False: (
        x * 0 if axis == () else x.std(axis, correction=correction, keepdim=keepdims)
    ),
    "take_along_axis": lambda x, indices, /, *, axis=-1: x.take_along_dim(_from_front(indices, x.shape[axis]), axis),
    "tensordot": lambda x1, x2, /, *, axes=2: einstein_sum.tensordot(*_both(x1, x2), axes),
    "tile": lambda x, repetitions, /: x.tile(repetitions),
    "tril": lambda x, /, *, k=0: x.tril(k),
    "triu": lambda x, /, *, k=0: x.triu(k),
    "unique_values": lambda x, /: x.unique(),
    "unstack": lambda x, /, *, axis=0: x.unbind(axis),
    "var": lambda x, /, *, axis=None, correction=0.0, keepdims=False: (
        x * 0 if axis == () else x.var(axis, correction=correction, keepdim=keepdims)
    ),
}


def _of_one(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, /: method(x)


def _of_two(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x1, x2, /: method(*_both(x1, x2))


def _reduction(method: Callable[..., Any]) -> Callable[..., Any]:
    takes_dtype = "dtype" in inspect.signature(method).parameters
    as_bool = method in (Tensor.all, Tensor.any)  # PyTorch's give uint8 for uint8

    def over(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        options = {"dtype": dtype} if takes_dtype and dtype is not None else {}
        x = x.bool() if as_bool else x
        if not isinstance(axis, tuple) or (axis and method is not Tensor.prod):
            return method(x, axis, keepdims, **options)
        y = method(x.unsqueeze(0), 0, **options)  # over no dimension
        for at in sorted((one % x.ndim for one in axis), reverse=True):
            y = method(y, at, keepdims, **options)
        return y

    return over


def _creation(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda shape, *, dtype=None, device=None: make(shape, dtype=dtype, device=device or CPU)


def _like(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, /, *, dtype=None, device=None: make(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def _define(name: str, function: Callable[..., Any], source: Any) -> None:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = inspect.getdoc(source) or f"The standard's {name}."
    globals()[name] = function


_FAMILIES = ((_of_one, OF_ONE, Tensor), (_of_two, OF_TWO, Tensor), (_reduction, REDUCTIONS, Tensor))
for _kind, _names, _home in (*_FAMILIES, (_creation, CREATIONS, creation)):
    for _standard, _, _own in (_name.partition(":") for _name in _names.split()):
        _source = getattr(_home, _own or _standard)
        _define(_standard, _kind(_source), _source)
for _standard in CREATIONS.split():
    _define(f"{_standard}_like", _like(getattr(creation, _standard)), getattr(creation, f"{_standard}_like"))
for _standard, _function in OTHERS.items():
    _define(_standard, _function, getattr(Tensor, _standard, getattr(creation, _standard, None)))


def _both(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    """The two in the dtype that the standard promotes them to; a number becomes a tensor."""
    dtype = result_type(x1, x2)
    device = next(x.device for x in (x1, x2) if isinstance(x, Tensor))
    a, b = (x.to(dtype) if isinstance(x, Tensor) else Tensor(x, dtype=dtype, device=device) for x in (x1, x2))
    return a, b


def _axes(x: Tensor, axis: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)


def _from_front(indices: Tensor, size: int) -> Tensor:
    """The indices, with ``size`` added to those that count from the end."""
    return indices.where(indices >= 0, indices + size)


# ------------------------------------------------------------------ what minigrad has not, or has otherwise


def imag(x: Tensor, /) -> Tensor:
    """TypeError: there are no complex tensors."""
    raise bad_type(f"imag of {x.dtype}: expected a complex tensor, which minigrad does not have")


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """Values limited to [min, max], in the dtype of ``x``."""
    return x.clone() if min is None and max is None else x.clamp(min, max).to(x.dtype)


def floor_divide(x1: Any, x2: Any, /) -> Tensor:
    """x1 / x2 rounded down, and where one of them is infinite what ``divide`` gives."""
    a, b = _both(x1, x2)
    y = a // b
    return y.where(a.isfinite() & b.isfinite(), a / b) if y.is_floating_point() else y


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1; NaN of NaN."""
    return x.sign().masked_fill(x.isnan(), nan) if x.is_floating_point() else x.sign()


def hypot(x1: Any, x2: Any, /) -> Tensor:
    """sqrt(x1**2 + x2**2) without overflow; infinite if one is, even beside NaN."""
    a, b = (x.abs() for x in _both(x1, x2))
    large, small = a.maximum(b), a.minimum(b)
    y = large * (1 + (small / large.masked_fill(large == 0, 1)).square()).sqrt()
    return y.masked_fill(a.isinf() | b.isinf(), inf)


def _bits(x: Tensor, dtype: Any = None) -> Tensor:
    """The same bits as integers, or as another dtype, of the same size."""
    return Tensor.wrap(x.device.kernels.reinterpret(x.contiguous().data, dtype or f"i{x.dtype.itemsize}"), x.device)


def signbit(x: Tensor, /) -> Tensor:
    """Where the sign is negative, of zeros and NaN, too."""
    return _bits(x) < 0


def copysign(x1: Any, x2: Any, /) -> Tensor:
    """The absolute value of ``x1`` with the sign of ``x2``."""
    a, b = _both(x1, x2)
    return (-a.abs()).where(signbit(b), a.abs())


def nextafter(x1: Any, x2: Any, /) -> Tensor:
    """The next value after ``x1`` towards ``x2``."""
    a, b = _both(x1, x2)
    bits = _bits(a)
    # Away from zero the bits, but for the sign, count upwards.
    moved = bits + ((b > a) == (a > 0)).to(bits.dtype) * 2 - 1
    least = copysign(float(dtypes.finfo(a.dtype).smallest_subnormal), b)
    y = b.where(a == b, least.where(a == 0, _bits(moved, a.dtype)))
    return y.masked_fill(a.isnan() | b.isnan(), nan)


def count_nonzero(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """How many values over ``axis`` are not 0 (int64)."""
    counted: Tensor = globals()["sum"](x != 0, axis=axis, keepdims=keepdims)
    return counted


def _cumulative(method: Callable[..., Tensor], initial: int) -> Callable[..., Tensor]:
    def function(x: Tensor, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
        if axis is None and x.ndim > 1:
            raise bad_value(f"{method.__name__} of shape {x.shape}: expected axis=, or a vector")
        y = method(x, axis or 0, dtype=dtype)
        shape = [1 if i == (axis or 0) % x.ndim else n for i, n in enumerate(x.shape)]
        return creation.cat([y.new_full(shape, initial), y], axis or 0) if include_initial else y

    return function


_define("cumulative_sum", _cumulative(Tensor.cumsum, 0), Tensor.cumsum)
_define("cumulative_prod", _cumulative(Tensor.cumprod, 1), Tensor.cumprod)


def diff(x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Tensor:
    """Each value less the one before it along ``axis``, ``n`` times over."""
    return concat([part for part in (prepend, x, append) if part is not None], axis=axis).diff(n, axis)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Sums of products along ``axis``, counted from the end, of the two, which broadcast."""
    a, b = _both(x1, x2)
    if a.shape[axis] != b.shape[axis]:
        raise bad_value(f"vecdot of shapes {a.shape} and {b.shape}: expected equal sizes along {axis}")
    return (a * b).sum(axis).to(a.dtype)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """``obj`` (numbers, lists, arrays, tensors) as a tensor; ``copy=False`` refuses what cannot share memory."""
    if not isinstance(obj, Tensor | np.ndarray) and hasattr(obj, "__dlpack__"):
        obj = creation.from_dlpack(obj)
    x = creation.as_tensor(obj, dtype=dtype, device=device)
    shared = x is obj or x.data is obj
    if copy is False and not shared:
        raise bad_value(f"asarray of {type(obj).__name__} with copy=False: this needs a copy; use copy=None")
    return x.clone() if copy and shared else x


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Views of the tensors in the shape that they broadcast to."""
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return [x.broadcast_to(shape) for x in arrays]


def concat(arrays: Any, /, *, axis: int | None = 0) -> Tensor:
    """The tensors one after the other along ``axis``; for None, flattened."""
    parts = [x.to(result_type(*arrays)) for x in arrays]
    return creation.cat(parts if axis is not None else [x.flatten() for x in parts], axis or 0)


def stack(arrays: Any, /, *, axis: int = 0) -> Tensor:
    """The tensors along a new dimension."""
    return creation.stack([x.to(result_type(*arrays)) for x in arrays], axis)


def reshape(x: Tensor, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The same elements in another shape; ``copy=False`` refuses what is no view."""
    y = x.view(shape) if copy is False else x.reshape(shape)
    return y.clone() if copy else y


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Elements moved on by ``shift`` along ``axis``, around the end."""
    several = isinstance(shift, int) and isinstance(axis, tuple)
    return x.roll((shift,) * len(axis) if several else shift, axis) if x.ndim else x.clone()


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Without the dimensions ``axis``, which must be of size 1."""
    axes = _axes(x, axis)
    if any_other := [at for at in axes if x.size(at) != 1]:
        raise bad_value(f"squeeze of shape {x.shape}: dimensions {any_other} are not of size 1")
    return x.squeeze(axes) if axes else x


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The slices of ``axis`` at ``indices``."""
    if axis is None and x.ndim != 1:
        raise bad_value(f"take of shape {x.shape}: expected axis=, or a vector")
    return x.index_select(axis or 0, _from_front(indices, x.shape[axis or 0]))


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Where ``x`` is not 0: one vector of indices for each dimension."""
    if not x.ndim:
        raise bad_value("nonzero of a 0-d tensor: it has no dimension; compare it with 0")
    return tuple(x.nonzero(as_tuple=True))


def searchsorted(x1: Tensor, x2: Any, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Where to insert ``x2`` into the ascending vector ``x1``, or into ``x1[sorter]``."""
    return functions.searchsorted(x1 if sorter is None else x1.index_select(0, sorter), x2, side=side)


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """x1 where the bool ``condition`` holds, else x2; numbers allowed."""
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        x1 = asarray(x1, dtype=result_type(x1, x2), device=condition.device)
    return creation.where(condition, *_both(x1, x2))


Unique = namedtuple("Unique", "values indices inverse_indices counts")
UniqueCounts = namedtuple("UniqueCounts", "values counts")
UniqueInverse = namedtuple("UniqueInverse", "values inverse_indices")


def unique_all(x: Tensor, /) -> Unique:
    """The different values, where each occurs first, where each element is among them, and how often each occurs."""
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    places = asarray(np.arange(x.numel()), device=x.device)
    first = places.new_zeros(len(values)).scatter_reduce(0, inverse.flatten(), places, "amin", include_self=False)
    return Unique(values, first, inverse, counts)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The different values, and how often each occurs."""
    return UniqueCounts(*x.unique(return_counts=True))


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The different values, and where each element is among them."""
    return UniqueInverse(*x.unique(return_inverse=True))


# ------------------------------------------------------------------ dtypes, and what there is


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """``x`` in another dtype; a copy even if it is of that dtype, unless ``copy=False``."""
    y = x.to(dtype=dtype, device=device)
    return y.clone() if copy and y is x else y


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion leads from one dtype (or a tensor's) to the other."""
    return dtypes.promote_types(getattr(from_, "dtype", from_), to) == to


def finfo(type: Any, /) -> SimpleNamespace:
    """Limits of a floating dtype (or a tensor's), as Python numbers."""
    dtype = dtypes.as_dtype(getattr(type, "dtype", type))
    found = dtypes.finfo(dtype)
    limits = {name: float(getattr(found, name)) for name in ("eps", "max", "min", "smallest_normal")}
    return SimpleNamespace(bits=found.bits, dtype=dtype, **limits)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether the dtype is ``kind``: a dtype, the name of a kind such as "integral", or a tuple of them."""
    if isinstance(kind, tuple):
        return True in [isdtype(dtype, one) for one in kind]
    if isinstance(kind, str):
        check_option("isdtype: kind", kind, KINDS)
        return dtype in KINDS[kind]
    return dtypes.as_dtype(dtype) == kind


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The dtype that tensors and dtypes are promoted to; Python numbers count only if they are of a higher kind."""
    # As result_dtype, which promotes arrays that have dimensions.
    given = (x if isinstance(x, int | float) else dtypes.as_dtype(getattr(x, "dtype", x)) for x in arrays_and_dtypes)
    return dtypes.result_dtype([x if isinstance(x, int | float) else np.empty(1, x) for x in given])


class __array_namespace_info__:
    """Devices, dtypes and capabilities."""

    def capabilities(self) -> dict[str, Any]:
        """What is supported that the standard makes optional."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """The CPU."""
        return CPU

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes of tensors made of Python numbers, and of indices."""
        return {"real floating": dtypes.default_dtype(), "integral": int64, "indexing": int64}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """The dtypes by name, all or those of one or several kinds."""
        every = (*KINDS["bool"], *KINDS["numeric"])
        return {str(dtype): dtype for dtype in every if kind is None or isdtype(dtype, kind)}

    def devices(self) -> list[Device]:
        """The CPU, and the GPUs of this machine."""
        return [CPU, *(Device(f"cuda:{i}") for i in range(cuda.device_count()))]


globals()["bool"] = bool_
