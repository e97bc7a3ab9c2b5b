"""Inner loops: functions that compute one elementwise step on n elements, by their address.

NumPy's own serve for its ufuncs: ``np.sin`` of float32 is one C function, in vector instructions of this machine, that
machine code can call on a part of its arrays. The structure of a ufunc is part of NumPy's C interface
(``PyUFuncObject`` in ``ufuncobject.h``). One is compiled here: it puts C's results where fast ones are missing.
"""

import ctypes
import functools
import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types

from .jit import inline, kernel
from .multi_tensor import pointer_at
from .threads import compiled_address

FMOD, SINE, COSINE = -1, -2, -3


class Loop(NamedTuple):
    """Where a loop is, and the ``data`` that NumPy passes to it; for ``_mended`` which function."""

    name: str
    address: int
    data: int


class _UFunc(ctypes.Structure):
    _fields_ = (
        ("head", ctypes.c_byte * object.__basicsize__), ("nin", ctypes.c_int), ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int), ("identity", ctypes.c_int), ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)), ("ntypes", ctypes.c_int), ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
    )  # fmt: skip


@functools.cache
def numpy_loop(ufunc: np.ufunc, dtypes: tuple[np.dtype[Any], ...]) -> Loop | None:
    """The loop of a ufunc for operands of exactly these dtypes, the result's last; None if it has none for them."""
    if not DTYPES.issuperset(dtypes):
        return None
    inner = _UFunc.from_address(id(ufunc))
    counts = (inner.nin, inner.nout, inner.nargs) == (ufunc.nin, ufunc.nout, ufunc.nargs)
    if not counts or (inner.name or b"").decode() != ufunc.__name__:
        raise RuntimeError(f"NumPy {np.__version__}: a ufunc is not laid out as its C interface says")
    chars = "".join(dtype.char for dtype in dtypes)
    word = f"{chars[: ufunc.nin]}->{chars[ufunc.nin :]}"
    if word not in ufunc.types:
        return None
    i = ufunc.types.index(word)
    return Loop(f"{ufunc.__name__} {word}", inner.functions[i] or 0, (inner.data[i] or 0) if inner.data else 0)


@inline
def array_at(address: int, n: Any, kind: Any) -> Any:
    """In a kernel: the elements of this class from ``address`` on, as an array of the shape n."""
    return numba.carray(pointer_at(address, kind), n)


@kernel
def _mended(args, n, strides, function, kind):
    """z = ``fast``, and where that is NaN C's function of x, or x and y. Contiguous."""
    x, y, fast, z = array_at(args, 4, np.int64)
    count, missing = array_at(n, 1, np.int64)[0], 0
    xs, ys, zs = array_at(x, count, kind), array_at(y, count, kind), array_at(z, count, kind)
    zs[:] = array_at(fast, count, kind)
    for i in range(count):
        missing += zs[i] != zs[i]
    for i in range(count if missing else 0):
        if zs[i] != zs[i]:
            of_one = math.sin(xs[i]) if function == SINE else math.cos(xs[i])
            zs[i] = np.fmod(xs[i], ys[i]) if function == FMOD else of_one


@functools.cache
def mended(function: int, dtype: np.dtype[Any]) -> Loop:
    """The loop of x, y and what is FMOD, SINE or COSINE of them but where it is NaN; SINE and COSINE are those of x."""
    kind = numba.typeof(dtype.type)
    return Loop(f"mended {function} {kind}", compiled_address(_mended, *[types.int64] * 4, kind), function)


DTYPES: frozenset[np.dtype[Any]] = frozenset(map(np.dtype, ("?", "u1", "i4", "i8", "f4", "f8")))
"""What loops are for: 1, 4 or 8 bytes in this machine's order. Loops of others may work on Python's objects."""
