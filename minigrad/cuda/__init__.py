"""``minigrad.cuda``: GPUs, their memory, streams, events and graphs, with the names of ``torch.cuda``.

A ``device`` is a Device, its name or its index; None means the calling thread's current one. ``is_available`` and
``device_count`` answer on any machine; the rest raises DeviceError, saying what is missing, where there is no GPU.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .. import hints
from ..device import Device
from ..errors import bad_value

if TYPE_CHECKING:
    from ..cuda_kernels.platform.memory import OutOfMemoryError as OutOfMemoryError
    from ..cuda_kernels.platform.recording import CaptureError as CaptureError
    from ..cuda_kernels.platform.streams import Event as Event, Stream as Stream
    from .cuda_graph import Graph as Graph, graph as graph, graphed as graphed


def is_available() -> bool:
    """Whether CUDA kernels can run here, on a GPU or in the simulator."""
    return bool(importlib.import_module("minigrad.cuda_kernels").availability()[0])


def device_count() -> int:
    """The number of CUDA devices; 0 where there is none that can be used."""
    return int(_memory().device_count()) if is_available() else 0


def current_device() -> int:
    """The index of the calling thread's device."""
    return int(_memory().current_device())


def set_device(device: Device | str | int) -> None:
    """Make a device the calling thread's. (Operations use their inputs' device, whichever that is.)"""
    _memory().set_device(_index(device))


def synchronize(device: Device | str | int | None = None) -> None:
    """Wait until the device has done everything it was given."""
    _memory().synchronize(_index(device))


def memory_allocated(device: Device | str | int | None = None) -> int:
    """Bytes that tensors hold."""
    return int(_memory().memory_allocated(_index(device)))


def max_memory_allocated(device: Device | str | int | None = None) -> int:
    """The most bytes that tensors held since the start or ``reset_peak_memory_stats``."""
    return int(_memory().max_memory_allocated(_index(device)))


def reset_peak_memory_stats(device: Device | str | int | None = None) -> None:
    """Count ``max_memory_allocated`` from now on."""
    _memory().reset_peak_memory_stats(_index(device))


def memory_reserved(device: Device | str | int | None = None) -> int:
    """Bytes that the memory pool, which CuPy shares, has from the driver, used or not."""
    return int(_memory().memory_reserved(_index(device)))


def mem_get_info(device: Device | str | int | None = None) -> tuple[int, int]:
    """(free, total) bytes of the device, as the driver counts."""
    free, total = _memory().mem_get_info(_index(device))
    return int(free), int(total)


def empty_cache(device: Device | str | int | None = None) -> None:
    """Return what the memory pool keeps unused to the driver."""
    _memory().empty_cache(_index(device))


def get_device_name(device: Device | str | int | None = None) -> str:
    """The device's name."""
    return str(_memory().device_name(_index(device)))


def get_device_capability(device: Device | str | int | None = None) -> tuple[int, int]:
    """The compute capability, (major, minor)."""
    major, minor = _memory().capability(_index(device))
    return int(major), int(minor)


def get_gemm() -> str:
    """The engine of matrix products that ``set_gemm`` or MINIGRAD_GEMM chose; "tuned" where nobody did."""
    return str(_choices().gemm())


def set_gemm(engine: str) -> None:
    """Choose who multiplies matrices of floats on GPUs, in the whole process.

    - ``"numba"``: the kernels of this package.
    - ``"hopper"``: the same, but half floats by the tensor memory accelerator and warpgroups' products, where operands
      lie at multiples of 16 bytes. It needs compute capability 9.0 (H100, H200).
    - ``"cublaslt"``: NVIDIA's cuBLASLt.
    - ``"tuned"``, the default: for each product the one that ``benchmarks/gpu_report.py --tune`` found fastest on this
      card and driver; the kernels of this package for what it has not measured.

    The environment's choice is ``MINIGRAD_GEMM``. Results differ in their last bits between engines, not between runs.
    Raises ValueError for another word, or for "hopper" on another device, OSError with the command that installs it if
    cuBLASLt is not found.
    """
    Device("cuda:0").kernels_package()  # an error where there is no GPU
    if engine == "hopper" and get_device_capability(0) != (9, 0):
        raise ValueError(f"set_gemm 'hopper' is for compute capability (9, 0); cuda:0 has {get_device_capability(0)}")
    if engine == "cublaslt":
        importlib.import_module("minigrad.cuda_kernels.products.cublaslt").library()
    _choices().set_gemm(engine)


def _choices() -> Any:
    return importlib.import_module("minigrad.cuda_kernels.platform.choices")


def _memory() -> Any:
    return Device("cuda:0").kernels_package().memory


def _index(device: Device | str | int | None) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    found = Device(device)  # type: ignore[arg-type]  # of a bool, which is an int, Device says what it expects
    if found.type != "cuda":
        raise bad_value(f"{found} is not a CUDA device; expected 'cuda', 'cuda:N' or N")
    return found.index


_OF_GRAPHS = ("Graph", "graph", "graphed")
_OF_KERNELS = ("CaptureError", "Event", "OutOfMemoryError", "Stream")

if not TYPE_CHECKING:
    __all__ = [*_OF_GRAPHS, *_OF_KERNELS, *hints.defined_in(__name__)]


def __getattr__(name: str) -> Any:
    if name in _OF_GRAPHS:
        return getattr(importlib.import_module("minigrad.cuda.cuda_graph"), name)
    if name == "CaptureError":
        return importlib.import_module("minigrad.cuda_kernels.platform.recording").CaptureError
    if name in _OF_KERNELS:
        package = Device("cuda:0").kernels_package()
        return getattr(package.memory if name == "OutOfMemoryError" else package.streams, name)
    raise hints.missing(__name__, name, [], f"module {__name__!r}")
