"""Tensor maps: what the tensor memory accelerator (TMA) of compute capability 9.0 knows of an array.

One instruction of one thread copies a box of up to three dimensions to shared memory. Where the array is, its sizes and
steps and the box's sizes lie in 128 bytes that the driver makes on the host (``cuTensorMapEncodeTiled``); the kernel
says only where the box begins. Elements outside the array become zeros. The bytes travel as a parameter of the launch,
so a captured launch keeps them and nothing is copied to the device before it.

    driver's rules      the address and the steps are multiples of 16 bytes, steps are less than 2^40
                        sizes are 1 to 2^32, the box's 1 to 256, one row of a box is a multiple of 16 bytes
    swizzle of 128 B    a row of the box is 128 bytes at most
"""

import ctypes
import functools
from typing import NamedTuple

import numpy as np

from . import libcuda, memory

MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a map
SWIZZLED_ROW = 128  # bytes
BIGGEST_BOX = 256
_DTYPES = {"float16": 6, "bfloat16": 9}  # CUtensorMapDataType
_SWIZZLE_128, _FETCH_256 = 3, 3  # CUtensorMapSwizzle; CUtensorMapL2promotion: what L2 reads of memory at a time


class TensorMap(NamedTuple):
    """An array of half floats as boxes, the dimension whose elements are neighbours first.

    ``steps`` are those of the second and third dimension, in bytes. A row of the box is 128 bytes and its 16-byte
    pieces are swizzled; see ``docs/hopper_product.md``.
    """

    pointer: int
    dtype: str
    sizes: tuple[int, int, int]
    steps: tuple[int, int]
    box: tuple[int, int, int]
    device: int

    @property
    def nbytes(self) -> int:
        """Of the array's elements."""
        return int(np.prod(self.sizes, dtype=np.int64)) * 2

    def problem(self) -> str | None:
        """Which of the driver's rules it breaks."""
        if self.dtype not in _DTYPES:
            return f"dtype {self.dtype}; expected one of {', '.join(_DTYPES)}"
        if self.pointer % 16:
            return f"address {self.pointer:#x}; expected a multiple of 16"
        if not all(0 < step < 2**40 and step % 16 == 0 for step in self.steps):
            return f"steps of {self.steps} bytes; expected positive multiples of 16 below 2^40"
        if not all(0 < n <= 2**32 for n in self.sizes):
            return f"sizes {self.sizes}; expected 1 to 2^32"
        if self.box[0] * 2 != SWIZZLED_ROW or not all(0 < n <= BIGGEST_BOX for n in self.box):
            return f"box {self.box}; expected rows of 64 elements, and up to 256 of them"
        return None

    def encoded(self) -> bytes:
        """The map as the GPU reads it. Raises ValueError if it breaks a rule, CudaError if the driver refuses."""
        return _encoded(self)


@functools.lru_cache(maxsize=4096)
def _encoded(tensor: TensorMap) -> bytes:
    problem = tensor.problem()
    if problem:
        raise ValueError(f"no tensor map of {problem}")
    memory.set_device(tensor.device)  # this may be the first that a thread asks of the driver, which needs a context
    room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    place = -ctypes.addressof(room) % MAP_ALIGNMENT
    array = (ctypes.c_uint64 * 3)(*tensor.sizes), (ctypes.c_uint64 * 2)(*tensor.steps)
    box = (ctypes.c_uint32 * 3)(*tensor.box), (ctypes.c_uint32 * 3)(1, 1, 1)  # every element of it
    settings = map(ctypes.c_int, (0, _SWIZZLE_128, _FETCH_256, 0))  # nothing interleaved; zeros outside
    target, source = ctypes.c_void_p(ctypes.addressof(room) + place), ctypes.c_void_p(tensor.pointer)
    kind = ctypes.c_int(_DTYPES[tensor.dtype]), ctypes.c_uint32(3)
    libcuda.call("cuTensorMapEncodeTiled", target, *kind, source, *array, *box, *settings)
    return room.raw[place : place + MAP_BYTES]
