"""Fill new memory with NaN: called by ``memory.py`` if ``MINIGRAD_POISON=1`` is in the environment, for tests.

``np.empty`` returns what an earlier tensor left there. A kernel that forgets to write a part of its result then gives
numbers that look right, in most runs. With this module NumPy takes memory from the functions below, which set each byte
to 0xff: NaN as any float type, -1 as any signed integer. Workspaces inside of compiled kernels do not come from NumPy;
in them glibc's ``M_PERTURB`` leaves 0xfe, which is -1.7e38 as a float32.

NumPy's allocator belongs to a thread: poisoned are the arrays of the thread that used minigrad first. Memory that is
asked for as zeros is zeros. Source: NumPy's C interface, "Memory management in NumPy".
"""

from __future__ import annotations

import ctypes
import importlib
import sys

import numba
from numba import types

POISON = 0xFF
M_PERTURB = -6  # of mallopt(3): new bytes are the complement of its value, freed ones the value
SET_HANDLER = 304  # the place of PyDataMem_SetHandler in the table of NumPy's C interface

_size = types.uintp  # pointers travel as numbers
_malloc = types.ExternalFunction("malloc", _size(_size))
_calloc = types.ExternalFunction("calloc", _size(_size, _size))
_realloc = types.ExternalFunction("realloc", _size(_size, _size))
_free = types.ExternalFunction("free", types.void(_size))
_memset = types.ExternalFunction("memset", _size(_size, types.int32, _size))


def _new(_, size):
    address = _malloc(size)
    if address != 0:
        _memset(address, POISON, size)
    return address


def _new_zeros(_, count, size):
    return _calloc(count, size)


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


def install() -> None:
    """Fill what NumPy allocates in the calling thread from now on."""
    new, other, delete = _size(_size, _size), _size(_size, _size, _size), types.void(_size, _size, _size)
    signatures = {_new: new, _new_zeros: other, _resize: other, _delete: delete}
    functions = [numba.cfunc(signature)(fn) for fn, signature in signatures.items()]
    handler = _Handler(b"minigrad_poison", 1, None, *(fn.address for fn in functions))
    new_capsule, address_in = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetPointer
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    address_in.restype, address_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    multiarray = importlib.import_module("numpy._core._multiarray_umath")
    table = ctypes.cast(address_in(multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])
    set_handler(new_capsule(ctypes.addressof(handler), b"mem_handler", None))
    for kept in (handler, *functions):  # arrays are freed until the very end of the process
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    if sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "mallopt"):
        ctypes.CDLL(None).mallopt(M_PERTURB, 0xFF ^ 0xFE)
