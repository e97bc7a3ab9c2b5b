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

``simulated_memory.py`` checks the accesses, ``simulated_cuda.py`` has the names that kernels use. ``order`` shuffles
the threads, as does a seed in ``MINIGRAD_CUDASIM_ORDER``.
"""

import contextlib
import contextvars
import os
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from . import simulated_memory
from .simulated_memory import POISON, WARP, SharedArray, SimulationError, Stamp

WARPGROUP = 128


class Warp:
    """32 threads; ``epoch`` counts its barriers."""

    __slots__ = ("epoch", "number")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.epoch: int = 0


class Thread:
    """A CUDA thread: a greenlet, its place in the block, and what it waits for."""

    __slots__ = (
        *("allocations", "brought", "copies", "greenlet", "index", "lane", "number", "results", "waits_for", "warp"),
    )

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
        self.brought: Any = None  # to the collective that it waits for
        self.results: dict[int, Any] = {}  # and what all brought, once all are there


ENDED: tuple[str, Any] = ("ended", 0)
WHOLE_WARP = 0xFFFFFFFF
WHOLE_GROUP = -1  # instead of a mask: 4 warps
EVERYBODY = -1  # instead of a thread's number: what was computed for all


class Condition(NamedTuple):
    """What a thread waits for, and how to say so."""

    holds: Callable[[], bool]
    description: Callable[[], str]


_fibers = threading.local()  # ``idle``: greenlets that have run a CUDA thread; a new one costs more than most threads


def _serve(hub: Any, function: Any, args: Any) -> None:
    """What a greenlet does: run a CUDA thread, say that it has ended, and run the next."""
    while True:
        function(*args)
        function = args = None  # idle, it keeps no memory in use
        hub, function, args = hub.switch(ENDED)


class SimulatedBlock:
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
        self.stamp: Stamp  # of the current thread: barriers are passed between its turns only
        self._hub: Any = None

    def run(self, function: Callable[..., None], args: tuple[Any, ...], order: random.Random | None) -> None:
        """Run all threads of the block."""
        import greenlet  # of the extra "test"; the rest of the package does not need it

        self._hub = greenlet.getcurrent()
        idle: list[Any] = vars(_fibers).setdefault("idle", [])
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
                self.stamp = Stamp(thread.number, self.epoch, thread.warp.epoch)
                threadIdx.x, threadIdx.y, threadIdx.z = thread.index
                start = (self._hub, function, args) if thread.waits_for is None else ()
                thread.waits_for = thread.greenlet.switch(*start)
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
        note(f"warp {reason}")
        if reason != "block":
            if mask != WHOLE_GROUP and not mask >> thread.lane & 1:
                raise SimulationError(f"{reason}: lane {thread.lane} is not in the mask {mask:#x}")
            thread.brought = value
        self._hub.switch((reason, mask))
        return thread.results

    def _next(self, alive: list[Thread], ended: int) -> list[Thread]:
        """The threads that may go on: those whose condition holds, whole warps or groups of 4 warps at the same
        collective, else all at the block's barrier."""
        ready: list[Thread] = []
        meetings: dict[Any, list[Thread]] = defaultdict(list)
        for thread in alive:
            name, what = thread.waits_for or ENDED
            size = WARPGROUP if what == WHOLE_GROUP else WARP
            if name == "until":
                ready += [thread] if what.holds() else []
            elif name != "block":
                meetings[name, what, size, thread.number // size].append(thread)
        for (name, mask, size, _), members in meetings.items():
            if len(members) == (WARPGROUP if mask == WHOLE_GROUP else mask.bit_count()):
                results = {thread.number % size: thread.brought for thread in members}
                for thread in members:
                    thread.results = results
                members[0].warp.epoch += name == "syncwarp"
                ready += members
        if ready or not alive:
            return ready
        at_barrier = [t for t in alive if t.waits_for == ("block", 0)]
        if len(at_barrier) < len(alive) or ended:
            waiting: dict[str, int] = {}
            for thread in alive:
                waits = thread.waits_for or ENDED
                waiting[waits[1].description() if waits[0] == "until" else waits[0]] = thread.number
            others = ", ".join(f"at {'syncthreads' if w == 'block' else w} (thread {n})" for w, n in waiting.items())
            state = f"of {ended + len(alive)} threads {ended} have ended, and others wait {others}"
            raise SimulationError(f"block {self.index} cannot go on: {state}")
        self.epoch += 1
        return at_barrier


_now: Any = SimpleNamespace()  # ``block``, to which the running kernel's ``cuda`` names refer
watched: dict[Callable[..., None], Any] = {}  # kernels whose next run is noted, and the ``Trace`` of each
running: Any = threading.RLock()
_seed = os.environ.get("MINIGRAD_CUDASIM_ORDER")  # a seed for ``order``
_order: random.Random | None = random.Random(int(_seed)) if _seed else None
threadIdx: Any = SimpleNamespace(x=0, y=0, z=0)  # noqa: N816  # CUDA's names, of the running thread
blockIdx: Any = SimpleNamespace(x=0, y=0, z=0)  # noqa: N816
blockDim: Any = SimpleNamespace(x=1, y=1, z=1)  # noqa: N816
gridDim: Any = SimpleNamespace(x=1, y=1, z=1)  # noqa: N816


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
    trace: Any = None,
) -> None:
    """Run a kernel, block after block; the host's threads take turns, because all kernels see the same ``cuda``."""
    with running, np.errstate(all="ignore"), _noting(trace or watched.pop(function, None)) as trace:
        if trace is not None:
            trace.grid, trace.threads, trace.now = grid, threads, _now
        blockDim.x, blockDim.y, blockDim.z = threads
        gridDim.x, gridDim.y, gridDim.z = grid
        for z, y, x in np.ndindex(*reversed(grid)):
            blockIdx.x, blockIdx.y, blockIdx.z = x, y, z
            _now.block = SimulatedBlock((x, y, z), threads, dynamic_bytes)
            _now.block.run(function, args, _order)
            if trace is not None:
                trace.ended(_now.block)


@contextlib.contextmanager
def _noting(trace: Any) -> Iterator[Any]:
    """The threads tell ``trace``, if there is one, what they do."""
    before, simulated_memory.trace = sys.gettrace(), trace
    sys.settrace(before if trace is None else trace.enter)
    try:
        yield trace
    finally:
        simulated_memory.trace = None
        sys.settrace(before)


def note(kind: str, address: int = 0, nbytes: int = 0) -> None:
    """The running thread does something that is counted, in a run that is noted."""
    if simulated_memory.trace is not None:
        simulated_memory.trace.note(kind, address, nbytes)


# What the instructions of kernels are made of -----------------------------------------------------------------------


FIRST_ADDRESS = 1040  # in shared memory: no rounder than a GPU promises
GAP = 1024  # bytes between two arrays, where indices outside them are found


def allocate_shared(shape: Any, dtype: Any, alignment: int | None, memory: Callable[[], np.ndarray]) -> SharedArray:
    """The running thread's next shared array, which is the block's: the first thread to come makes its ``memory``."""
    block = _now.block
    thread = block.current
    if thread.allocations == len(block.shared):
        step = alignment or np.dtype(dtype).itemsize
        start = (-(-block.shared_end // (2 * step)) * 2 + 1) * step  # no better aligned than the kernel asks for
        block.shared.append(SharedArray(memory(), start, block, (shape, dtype)))
        block.shared_end = block.shared[-1].end + GAP
    found = block.shared[thread.allocations]
    thread.allocations += 1
    if found.declared != (shape, dtype):
        raise SimulationError(f"threads of one block allocate different shared arrays: {found.declared} and {shape}")
    return found


def collective(reason: str, value: Any, mask: int = WHOLE_WARP) -> tuple[dict[int, Any], int]:
    """What the lanes of ``mask`` bring to an instruction that they execute together, and this lane's number."""
    block = _now.block
    return block.wait(reason, int(mask) & WHOLE_WARP, value), block.current.lane


def together(reason: str, value: Any, compute: Callable[[dict[int, Any]], Any], mask: int = WHOLE_WARP) -> Any:
    """``compute`` of what all lanes of a warp, or with WHOLE_GROUP threads of a group, bring: once for all of them."""
    brought = _now.block.wait(reason, mask, value)
    if EVERYBODY not in brought:  # the first thread to go on computes
        brought[EVERYBODY] = compute(brought)
    return brought[EVERYBODY]


def block() -> SimulatedBlock:
    """The block that runs."""
    return _now.block


def shared_address(array: Any, i: Any) -> np.int32:
    """The address of an element of a 1-D shared array."""
    if not isinstance(array, SharedArray) or len(array.shape) != 1:
        raise SimulationError("an address needs a shared array of one dimension")
    return np.int32(array.start + int(i) * array.values.itemsize)


def shared_at(address: Any, multiple: int = 16) -> tuple[SharedArray, int]:
    """The shared array at an address, and the bytes from its beginning to there."""
    address = int(address)
    for array in _now.block.shared:
        if array.start <= address <= array.end:
            if address % multiple:
                raise SimulationError(f"the shared address {address:#x} is not a multiple of {multiple}")
            return array, address - array.start
    raise SimulationError(f"{address:#x} is no address in shared memory")


def begin_copy(address: Any, data: np.ndarray) -> None:
    """An asynchronous copy of the running thread; see ``wait_for_copies``."""
    array, offset = shared_at(address)
    array.begin_copy(offset, len(data))
    _now.block.current.copies[-1].append((array, offset, data))


def wait_for_copies(groups: int) -> None:
    """The running thread's copies arrive, except for those of its last ``groups`` groups."""
    note(f"warp cp_async_wait{groups}")
    copies = _now.block.current.copies
    done = max(0, len(copies) - 1 - groups)
    for group in copies[:done]:
        for array, offset, data in group:
            array.end_copy(offset, data)
    del copies[:done]
