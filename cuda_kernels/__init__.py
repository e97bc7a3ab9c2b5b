"""The CUDA backend: Numba CUDA kernels, one module per family with the names of ``minigrad.cpu_kernels``.

The folder ``cuda_kernels/`` is installed as ``minigrad.cuda_kernels``. A family that is missing raises
MissingKernelError; nothing falls back to the CPU. Importing the package imports neither numba-cuda nor CuPy; a family,
and what allocates memory, is imported when it is first used.

With ``NUMBA_ENABLE_CUDASIM=1`` in the environment the kernels run in ``simulator.py``, on any machine.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

import numpy as np

from .libcuda import Driver, driver

__all__ = ["Driver", "MissingKernelError", "availability", "driver", "quiet", "simulated"]

# Functions of these modules that are names of the backend itself, as in minigrad.cpu_kernels.
_MEMORY = {
    name: "array"
    for name in (
        "as_array",
        "contiguous",
        "copy",
        "empty",
        "from_device",
        "from_host",
        "full",
        "may_share_memory",
        "ones",
        "reinterpret",
        "to_host",
        "zeros",
    )
} | {"from_dlpack": "sharing", "select": "memory"}


class MissingKernelError(NotImplementedError):
    """An operation has no kernel on the device that was asked to compute it."""


def availability() -> tuple[bool, str]:
    """Whether this machine can run CUDA kernels, and the reason: what is missing with its remedy, or what was found."""
    if simulated():
        problem = _import_problem("greenlet")
        if problem:
            return False, f'{problem}, which the simulator needs: pip install "minigrad-cuda[test]"'
        return True, "2 devices of the simulator (NUMBA_ENABLE_CUDASIM=1)"
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


def simulated() -> bool:
    """Whether kernels run in the simulator; decided by the environment."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def quiet() -> Any:
    """A context in which NaN and infinite results raise no warnings; kernels never do."""
    return contextlib.nullcontext()


def __getattr__(name: str) -> Any:
    """Import the kernel family ``name`` when it is first used; raise MissingKernelError if there is none."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Array":
        globals()[name] = importlib.import_module(f"{__name__}.array").DeviceArray
        return globals()[name]
    if name in _MEMORY:
        globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MEMORY[name]}"), name)
        return globals()[name]
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    raise MissingKernelError(
        f"there are no {name!r} kernels for the device 'cuda' in this release; move the tensors to Device('cpu')"
    )
