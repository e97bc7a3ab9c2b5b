"""What kernels are written in: ``from .language import cuda, device_function, libdevice, math``.

The names are Numba's where a GPU computes, and those of ``simulated_cuda.py`` where the simulator does. A kernel's
source is the same for both. ``ptx`` (vector loads, conversions of half floats) is imported beside it:
``from . import ptx``.
"""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from ..simulator import simulated_cuda
from .availability import simulated


class _CuPy:
    """CuPy, which is imported when it is first used."""

    def __getattr__(self, name: str) -> Any:
        import cupy

        return getattr(cupy, name)


cupy: Any = _CuPy()
F = TypeVar("F", bound=Callable[..., Any])

SIMULATED: bool = simulated()

cuda: Any
math: Any
libdevice: Any

if SIMULATED:
    cuda, math, libdevice = simulated_cuda.cuda, simulated_cuda.math, simulated_cuda.libdevice
else:
    cuda = importlib.import_module("numba.cuda")
    libdevice = importlib.import_module("numba.cuda.libdevice")
    math = importlib.import_module("math")

FULL_WARP = 0xFFFFFFFF  # the mask of all 32 lanes
THREADS = 256  # of a block, where a kernel has no reason for another number


def device_function(function: F) -> F:
    """A function that kernels call; it is compiled into each of them."""
    return function if SIMULATED else cuda.jit(device=True, forceinline=True)(function)
