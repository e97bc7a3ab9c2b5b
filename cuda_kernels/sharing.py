"""Device memory shared with other libraries, by way of CuPy: DLPack and ``__cuda_array_interface__``."""

from __future__ import annotations

from typing import Any

import numpy as np

from .array import DeviceArray
from .language import SIMULATED
from .memory import Memory


def to_cupy(x: DeviceArray) -> Any:
    """A CuPy array on the same memory. Raises BufferError in the simulator, whose memory is no GPU's."""
    if SIMULATED:
        raise BufferError("the simulator's memory is not a GPU's and cannot be shared; use .cpu() first")
    import cupy

    whole = cupy.cuda.UnownedMemory(x.pointer, max(x.nbytes, 1), x, x.device)
    return cupy.ndarray(x.shape, x.dtype, cupy.cuda.MemoryPointer(whole, 0), x.strides)


def from_cupy(x: Any) -> DeviceArray:
    """A DeviceArray on the memory of a CuPy array."""
    memory = Memory(int(x.data.ptr), int(x.device.id), x)
    return DeviceArray(memory, tuple(x.shape), np.dtype(x.dtype), tuple(x.strides))


def from_cuda_array(x: Any) -> DeviceArray:
    """A DeviceArray on the memory of an object with ``__cuda_array_interface__``. BufferError in the simulator."""
    if SIMULATED:
        raise BufferError("the simulator's memory is not a GPU's; it cannot take an array from one")
    import cupy

    found = from_cupy(cupy.asarray(x))
    found.writeable = not x.__cuda_array_interface__["data"][1]
    return found


def from_dlpack(x: Any) -> DeviceArray:
    """A DeviceArray on the memory of an object with ``__dlpack__``."""
    import cupy

    return from_cupy(cupy.from_dlpack(x))
