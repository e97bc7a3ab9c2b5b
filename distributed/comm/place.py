"""Where bytes lie: in host memory, or on a device. Whoever needs them elsewhere asks here."""

from typing import Any

import numpy as np

from minigrad.device import CPU, Device
from minigrad.tensor import Tensor


def is_on_host(array: Any) -> bool:
    """Whether a tensor's raw array is in host memory."""
    return isinstance(array, np.ndarray)


def device_of(array: Any) -> Device:
    """The device that a raw array is on."""
    return CPU if is_on_host(array) else Device(f"cuda:{array.device}")


def address_of(array: Any) -> int:
    """Where in memory a raw array begins."""
    return int(array.ctypes.data if is_on_host(array) else array.pointer)


def on_host(tensor: Tensor) -> np.ndarray:
    """The tensor's values in host memory: on the CPU its own array."""
    return np.asarray(tensor.device.kernels.to_host(tensor.data))


def copied(x: Any) -> np.ndarray:
    """A copy of an array's or tensor's values in host memory."""
    return np.array(on_host(x.detach()) if isinstance(x, Tensor) else x)


def on_device(array: np.ndarray, device: Device) -> Tensor:
    """A tensor of an array's values: on the CPU of the array itself."""
    return Tensor.wrap(device.kernels.from_host(array), device)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """An array's bytes, (n,) uint8: a view where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
