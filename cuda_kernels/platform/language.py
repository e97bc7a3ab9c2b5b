"""What kernels are written in: ``from .language import cuda, libdevice, math``.

The names are Numba's where a GPU computes, and those of ``simulated_cuda.py`` where the simulator does. A kernel's
source is the same for both. ``ptx`` (vector loads, conversions of half floats) is imported beside it:
``from . import ptx``.
"""

import functools
import importlib
from types import FunctionType
from typing import Any

from ..simulator import simulated_cuda
from .availability import simulated


class _CuPy:
    """CuPy, which is imported when it is first used."""

    def __getattr__(self, name: str) -> Any:
        import cupy

        return getattr(cupy, name)


cupy: Any = _CuPy()


@functools.cache
def _compiled(function: FunctionType) -> Any:
    return cuda.jit(device=True, forceinline=True)(function)


def _type_of(function: FunctionType, context: Any) -> Any:
    """For Numba: what a kernel calls is compiled into it, without a mark. Its own functions it knows by itself."""
    return None if function.__module__.startswith(("numba", "numpy")) else _compiled(function)._numba_type_


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
    extending: Any = importlib.import_module("numba.cuda.extending")
    if hasattr(extending, "typeof_impl"):  # numba-cuda, without which nothing is compiled
        extending.typeof_impl.register(FunctionType, _type_of)

FULL_WARP = 0xFFFFFFFF  # the mask of all 32 lanes
THREADS = 256  # of a block, where a kernel has no reason for another number
