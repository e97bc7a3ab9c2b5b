"""What Numba has no name for: 128-bit loads and stores, and the bits of half floats.

Each function here is an LLVM fragment or a PTX instruction for the GPU (``ptx_intrinsics.py``) with a twin of the same
name and meaning in Python for the simulator (``ptx_twins.py``):

* ``load2(p, i)``, ``load4``, ``load8``, ``load16``: n consecutive elements from ``p[i]`` on, a tuple, by one
  instruction; n times the element's size is at most 16 bytes, and the address is a multiple of it. ``p`` is a pointer
  or a 1-D shared array. ``load_constant2`` to ``16``: for global memory that nothing writes during the kernel (a faster
  path).
* ``store2(p, i, values)`` to ``store16``.
* ``pointer_float32(address)``, ``pointer_float64``: an int64 from a table of addresses as a pointer to global memory.
* ``float16_to_float(bits)``, ``bfloat16_to_float(bits)``: uint16 bits to float32.
* ``float_to_float16(x)``, ``float_to_bfloat16(x)``: float32 to uint16 bits, to nearest even; NaN stays NaN.
* ``float_as_int(x)``, ``int_as_float(i)``: the bits of a float32 as int32, and back.
* ``exp2_approx(x)``, ``tanh_approx(x)``: float32, one instruction of the special function unit (2 ulp; 2^-11 relative).
* ``atomic_max(p, i, x)``, ``atomic_min``: on signed integers of global memory, where any order gives the same result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .language import SIMULATED

if TYPE_CHECKING or SIMULATED:
    from .ptx_twins import (
        atomic_max,
        atomic_min,
        bfloat16_to_float,
        exp2_approx,
        float16_to_float,
        float_as_int,
        float_to_bfloat16,
        float_to_float16,
        int_as_float,
        load2,
        load4,
        load8,
        load16,
        load_constant2,
        load_constant4,
        load_constant8,
        load_constant16,
        pointer_float32,
        pointer_float64,
        store2,
        store4,
        store8,
        store16,
        tanh_approx,
    )
else:
    from .ptx_intrinsics import (
        atomic_max,
        atomic_min,
        bfloat16_to_float,
        exp2_approx,
        float16_to_float,
        float_as_int,
        float_to_bfloat16,
        float_to_float16,
        int_as_float,
        load2,
        load4,
        load8,
        load16,
        load_constant2,
        load_constant4,
        load_constant8,
        load_constant16,
        pointer_float32,
        pointer_float64,
        store2,
        store4,
        store8,
        store16,
        tanh_approx,
    )

__all__ = [
    "atomic_max",
    "atomic_min",
    "bfloat16_to_float",
    "exp2_approx",
    "float16_to_float",
    "float_as_int",
    "float_to_bfloat16",
    "float_to_float16",
    "int_as_float",
    "load2",
    "load4",
    "load8",
    "load16",
    "load_constant2",
    "load_constant4",
    "load_constant8",
    "load_constant16",
    "pointer_float32",
    "pointer_float64",
    "store2",
    "store4",
    "store8",
    "store16",
    "tanh_approx",
]
