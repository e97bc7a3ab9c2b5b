"""What Numba has no name for: 128-bit loads and stores, and the bits of half floats.

Each function here is an LLVM fragment or a PTX instruction for the GPU (``ptx_intrinsics.py``). For the simulator it
has a twin of the same name and meaning in Python (``ptx_twins.py``). Both files make those that differ in a number or a
dtype, and these have their names here:

* ``load2(p, i)``, ``load4``, ``load8``: n consecutive elements from ``p[i]`` on, a tuple, by one
  instruction; n times the element's size is at most 16 bytes, and the address is a multiple of it. ``p`` is a pointer
  or a 1-D shared array. ``load_constant2`` to ``16``: for global memory that nothing writes during the kernel (a faster
  path).
* ``store2(p, i, values)`` to ``store8``.
* ``pointer_float32(address)``, ``_float64``, ``_uint16``, ``_uint64``: an int64 from a table of addresses as a pointer
  to global memory.
* ``float16_to_float(bits)``, ``bfloat16_to_float(bits)``: uint16 bits to float32.
* ``float_to_float16(x)``, ``float_to_bfloat16(x)``: float32 to uint16 bits, to nearest even; NaN stays NaN.
* ``exp2_approx(x)``: 2^x of float32, one instruction of the special function unit (2 ulp).
* ``atomic_max(p, i, x)``, ``atomic_min``: on signed integers of global memory, where any order gives the same result.

For tensor cores, from compute capability 8.0 on; what a warp does all its 32 lanes must call:

* ``shared_address(array, i)``: int32, the address of an element of a 1-D shared array; others are bytes away from it.
* ``cp_async(address, p, i, nbytes)``: begin to copy 16 bytes from ``p[i]`` to a shared address, both multiples of 16;
  only the first ``nbytes`` are read, the rest become 0. Of 0 bytes ``p`` alone must be such a multiple.
  ``cp_async_commit()`` makes a group of what the thread began since the last one; ``cp_async_wait0()``, ``1`` wait
  for all groups but the last 0, 1. Then the thread sees its copies, and after a barrier the others do.
* ``ldmatrix(address)``: four matrices of 8 rows of 16 bytes, at the addresses that lanes 0 to 7 (8 to 15, ...) bring.
  Lane l gets 4 uint32: word l % 4 of row l // 4 of each. ``ldmatrix_transposed``: of matrices of 8 x 8 uint16, the
  values in rows 2 (l % 4) and 2 (l % 4) + 1 of column l // 4.
* ``mma_bfloat16(a, b, c)``, ``mma_float16``: c + a b, float32, of a (16, 16) and b (16, 8). With i = l // 4 and
  j = 2 (l % 4), lane l has of a: 4 uint32, the pairs (i, j), (i + 8, j), (i, j + 8), (i + 8, j + 8) and what is right
  of each; of b: 2 uint32, the pairs (j, i), (j + 8, i) and what is below each; of c and the result: 4 float32, (i, j),
  (i, j + 1), (i + 8, j), (i + 8, j + 1). ``mma_tf32``: a (16, 8), b (8, 8), a value for each pair: j is l % 4, and 4
  stands for 8 along the common dimension.
* ``pack_bfloat16(low, high)``, ``pack_float16``: two float32 to a uint32; ``round_tf32(x)``: float32 to bits for
  ``mma_tf32``, to nearest, halves away from 0.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..platform.language import SIMULATED, libdevice

if TYPE_CHECKING or SIMULATED:
    from . import ptx_twins as made
    from .ptx_twins import *
else:
    from . import ptx_intrinsics as made
    from .ptx_intrinsics import *

load2: Any = made.loader(2)
load4: Any = made.loader(4)
load8: Any = made.loader(8)
load_constant2: Any = made.loader(2, constant=True)
load_constant4: Any = made.loader(4, constant=True)
load_constant8: Any = made.loader(8, constant=True)
load_constant16: Any = made.loader(16, constant=True)
store2: Any = made.storer(2)
store4: Any = made.storer(4)
store8: Any = made.storer(8)
pointer_float32: Any = made.pointer("float32")
pointer_float64: Any = made.pointer("float64")
pointer_uint16: Any = made.pointer("uint16")
pointer_uint64: Any = made.pointer("uint64")
atomic_max: Any = made.atomic("max")
atomic_min: Any = made.atomic("min")
cp_async_wait0: Any = made.waiter(0)
cp_async_wait1: Any = made.waiter(1)
mma_bfloat16: Any = made.mma("bfloat16")
mma_float16: Any = made.mma("float16")
mma_tf32: Any = made.mma("tf32")
pack_bfloat16: Any = made.packer("bfloat16")
pack_float16: Any = made.packer("float16")


def bfloat16_to_float(bits: Any) -> Any:
    """uint16 bits of a bfloat16 as float32: its upper half."""
    return libdevice.int_as_float(np.int32(np.uint32(bits) << np.uint32(16)))


def float_to_bfloat16(x: Any) -> Any:
    """The uint16 bits of float32 ``x`` rounded to bfloat16, in integers, for cards older than the instruction.

    Half a unit less one, plus the bit that decides a tie, is added below the cut; NaN becomes the quiet one.
    """
    bits = np.uint32(libdevice.float_as_int(np.float32(x)))
    upper = np.uint32(bits >> np.uint32(16))
    if x != x:
        return np.uint16(upper & np.uint32(0x8000) | np.uint32(0x7FC0))
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16))


def adder(word: str) -> Any:
    """``add_product``, which adds a b of elements of dtype ``word``, as ``mma``, to the four sums from ``i`` on."""
    mma = {"bfloat16": mma_bfloat16, "float16": mma_float16, "float32": mma_tf32}[word]

    def add_product(sums, i, a, b0, b1):
        s = mma(a, (b0, b1), (sums[i], sums[i + 1], sums[i + 2], sums[i + 3]))
        for e in range(4):
            sums[i + e] = s[e]

    return add_product
