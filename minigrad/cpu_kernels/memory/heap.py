"""What memory the process holds on the CPU, and giving back what no array uses.

``statistics`` counts the page faults, which is how often memory was new: freed blocks that are used again
(``memory.py``) add none. ``MINIGRAD_DEBUG=1`` prints it when the process ends, with the share of all arrays' memory
that had been used before.
"""

import atexit
import ctypes
import importlib
import os
import sys
import threading
import time
from pathlib import Path

import numba
import numpy as np

from . import numpy_allocator
from .numpy_allocator import calloc, malloc

IDLE_SECONDS = 60.0  # without work, after which the process gives back what no array uses
IDLE_SHARE = 0.01  # of one core's time, which a process at rest may take


def glibc() -> ctypes.CDLL | None:
    """The C library, if it is glibc."""
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    return libc if hasattr(libc, "gnu_get_libc_version") else None  # musl has no such parameters


class _Heap(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def _resident() -> int | None:
    """Bytes of the process that are in memory now; None where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else None


def statistics() -> dict[str, int]:
    """The process's memory on the CPU; sizes in bytes.

    ``page_faults``: how often the system had to provide a page, since the start; a step that reuses memory adds none.
    ``peak``: the most that was in memory. On Linux ``resident``: what is now. With glibc 2.33 or later ``heap``: what
    the allocator has from the system, and ``heap_used``: the part of it that arrays and objects occupy now.
    """
    usage = importlib.import_module("resource").getrusage(0)  # a module that Windows has not; 0 is RUSAGE_SELF
    found = {"page_faults": usage.ru_minflt, "peak": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)}
    resident = _resident()
    if resident is not None:
        found["resident"] = resident
        found["peak"] = max(found["peak"], resident)  # Linux counts the two at different moments
    libc = glibc()
    if libc is not None and hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = _Heap
        heap = libc.mallinfo2()
        found["heap"] = heap.arena + heap.hblkhd
        found["heap_used"] = heap.uordblks + heap.hblkhd
    return found


def release() -> int:
    """Return the free pages of the heap to the system (``malloc_trim``). The bytes by which the process shrank.

    0 with other C libraries than glibc: there, minigrad makes the process keep nothing.
    """
    libc, before = glibc(), _resident()
    if libc is None or before is None:
        return 0
    libc.malloc_trim(0)
    return max(0, before - (_resident() or 0))


def release_when_idle(seconds: float = IDLE_SECONDS) -> None:
    """From now on, ``release`` after each ``seconds`` in which the process has hardly computed; once, until it works
    again. A step after that takes its memory anew, about 0.1 s for each gigabyte. Child processes do the same.
    """

    def watch() -> None:
        worked = True
        while True:
            before = time.process_time()
            time.sleep(seconds)
            if time.process_time() - before > IDLE_SHARE * seconds:
                worked = True
            elif worked:
                release()
                worked = False

    def start() -> None:
        threading.Thread(target=watch, name="minigrad-idle-memory", daemon=True).start()

    start()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=start)


_counts = np.zeros(4, np.int64)
"""With MINIGRAD_DEBUG, of the importing thread's arrays: how many, their bytes, those of hits, the highest address."""


_sbrk = numba.types.ExternalFunction("sbrk", numba.types.intp(numba.types.intp))


@numba.njit
def _count(counts, address, size):
    counts[0] += 1
    counts[1] += size
    if address + size <= counts[3]:  # the heap grows upwards: arrays have been here before
        counts[2] += size
    elif address < _sbrk(0):  # the end of the heap; what is beyond has a mapping of its own
        counts[3] = address + size
    return address


def _counted(counts, size):
    return _count(counts, malloc(size), size)


def _counted_zeros(counts, count, size):
    return _count(counts, calloc(count, size), count * size)


def _report() -> None:
    sizes = statistics()
    arrays, asked, hits, _ = _counts.tolist()
    if arrays:
        print(
            f"minigrad: {arrays} arrays of {asked / 1e6:.1f} MB, {hits / asked:.1%} of it hits: memory used before",
            file=sys.stderr,
        )
    faults = sizes.pop("page_faults")
    text = ", ".join(f"{name.replace('_', ' ')} {size / 1e6:.1f} MB" for name, size in sizes.items())
    print(f"minigrad: memory: {faults} page faults, {text}", file=sys.stderr)


def _count_arrays() -> None:
    """Poisoned memory has an allocator already, and memory that is not kept has no hits."""
    others = os.environ.get("MINIGRAD_POISON") == "1" or os.environ.get("MINIGRAD_MALLOPT") == "0"
    if glibc() and not others:
        numpy_allocator.install("minigrad_counted", _counts, _counted, _counted_zeros)


def _debugging() -> bool:
    level = os.environ.get("MINIGRAD_DEBUG") or "0"
    if not level.isdigit():
        raise ValueError(f"MINIGRAD_DEBUG={level} is in the environment; expected 0, 1 or 2")
    return int(level) > 0


DEBUGGING: bool = _debugging()
if DEBUGGING:
    _count_arrays()
    atexit.register(_report)
