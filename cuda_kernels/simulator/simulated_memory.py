"""Device, shared and local memory in the simulator: every access is checked.

An index outside its memory and a race between two threads of a block are errors. So is the use of an element to which
an asynchronous copy is on its way. New memory is full of 0xFF bytes (NaN).
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

WARP = 32
POISON = 0xFF
trace: Any = None  # where accesses are noted, in a run that is (``instrument/trace.py``)


class SimulationError(RuntimeError):
    """A kernel did something that has no defined result on a GPU."""


class Pointer:
    """Device memory seen from element ``base`` on, as a kernel's argument; every access is checked."""

    __slots__ = ("_size", "base", "first", "view")

    def __init__(self, view: np.ndarray, base: int) -> None:
        self.view: np.ndarray = view
        self.base: int = base
        self.first: int = int(view.ctypes.data) + base * view.itemsize
        self._size: int = len(view)

    def __getitem__(self, i: int) -> Any:
        place = self.base + int(i)
        if trace is not None:
            trace.note("global load", self.address(i), self.view.itemsize)
        return self.view[place if 0 <= place < self._size else self.place(i)]

    def __setitem__(self, i: int, value: Any) -> None:
        place = self.base + int(i)
        if trace is not None:
            trace.note("global store", self.address(i), self.view.itemsize)
        self.view[place if 0 <= place < self._size else self.place(i)] = value

    def place(self, i: int, n: int = 1) -> int:
        """The position of element ``i`` in the allocation, of which ``n`` elements from there on must be inside."""
        place = self.base + int(i)
        if not 0 <= place <= len(self.view) - n:
            exist = f"{-self.base} to {len(self.view) - self.base - 1} exist"
            raise SimulationError(f"index {i} is outside the memory that the pointer belongs to: {exist}")
        return place

    def address(self, i: int) -> int:
        """The address of element ``i`` in bytes."""
        return self.first + int(i) * self.view.itemsize

    def update(self, i: Any, change: Callable[[Any], Any]) -> Any:
        """An atomic operation; what was there before."""
        place = self.place(i)
        if trace is not None:
            trace.note("global atomic", self.address(i), self.view.itemsize)
        before, self.view[place] = self.view[place], change(self.view[place])
        return before


def flat(index: Any, shape: tuple[int, ...], what: str) -> int:
    """Which element ``index`` is, in the order of the memory."""
    place = 0
    for i, n in zip(index if index.__class__ is tuple else (index,), shape, strict=True):
        i = operator.index(i)
        if not 0 <= i < n:
            raise SimulationError(f"index {index} is outside {what} of shape {shape}")
        place = place * n + i
    return place


class Stamp(NamedTuple):
    """Who uses shared memory, and when: a thread of its block, and the barriers that the two had passed."""

    thread: int
    epoch: int  # of the block
    warp_epoch: int


class SharedArray:
    """Shared memory of a block, which remembers who used each element since when, to find races."""

    __slots__ = (
        *("_block", "_copied_by", "_elements", "_length", "_readers", "_size", "_words", "_writers"),
        *("declared", "end", "start", "values"),
    )

    def __init__(self, values: np.ndarray, start: int, block: Any, declared: tuple[Any, Any]) -> None:
        self.values: np.ndarray = values
        self.declared: tuple[Any, Any] = declared  # shape and dtype, as the kernel says it
        self.start: int = start  # its address
        self.end: int = start + values.nbytes
        self._block = block  # which knows who runs now
        self._elements: np.ndarray = values.reshape(-1)
        self._words: np.ndarray | None = self._elements.view(np.uint32) if values.itemsize == 4 else None
        self._size: int = values.size
        self._length: int = values.size if values.ndim == 1 else 0  # below it, an index is the place
        self._writers: list[Stamp | None] = [None] * self._size
        self._readers: list[Stamp | None] = [None] * self._size
        self._copied_by: dict[int, int] = {}  # of elements to which a copy is on its way: the thread that began it

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.values.shape

    def _check(self, last: Stamp | None, place: int, what: str) -> None:
        """The running thread may use an element that ``last`` used before."""
        now = self._block.stamp
        if place in self._copied_by:
            first = f"before thread {self._copied_by[place]} has waited for its asynchronous copy"
            raise SimulationError(f"thread {now.thread} {what} shared element {self._index(place)} {first}")
        if trace is None and last is not None and last.thread != now.thread and last.epoch == now.epoch:
            same_warp = last.thread // WARP == now.thread // WARP
            if not (same_warp and last.warp_epoch < now.warp_epoch):
                used = f"shared element {self._index(place)} that thread {last.thread} used"
                raise SimulationError(f"race: thread {now.thread} {what} {used}, without a barrier between")

    def _index(self, place: int) -> int | tuple[int, ...]:
        """Where the ``place``-th element is, in a kernel's words."""
        return place if self.values.ndim == 1 else tuple(int(i) for i in np.unravel_index(place, self.shape))

    def _place(self, index: Any) -> int:
        """Which element ``index`` is, in the order of the memory."""
        return flat(index, self.values.shape, "a shared array")

    def _touch(self, place: int) -> None:
        """The running thread reads an element."""
        last, now = self._writers[place], self._block.stamp
        if (last is not None and last is not now) or self._copied_by:
            self._check(last, place, "reads")
        self._readers[place] = now

    def __getitem__(self, index: Any) -> Any:
        place = index if index.__class__ is int and 0 <= index < self._length else self._place(index)
        self._touch(place)
        if trace is not None:
            trace.note("shared load", self.start + place * self.values.itemsize, self.values.itemsize)
        return self._elements[place]

    def __setitem__(self, index: Any, value: Any) -> None:
        place = index if index.__class__ is int and 0 <= index < self._length else self._place(index)
        now = self._block.stamp
        wrote, read = self._writers[place], self._readers[place]
        if wrote is not None or read is not None or self._copied_by:
            self._check(wrote, place, "writes")
            self._check(read, place, "writes")
        if trace is not None:
            trace.note("shared store", self.start + place * self.values.itemsize, self.values.itemsize)
        self._writers[place] = now
        self._elements[place] = value

    def update(self, index: Any, change: Callable[[Any], Any]) -> Any:
        """An atomic operation; what was there before."""
        place = self._place(index)
        if trace is not None:
            trace.note("shared atomic", self.start + place * self.values.itemsize, self.values.itemsize)
        before, self._elements[place] = self._elements[place], change(self._elements[place])
        return before

    def places(self, offset: int, n: int) -> range:
        """The elements of the ``n`` bytes from ``offset`` on; the array has one dimension."""
        itemsize = self.values.itemsize
        found = range(offset // itemsize, (offset + n - 1) // itemsize + 1)
        if not (0 <= found.start and found.stop <= self._size and self.values.ndim == 1):
            raise SimulationError(f"bytes {offset} to {offset + n} are outside a shared array of shape {self.shape}")
        return found

    def read_word(self, offset: int) -> np.uint32:
        """The 4 bytes from ``offset``, a multiple of 4, on."""
        if self._words is None:
            return np.uint32(self.read_bytes(offset, 4).view(np.uint32)[0])
        (place,) = self.places(offset, 4)
        self._touch(place)
        return np.uint32(self._words[place])

    def read_bytes(self, offset: int, n: int) -> np.ndarray:
        """``n`` bytes, as ``n`` of uint8."""
        for place in self.places(offset, n):
            self._touch(place)
        return self.values.view(np.uint8)[offset : offset + n]

    def begin_copy(self, offset: int, n: int, bulk: bool = False) -> None:
        """From here to ``end_copy`` these bytes have no value.

        ``bulk``: by a unit that no thread waits for; a barrier in memory counts its bytes.
        """
        now = self._block.stamp
        for place in self.places(offset, n):
            if not bulk:
                self._check(self._writers[place], place, "copies to")
                self._check(self._readers[place], place, "copies to")
                self._writers[place] = now
            elif place in self._copied_by:
                raise SimulationError(f"shared element {place} is copied to while another copy to it is on its way")
            self._copied_by[place] = now.thread
        self.values.view(np.uint8)[offset : offset + n] = POISON

    def end_copy(self, offset: int, data: np.ndarray, bulk: bool = False) -> None:
        """The bytes arrive, for the thread that waited; others need a barrier after. Those of ``bulk``: for all."""
        for place in self.places(offset, len(data)):
            del self._copied_by[place]
            if not bulk:
                self._writers[place] = self._block.stamp
        self.values.view(np.uint8)[offset : offset + len(data)] = data

    def gather(self, offsets: np.ndarray) -> np.ndarray:
        """The uint16 at these multiples of 2 bytes, for a unit that is no thread."""
        self.places(int(offsets.min()), 2), self.places(int(offsets.max()), 2)
        if self._copied_by:
            for i in np.unique(offsets // self.values.itemsize).tolist():
                if i in self._copied_by:
                    copy = f"the copy that thread {self._copied_by[i]} began"
                    raise SimulationError(f"shared element {i} is read before {copy} has arrived")
        return self.values.view(np.uint16)[offsets // 2]


class LocalArray:
    """Registers of a thread, in one dimension: negative indices, which count from the end in Python, are refused."""

    __slots__ = ("_type", "_values")

    def __init__(self, count: int, dtype: Any) -> None:
        self._type: Any = np.dtype(dtype).type
        (poison,) = np.full(np.dtype(dtype).itemsize, POISON, np.uint8).view(dtype)
        self._values: list[Any] = [poison] * count

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < len(self._values):
            raise self._outside(i)
        return self._values[i]

    def __setitem__(self, i: int, value: Any) -> None:
        if not 0 <= i < len(self._values):
            raise self._outside(i)
        self._values[i] = value if value.__class__ is self._type else self._type(value)

    def _outside(self, i: int) -> SimulationError:
        return SimulationError(f"index {i} is outside a local array of {len(self._values)} elements")


def pointer(memory: Any, address: int, dtype: Any) -> Pointer:
    """A checked pointer to ``address`` within the bytes ``memory``, whose elements are ``dtype``."""
    itemsize = np.dtype(dtype).itemsize
    first = memory.ctypes.data
    if (address - first) % itemsize:
        raise SimulationError(f"address {address:#x} is not aligned for {np.dtype(dtype)}")
    view = memory[: len(memory) // itemsize * itemsize].view(dtype)
    return Pointer(view, (address - first) // itemsize)
