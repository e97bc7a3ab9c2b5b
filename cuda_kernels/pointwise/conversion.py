"""Between dtypes: from an element as it lies in memory to a number that kernels compute with, and back.

Half floats lie in memory as uint16 bits and are computed with as float32; bool lies as uint8 0 and 1. ``loaded(dtype)``
is the dtype as which a kernel computes with elements of a dtype. Floats become integers without their fraction, as in
NumPy: NaN and what does not fit become the smallest int64 (int32), and uint8 takes the lowest byte.
"""

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ..platform.language import SIMULATED, libdevice
from ..ptx import ptx

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

Convert = Callable[[Any], Any]


def loaded(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that kernels compute in: float32 for half floats, uint8 for bool."""
    if dtype.kind in "fV" and dtype.itemsize == 2:
        return np.dtype(np.float32)
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


@functools.cache
def load_as(stored: np.dtype[Any], computed: np.dtype[Any]) -> Convert:
    """A device function from an element of ``stored`` as it lies in memory to a number of ``computed``."""
    truth = computed.kind == "b" and stored.kind != "b"
    change = _truth if truth else _number(loaded(stored), loaded(computed))
    if stored.name not in _HALVES:
        return change
    widen = _HALVES[stored.name][0]
    return lambda x: change(widen(x))


@functools.cache
def store_as(computed: np.dtype[Any], stored: np.dtype[Any]) -> Convert:
    """A device function from what a kernel computed (of ``computed``, or a truth value) to an element of ``stored``."""
    source = loaded(computed)
    if stored.kind == "b":
        return _truth
    if stored.name not in _HALVES:
        return _number(source, stored)
    odd, narrow = stored == np.float16 and source == np.float64, _HALVES[stored.name][1]
    single = _to_odd if odd else _number(source, np.dtype(np.float32))
    return lambda x: narrow(single(x))


def _truth(x: Any) -> Any:
    return np.uint8(1) if x else np.uint8(0)


def _to_odd(x: Any) -> Any:
    """float64 to float32 so that rounding it to float16 is as rounding once: what is inexact gets odd bits."""
    y = libdevice.double2float_rz(x)
    return y if np.float64(y) == x or x != x else libdevice.int_as_float(libdevice.float_as_int(y) | np.int32(1))


def _number(source: np.dtype[Any], target: np.dtype[Any]) -> Convert:
    """From a number of one dtype to another; integers come wider from Numba's arithmetic and lose their upper bytes."""
    number = target.type
    if SIMULATED:
        return lambda x: x if type(x) is number else np.asarray(x).astype(target)[()]
    if source.kind == "f" and target.kind in "iu":
        return _truncate(source.type, number)
    return number


_HALVES = {
    "float16": (ptx.float16_to_float, ptx.float_to_float16),
    "bfloat16": (ptx.bfloat16_to_float, ptx.float_to_bfloat16),
}


def element_conversions(word: str) -> tuple[Convert, Convert]:
    """From an element of dtype ``word``, as it lies in memory, to what sums are formed of, and back."""
    return _HALVES.get(word, (lambda x: x, lambda x: x))


def conversions(word: str) -> tuple[Any, Any]:
    """``widen``, of an element to float32, and ``narrow``, of two float32 to elements."""
    widen = element_conversions(word)[0]
    pack = {"bfloat16": ptx.pack_bfloat16, "float16": ptx.pack_float16}.get(word)
    if pack is None:
        return widen, lambda x, y: (x, y)

    def halves(x, y):
        pair = pack(x, y)
        return np.uint16(pair & np.uint32(0xFFFF)), np.uint16(pair >> np.uint32(16))

    return widen, halves


def _truncate(real: Any, integer: Any) -> Convert:
    width = 31 if integer is np.int32 else 63
    limit = real(2.0**width)
    lowest = np.int64(-(2**width))
    return lambda x: integer(np.int64(x) if -limit <= x and x < limit else lowest)
