"""The names of ``numba.cuda``, ``math`` and ``libdevice`` that kernels use, as the simulator computes them."""

import functools
import math as python_math
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import simulator
from .simulated_memory import POISON, WARP, LocalArray, SharedArray, SimulationError


def shared_array(shape: Any, dtype: Any, alignment: int | None = None) -> SharedArray:
    """Shared memory of the block; shape 0 means the launch's dynamic bytes, from their beginning."""
    dtype = getattr(dtype, "name", dtype)  # of Numba's own types
    if shape == 0:
        return simulator.allocate_shared(shape, dtype, alignment, lambda: simulator.block().dynamic.view(dtype))
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    new = functools.partial(np.full, nbytes, POISON, np.uint8)
    return simulator.allocate_shared(shape, dtype, alignment, lambda: new().view(dtype).reshape(shape))


def local_array(shape: int, dtype: Any, alignment: int | None = None) -> LocalArray:
    """Registers of the thread."""
    return LocalArray(shape, getattr(dtype, "name", dtype))


def shuffle(reason: str, source: Callable[[int, int], int], mask: int, value: Any, operand: int) -> Any:
    """The value of another lane of the warp, which ``source`` computes from this lane and the operand."""
    values, lane = simulator.collective(reason, value, mask)
    other = source(lane, int(operand))
    if not 0 <= other < WARP:
        return value
    if other not in values:
        raise SimulationError(f"{reason}: lane {lane} reads lane {other}, which is not in the mask")
    return values[other]


def _atomic(change: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """A word of ``cuda.atomic``: it returns what was there before."""
    return lambda array, index, x: array.update(index, lambda before: change(before, x))


class _Cuda:
    """The part of ``numba.cuda`` that the kernels use."""

    def __init__(self) -> None:
        self.threadIdx = simulator.threadIdx
        self.blockIdx = simulator.blockIdx
        self.blockDim = simulator.blockDim
        self.gridDim = simulator.gridDim
        self.shared = SimpleNamespace(array=shared_array)
        self.local = SimpleNamespace(array=local_array)
        self.shfl_sync = functools.partial(shuffle, "shfl_sync", lambda lane, source: source)
        self.shfl_xor_sync = functools.partial(shuffle, "shfl_xor_sync", lambda lane, mask: lane ^ mask)
        self.shfl_down_sync = functools.partial(shuffle, "shfl_down_sync", lambda lane, delta: lane + delta)
        self.shfl_up_sync = functools.partial(shuffle, "shfl_up_sync", lambda lane, delta: lane - delta)
        atomics: dict[str, Any] = {"add": operator.add, "sub": operator.sub, "max": max, "min": min}
        self.atomic = SimpleNamespace(**{name: _atomic(change) for name, change in atomics.items()})
        self.warpsize = WARP
        self.syncthreads = lambda: simulator.block().wait("block")
        self.syncwarp = lambda mask=0xFFFFFFFF: simulator.collective("syncwarp", None, mask)
        # rounded once
        self.fma = lambda a, b, c: type(c)(np.longdouble(a) * np.longdouble(b) + np.longdouble(c))

    laneid = property(lambda self: simulator.block().current.lane)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulator has no cuda.{name}: docs/simulator.md names the words that it has")

    def grid(self, ndim: int) -> Any:
        """This thread's place in the grid."""
        places = tuple(
            getattr(self.blockIdx, axis) * getattr(self.blockDim, axis) + getattr(self.threadIdx, axis)
            for axis in "xyz"[:ndim]
        )
        return places[0] if ndim == 1 else places

    def gridsize(self, ndim: int) -> Any:
        """The number of threads of the grid."""
        sizes = [getattr(self.gridDim, axis) * getattr(self.blockDim, axis) for axis in "xyz"[:ndim]]
        return sizes[0] if ndim == 1 else tuple(sizes)


cuda: Any = _Cuda()


def _as_float(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """A function of the standard library that returns its argument's dtype."""

    return lambda x: np.asarray(x).dtype.type(function(float(x)))


class _Math:
    """``math`` as compiled kernels know it: of the argument's precision, with infinities and NaN as results."""

    pi, inf, nan, e = python_math.pi, python_math.inf, python_math.nan, python_math.e
    sqrt, exp, exp2, log, log2, log10 = np.sqrt, np.exp, np.exp2, np.log, np.log2, np.log10
    log1p, expm1, sin, cos, tan, tanh = np.log1p, np.expm1, np.sin, np.cos, np.tan, np.tanh
    sinh, cosh, asin, acos, atan, atan2 = np.sinh, np.cosh, np.arcsin, np.arccos, np.arctan, np.arctan2
    asinh, acosh, atanh, pow, fmod = np.arcsinh, np.arccosh, np.arctanh, np.power, np.fmod
    floor, ceil, trunc, fabs, copysign = np.floor, np.ceil, np.trunc, np.fabs, np.copysign
    isnan, isinf, isfinite = np.isnan, np.isinf, np.isfinite
    erf, erfc = staticmethod(_as_float(python_math.erf)), staticmethod(_as_float(python_math.erfc))


math: Any = _Math()


class _Libdevice:
    """The functions of NVIDIA's libdevice that the kernels call by name."""

    rint, rintf, floor, floorf = np.rint, np.rint, np.floor, np.floor
    ceil, ceilf, trunc, truncf = np.ceil, np.ceil, np.trunc, np.trunc
    exp2, exp2f, fmod, fmodf = np.exp2, np.exp2, np.fmod, np.fmod
    fmul_rn, dmul_rn = np.multiply, np.multiply
    fast_fdividef = np.divide
    float_as_int = staticmethod(lambda x: np.float32(x).view(np.int32))
    int_as_float = staticmethod(lambda i: np.int32(i).view(np.float32))
    umul64hi = staticmethod(lambda x, y: np.uint64(int(x) * int(y) >> 64))

    @staticmethod
    def double2float_rz(x: Any) -> Any:
        """float64 to float32, towards 0."""
        y = np.float32(x)
        return np.nextafter(y, np.float32(0)) if abs(np.float64(y)) > abs(x) else y

    sinpi, cospi = staticmethod(lambda x: np.sin(np.pi * x)), staticmethod(lambda x: np.cos(np.pi * x))


libdevice: Any = _Libdevice()
