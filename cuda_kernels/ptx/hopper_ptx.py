"""The instructions of compute capability 9.0 (Hopper) that Numba has no name for: TMA, mbarriers, wgmma.

As in ``ptx.py``, each is inline PTX on a GPU (``hopper_intrinsics.py``) and has a twin for the simulator
(``hopper_twins.py``). ``docs/hopper_product.md`` draws what is described here.

A barrier in shared memory (mbarrier, 8 bytes at a multiple of 8) counts arrivals of threads and bytes of copies. When
both are complete its phase ends, and the next one begins with the same number of arrivals:

* ``mbarrier_init(address, count)``: a barrier of so many arrivals. ``fence_async()`` afterwards shows TMA and wgmma
  what the thread wrote to shared memory. A barrier of the block shows it to the other threads.
* ``mbarrier_expect(address, nbytes)``: arrive, and let the phase also wait for so many bytes.
* ``mbarrier_arrive(address)``: arrive.
* ``mbarrier_wait(address, parity)``: until the phase of this parity has ended; the first phase is of parity 0, and the
  one before it, of parity 1, counts as ended.
* ``tma_load(address, map, x, y, z, barrier)``: begin to copy the box of a ``TensorMap`` that begins at element (x, y,
  z) to a shared address, a multiple of 1024; all the box's bytes arrive at the barrier.

A warpgroup is 4 warps that begin at a multiple of 4. All its threads execute these, with the same operands:

* ``wgmma(dtype, columns, kinds)``: the function (sums, a, b) -> sums. It begins to add the product of 64 x 16 and 16 x
  ``columns`` half floats in shared memory, where 64-bit descriptors say. ``kinds``: "k" where the elements along the
  common dimension are neighbours, "o" where those along the other one are; of a, of b.
* ``zeros(columns)``: the function () -> sums of a thread, ``columns`` / 2 float32. ``wgmma_fence()`` comes between
  what wrote to these registers and the first ``wgmma``.
* ``wgmma_commit()``: what was begun since the last one is a group. ``wgmma_wait1()``: until all groups but the last
  have ended. ``wgmma_wait0(sums)``: until all have; returns the sums, to be read.
* ``store_columns(pitch)``: the function (array, i, sums, part), which writes a thread's sums of columns 32 ``part`` to
  32 ``part`` + 31 to a shared array of float32. Lane l brings the place i = i0 + pitch (l // 4) + 2 (l % 4); then sum
  (row, column) of the warp's 16 rows lies at i0 + pitch row + column.
"""

from typing import TYPE_CHECKING

from ..platform.language import SIMULATED

if TYPE_CHECKING or SIMULATED:
    from .hopper_twins import *
else:
    from .hopper_intrinsics import *
