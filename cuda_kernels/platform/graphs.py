"""CUDA graphs: what a stream is given is recorded once, and then launched as a whole, by one call.

    graph = Graph(device)
    with graph.capture():          nothing is computed, kernels and copies become nodes
        y = family.function(x)
    graph.launch()                 y is computed from what x holds now
    graph.launch()

A launch repeats the addresses and numbers of the capture. So

* memory that is allocated during the capture is of the graph's own pool, which nobody else is given while the graph
  lives; what is freed during the capture is used again in it, in the order of the nodes;
* numbers that differ from launch to launch are on the device: ``number`` gives them addresses, and before a launch the
  host computes them (``recording.varying``) and sends all of them in one copy;
* random draws have their seed and offset there too (``random.philox_block``);
* a read of a value, a copy from the host and a wait raise CaptureError (``recording.refuse``).

In the simulator the nodes are Python calls with addresses and numbers, made again in their order. Memory that was freed
since is an error there.
"""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import families, libcuda, memory, recording
from .array import Array, from_host, zeros
from .language import SIMULATED, cuda, cupy
from .launch import kernel
from .memory import Memory
from .recording import CaptureError, Varying
from .streams import Event, Stream
from .upload import Upload

__all__ = ["CaptureError", "RecordedGraph"]

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: the pool may ask the driver for memory meanwhile
BLOCK_BYTES = 1 << 16  # bytes of varying numbers that travel in one copy


def state_address(words: Array) -> int:
    """Where kernels find a generator's seed and offset."""
    return int(words.pointer)


def clear(x: Array) -> None:
    """Zeros, in a contiguous array."""
    memory.clear(x.pointer, x.nbytes)


class Pool:
    """Memory for one graph: given again within its capture, and never to anybody else."""

    def __init__(self, device: int) -> None:
        self.device: int = device
        self.nbytes: int = 0
        self._free: dict[int, list[tuple[int, np.ndarray]]] = {}  # of the simulator's bytes, by their number
        self._open = True
        if not SIMULATED:
            self._pool = cupy.cuda.MemoryPool()

    def allocate(self, nbytes: int, device: int) -> Memory:
        """Memory that is not cleared. Raises CaptureError for another device's, OutOfMemoryError."""
        if device != self.device:
            raise CaptureError(f"an array on cuda:{device} was made while a graph of cuda:{self.device} is captured")
        if SIMULATED:
            known = self._free.get(nbytes)
            if known:
                address, raw = known.pop()
            else:
                raw = memory.new_simulated(nbytes, device)
                address = int(raw.ctypes.data)
                self._grow(nbytes)
            return Memory(address, device, self, 0, raw)
        owner = memory.taken_from(self._pool.malloc, nbytes, device)
        self._grow(int(self._pool.total_bytes()) - self.nbytes)
        return Memory(owner.ptr, device, owner)

    def take_back(self, address: int, raw: np.ndarray) -> None:
        """These bytes of the simulator's are free."""
        if self._open:
            self._free.setdefault(len(raw), []).append((address, raw))
        else:
            memory.forget_simulated(address)

    def close(self) -> None:
        """Give all of it back; what arrays still use, when they go."""
        if not self._open:
            return
        self._open = False
        self._grow(-self.nbytes)
        for raws in self._free.values():
            for address, _ in raws:
                memory.forget_simulated(address)
        self._free.clear()
        if not SIMULATED:
            self._pool.free_all_blocks()

    def _grow(self, nbytes: int) -> None:
        self.nbytes += nbytes
        memory.count_reserved(self.device, nbytes)


class _Block:
    """Numbers that travel to the device before a launch, in one copy."""

    def __init__(self, nbytes: int, device: int) -> None:
        self.upload = Upload(nbytes, device)
        self.host = np.zeros(nbytes, np.uint8)
        self.used = 0
        self.entries: list[tuple[np.ndarray, Callable[[], np.ndarray]]] = []

    def add(self, numbers: Varying) -> Array:
        start = self.used
        here = self.host[start : start + numbers.nbytes].view(numbers.dtype).reshape(numbers.shape)
        self.entries.append((here, numbers.now))
        self.used += -(-numbers.nbytes // 16) * 16
        target = self.upload.target
        return Array(target.memory, numbers.shape, numbers.dtype, None, target.pointer + start, target)

    def send(self) -> None:
        for here, now in self.entries:
            here[...] = now()
        self.upload.send(self.host[: self.used])


class RecordedGraph:
    """What one stream of a device is given between the beginning and the end of ``capture``.

    ``keep`` holds what the nodes need beside the pool; it lives as long as the graph. ``launched`` is the event after
    the last launch. ``explain`` makes an error's text of what was done during the capture, and what to do instead.
    """

    def __init__(self, device: int | None = None) -> None:
        self.device: int = memory.current_device() if device is None else device
        self.pool: Pool = Pool(self.device)
        self.keep: list[Any] = []
        self.explain: Callable[[str, str], str] = "during capture {}: a launch could not do that again; {}".format
        self._blocks: list[_Block] = []
        self.allowed: Array | None = None
        """int32 (1,) of the device, or None: optimizers captured from now on leave out their update where it is 0."""
        self.outside_range: Array | None = None
        self._nodes: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._executable: Any = None
        self._captured = False
        with memory.on_device(self.device):
            self._stream, self._side = Stream(self.device), Stream(self.device)
            self.launched: Event = Event()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # the driver may be gone before
            self.close()

    def close(self) -> None:
        """Destroy the graph, once the device is done with it, and give its memory back."""
        if self._executable is not None:
            with recording.outside():
                self.launched.synchronize()
            libcuda.call("cuGraphExecDestroy", self._executable)
            self._executable = None
        self._nodes.clear()
        self._captured = False
        if "pool" in self.__dict__:
            self.pool.close()
            self.keep.clear()
            self._blocks.clear()

    # The capture ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def capture(self) -> "Iterator[RecordedGraph]":
        """Record what the calling thread gives the device. After an error the graph is closed, the device as before.

        Raises CaptureError if the thread captures already, or the graph was captured before.
        """
        if recording.current() is not None:
            raise CaptureError("this thread captures a graph already; captures cannot be nested")
        if self._captured or self._nodes:
            raise CaptureError("this graph was captured before; make a new one")
        with memory.on_device(self.device):
            began = Event()
            began.record()
            for stream in (self._stream, self._side):
                stream.wait_event(began)
            with self._stream:
                self._begin()
                done = False
                try:
                    yield self
                    done = True
                finally:
                    self._end(done)

    def _begin(self) -> None:
        if not SIMULATED:
            libcuda.call("cuStreamBeginCapture_v2", ctypes.c_void_p(memory.current_stream()), RELAXED)
        recording.begin(self)

    def _end(self, done: bool) -> None:
        recording.begin(None)
        graph = ctypes.c_void_p()
        try:
            if not SIMULATED:
                stream = ctypes.c_void_p(self._stream.handle.ptr)
                status = libcuda.library().cuStreamEndCapture(stream, ctypes.byref(graph))
                if done and status:
                    raise CaptureError(f"the capture failed: {libcuda.describe(status)}")
                if done:
                    executable = ctypes.c_void_p()
                    flags = ctypes.c_ulonglong(0)
                    libcuda.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, flags)
                    self._executable = executable
            self._captured = done
        finally:
            if graph.value:
                libcuda.call("cuGraphDestroy", graph)
            if not self._captured:
                self.outside_range = None
                self.close()

    def add(self, function: Callable[..., None], *arguments: Any) -> None:
        """A node of the simulator's."""
        self._nodes.append((function, arguments))

    def capture_call(self, function: Callable[[], None]) -> None:
        """Capture what ``function()`` gives the current stream, and others that wait for it, by other libraries' calls:
        it is called now, or in the simulator by each launch."""
        if SIMULATED:
            self.add(function)
        else:
            function()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is within is done at once, on a stream of its own, and no part of the graph."""
        recording.begin(None)
        try:
            with self._side:
                yield
                self._side.synchronize()
        finally:
            recording.begin(self)

    def write_beside(self, target: Array, numbers: np.ndarray) -> None:
        """Copy the numbers to ``target`` now, whatever other streams do: loading a kernel might wait for them."""
        with recording.outside(), memory.on_device(self.device), self._side:
            memory.copy_in(target.pointer, numbers)

    def number(self, numbers: np.ndarray) -> Array:
        """Where the numbers are on the device during each launch; ``Varying`` ones are computed anew before it."""
        with self.paused():
            if not isinstance(numbers, Varying):
                found = from_host(numbers, self.device)
                self.keep.append(found)
                return found
            room = [block for block in self._blocks if block.used + numbers.nbytes <= block.host.nbytes]
            if not room:
                room = [_Block(max(BLOCK_BYTES, -(-numbers.nbytes // 16) * 16), self.device)]
                self._blocks += room
            return room[0].add(numbers)

    def in_range(self, first_bad: Array, n: int) -> None:
        """Note, in each launch, if ``first_bad`` (1,) int64, the position of a bad index among ``n``, is less than it.

        ``outside_range`` int32 (1,) is then 1 until somebody clears it.
        """
        if self.outside_range is None:
            with self.paused():
                self.outside_range = zeros((1,), np.int32, self.device)
        note_outside.launch(1, self.outside_range, first_bad, n)

    def allowed_sizes(self, sizes: Array) -> Array:
        """``sizes``, int64, or zeros where ``allowed`` is 0: what a kernel then goes over is empty."""
        return sizes if self.allowed is None else families.elementwise.where(self.allowed, sizes, 0)

    # Launches ---------------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Do all of it again, as part of the current stream; the host does not wait. CaptureError before a capture."""
        if not self._captured:
            raise CaptureError("there is nothing to launch: the graph was not captured, or closed")
        recording.refuse("it launches a graph", "launch after the capture")
        with memory.on_device(self.device):
            for block in self._blocks:
                block.send()
            if SIMULATED:
                for function, arguments in self._nodes:
                    function(*arguments)
                return
            libcuda.call("cuGraphLaunch", self._executable, ctypes.c_void_p(memory.current_stream()))
            self.launched.record()

    def __repr__(self) -> str:
        return f"Graph({'captured' if self._captured else 'empty'}, cuda:{self.device}, {self.pool.nbytes} bytes)"


@kernel("int32*, int64*, int64", threads=32, registers=16)
def note_outside(flag: Any, first_bad: Any, n: Any) -> None:
    if cuda.threadIdx.x == 0 and first_bad[0] < n:
        flag[0] = 1


LOSS, GRADIENT, RANGE, OVERFLOW, STOPPED, APART = 1, 2, 3, 4, 5, 6  # why an update is left out


@kernel("float64*, int64 x3, float64*, int32* x4", threads=32, registers=64)
def decide(results, ranks, losses, marks, norm, overflow, outside, stopped, allowed):
    """``allowed``: whether an update may be made, ``results``: 0 or why not, the norm, and then, which are there, this
    rank's marks, and each rank's losses and marks, which must be the same.

    ``stopped`` is set by all reasons but an overflow, and nothing is allowed while it is.
    """
    if cuda.threadIdx.x == 0:
        code = 0
        apart = False
        place = 2 + marks
        for _ in range(ranks):
            for i in range(losses):
                if results[place + i] - results[place + i] != np.float64(0):
                    code = LOSS
            place += losses
            for i in range(marks):
                if results[place + i] != results[2 + i]:
                    apart = True
            place += marks
        if apart:
            code = APART
        elif outside[0] != 0:
            code = RANGE
        elif code == 0 and overflow[0] != 0:
            code = OVERFLOW
        elif code == 0 and norm[0] - norm[0] != np.float64(0):
            code = GRADIENT
        if stopped[0] != 0:
            code = STOPPED
        elif code != 0 and code != OVERFLOW:
            stopped[0] = 1
        results[0] = np.float64(code)
        results[1] = norm[0]
        allowed[0] = 1 if code == 0 else 0
