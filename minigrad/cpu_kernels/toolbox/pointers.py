"""Arrays as numbers: how one launch gets at many arrays through a table of their addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from .jit import inline

_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


def addresses_of(arrays: Iterable[np.ndarray]) -> list[int]:
    """The addresses of the arrays' memory. The caller keeps the arrays alive."""
    arrays = list(arrays)
    try:
        return [*map(ctypes.addressof, map(_first_byte, arrays))]  # five times faster than the array interface
    except (TypeError, ValueError):  # one is read-only, or without elements
        return [int(array.__array_interface__["data"][0]) for array in arrays]


def address_of(array: np.ndarray) -> int:
    """The address of an array's memory. The caller keeps the array alive."""
    return addresses_of((array,))[0]


@intrinsic
def pointer_at(_: Any, address: Any, like: Any) -> Any:
    """In a kernel: ``address`` as a pointer to elements of the dtype of the array ``like``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(address, like), generate


@inline
def elements_at(address: int, n: int, like: np.ndarray) -> np.ndarray:
    """In a kernel: the ``n`` elements from ``address`` on, as an array of the dtype of ``like``."""
    return carray(pointer_at(address, like), (n,))
