"""Device memory: from CuPy's pool on a GPU, so that all libraries of a process share one; NumPy's in the simulator.

Freed blocks stay in the pool and are used again, in the order of the stream, without asking the driver.
"""

import bisect
import collections
import ctypes
import functools
import math
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..simulator import simulated_memory
from . import libcuda, recording
from .language import SIMULATED, cupy

ALLOCATION_ALIGNMENT = 256  # bytes, as of the driver's own allocations
SIMULATED_DEVICES = 2
SIMULATED_BYTES = 4 << 30  # the memory of each


class OutOfMemoryError(RuntimeError):
    """A device's memory is full."""


class Memory:
    """A piece of device memory, given back when the last array that uses it goes.

    ``pointer`` is its address, ``owner`` what keeps it alive: CuPy's object, or whoever lent it. In the simulator
    ``bytes`` are its bytes.
    """

    __slots__ = ("bytes", "counted", "device", "owner", "pointer")

    def __init__(self, pointer: int, device: int, owner: Any, counted: int = 0, raw: np.ndarray | None = None) -> None:
        self.pointer: int = pointer
        self.device: int = device
        self.owner: Any = owner
        self.bytes: np.ndarray | None = raw
        self.counted: int = counted
        if counted:
            count(device, counted)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():  # of the interpreter: modules may be empty, nothing can be imported, and all memory goes anyway
            return
        if self.counted:
            _now[self.device] -= self.counted
        if self.bytes is not None:
            if self.owner is self.bytes:
                forget_simulated(self.pointer)
            else:
                self.owner.take_back(self.pointer, self.bytes)  # the pool that it is of


_now: collections.Counter[int] = collections.Counter()  # bytes that arrays hold, by device
_peak: collections.Counter[int] = collections.Counter()  # the most that they held


def count(device: int, nbytes: int) -> None:
    """Count memory that is used from now on; a negative number, that is not used any more."""
    _now[device] += nbytes
    _peak[device] = max(_peak[device], _now[device])


def allocate(nbytes: int, device: int) -> Memory:
    """New memory, not cleared (0xFF in the simulator). Raises OutOfMemoryError: what was asked, what is held.

    During capture it is of the graph's own pool.
    """
    graph = recording.current()
    if graph is not None:
        return graph.pool.allocate(nbytes, device)
    if SIMULATED:
        raw = new_simulated(nbytes, device)
        return Memory(raw.ctypes.data, device, raw, nbytes, raw)
    owner = taken_from(cupy.cuda.alloc, nbytes, device)
    return Memory(owner.ptr, device, owner, nbytes)


def taken_from(pool: Callable[[int], Any], nbytes: int, device: int) -> Any:
    """Memory by one of CuPy's allocators. Raises OutOfMemoryError."""
    with on_device(device):
        try:
            return pool(nbytes)
        except cupy.cuda.memory.OutOfMemoryError:
            raise _out_of_memory(nbytes, device) from None


def new_simulated(nbytes: int, device: int) -> np.ndarray:
    """New bytes of the simulator's memory, which has their address from now on. Raises OutOfMemoryError."""
    if _now[device] + nbytes > SIMULATED_BYTES:
        raise _out_of_memory(nbytes, device)
    raw = np.full(nbytes + ALLOCATION_ALIGNMENT, simulated_memory.POISON, np.uint8)
    raw = raw[-raw.ctypes.data % ALLOCATION_ALIGNMENT :][:nbytes]
    _simulated_bytes[raw.ctypes.data] = raw
    bisect.insort(_simulated_pointers, raw.ctypes.data)
    return raw


def forget_simulated(address: int) -> None:
    """The bytes at this address are no device memory any more."""
    del _simulated_bytes[address]
    _simulated_pointers.remove(address)  # in one call, which no other thread interrupts


_simulated_pointers: list[int] = []  # of the simulator's memory that is in use, sorted
_simulated_bytes: dict[int, np.ndarray] = {}


def simulated_bytes(address: int) -> np.ndarray:
    """The bytes of the simulator's memory in which ``address`` lies. Raises SimulationError where there is none."""
    raw = _bytes_at(address, _simulated_pointers)
    if raw is None:  # nothing is there, or another thread has changed the list meanwhile
        raw = _bytes_at(address, list(_simulated_pointers))
    if raw is None:
        raise simulated_memory.SimulationError(f"address {address:#x} lies in no device memory")
    return raw


def _bytes_at(address: int, pointers: list[int]) -> np.ndarray | None:
    place = bisect.bisect_right(pointers, address)
    first = pointers[max(0, place - 1) : place]  # a slice, because the list may have become shorter
    raw = _simulated_bytes.get(first[0]) if first else None
    return raw if raw is not None and 0 <= address - raw.ctypes.data <= raw.nbytes else None


def _out_of_memory(nbytes: int, device: int) -> OutOfMemoryError:
    free, total = mem_get_info(device)
    mib = 1 << 20
    return OutOfMemoryError(
        f"cuda:{device} is out of memory: {nbytes / mib:.1f} MiB were asked for; arrays hold "
        f"{_now[device] / mib:.1f} MiB, the pool keeps {memory_reserved(device) / mib:.1f} MiB, and of the "
        f"device's {total / mib:.0f} MiB {free / mib:.1f} MiB are free. A smaller batch or minigrad.checkpoint needs "
        "less; minigrad.cuda.empty_cache() returns what the pool keeps unused"
    )


# Devices and streams --------------------------------------------------------------------------------------------------


class on_device:  # a context, as in minigrad.no_grad
    """Make a device the current one of this thread."""

    __slots__ = ("_before", "_device")

    def __init__(self, device: int) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._before = current_device()
        if self._before != self._device:
            set_device(self._device)

    def __exit__(self, *_: object) -> None:
        if current_device() != self._before:  # operations on other devices make these the current one
            set_device(self._before)


_simulated = threading.local()  # ``current``: the calling thread's device, 0 until it takes another


@functools.cache
def _questions() -> tuple[Callable[[], int], Callable[[], Any]]:
    """CuPy's functions that every launch asks for device and stream; an import statement costs more than they do."""
    try:
        return cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream
    except ModuleNotFoundError as error:
        install = 'pip install "minigrad-cuda[cuda12]" or [cuda13] where there is a GPU'
        simulate = "NUMBA_ENABLE_CUDASIM=1 in the environment, before the first import, runs kernels in the simulator"
        raise libcuda.CudaError(f"{error}: {install}; without one, {simulate}") from None


def current_device() -> int:
    """The index of this thread's device."""
    return int(getattr(_simulated, "current", 0)) if SIMULATED else _questions()[0]()


def set_device(device: int) -> None:
    """Make a device this thread's. Raises ValueError where there is no such one."""
    if not 0 <= device < device_count():
        raise ValueError(f"there is no device cuda:{device}; there are {device_count()}")
    if SIMULATED:
        _simulated.current = device
        return
    cupy.cuda.runtime.setDevice(device)


@functools.cache
def device_count() -> int:
    """The number of devices."""
    return SIMULATED_DEVICES if SIMULATED else int(cupy.cuda.runtime.getDeviceCount())


def select(device: int) -> None:
    """``set_device``, at once where there is only one."""
    if device_count() > 1 and current_device() != device:
        set_device(device)


def current_stream() -> int:
    """The handle of this thread's stream on its device: CuPy's, so that both work in one order."""
    return 0 if SIMULATED else int(_questions()[1]().ptr)


def synchronize(device: int | None = None) -> None:
    """Wait until a device (default: the current one) has done everything that it was given."""
    recording.refuse(*recording.WAIT)
    if not SIMULATED:
        with on_device(current_device() if device is None else device):
            cupy.cuda.runtime.deviceSynchronize()


# Statistics -----------------------------------------------------------------------------------------------------------


def memory_allocated(device: int) -> int:
    """Bytes that arrays hold now."""
    return _now[device]


def max_memory_allocated(device: int) -> int:
    """The most bytes that arrays held since the start or ``reset_peak_memory_stats``."""
    return _peak[device]


def reset_peak_memory_stats(device: int) -> None:
    """Count the peak from now on."""
    _peak[device] = _now[device]


def memory_reserved(device: int) -> int:
    """Bytes that the pool has from the driver, used or not."""
    if SIMULATED:
        return _now[device]
    with on_device(device):
        return int(cupy.get_default_memory_pool().total_bytes()) + _of_graphs[device]


_of_graphs: collections.Counter[int] = collections.Counter()  # bytes of the graphs' pools, by device


def count_reserved(device: int, nbytes: int) -> None:
    """Count bytes of a graph's pool, all of them as used; a negative number when they are returned."""
    _of_graphs[device] += nbytes
    count(device, nbytes)


def mem_get_info(device: int) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    if SIMULATED:
        return SIMULATED_BYTES - _now[device], SIMULATED_BYTES
    with on_device(device):
        free, total = cupy.cuda.runtime.memGetInfo()
    return int(free), int(total)


def empty_cache(device: int) -> None:
    """Return the pool's unused memory to the driver."""
    if SIMULATED:
        return
    with on_device(device):
        cupy.get_default_memory_pool().free_all_blocks()


def device_name(device: int) -> str:
    """The device's name."""
    return "simulator" if SIMULATED else str(cupy.cuda.runtime.getDeviceProperties(device)["name"].decode())


# Of a small card with all instructions that the simulator knows.
_SIMULATED_ATTRIBUTES = {
    libcuda.COMPUTE_MAJOR: 9, libcuda.COMPUTE_MINOR: 0, libcuda.MULTIPROCESSORS: 2, libcuda.SHARED_PER_BLOCK: 227 << 10
}  # fmt: skip


@functools.cache
def attribute(which: int, device: int) -> int:
    """A number about the device, by its CUdevice_attribute (``libcuda.py`` names them)."""
    return _SIMULATED_ATTRIBUTES[which] if SIMULATED else libcuda.device_attribute(which, device)


def capability(device: int) -> tuple[int, int]:
    """The compute capability, (major, minor)."""
    return attribute(libcuda.COMPUTE_MAJOR, device), attribute(libcuda.COMPUTE_MINOR, device)


TENSOR_CORES = (8, 0)  # the oldest compute capability with tensor cores for bfloat16, float16 and TensorFloat-32


def has_tensor_cores(device: int) -> bool:
    """Whether a device multiplies half floats; on others the operations widen them."""
    return capability(device) >= TENSOR_CORES


# Host memory ----------------------------------------------------------------------------------------------------------

_pinned: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()  # by address


def pinned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A NumPy array, not cleared, in page-locked memory, which a GPU reads and writes while the CPU does other work."""
    dtype = np.dtype(dtype)
    nbytes = max(math.prod(shape) * dtype.itemsize, 1)
    if SIMULATED:
        raw = np.empty(nbytes, np.uint8)
    else:
        raw = np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
    _pinned[raw.ctypes.data] = raw
    return raw[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def is_pinned(x: np.ndarray) -> bool:
    """Whether a NumPy array lies in memory of ``pinned_empty``."""
    owner = x
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return _pinned.get(owner.ctypes.data) is owner


_on_their_way: collections.deque[tuple[Any, np.ndarray]] = collections.deque()
_keeping = threading.Lock()


def keep_until_copied(host: np.ndarray) -> None:
    """Keep pinned memory until what the current stream was given so far has happened; it may be dropped at once.

    CuPy would give freed pinned memory to the next who asks, while a copy still reads or writes it.
    """
    if SIMULATED:
        return
    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    with _keeping:
        while _on_their_way and _on_their_way[0][0].done:
            _on_their_way.popleft()
        _on_their_way.append((event, host))


# Copies ---------------------------------------------------------------------------------------------------------------


def copy_in(target: int, source: np.ndarray, wait: bool = True) -> None:
    """Copy a contiguous NumPy array's bytes to a device address; without ``wait`` as part of the stream."""
    if source.nbytes:
        recording.refuse(*recording.WRITE)
        _copy_host(target, source.ctypes.data, source.nbytes, "memcpyHostToDevice", wait)


def copy_out(target: np.ndarray, source: int, wait: bool = True) -> None:
    """Copy bytes from a device address into a contiguous NumPy array."""
    if target.nbytes:
        recording.refuse(*recording.READ)
        _copy_host(target.ctypes.data, source, target.nbytes, "memcpyDeviceToHost", wait)


def _copy_host(target: int, source: int, nbytes: int, kind: str, wait: bool) -> None:
    if SIMULATED:
        ctypes.memmove(target, source, nbytes)
        return
    runtime = cupy.cuda.runtime
    runtime.memcpyAsync(target, source, nbytes, getattr(runtime, kind), current_stream())
    if wait:
        runtime.streamSynchronize(current_stream())


def copy_across(target: int, source: int, nbytes: int) -> None:
    """Copy bytes between device addresses, of one device or of two, as part of the stream."""
    if SIMULATED and nbytes:
        recording.simulate(_simulated_copy, target, source, nbytes)
    elif nbytes:
        cupy.cuda.runtime.memcpyAsync(target, source, nbytes, cupy.cuda.runtime.memcpyDefault, current_stream())


def clear(target: int, nbytes: int) -> None:
    """Fill device memory with zero bytes, as part of the stream."""
    if SIMULATED and nbytes:
        recording.simulate(_simulated_clear, target, nbytes)
    elif nbytes:
        cupy.cuda.runtime.memsetAsync(target, 0, nbytes, current_stream())


def _simulated_copy(target: int, source: int, nbytes: int) -> None:
    """A copy, perhaps recorded before, of memory that must still exist."""
    _within(source, nbytes)
    _within(target, nbytes)
    ctypes.memmove(target, source, nbytes)


def _simulated_clear(target: int, nbytes: int) -> None:
    _within(target, nbytes)
    ctypes.memset(target, 0, nbytes)


def _within(address: int, nbytes: int) -> None:
    raw = simulated_bytes(address)
    if address + nbytes > raw.ctypes.data + raw.nbytes:
        raise simulated_memory.SimulationError(f"{nbytes} bytes from {address:#x} on leave their memory")
