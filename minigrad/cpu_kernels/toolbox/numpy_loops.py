"""Inner loops: functions that compute one elementwise step on n elements of any strides, by their address.

NumPy's own serve for its ufuncs: ``np.add`` of float32 is one C function, in vector instructions of this machine, that
a Numba kernel can call on a part of its arrays. The structure of a ufunc is part of NumPy's C interface
(``PyUFuncObject`` in ``ufuncobject.h``). What NumPy has no such loop for is compiled here: choice, and conversions.
"""

import ctypes
import functools
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import overload

from ...plain_kernels.arrays import is_half
from .jit import OPTIONS, emits, inline, kernel
from .multi_tensor import pointer_at
from .threads import INT64, compiled_address, emit_call
from .vector_math import copysign, floor, fmod_fast

_LOOP_TYPE = ir.FunctionType(
    ir.VoidType(), [INT64] * 4
)  # C: void loop(char **args, intp *n, intp *strides, void *data)


class Loop(NamedTuple):
    """Where a loop is, and the ``data`` that NumPy passes to it; COMPILED for one that Numba has compiled."""

    address: int
    data: int


COMPILED = -1


class _UFunc(ctypes.Structure):
    _fields_ = (
        ("head", ctypes.c_byte * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
    )


@functools.cache
def numpy_loop(ufunc: np.ufunc, dtypes: tuple[np.dtype[Any], ...]) -> Loop | None:
    """The loop of a ufunc for operands of exactly these dtypes, the result's last; None if it has none for them."""
    if not DTYPES.issuperset(dtypes):
        return None
    if ufunc in MODULO and dtypes[0].kind == "f":
        return _compiled(_modulo, dtypes[0].type, _BITS[MODULO[ufunc]])
    inner = _UFunc.from_address(id(ufunc))
    counts = (inner.nin, inner.nout, inner.nargs) == (ufunc.nin, ufunc.nout, ufunc.nargs)
    if not counts or (inner.name or b"").decode() != ufunc.__name__:
        raise RuntimeError(f"NumPy {np.__version__}: a ufunc is not laid out as its C interface says")
    chars = "".join(dtype.char for dtype in dtypes)
    word = f"{chars[: ufunc.nin]}->{chars[ufunc.nin :]}"
    if word not in ufunc.types:
        return None
    i = ufunc.types.index(word)
    return Loop(inner.functions[i] or 0, (inner.data[i] or 0) if inner.data else 0)


@emits(lambda address, data, args, n, strides: types.void(*[types.int64] * 5))
def call_loop(context: Any, builder: Any, signature: Any, address: Any, data: Any, *arrays: Any) -> None:
    """In a kernel: call a loop. ``args``, ``n`` and ``strides`` are the addresses of int64 arrays."""
    compiled = builder.icmp_signed("==", data, ir.Constant(INT64, COMPILED))
    with builder.if_else(compiled) as (of_numba, of_numpy):
        with of_numba:
            nothing = ir.Constant(INT64, 0)  # where a compiled loop has the classes of its numbers
            emit_call(context, builder, address, (types.int64,) * 5, [*arrays, nothing, nothing])
        with of_numpy:
            builder.call(builder.inttoptr(address, _LOOP_TYPE.as_pointer()), [*arrays, data])


# Loops that are compiled here ---------------------------------------------------------------------------------------
#
# Arguments ``source`` and ``target`` are the classes of numbers. bfloat16, which Numba lacks, is uint16 to it.


_bits: Any = emits(lambda x: types.uint32(types.float32))(lambda _, builder, __, x: builder.bitcast(x, ir.IntType(32)))
_of_bits: Any = emits(lambda x: types.float32(types.uint32))(
    lambda _, builder, __, x: builder.bitcast(x, ir.FloatType())
)


def _convert(x, target):
    """x as the number class ``target``; to bfloat16 rounded to the nearest, ties to even."""


def _conversion(x, target):
    if x == types.uint16:
        return lambda x, target: _of_bits(np.uint32(np.uint32(x) << np.uint32(16)))
    if target.dtype != types.uint16:
        return lambda x, target: target(x)

    def to_bfloat16(x, target):
        bits = _bits(x)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        nan = (bits >> np.uint32(16)) & np.uint32(0x8000) | np.uint32(0x7FC0)
        return np.uint16(rounded if x == x else nan)

    return to_bfloat16


overload(_convert, jit_options=OPTIONS)(_conversion)


@inline
def _array(address, n, kind):
    return numba.carray(pointer_at(address, kind), n)


@kernel
def _cast(args, n, strides, source, target):
    """y = x as another class of numbers."""
    x, y = _array(args, 2, np.int64)
    step_x, step_y = _array(strides, 2, np.int64)
    count = _array(n, 1, np.int64)[0]
    xs, ys = _array(x, count, source), _array(y, count, target)
    if step_x == xs.itemsize and step_y == ys.itemsize:
        for i in range(count):
            ys[i] = _convert(xs[i], target)
    else:
        for i in range(count):
            _array(y + i * step_y, 1, target)[0] = _convert(_array(x + i * step_x, 1, source)[0], target)


@kernel
def _where(args, n, strides, source, target):
    """z = x where the condition holds, else y."""
    condition, x, y, z = _array(args, 4, np.int64)
    steps = _array(strides, 4, np.int64)
    count = _array(n, 1, np.int64)[0]
    xs, ys, zs = _array(x, count, source), _array(y, count, source), _array(z, count, source)
    conditions = _array(condition, count, np.uint8)
    if steps[0] == 1 and steps[1] == xs.itemsize and steps[2] == xs.itemsize and steps[3] == xs.itemsize:
        for i in range(count):
            zs[i] = ys[i] ^ ((xs[i] ^ ys[i]) & (source(0) - source(conditions[i])))  # a branch would stop vectors
    else:
        for i in range(count):
            place = x + i * steps[1] if _array(condition + i * steps[0], 1, np.uint8)[0] else y + i * steps[2]
            _array(z + i * steps[3], 1, source)[0] = _array(place, 1, source)[0]


@inline
def _finished(rest, x, y, kind, one):
    """NumPy's result of this kind from fmod(x, y)."""
    other = (rest < 0) != (y < 0)
    if kind == FMOD:
        return rest
    if kind == REMAINDER:
        signed = rest + y if other else rest
        return signed if rest != 0 or y == 0 else copysign(rest, y)
    quotient = (x - rest) / y
    quotient = quotient - one if other and rest != 0 else quotient
    below = floor(quotient)
    below = below + one if quotient - below > 0.5 else below
    return x / y if y == 0 else below if quotient != 0 else copysign(quotient, x / y)


@kernel
def _modulo(args, n, strides, source, target):
    """NumPy calls C's fmod, which takes a step for each bit; ``target`` says what is wanted, by its size."""
    x, y, z = _array(args, 3, np.int64)
    steps = _array(strides, 3, np.int64)
    count = _array(n, 1, np.int64)[0]
    xs, ys, zs = _array(x, count, source), _array(y, count, source), _array(z, count, source)
    kind, one, missing = _array(z, 1, target).itemsize, source(1), count
    if steps[0] == xs.itemsize and steps[1] == xs.itemsize and steps[2] == xs.itemsize:
        missing = 0
        for i in range(count):
            zs[i] = _finished(fmod_fast(xs[i], ys[i]), xs[i], ys[i], kind, one)
            missing += zs[i] != zs[i]
    for i in range(count if missing else 0):
        place = _array(z + i * steps[2], 1, source)
        if missing == count or place[0] != place[0]:
            a, b = _array(x + i * steps[0], 1, source)[0], _array(y + i * steps[1], 1, source)[0]
            place[0] = _finished(np.fmod(a, b), a, b, kind, one)


FMOD, REMAINDER, FLOOR = 1, 4, 8
MODULO: dict[np.ufunc, int] = {np.fmod: FMOD, np.remainder: REMAINDER, np.floor_divide: FLOOR}


@inline
def _repeat(x, y):
    if x.shape[0] == 1:
        y[:] = x[0]  # in vectors
        return
    for first in range(0, y.shape[0], x.shape[0]):
        for i in range(min(x.shape[0], y.shape[0] - first)):
            y[first + i] = x[i]


@kernel
def fill(target: int, source: int, itemsize: int, period: int, count: int) -> None:
    """``count`` items: the ``period`` ones at the address ``source``, again and again."""
    if itemsize == 4:
        _repeat(_array(source, period, np.uint32), _array(target, count, np.uint32))
    elif itemsize == 8:
        _repeat(_array(source, period, np.uint64), _array(target, count, np.uint64))
    else:
        _repeat(_array(source, period * itemsize, np.uint8), _array(target, count * itemsize, np.uint8))


_FLOAT32 = np.dtype(np.float32)
DTYPES: frozenset[np.dtype[Any]] = frozenset(map(np.dtype, ("?", "u1", "i4", "i8", "f4", "f8")))
"""What loops are for: 1, 4 or 8 bytes in this machine's order. Loops of others may work on Python's objects."""
_BITS = {1: np.uint8, 4: np.uint32, 8: np.uint64}


@functools.cache
def cast_loop(source: np.dtype[Any], target: np.dtype[Any]) -> Loop | None:
    """The loop y = x as another dtype; None where one would have to know what NumPy makes of numbers out of range."""
    halves = [dtype for dtype in (source, target) if dtype not in DTYPES]
    bfloat16 = all(dtype.kind == "V" and is_half(dtype) for dtype in halves) and _FLOAT32 in (source, target)
    if (halves and not bfloat16) or (target.kind in "iu" and source.kind != "b"):
        return None
    return _compiled(_cast, *(np.uint16 if dtype in halves else dtype.type for dtype in (source, target)))


@functools.cache
def where_loop(dtype: np.dtype[Any]) -> Loop | None:
    """The loop z = x where the condition (bool) holds, else y, for operands of this dtype; None if it has none."""
    return None if dtype not in DTYPES else _compiled(_where, _BITS[dtype.itemsize], np.uint8)


def _compiled(loop: Any, source: Any, target: Any) -> Loop:
    classes = (numba.typeof(source), numba.typeof(target))
    return Loop(compiled_address(loop, *[types.int64] * 3, *classes), COMPILED)
