"""The functions of ``ptx.py`` in Python, for the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from . import memory, simulator
from .simulator import Pointer, SharedArray, SimulationError


def _loader(n: int) -> Callable[[Any, Any], tuple[Any, ...]]:
    def load(p: Any, i: Any) -> tuple[Any, ...]:
        _check_alignment(p, i, n)
        return tuple([p[i + k] for k in range(n)])

    return load


def _storer(n: int) -> Callable[[Any, Any, tuple[Any, ...]], None]:
    def store(p: Any, i: Any, values: tuple[Any, ...]) -> None:
        if len(values) != n:
            raise SimulationError(f"store{n} got {len(values)} values")
        _check_alignment(p, i, n)
        for k, value in enumerate(values):
            p[i + k] = value

    return store


def _check_alignment(p: Any, i: Any, n: int) -> None:
    if isinstance(p, Pointer):
        p.place(i, n)
        address, width = p.address(i), n * p.view.itemsize
    elif isinstance(p, SharedArray):
        address, width = int(i) * p.values.itemsize, n * p.values.itemsize
    else:
        raise SimulationError(f"a vector access needs a pointer or a shared array, not {type(p).__name__}")
    if width > 16 or address % width:
        raise SimulationError(f"a vector access of {width} bytes at element {i}, address {address:#x}: not aligned")


Loader = Callable[[Any, Any], tuple[Any, ...]]
Storer = Callable[[Any, Any, tuple[Any, ...]], None]
load2: Loader = _loader(2)
load4: Loader = _loader(4)
load8: Loader = _loader(8)
load16: Loader = _loader(16)
load_constant2: Loader = load2
load_constant4: Loader = load4
load_constant8: Loader = load8
load_constant16: Loader = load16
store2: Storer = _storer(2)
store4: Storer = _storer(4)
store8: Storer = _storer(8)
store16: Storer = _storer(16)


def pointer_float32(address: Any) -> Pointer:
    """``address`` as a pointer to float32."""
    return simulator.pointer(memory.simulated_bytes(int(address)), int(address), np.float32)


def pointer_float64(address: Any) -> Pointer:
    """``address`` as a pointer to float64."""
    return simulator.pointer(memory.simulated_bytes(int(address)), int(address), np.float64)


def float16_to_float(bits: Any) -> np.float32:
    """uint16 bits of a float16 as float32."""
    return np.float32(np.uint16(bits).view(np.float16))


def bfloat16_to_float(bits: Any) -> np.float32:
    """uint16 bits of a bfloat16 as float32."""
    return (np.uint32(bits) << np.uint32(16)).view(np.float32)


def float_to_float16(x: Any) -> np.uint16:
    """The uint16 bits of float32 ``x`` rounded to float16."""
    return np.float16(np.float32(x)).view(np.uint16)


def float_to_bfloat16(x: Any) -> np.uint16:
    """The uint16 bits of float32 ``x`` rounded to bfloat16."""
    return np.uint16(np.asarray(np.float32(x)).astype(ml_dtypes.bfloat16).view(np.uint16).item())


def float_as_int(x: Any) -> np.int32:
    """The bits of float32 ``x``."""
    return np.float32(x).view(np.int32)


def int_as_float(i: Any) -> np.float32:
    """The float32 of these bits."""
    return np.int32(i).view(np.float32)


def exp2_approx(x: Any) -> np.float32:
    """2^x."""
    return np.exp2(np.float32(x))


def tanh_approx(x: Any) -> np.float32:
    """tanh(x)."""
    return np.tanh(np.float32(x))


def atomic_max(p: Any, i: Any, x: Any) -> Any:
    """p[i] = max(p[i], x); what p[i] was."""
    before = p[i]
    p[i] = max(before, x)
    return before


def atomic_min(p: Any, i: Any, x: Any) -> Any:
    """p[i] = min(p[i], x); what p[i] was."""
    before = p[i]
    p[i] = min(before, x)
    return before
