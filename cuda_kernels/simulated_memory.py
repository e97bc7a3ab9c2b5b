"""Device, shared and local memory in the simulator: every access is checked.

An index outside its memory, a race between two threads of a block and the use of an element to which an asynchronous
copy is on its way are errors; new memory is full of 0xFF bytes (NaN).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .simulator import Block

WARP = 32
POISON = 0xFF


class SimulationError(RuntimeError):
    """A kernel did something that has no defined result on a GPU."""


class Pointer:
    """Device memory seen from element ``base`` on, as a kernel's argument; every access is checked."""

    __slots__ = ("base", "first", "view")

    def __init__(self, view: np.ndarray, base: int) -> None:
        self.view: np.ndarray = view
        self.base: int = base
        self.first: int = int(view.ctypes.data) + base * view.itemsize

    def __getitem__(self, i: int) -> Any:
        return self.view[self.place(i)]

    def __setitem__(self, i: int, value: Any) -> None:
        self.view[self.place(i)] = value

    def place(self, i: int, n: int = 1) -> int:
        """The position of element ``i`` in the allocation, of which ``n`` elements from there on must be inside."""
        place = self.base + int(i)
        if not 0 <= place <= len(self.view) - n:
            raise SimulationError(
                f"index {i} is outside the memory that the pointer belongs to: "
                f"{-self.base} to {len(self.view) - self.base - 1} exist"
            )
        return place

    def address(self, i: int) -> int:
        """The address of element ``i`` in bytes."""
        return self.first + int(i) * self.view.itemsize


class SharedArray:
    """Shared memory of a block, which remembers who used each element since when, to find races."""

    __slots__ = ("_block", "_copied_by", "_readers", "_writers", "start", "values")

    def __init__(self, values: np.ndarray, start: int, block: Block) -> None:
        self.values: np.ndarray = values
        self.start: int = start  # its address
        self._block = block
        self._writers: dict[Any, tuple[int, int, int]] = {}
        self._readers: dict[Any, tuple[int, int, int]] = {}
        self._copied_by: dict[Any, int] = {}  # of elements to which a copy is on its way: the thread that began it

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.values.shape

    def _check(self, users: dict[Any, tuple[int, int, int]], index: Any, what: str) -> None:
        last = users.get(index)
        block = self._block
        if index in self._copied_by:
            raise SimulationError(
                f"thread {block.current.number} {what} shared element {index} before thread {self._copied_by[index]} "
                "has waited for its asynchronous copy"
            )
        thread = block.current
        if last is not None and last[0] != thread.number and last[1] == block.epoch:
            same_warp = last[0] // WARP == thread.warp.number
            if not (same_warp and last[2] < thread.warp.epoch):
                raise SimulationError(
                    f"race: thread {thread.number} {what} shared element {index} that thread {last[0]} used, "
                    "without a barrier between"
                )

    def _stamp(self) -> tuple[int, int, int]:
        thread = self._block.current
        return thread.number, self._block.epoch, thread.warp.epoch

    def _inside(self, index: Any) -> None:
        for i, n in zip(index if isinstance(index, tuple) else (index,), self.values.shape, strict=True):
            if not 0 <= i < n:
                raise SimulationError(f"index {index} is outside a shared array of shape {self.values.shape}")

    def __getitem__(self, index: Any) -> Any:
        self._inside(index)
        self._check(self._writers, index, "reads")
        self._readers[index] = self._stamp()
        return self.values[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._inside(index)
        self._check(self._writers, index, "writes")
        self._check(self._readers, index, "writes")
        self._writers[index] = self._stamp()
        self.values[index] = value

    def places(self, offset: int, n: int) -> range:
        """The elements of the ``n`` bytes from ``offset`` on; the array has one dimension."""
        itemsize = self.values.itemsize
        found = range(offset // itemsize, (offset + n - 1) // itemsize + 1)
        self._inside(found.start)
        self._inside(found.stop - 1)
        return found

    def read_bytes(self, offset: int, n: int) -> np.ndarray:
        """``n`` bytes, as ``n`` of uint8."""
        for i in self.places(offset, n):
            self[i]
        return self.values.view(np.uint8)[offset : offset + n]

    def begin_copy(self, offset: int, n: int) -> None:
        """From here to ``end_copy`` these bytes have no value."""
        for i in self.places(offset, n):
            self._check(self._writers, i, "copies to")
            self._check(self._readers, i, "copies to")
            self._writers[i] = self._stamp()
            self._copied_by[i] = self._block.current.number
        self.values.view(np.uint8)[offset : offset + n] = POISON

    def end_copy(self, offset: int, data: np.ndarray) -> None:
        """The bytes arrive, for the thread that waited; others need a barrier after."""
        for i in self.places(offset, len(data)):
            del self._copied_by[i]
            self._writers[i] = self._stamp()
        self.values.view(np.uint8)[offset : offset + len(data)] = data

    def begin_bulk_copy(self, offset: int, n: int) -> None:
        """``begin_copy`` by a unit that no thread waits for: a barrier in memory counts its bytes."""
        places = self.places(offset, n)
        for i in places:
            if i in self._copied_by:
                raise SimulationError(f"shared element {i} is copied to while another copy to it is on its way")
        self._copied_by.update(dict.fromkeys(places, self._block.current.number))
        self.values.view(np.uint8)[offset : offset + n] = POISON

    def end_bulk_copy(self, offset: int, data: np.ndarray) -> None:
        """The bytes arrive."""
        for i in self.places(offset, len(data)):
            del self._copied_by[i]
        self.values.view(np.uint8)[offset : offset + len(data)] = data

    def gather(self, offsets: np.ndarray) -> np.ndarray:
        """The uint16 at these multiples of 2 bytes, for a unit that is no thread."""
        self.places(int(offsets.min()), 2), self.places(int(offsets.max()), 2)
        if self._copied_by:
            for i in np.unique(offsets // self.values.itemsize).tolist():
                if i in self._copied_by:
                    raise SimulationError(
                        f"shared element {i} is read before the copy that thread {self._copied_by[i]} began has arrived"
                    )
        return self.values.view(np.uint16)[offsets // 2]


class LocalArray(np.ndarray):
    """Registers of a thread: negative indices, which count from the end in Python only, are refused."""

    def __getitem__(self, index: Any) -> Any:
        _check_local(self, index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _check_local(self, index)
        super().__setitem__(index, value)


def _check_local(array: np.ndarray, index: Any) -> None:
    if min(index if isinstance(index, tuple) else (index,)) < 0:
        raise SimulationError(f"index {index} is outside a local array of shape {array.shape}")


def pointer(memory: Any, address: int, dtype: Any) -> Pointer:
    """A checked pointer to ``address`` within the bytes ``memory``, whose elements are ``dtype``."""
    itemsize = np.dtype(dtype).itemsize
    first = memory.ctypes.data
    if (address - first) % itemsize:
        raise SimulationError(f"address {address:#x} is not aligned for {np.dtype(dtype)}")
    view = memory[: len(memory) // itemsize * itemsize].view(dtype)
    return Pointer(view, (address - first) // itemsize)
