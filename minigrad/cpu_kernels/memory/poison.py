"""Fill new memory with NaN: called by ``memory.py`` if ``MINIGRAD_POISON=1`` is in the environment, for tests.

``np.empty`` returns what an earlier tensor left there. A kernel that forgets to write a part of its result then gives
numbers that look right, in most runs. With this module NumPy takes memory from the function below, which sets each byte
to 0xff: NaN as any float type, -1 as any signed integer. Workspaces inside of compiled kernels do not come from NumPy;
in them glibc's ``M_PERTURB`` leaves 0xfe, which is -1.7e38 as a float32. Memory that is asked for as zeros is zeros.
"""

import ctypes
import sys

import numpy as np
from numba import types

from . import numpy_allocator
from .numpy_allocator import malloc

POISON = 0xFF
M_PERTURB = -6  # of mallopt(3): new bytes are the complement of its value, freed ones the value

_memset = types.ExternalFunction("memset", types.uintp(types.uintp, types.int32, types.uintp))


def _new(_, size):
    address = malloc(size)
    if address != 0:
        _memset(address, POISON, size)
    return address


def install() -> None:
    """Fill what NumPy allocates in the calling thread from now on."""
    numpy_allocator.install("minigrad_poison", np.zeros(1, np.int64), _new)
    if sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "mallopt"):
        ctypes.CDLL(None).mallopt(M_PERTURB, 0xFF ^ 0xFE)
