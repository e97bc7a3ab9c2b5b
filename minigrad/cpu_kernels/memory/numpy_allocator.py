"""Functions of our own in place of NumPy's allocator: ``poison.py`` fills new memory, ``heap.py`` counts it.

NumPy's allocator belongs to a thread: only the arrays of the thread that calls ``install``, which is the one that
imports minigrad, come from it. Source: NumPy's C interface, "Memory management in NumPy".
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

SET_HANDLER = 304  # the place of PyDataMem_SetHandler in the table of NumPy's C interface

_size, _context = types.uintp, types.CPointer(types.int64)  # pointers to arrays' memory travel as numbers
malloc: Any = types.ExternalFunction("malloc", _size(_size))
calloc: Any = types.ExternalFunction("calloc", _size(_size, _size))
_realloc = types.ExternalFunction("realloc", _size(_size, _size))
_free = types.ExternalFunction("free", types.void(_size))


def _new_zeros(_, count, size):
    return calloc(count, size)


def _resize(_, address, size):
    return _realloc(address, size)


def _delete(_, address, size):
    _free(address)


class _Handler(ctypes.Structure):
    """NumPy's ``PyDataMem_Handler``."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        *((name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")),
    )


def install(
    name: str, context: np.ndarray, new: Callable[..., Any], new_zeros: Callable[..., Any] = _new_zeros
) -> None:
    """Let ``new(context, size)`` and ``new_zeros(context, count, size)``, compiled here, allocate the calling thread's
    arrays from now on; ``context`` is int64.
    """
    of_new, of_three, of_delete = (
        _size(_context, _size),
        _size(_context, _size, _size),
        types.void(_context, _size, _size),
    )
    signatures = ((new, of_new), (new_zeros, of_three), (_resize, of_three), (_delete, of_delete))
    functions = [numba.cfunc(signature)(fn) for fn, signature in signatures]
    handler = _Handler(name.encode(), 1, context.ctypes.data, *(fn.address for fn in functions))
    new_capsule, address_in = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetPointer
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    address_in.restype, address_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    multiarray = importlib.import_module("numpy._core._multiarray_umath")
    table = ctypes.cast(address_in(multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])
    set_handler(new_capsule(ctypes.addressof(handler), b"mem_handler", None))
    for kept in (context, handler, *functions):  # arrays are freed until the very end of the process
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
