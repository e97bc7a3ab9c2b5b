"""The CUDA programming model on the CPU, in one thread: blocks, warps, barriers, shuffles, shared memory.

``NUMBA_ENABLE_CUDASIM=1``, Numba's own switch, selects it when the package is imported: the kernels of this folder then
run unchanged, as Python, on any machine. It is slow (a microsecond for each arithmetic operation of each thread), so it
is for tests and for learning.

Numba's simulator runs a Python thread for each CUDA thread and knows no warps. Here a CUDA thread is a greenlet, which
runs until it meets a barrier, a shuffle or its end, and the next one is resumed. That is quick, the order is known, and
what would be undefined on a GPU is an error that says so:

* a barrier that some threads of the block never reach, a shuffle without the lanes of its mask;
* a shared value that two threads use without a barrier between, at least one of them writing (a race);
* a shared value that is used while an asynchronous copy to it has not been waited for;
* threads that wait for what can no longer happen (the mbarriers of ``hopper_twins.py``);
* an index outside the memory that a pointer belongs to;
* a vector access that is not aligned.

Shared and device memory is filled with 0xFF bytes (NaN) when it is allocated. ``order`` shuffles the threads, and so
does a seed in ``MINIGRAD_CUDASIM_ORDER``.
"""

from __future__ import annotations

import contextvars
import functools
import math as python_math
import os
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

WARP = 32
WARPGROUP = 128
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


class Warp:
    """32 threads; ``epoch`` counts its barriers."""

    __slots__ = ("epoch", "number", "results", "values")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.epoch: int = 0
        self.values: dict[int, Any] = {}  # what each waiting lane brought
        self.results: dict[int, Any] = {}  # and what all brought, once all are there


class Thread:
    """A CUDA thread: a greenlet, its place in the block, and what it waits for."""

    __slots__ = ("allocations", "copies", "greenlet", "index", "lane", "number", "waits_for", "warp")

    def __init__(self, number: int, index: tuple[int, int, int], warp: Warp, fiber: Any) -> None:
        self.number: int = number
        self.index: tuple[int, int, int] = index
        self.lane: int = number % WARP
        self.warp: Warp = warp
        self.greenlet: Any = fiber
        self.allocations: int = 0
        self.copies: list[list[tuple[SharedArray, int, np.ndarray]]] = [[]]  # groups; the last is not committed yet
        # ("block", 0), (a collective's name, its mask or WHOLE_GROUP), ("until", a Condition), or ENDED
        self.waits_for: tuple[str, Any] | None = None


ENDED: tuple[str, Any] = ("ended", 0)
WHOLE_GROUP = -1  # instead of a mask: 4 warps


class Condition(NamedTuple):
    """What a thread waits for, and how to say so."""

    holds: Callable[[], bool]
    description: Callable[[], str]


class _Fibers(threading.local):
    """Greenlets of a host thread that have run a CUDA thread to its end; a new one costs more than most threads do."""

    def __init__(self) -> None:
        self.idle: list[Any] = []


_fibers = _Fibers()


def _serve(hub: Any, function: Any, args: Any) -> None:
    """What a greenlet does: run a CUDA thread, say that it has ended, and run the next."""
    while True:
        function(*args)
        function = args = None  # idle, it keeps no memory in use
        hub, function, args = hub.switch(ENDED)


class Block:
    """One block of a launch, run to its end by ``run``."""

    def __init__(self, index: tuple[int, int, int], size: tuple[int, int, int], dynamic_bytes: int) -> None:
        self.index = index
        self.size = size
        self.epoch: int = 0
        self.shared: list[SharedArray] = []
        self.shared_end: int = FIRST_ADDRESS
        self.state: dict[str, Any] = {}  # of instructions that have some
        self.at_end: list[Callable[[], None]] = []  # checks
        self.dynamic: np.ndarray = np.full(dynamic_bytes, POISON, np.uint8)
        self.current: Thread
        self._hub: Any = None

    def run(self, function: Callable[..., None], args: tuple[Any, ...], order: random.Random | None) -> None:
        """Run all threads of the block."""
        import greenlet  # of the extra "test"; the rest of the package does not need it

        self._hub = greenlet.getcurrent()
        idle = _fibers.idle
        context = contextvars.copy_context()  # NumPy's errstate is in it
        width, height, depth = self.size
        threads: list[Thread] = []
        warps: list[Warp] = []
        for number in range(width * height * depth):
            if number % WARP == 0:
                warps.append(Warp(number // WARP))
            index = (number % width, number // width % height, number // (width * height))
            fiber = idle.pop() if idle else greenlet.greenlet(_serve)
            fiber.parent, fiber.gr_context = self._hub, context
            threads.append(Thread(number, index, warps[-1], fiber))
        alive = list(threads)
        ready = list(threads)
        while alive:
            if order is not None:
                order.shuffle(ready)
            for thread in ready:
                self.current = thread
                threadIdx.x, threadIdx.y, threadIdx.z = thread.index
                if thread.waits_for is None:
                    thread.waits_for = thread.greenlet.switch(self._hub, function, args)
                else:
                    thread.waits_for = thread.greenlet.switch()
                if thread.waits_for is ENDED:
                    idle.append(thread.greenlet)
            alive = [t for t in alive if t.waits_for is not ENDED]
            ready = self._next(alive, len(threads) - len(alive))
        for check in self.at_end:
            check()

    def wait_until(self, condition: Condition) -> None:
        """Called by a thread: stop until the condition holds."""
        if not condition.holds():
            self._hub.switch(("until", condition))

    def wait(self, reason: str, mask: int = 0, value: Any = None) -> dict[int, Any]:
        """Called by a thread: stop until the others are there. The lanes' values, for a warp's collective."""
        thread = self.current
        if reason != "block":
            if mask != WHOLE_GROUP and not mask >> thread.lane & 1:
                raise SimulationError(f"{reason}: lane {thread.lane} is not in the mask {mask:#x}")
            thread.warp.values[thread.lane] = value
        self._hub.switch((reason, mask))
        return thread.warp.results

    def _next(self, alive: list[Thread], ended: int) -> list[Thread]:
        """The threads that may go on: those whose condition holds, whole warps or groups of 4 warps at the same
        collective, else all at the block's barrier."""
        ready: list[Thread] = []
        by_warp: dict[Warp, list[Thread]] = {}
        by_group: dict[tuple[int, str], list[Thread]] = {}
        for thread in alive:
            waits: tuple[str, Any] = thread.waits_for or ("block", 0)
            name, what = waits
            if name == "until":
                ready += [thread] if what.holds() else []
            elif what == WHOLE_GROUP:
                by_group.setdefault((thread.number // WARPGROUP, name), []).append(thread)
            else:
                by_warp.setdefault(thread.warp, []).append(thread)
        for members in by_group.values():
            if len(members) == WARPGROUP:
                results = {t.number % WARPGROUP: t.warp.values.pop(t.lane) for t in members}
                for thread in members:
                    thread.warp.results = results
                ready += members
        for warp, threads in by_warp.items():
            groups: dict[Any, list[Thread]] = {}
            for thread in threads:
                if thread.waits_for is not None and thread.waits_for[0] != "block":
                    groups.setdefault(thread.waits_for, []).append(thread)
            for (reason, mask), members in groups.items():
                if {t.lane for t in members} == {lane for lane in range(WARP) if mask >> lane & 1}:
                    warp.results = {t.lane: warp.values.pop(t.lane) for t in members}
                    warp.epoch += reason == "syncwarp"
                    ready += members
                    break  # the lanes of another mask have their turn when these have read their results
        if ready or not alive:
            return ready
        at_barrier = [t for t in alive if t.waits_for == ("block", 0)]
        if len(at_barrier) < len(alive) or ended:
            waiting: dict[str, int] = {}
            for thread in alive:
                waits = thread.waits_for or ENDED
                waiting[waits[1].description() if waits[0] == "until" else waits[0]] = thread.number
            raise SimulationError(
                f"block {self.index} cannot go on: of {ended + len(alive)} threads {ended} have ended, and others wait "
                + ", ".join(f"at {'syncthreads' if w == 'block' else w} (thread {n})" for w, n in waiting.items())
            )
        self.epoch += 1
        return at_barrier


class Launch:
    """What the running kernel's ``cuda`` names refer to."""

    block: Block


_now = Launch()
_running = threading.Lock()
_seed = os.environ.get("MINIGRAD_CUDASIM_ORDER")  # a seed for ``order``
_order: random.Random | None = random.Random(int(_seed)) if _seed else None
threadIdx: Any = SimpleNamespace(x=0, y=0, z=0)  # noqa: N816  # CUDA's name


def order(seed: int | None) -> None:
    """Run the threads between barriers in an order drawn from ``seed``, or, with None, by their numbers."""
    global _order
    _order = None if seed is None else random.Random(seed)


def run(
    function: Callable[..., None],
    grid: tuple[int, int, int],
    threads: tuple[int, int, int],
    dynamic_bytes: int,
    args: tuple[Any, ...],
) -> None:
    """Run a kernel, block after block; the host's threads take turns, because all kernels see the same ``cuda``."""
    with _running, np.errstate(all="ignore"):
        cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z = threads
        cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z = grid
        for z in range(grid[2]):
            for y in range(grid[1]):
                for x in range(grid[0]):
                    cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z = x, y, z
                    _now.block = Block((x, y, z), threads, dynamic_bytes)
                    _now.block.run(function, args, _order)


# What kernels call ----------------------------------------------------------------------------------------------------


FIRST_ADDRESS = 1040  # in shared memory: no rounder than a GPU promises
GAP = 1024  # bytes between two arrays, where indices outside them are found


def _allocate(shape: Any, dtype: Any, values: np.ndarray, alignment: int | None) -> SharedArray:
    block = _now.block
    thread = block.current
    if thread.allocations == len(block.shared):
        step = alignment or 16
        start = -(-block.shared_end // step) * step
        block.shared.append(SharedArray(values, start, block))
        block.shared_end = start + values.nbytes + GAP
    found = block.shared[thread.allocations]
    thread.allocations += 1
    if found.values.dtype != np.dtype(dtype) or found.shape != values.shape:
        raise SimulationError(f"threads of one block allocate different shared arrays: {found.shape} and {shape}")
    return found


class _Shared:
    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int | None = None) -> SharedArray:
        """Shared memory of the block; shape 0 means the launch's dynamic bytes, from their beginning."""
        if shape == 0:
            return _allocate(shape, dtype, _now.block.dynamic.view(dtype), alignment)
        shape = shape if isinstance(shape, tuple) else (shape,)
        count = python_math.prod(shape)
        values = np.full(count * np.dtype(dtype).itemsize, POISON, np.uint8).view(dtype).reshape(shape)
        return _allocate(shape, dtype, values, alignment)


class _Local:
    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int | None = None) -> np.ndarray:
        """Registers of the thread."""
        count = int(np.prod(shape))
        values = np.full(count * np.dtype(dtype).itemsize, POISON, np.uint8).view(dtype)
        return values.reshape(shape).view(LocalArray)


def _lanes(reason: str, mask: int, value: Any) -> tuple[dict[int, Any], int]:
    block = _now.block
    return block.wait(reason, int(mask) & 0xFFFFFFFF, value), block.current.lane


def collective(reason: str, value: Any) -> tuple[dict[int, Any], int]:
    """What the 32 lanes of the warp bring to an instruction that all of them execute, and this lane's number."""
    return _lanes(reason, -1, value)


def group_collective(reason: str, value: Any) -> tuple[dict[int, Any], int]:
    """What the 128 threads of the warpgroup bring to an instruction of all of them, and this one's number there."""
    block = _now.block
    return block.wait(reason, WHOLE_GROUP, value), block.current.number % WARPGROUP


def block() -> Block:
    """The block that runs."""
    return _now.block


def shared_address(array: Any, i: Any) -> np.int32:
    """The address of an element of a 1-D shared array."""
    if not isinstance(array, SharedArray) or len(array.shape) != 1:
        raise SimulationError("an address needs a shared array of one dimension")
    return np.int32(array.start + int(i) * array.values.itemsize)


def shared_at(address: Any, multiple: int = 16) -> tuple[SharedArray, int]:
    """The shared array at an address, and the bytes from its beginning to there."""
    arrays = [array for array in _now.block.shared if array.start <= address <= array.start + array.values.nbytes]
    if not arrays:
        raise SimulationError(f"{int(address):#x} is no address in shared memory")
    if address % multiple:
        raise SimulationError(f"the shared address {int(address):#x} is not a multiple of {multiple}")
    return arrays[0], int(address) - arrays[0].start


def begin_copy(address: Any, data: np.ndarray) -> None:
    """An asynchronous copy of the running thread; see ``wait_for_copies``."""
    array, offset = shared_at(address)
    array.begin_copy(offset, len(data))
    _now.block.current.copies[-1].append((array, offset, data))


def commit_copies() -> None:
    """The copies that the running thread began since the last call become a group."""
    _now.block.current.copies.append([])


def wait_for_copies(groups: int) -> None:
    """The running thread's copies arrive, except for those of its last ``groups`` groups."""
    copies = _now.block.current.copies
    done = max(0, len(copies) - 1 - groups)
    for group in copies[:done]:
        for array, offset, data in group:
            array.end_copy(offset, data)
    del copies[:done]


def _shuffle(reason: str, source: Callable[[int, int], int]) -> Callable[[int, Any, int], Any]:
    def shuffle(mask: int, value: Any, operand: int) -> Any:
        values, lane = _lanes(reason, mask, value)
        other = source(lane, int(operand))
        if not 0 <= other < WARP:
            return value
        if other not in values:
            raise SimulationError(f"{reason}: lane {lane} reads lane {other}, which is not in the mask")
        return values[other]

    return shuffle


def _vote(reason: str, join: Callable[[dict[int, Any]], Any]) -> Callable[[int, Any], Any]:
    def vote(mask: int, value: Any) -> Any:
        values, _ = _lanes(reason, mask, value)
        return join(values)

    return vote


class _Cuda:
    """The part of ``numba.cuda`` that the kernels use."""

    def __init__(self) -> None:
        self.threadIdx = threadIdx
        self.blockIdx = SimpleNamespace(x=0, y=0, z=0)
        self.blockDim = SimpleNamespace(x=1, y=1, z=1)
        self.gridDim = SimpleNamespace(x=1, y=1, z=1)
        self.shared = _Shared()
        self.local = _Local()
        self.shfl_sync = _shuffle("shfl_sync", lambda lane, source: source)
        self.shfl_xor_sync = _shuffle("shfl_xor_sync", lambda lane, mask: lane ^ mask)
        self.shfl_up_sync = _shuffle("shfl_up_sync", lambda lane, delta: lane - delta)
        self.shfl_down_sync = _shuffle("shfl_down_sync", lambda lane, delta: lane + delta)
        self.ballot_sync = _vote("ballot_sync", lambda v: np.uint32(sum(1 << lane for lane, x in v.items() if x)))
        self.any_sync = _vote("any_sync", lambda v: any(v.values()))
        self.all_sync = _vote("all_sync", lambda v: all(v.values()))

    @property
    def laneid(self) -> int:
        """This thread's place in its warp."""
        return _now.block.current.lane

    def grid(self, ndim: int) -> Any:
        """This thread's place in the grid."""
        places = (
            self.blockIdx.x * self.blockDim.x + self.threadIdx.x,
            self.blockIdx.y * self.blockDim.y + self.threadIdx.y,
            self.blockIdx.z * self.blockDim.z + self.threadIdx.z,
        )
        return places[0] if ndim == 1 else places[:ndim]

    def gridsize(self, ndim: int) -> Any:
        """The number of threads of the grid."""
        sizes = (
            self.gridDim.x * self.blockDim.x,
            self.gridDim.y * self.blockDim.y,
            self.gridDim.z * self.blockDim.z,
        )
        return sizes[0] if ndim == 1 else sizes[:ndim]

    @staticmethod
    def syncthreads() -> None:
        """The block's barrier."""
        _now.block.wait("block")

    @staticmethod
    def syncwarp(mask: int = 0xFFFFFFFF) -> None:
        """The warp's barrier."""
        _lanes("syncwarp", mask, None)

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once."""
        return type(c)(np.longdouble(a) * np.longdouble(b) + np.longdouble(c))

    @staticmethod
    def popc(x: Any) -> int:
        """The number of one bits."""
        return bin(int(x) & ((1 << 8 * x.itemsize) - 1 if isinstance(x, np.generic) else -1)).count("1")


cuda: Any = _Cuda()


def _as_float(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """A function of the standard library that returns its argument's dtype."""

    @functools.wraps(function)
    def compute(x: Any) -> Any:
        return np.asarray(x).dtype.type(function(float(x)))

    return compute


class _Math:
    """``math`` as compiled kernels know it: of the argument's precision, with infinities and NaN as results."""

    pi, inf, nan, e = python_math.pi, python_math.inf, python_math.nan, python_math.e
    sqrt, exp, exp2, log, log2, log10 = np.sqrt, np.exp, np.exp2, np.log, np.log2, np.log10
    log1p, expm1, sin, cos, tan, tanh = np.log1p, np.expm1, np.sin, np.cos, np.tan, np.tanh
    sinh, cosh, asin, acos, atan, atan2 = np.sinh, np.cosh, np.arcsin, np.arccos, np.arctan, np.arctan2
    asinh, acosh, atanh, pow, fmod = np.arcsinh, np.arccosh, np.arctanh, np.power, np.fmod
    floor, ceil, trunc, fabs, copysign = np.floor, np.ceil, np.trunc, np.fabs, np.copysign
    isnan, isinf, isfinite = np.isnan, np.isinf, np.isfinite
    erf, erfc = staticmethod(_as_float(python_math.erf)), staticmethod(_as_float(python_math.erfc))


math: Any = _Math()


class _Libdevice:
    """The functions of NVIDIA's libdevice that the kernels call by name."""

    rint, rintf, floor, floorf = np.rint, np.rint, np.floor, np.floor
    ceil, ceilf, trunc, truncf = np.ceil, np.ceil, np.trunc, np.trunc
    exp2, exp2f, fmod, fmodf = np.exp2, np.exp2, np.fmod, np.fmod
    fmul_rn, dmul_rn = np.multiply, np.multiply
    fast_fdividef = np.divide

    @staticmethod
    def double2float_rz(x: Any) -> Any:
        """float64 to float32, towards 0."""
        y = np.float32(x)
        return np.nextafter(y, np.float32(0)) if abs(np.float64(y)) > abs(x) else y

    @staticmethod
    def rsqrt(x: Any) -> Any:
        """1 / sqrt(x)."""
        return np.reciprocal(np.sqrt(x))

    rsqrtf = rsqrt

    @staticmethod
    def sinpi(x: Any) -> Any:
        """sin(pi x)."""
        return np.sin(np.pi * x)

    @staticmethod
    def cospi(x: Any) -> Any:
        """cos(pi x)."""
        return np.cos(np.pi * x)


libdevice: Any = _Libdevice()


def pointer(memory: Any, address: int, dtype: Any) -> Pointer:
    """A checked pointer to ``address`` within the bytes ``memory``, whose elements are ``dtype``."""
    itemsize = np.dtype(dtype).itemsize
    first = memory.ctypes.data
    if (address - first) % itemsize:
        raise SimulationError(f"address {address:#x} is not aligned for {np.dtype(dtype)}")
    view = memory[: len(memory) // itemsize * itemsize].view(dtype)
    return Pointer(view, (address - first) // itemsize)
