"""Functions of our own in place of NumPy's allocator: ``poison.py`` fills new memory, ``heap.py`` counts it.

NumPy's allocator belongs to a thread: only the arrays of the thread that calls ``install``, which is the one that
imports minigrad, come from it. Source: NumPy's C interface, "Memory management in NumPy".
"""

import ctypes
import functools
import importlib
from collections.abc import Callable, Iterable
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


def allocator(
    name: str,
    context: np.ndarray,
    new: Callable[..., Any],
    new_zeros: Callable[..., Any] = _new_zeros,
    resize: Callable[..., Any] = _resize,
    delete: Callable[..., Any] = _delete,
) -> tuple[Any, Any]:
    """An allocator for ``use``, of functions compiled here: ``new(context, size)``,
    ``new_zeros(context, count, size)``, ``resize(context, address, size)`` and ``delete(context, address, size)``.

    With it comes its handler, which must outlive the arrays; so must ``context``, int64.
    """
    of_new, of_three = _size(_context, _size), _size(_context, _size, _size)
    signatures = (new, of_new), (new_zeros, of_three), (resize, of_three), (delete, types.void(_context, _size, _size))
    return handler(name, context, [_compiled(fn, signature) for fn, signature in signatures])


def handler(name: str, context: np.ndarray, addresses: Iterable[int]) -> tuple[Any, Any]:
    """What ``allocator`` returns, of functions by their addresses, in its order."""
    record = _Handler(name.encode(), 1, context.ctypes.data, *addresses)
    capsule: Any = python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ctypes.addressof(record), b"mem_handler", None
    )
    return capsule, record


@functools.cache
def _compiled(fn: Callable[..., Any], signature: Any) -> int:
    function = numba.cfunc(signature)(fn)
    keep(function)
    return int(function.address)


def keep(x: Any) -> None:
    """Until the very end of the process, when the last arrays are freed."""
    python("Py_IncRef", None, ctypes.py_object)(x)


def python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's C interface."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


def numpys(table: str, place: int, result: Any, *arguments: Any) -> Any:
    """A function of NumPy's C interface, in this table and place."""
    multiarray = importlib.import_module("numpy._core._multiarray_umath")
    address_in = python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    functions = ctypes.cast(address_in(getattr(multiarray, table), None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(result, *arguments)(functions[place])


# NumPy's ``PyDataMem_SetHandler``.
_setter = functools.cache(lambda: numpys("_ARRAY_API", SET_HANDLER, ctypes.py_object, ctypes.py_object))


def use(allocator: Any) -> Any:
    """Let the calling thread's arrays come from this allocator from now on; the one before."""
    return _setter()(allocator)


def install(name: str, context: np.ndarray, *functions: Callable[..., Any]) -> None:
    """``use`` an allocator until the end of the process."""
    capsule, record = allocator(name, context, *functions)
    keep((context, record))
    use(capsule)
