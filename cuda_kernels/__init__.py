"""The CUDA backend: Numba CUDA kernels, one module per family with the names of ``minigrad.cpu_kernels``.

The folder ``cuda_kernels/`` is installed as ``minigrad.cuda_kernels``. A family that is missing raises
MissingKernelError; nothing falls back to the CPU but what ``PLAIN_ONLY`` names. Importing the package imports neither
numba-cuda nor CuPy; a family, and what allocates memory, is imported when it is first used.

With ``NUMBA_ENABLE_CUDASIM=1`` in the environment the kernels run in ``simulator.py``, on any machine.
"""

import contextlib
import functools
import importlib
import sys
from typing import Any

from .platform import families
from .platform.availability import availability, simulated
from .platform.libcuda import Driver, driver

__all__ = ["Driver", "MissingKernelError", "availability", "driver", "quiet", "simulated"]

fuses_add_norm = True
"""Norms also add two arrays first: ``layer_norm.add_forward``, ``rms_norm.add_forward``."""
in_host_memory = False
"""Arrays are not NumPy's."""
PLAIN_ONLY: tuple[str, ...] = ()
"""The families that the plain kernels compute, on the host (``platform/on_host.py``). All have kernels of their own."""
_ROOMS = {name: f"platform.{name}" for name in ("array", "graphs", "memory", "streams")}
"""What minigrad uses of a device beside its families."""
_NAMES = {"select": ("memory", "select")} | {
    name: ("array", name)
    for name in "Array as_array contiguous copy empty from_device from_dlpack from_host full may_share_memory ones "
    "reinterpret to_host zeros".split()
}
"""Names of the backend itself, as in minigrad.cpu_kernels: their modules, and their names there."""


class MissingKernelError(NotImplementedError):
    """An operation has no kernel on the device that was asked to compute it."""


def quiet() -> Any:
    """A context in which NaN and infinite results raise no warnings; kernels never do."""
    return contextlib.nullcontext()


def __getattr__(name: str) -> Any:
    """Import the kernel family ``name`` when it is first used; raise MissingKernelError if there is none."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _NAMES:
        module, of_module = _NAMES[name]
        globals()[name] = getattr(importlib.import_module(f"{__name__}.platform.{module}"), of_module)
        return globals()[name]
    if name in PLAIN_ONLY:
        globals()[name] = importlib.import_module(f"{__name__}.platform.on_host").OnHost(name)
        return globals()[name]
    full = f"{__name__}.{_ROOMS.get(name, name)}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
    raise MissingKernelError(f"there are no {name!r} kernels for the device 'cuda'; move the tensors to Device('cpu')")


families.find = functools.partial(getattr, sys.modules[__name__])
