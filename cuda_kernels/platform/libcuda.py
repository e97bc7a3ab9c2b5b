"""The NVIDIA driver's C interface (libcuda), by ctypes: what launching a compiled kernel needs, and no more."""

import ctypes
import functools
import sys
from typing import Any, NamedTuple

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
MAX_DYNAMIC_SHARED_BYTES = 8  # CUfunction_attribute
COMPUTE_MAJOR, COMPUTE_MINOR, MULTIPROCESSORS = 75, 76, 16  # CUdevice_attribute
SHARED_PER_BLOCK = 97  # CUdevice_attribute: bytes, for a kernel that asks for more than 48 KB


class Driver(NamedTuple):
    """The NVIDIA driver: the CUDA version that it supports, as (major, minor), and the number of devices it shows."""

    cuda: tuple[int, int]
    devices: int


class CudaError(RuntimeError):
    """The driver refused a call, or a kernel failed."""


@functools.cache
def library() -> ctypes.PyDLL:
    """libcuda. As PyDLL, which keeps the interpreter's lock: a launch is too short to hand it to another thread.

    Raises OSError if there is no driver.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.PyDLL(name)
    except OSError as error:
        raise OSError(f"no NVIDIA driver ({error})") from None


def driver() -> Driver:
    """Ask the NVIDIA driver itself, by its C interface, so that no Python package of CUDA is needed.

    Raises OSError, saying why, if there is no driver or it does not start.
    """
    found = library()
    version, devices = ctypes.c_int(), ctypes.c_int()
    for name, arguments in (
        ("cuInit", (0,)),
        ("cuDriverGetVersion", (ctypes.byref(version),)),
        ("cuDeviceGetCount", (ctypes.byref(devices),)),
    ):
        status = getattr(found, name)(*arguments)
        if status == NO_DEVICE:
            return Driver((0, 0), 0)
        if status:
            raise OSError(f"the NVIDIA driver does not start ({name} returned CUDA error {status})")
    return Driver((version.value // 1000, version.value % 1000 // 10), devices.value)


def call(name: str, *arguments: Any) -> None:
    """Call a function of libcuda. Raises CudaError with the driver's words if it does not succeed."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise CudaError(f"{name}: {describe(status)}")


def describe(status: int) -> str:
    """The driver's name and words for an error code."""
    words = []
    for function in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        getattr(library(), function)(status, ctypes.byref(text))
        words.append((text.value or b"unknown error").decode())
    return f"{words[0]} ({words[1]})"


def device_attribute(attribute: int, device: int) -> int:
    """A number about a device, by its CUdevice_attribute."""
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
    return value.value


def load(cubin: bytes, name: str, dynamic_shared_bytes: int) -> ctypes.c_void_p:
    """The function ``name`` of a cubin, loaded into the current context for good."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), cubin)
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    if dynamic_shared_bytes > 48 << 10:  # more needs the kernel's consent
        call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_BYTES, dynamic_shared_bytes)
    return function
