"""Keep freed activation memory in the process, so that a training step reuses warm pages.

By default glibc gives every block above 128 KiB to 32 MiB (the limit adapts) its own ``mmap``. When the block is freed,
it goes back to the system. Each activation of each step is then zeroed page by page by the system, which can cost more
than the arithmetic on it. GELU and layer norm of 24 and 6 MiB, forward and backward, took 1.6 times the time. At
import, ``mallopt`` raises the limits: large blocks come from the heap, and the heap keeps them. The price is that the
process keeps its peak memory until it ends or has been idle for a minute. It also gives it back when told to
(``heap.py``).

This concerns Linux with glibc only. Other C libraries have no ``mallopt`` and are left alone, as is everything if
``MINIGRAD_MALLOPT=0`` is in the environment. ``enabled`` says which happened.

With ``MINIGRAD_POISON=1`` new memory is filled with NaN (``poison.py``), so that a result that depends on what a block
held before its reuse is seen.
"""

import os

from . import aligned, heap, poison

# Parameters of mallopt(3), from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3

LARGE = 1 << 30  # blocks below this come from the heap
LARGE_OLD = 32 << 20  # the most that older versions of glibc accept
KEEP = (1 << 31) - 1  # the heap's free top goes back to the system only beyond this: the parameter is an int
GROW = 64 << 20  # the heap grows by this much at a time


def _apply() -> bool:
    libc = heap.glibc()
    if os.environ.get("MINIGRAD_MALLOPT") == "0" or libc is None:
        return False
    threshold = libc.mallopt(M_MMAP_THRESHOLD, LARGE) == 1 or libc.mallopt(M_MMAP_THRESHOLD, LARGE_OLD) == 1
    return threshold and libc.mallopt(M_TRIM_THRESHOLD, KEEP) == 1 and libc.mallopt(M_TOP_PAD, GROW) == 1


enabled: bool = _apply()
if enabled:
    heap.release_when_idle()
if os.environ.get("MINIGRAD_POISON") == "1":
    poison.install()
elif enabled and not heap.DEBUGGING:
    aligned.install()
