"""Memory of one graph: in its capture NumPy's arrays come from it, and afterwards only the graph's launches use it.

One stretch of addresses holds blocks side by side. A block begins with its size, negative while an array has it; the
array's data begin a cache line later. An array gets the first block that is large enough, and free neighbours become
one block when a search passes over them. So what is freed in a capture is used again in it, at the lowest addresses;
and only pages that were touched are memory.
"""

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from numba import types

from . import numpy_allocator

LEAST = 1 << 26  # bytes that a graph needs at any rate
LINE = 8  # words in a cache line: sizes and beginnings of blocks are multiples
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, which Python's mmap has no name for before 3.13
ADDRESS, END, USED, ARRAYS = range(4)  # words of the first line: its address, all words, most words used, arrays now

_memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))
_memset = types.ExternalFunction("memset", types.uintp(types.uintp, types.int32, types.uintp))


@numba.njit
def _take(heap, size):
    wanted = LINE + (np.int64(size) + 8 * LINE - 1) // (8 * LINE) * LINE
    at = LINE
    while at < heap[END]:
        words = heap[at]
        if words < 0:
            at -= words
            continue
        while at + words < heap[END] and heap[at + words] > 0:
            words += heap[at + words]
        heap[at] = words
        if words < wanted:
            at += words
            continue
        if words > wanted:
            heap[at + wanted] = words - wanted
        heap[at] = -wanted
        heap[USED] = max(heap[USED], at + wanted)
        heap[ARRAYS] += 1
        return np.uint64(heap[ADDRESS] + 8 * (at + LINE))
    return np.uint64(0)


@numba.njit
def _give_back(heap, address):
    at = (np.int64(address) - heap[ADDRESS]) // 8 - LINE
    words = -heap[at]
    heap[at] = words
    heap[ARRAYS] -= 1
    return np.uint64(8 * (words - LINE))


def _new(heap, size):
    return _take(heap, size)


def _new_zeros(heap, count, size):
    address = _take(heap, count * size)
    if address != 0:
        _memset(address, 0, count * size)
    return address


def _resize(heap, address, size):
    new = _take(heap, size)
    if address != 0 and new != 0:
        _memcpy(new, address, min(size, _give_back(heap, address)))
    return new


def _delete(heap, address, size):
    if address != 0:
        _give_back(heap, address)


class Arena:
    """An arena as large as the machine's memory, of which it takes what its arrays touch. Raises OSError."""

    def __init__(self) -> None:
        self._memory = _addresses(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes: np.ndarray = np.frombuffer(self._memory, np.uint8)
        self._heap: np.ndarray = self._bytes.view(np.int64)
        self.start: int = self._bytes.ctypes.data
        self._heap[: LINE + 1] = self.start, len(self._heap), LINE, 0, 0, 0, 0, 0, len(self._heap) - LINE
        self._before: Any = None
        functions = _new, _new_zeros, _resize, _delete
        self._allocator: Any
        self._allocator, handler = numpy_allocator.allocator("minigrad_arena", self._heap, *functions)
        self._kept: Any = (self._memory, handler)
        numpy_allocator.keep(self._kept)  # for arrays that outlive all else
        for arena in list(_closed):
            arena._end()

    @property
    def nbytes(self) -> int:
        """The most bytes that were in use at a time."""
        return 8 * int(self._heap[USED])

    @property
    def arrays(self) -> int:
        """How many arrays have memory of it now."""
        return int(self._heap[ARRAYS])

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Within, the calling thread's new arrays come from it."""
        self._before = numpy_allocator.use(self._allocator)
        try:
            yield
        finally:
            numpy_allocator.use(self._before)

    @contextlib.contextmanager
    def unused(self) -> Iterator[None]:
        """Within ``used``: they do not."""
        before = numpy_allocator.use(self._before)
        try:
            yield
        finally:
            numpy_allocator.use(before)

    def holds(self, array: np.ndarray) -> bool:
        """Whether the array's memory is here."""
        return self.start <= array.__array_interface__["data"][0] < self.start + len(self._bytes)

    def alias(self, array: np.ndarray) -> np.ndarray:
        """The same elements as an array that does not keep their memory from being used again."""
        offset = array.__array_interface__["data"][0] - self.start
        return np.ndarray(array.shape, array.dtype, self._bytes, offset, array.strides)

    def close(self) -> None:
        """Its memory goes back to the system: now, or when a later arena is made and no array uses it any more."""
        _closed.append(self)
        self._end()

    def _end(self) -> None:
        if not self.arrays:
            _closed.remove(self)
            numpy_allocator.python("Py_DecRef", None, ctypes.py_object)(self._kept)


def _addresses(size: int) -> mmap.mmap:
    """So many bytes, or half, a quarter and so on where the system grants no more addresses."""
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except OSError:
        if size < LEAST:
            raise
        return _addresses(size // 2 // mmap.PAGESIZE * mmap.PAGESIZE)


_closed: list[Arena] = []
"""Arenas of closed graphs that arrays still use."""
