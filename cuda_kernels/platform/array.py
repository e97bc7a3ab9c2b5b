"""DeviceArray: the raw array of a CUDA tensor, a strided view of device memory with NumPy's names.

Views (reshape, transposes, basic indexing) are metadata, computed on the host. Arithmetic is kernels':
``x * y`` is ``elementwise.mul(x, y)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from . import families, memory, signatures
from .language import SIMULATED, cupy
from .memory import Memory

_Operator = Callable[[Any, Any], Any]


def _left(name: str) -> _Operator:
    """The method of an operator whose left side is the array, by a function of ``elementwise``."""
    return lambda self, other: getattr(families.elementwise, name)(self, other)


def _right(name: str) -> _Operator:
    """The method of an operator whose right side is the array."""
    return lambda self, other: getattr(families.elementwise, name)(other, self)


class Flags(NamedTuple):
    """As of a NumPy array."""

    c_contiguous: bool
    writeable: bool
    owndata: bool


class DeviceArray:
    """``shape`` and ``dtype`` over device memory from address ``pointer`` on; ``strides`` in bytes.

    ``base`` is the array that a view was made of (None for one of its own memory), ``words`` what kernels accept it as.
    """

    __slots__ = "__weakref__", "base", "dtype", "memory", "pointer", "shape", "strides", "words", "writeable"

    def __init__(
        self, memory: Memory, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None,
        pointer: int | None = None, base: DeviceArray | None = None, writeable: bool = True,
    ) -> None:  # fmt: skip
        self.memory = memory
        self.shape = shape
        self.dtype = dtype
        self.strides: tuple[int, ...] = contiguous_strides(shape, dtype.itemsize) if strides is None else strides
        self.pointer: int = memory.pointer if pointer is None else pointer
        self.base = base
        self.writeable = writeable
        self.words: Any = _words.get(dtype) or _words.setdefault(dtype, signatures.words_of(dtype))

    # Metadata ---------------------------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> int:
        """The index of the device."""
        return self.memory.device

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after the other in C order."""
        expected = self.dtype.itemsize
        for n, stride in zip(reversed(self.shape), reversed(self.strides)):
            if n == 0:
                return True
            if n != 1:
                if stride != expected:
                    return self.size == 0
                expected *= n
        return True

    @property
    def flags(self) -> Flags:
        """c_contiguous, writeable and owndata."""
        return Flags(self.contiguous, self.writeable, self.base is None)

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides in elements, as kernels take them."""
        itemsize = self.dtype.itemsize
        return tuple([stride // itemsize for stride in self.strides])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __bool__(self) -> bool:
        """Whether the one element is not 0, copied from the device."""
        return bool(to_host(self).item())

    def __int__(self) -> int:
        """The number of an array of one element, copied from the device."""
        return int(to_host(self).item())

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, device=cuda:{self.device})"

    # Views ------------------------------------------------------------------------------------------------------------

    def view(
        self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, writeable: bool = True
    ) -> DeviceArray:
        """The elements at other strides, in bytes, from ``offset`` bytes after the first on."""
        base = self if self.base is None else self.base
        kept = self.writeable and writeable
        return DeviceArray(self.memory, shape, self.dtype, strides, self.pointer + offset, base, kept)

    def reshape(self, *shape: Any) -> DeviceArray:
        """As NumPy's: a view where the strides allow it, else of a contiguous copy; one size may be -1."""
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if sizes == self.shape:
            return self.view(self.shape, self.strides)
        if self.contiguous and math.prod(sizes) == self.size and min(sizes, default=0) >= 0:  # quicker than NumPy
            return self.view(sizes, contiguous_strides(sizes, self.dtype.itemsize))
        try:
            found = _ghost(self).reshape(sizes, copy=False)
        except ValueError:  # these strides need a copy, or the sizes do not fit
            if self.contiguous:
                raise
            return copy(self).reshape(sizes)
        return self.view(found.shape, found.strides)

    def seen(self, view: Callable[[np.ndarray], np.ndarray]) -> DeviceArray:
        """The view that NumPy makes of such an array; it must not be a scalar, whose value NumPy would read."""
        found = view(_ghost(self))
        return self.view(found.shape, found.strides, found.ctypes.data - self.pointer if found.size else 0)

    def transpose(self, *axes: int) -> DeviceArray:
        """The dimensions in another order (default: reversed); a view."""
        order = axes or tuple(reversed(range(self.ndim)))
        return self.view(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order))

    def swapaxes(self, axis1: int, axis2: int) -> DeviceArray:
        """Two dimensions exchanged; a view."""
        order = list(range(self.ndim))
        order[axis1], order[axis2] = order[axis2], order[axis1]
        return self.transpose(*order)

    @property
    def T(self) -> DeviceArray:
        """The dimensions in reverse order; a view."""
        return self.transpose()

    def __getitem__(self, index: Any) -> DeviceArray:
        """Basic indexing: integers, slices, None and Ellipsis give a view. (Arrays: ``indexing.index``.)"""
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if not (part is None or part is Ellipsis or isinstance(part, int | np.integer | slice)):
                raise TypeError(f"a DeviceArray is indexed by integers, slices, None and Ellipsis, not {part!r}")
        return self.seen(lambda x: x[parts if Ellipsis in parts else (*parts, ...)])  # so never a scalar

    # Arithmetic -------------------------------------------------------------------------------------------------------

    __add__: _Operator = _left("add")
    __radd__: _Operator = _right("add")
    __sub__: _Operator = _left("sub")
    __rsub__: _Operator = _right("sub")
    __mul__: _Operator = _left("mul")
    __rmul__: _Operator = _right("mul")
    __truediv__: _Operator = _left("div")
    __rtruediv__: _Operator = _right("div")
    __pow__: _Operator = _left("pow")

    def __neg__(self) -> Any:
        return families.elementwise.neg(self)

    # Sharing ----------------------------------------------------------------------------------------------------------

    def __dlpack__(self, **options: Any) -> Any:
        """The DLPack capsule, made by CuPy."""
        return to_cupy(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(2, the device's index); 2 is DLPack's code of CUDA."""
        return 2, self.device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the protocol by which CuPy, Numba and PyTorch share memory."""
        if self.dtype.kind == "V":
            raise AttributeError("__cuda_array_interface__ has no bfloat16; use DLPack")
        return {
            "shape": self.shape,
            "strides": None if self.contiguous else self.strides,
            "typestr": self.dtype.str,
            "data": (self.pointer if self.size else 0, not self.writeable),
            "version": 3,
            "stream": memory.current_stream() or 1,  # 1 is the legacy default stream; 0 is not allowed
        }


Array = DeviceArray
"""Its name in every backend."""
_words: dict[np.dtype[Any], tuple[str, str]] = {}


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of elements that lie one after the other in C order."""
    strides = []
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= n or 1
    return tuple(reversed(strides))


def merged(dimensions: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """(size, step of each array) from the outermost dimension on, without those of size 1.

    Neighbours that follow on one another in all arrays become one.
    """
    found: list[tuple[int, ...]] = []
    for n, *steps in dimensions:
        if n != 1:
            if found and all(above == n * step for above, step in zip(found[-1][1:], steps, strict=True)):
                n *= found.pop()[0]
            found.append((n, *steps))
    return found


def _ghost(x: DeviceArray) -> np.ndarray:
    """A NumPy array at the same address, of the same shape and strides, whose elements nobody may ask for."""
    interface = {
        "data": (x.pointer, False), "shape": x.shape, "strides": x.strides, "typestr": f"|V{x.itemsize}", "version": 3
    }  # fmt: skip
    return np.asarray(SimpleNamespace(__array_interface__=interface))


# The functions of ``cpu_kernels.toolbox.storage`` ---------------------------------------------------------------------


def empty(shape: int | tuple[int, ...], dtype: Any, device: int | None = None) -> DeviceArray:
    """A new array, not cleared, on a device (default: the current one). Kernels pass their input's."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = np.dtype(dtype)
    device = memory.current_device() if device is None else device
    return DeviceArray(memory.allocate(math.prod(shape) * dtype.itemsize, device), shape, dtype)


def zeros(shape: int | tuple[int, ...], dtype: Any, device: int | None = None) -> DeviceArray:
    """A new array of zeros."""
    x = empty(shape, dtype, device)
    with memory.on_device(x.device):  # its stream's order is the one that counts
        memory.clear(x.pointer, x.nbytes)
    return x


def full(shape: int | tuple[int, ...], value: Any, dtype: Any, device: int | None = None) -> DeviceArray:
    """A new array filled with ``value``."""
    x = empty(shape, dtype, device)
    families.elementwise.fill(x, value)
    return x


def ones(shape: int | tuple[int, ...], dtype: Any, device: int | None = None) -> DeviceArray:
    """A new array of ones."""
    return full(shape, 1, dtype, device)


def copy(x: DeviceArray) -> DeviceArray:
    """A new C-contiguous array of the same values, on the same device."""
    y = empty(x.shape, x.dtype, x.device)
    if x.contiguous:
        memory.copy_across(y.pointer, x.pointer, x.nbytes)
    else:
        families.movement.copy_into(y, x)
    return y


def contiguous(x: DeviceArray) -> DeviceArray:
    """``x`` itself if it is C-contiguous, else a copy that is."""
    return x if x.contiguous else copy(x)


def from_host(x: np.ndarray, device: int | None = None, wait: bool = True) -> DeviceArray:
    """A copy of a NumPy array on a device. Without ``wait``, from pinned memory, the copy is part of the stream."""
    host = np.ascontiguousarray(x).reshape(np.shape(x))
    y = empty(host.shape, host.dtype, device)
    _copy_in(y, host, wait)
    return y


def upload(x: DeviceArray, host: np.ndarray) -> None:
    """x[...] = host, of the same shape and dtype, x contiguous. From pinned memory the copy is part of the stream."""
    host = np.ascontiguousarray(host)
    if host.shape != x.shape or host.dtype != x.dtype or not x.contiguous:
        raise ValueError(f"upload takes arrays of one shape and dtype, got {x} and {host.dtype} {host.shape}")
    _copy_in(x, host, wait=False)


def _copy_in(x: DeviceArray, host: np.ndarray, wait: bool) -> None:
    """Without ``wait``, from pinned memory, as part of the stream."""
    wait = wait or not memory.is_pinned(host)
    with memory.on_device(x.device):
        memory.copy_in(x.pointer, host, wait)
        if not wait:
            memory.keep_until_copied(host)


def to_host(x: DeviceArray, wait: bool = True) -> np.ndarray:
    """A NumPy copy, after what the stream has still to do. Without ``wait``: in pinned memory, and filled later."""
    y = np.empty(x.shape, x.dtype) if wait else memory.pinned_empty(x.shape, x.dtype)
    with memory.on_device(x.device):
        x = contiguous(x)
        memory.copy_out(y, x.pointer, wait)
        if not wait:
            memory.keep_until_copied(y)
    return y


def from_device(x: DeviceArray, device: int) -> DeviceArray:
    """A copy on another device, after what the streams of both have still to do."""
    with memory.on_device(x.device):
        x = contiguous(x)
    memory.synchronize(x.device)
    y = empty(x.shape, x.dtype, device)
    with memory.on_device(device):
        memory.copy_across(y.pointer, x.pointer, x.nbytes)
        memory.synchronize(device)
    return y


def reinterpret(x: DeviceArray, dtype: Any) -> DeviceArray:
    """The same bits as another dtype of the same width; a view."""
    dtype = np.dtype(dtype)
    if dtype.itemsize != x.dtype.itemsize:
        raise ValueError(f"{x.dtype} cannot be taken for {dtype}: the widths differ")
    return DeviceArray(x.memory, x.shape, dtype, x.strides, x.pointer, x if x.base is None else x.base, x.writeable)


def as_array(x: Any, dtype: Any = None) -> DeviceArray:
    """A DeviceArray as it is; a number or NumPy array as one on the current device."""
    return x if isinstance(x, DeviceArray) else from_host(np.asarray(x, dtype))


def expand(x: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
    """A read-only view with size-1 and new leading axes repeated (stride 0). ValueError where that does not fit."""
    new = len(shape) - x.ndim
    if new < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[new:], strict=True)):
        raise ValueError(f"could not broadcast input array from shape {x.shape} into shape {shape}")
    kept = zip(x.shape, x.strides, shape[new:], strict=True)
    return x.view(tuple(shape), (0,) * new + tuple(s if n == m else 0 for n, s, m in kept), writeable=False)


def may_share_memory(x: DeviceArray, y: DeviceArray) -> bool:
    """Whether the address ranges of two arrays overlap."""
    if not isinstance(x, DeviceArray) or not isinstance(y, DeviceArray) or x.device != y.device:
        return False
    return np.may_share_memory(_ghost(x), _ghost(y))


# Memory shared with other libraries, by way of CuPy -------------------------------------------------------------------


def to_cupy(x: DeviceArray) -> Any:
    """A CuPy array on the same memory. Raises BufferError in the simulator, whose memory is no GPU's."""
    if SIMULATED:
        raise BufferError("the simulator's memory is not a GPU's and cannot be shared; use .cpu() first")
    whole = cupy.cuda.UnownedMemory(x.pointer, max(x.nbytes, 1), x, x.device)
    return cupy.ndarray(x.shape, x.dtype, cupy.cuda.MemoryPointer(whole, 0), x.strides)


def from_cupy(x: Any) -> DeviceArray:
    """A DeviceArray on the memory of a CuPy array."""
    lent = Memory(int(x.data.ptr), int(x.device.id), x)
    return DeviceArray(lent, tuple(x.shape), np.dtype(x.dtype), tuple(x.strides))


def from_cuda_array(x: Any) -> DeviceArray:
    """A DeviceArray on the memory of an object with ``__cuda_array_interface__``. BufferError in the simulator."""
    if SIMULATED:
        raise BufferError("the simulator's memory is not a GPU's; it cannot take an array from one")
    found = from_cupy(cupy.asarray(x))
    found.writeable = not x.__cuda_array_interface__["data"][1]
    return found


def from_dlpack(x: Any) -> DeviceArray:
    """A DeviceArray on the memory of an object with ``__dlpack__``."""
    return from_cupy(cupy.from_dlpack(x))
