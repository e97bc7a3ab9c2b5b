"""The Numba CUDA kernels: one module per family, with the names of ``minigrad.cpu_kernels``.

The folder ``cuda_kernels/`` is installed as ``minigrad.cuda_kernels``. This release holds no kernels: a family that is
asked for raises MissingKernelError, and nothing falls back to the CPU. Importing the package imports neither numba-cuda
nor CuPy; a family is imported when it is first used.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import ModuleType
from typing import NamedTuple

import numpy as np

__all__ = ["Driver", "MissingKernelError", "availability", "driver"]


class MissingKernelError(NotImplementedError):
    """An operation has no kernel on the device that was asked to compute it."""


class Driver(NamedTuple):
    """The NVIDIA driver: the CUDA version that it supports, as (major, minor), and the number of devices it shows."""

    cuda: tuple[int, int]
    devices: int


def driver() -> Driver:
    """Ask the NVIDIA driver itself, by its C interface, so that no Python package of CUDA is needed.

    Raises OSError, saying why, if there is no driver or it does not start.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise OSError(f"no NVIDIA driver ({error})") from None
    version, devices = ctypes.c_int(), ctypes.c_int()
    for call, arguments in (
        ("cuInit", (0,)),
        ("cuDriverGetVersion", (ctypes.byref(version),)),
        ("cuDeviceGetCount", (ctypes.byref(devices),)),
    ):
        status = getattr(library, call)(*arguments)
        if status == 100:  # CUDA_ERROR_NO_DEVICE
            return Driver((0, 0), 0)
        if status:
            raise OSError(f"the NVIDIA driver does not start ({call} returned CUDA error {status})")
    return Driver((version.value // 1000, version.value % 1000 // 10), devices.value)


def availability() -> tuple[bool, str]:
    """Whether this machine can run CUDA kernels, and the reason: what is missing with its remedy, or what was found."""
    missing = []
    extra = "cuda12"
    try:
        found = driver()
        extra = "cuda13" if found.cuda >= (13, 0) else "cuda12"
        if not found.devices:
            missing.append("the NVIDIA driver shows no device (is CUDA_VISIBLE_DEVICES set?)")
        elif found.cuda < (12, 0):
            missing.append(f"the NVIDIA driver supports CUDA {found.cuda[0]}.{found.cuda[1]}, 12.0 is needed")
    except OSError as error:
        missing.append(str(error))
    packages = [problem for problem in (_import_problem("numba_cuda"), _import_problem("cupy")) if problem]
    if np.lib.NumpyVersion(np.__version__) >= "2.5.0.dev0":
        packages.append(f"numba-cuda compiles no kernel with NumPy {np.__version__}, it needs numpy<2.5")
    if packages:
        missing.append(f'{"; ".join(packages)}: pip install "minigrad-cuda[{extra}]"')
    if missing:
        return False, "; ".join(missing)
    return True, f"{found.devices} device(s), the driver supports CUDA {found.cuda[0]}.{found.cuda[1]}"


def _import_problem(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            return f"{module} is not installed"
        return f"{module} cannot be imported ({error})"
    except (Exception, SystemExit) as error:  # a broken CUDA installation may raise anything
        return f"{module} cannot be imported ({type(error).__name__}: {error})"
    return None


def __getattr__(name: str) -> ModuleType:
    """Import the kernel family ``name`` when it is first used; raise MissingKernelError if there is none."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    raise MissingKernelError(
        f"there are no {name!r} kernels for the device 'cuda' in this release; move the tensors to Device('cpu')"
    )
