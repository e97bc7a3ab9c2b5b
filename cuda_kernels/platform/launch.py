"""The only way a kernel starts: ``kernel`` declares one, ``Kernel.launch`` runs it.

    @kernel("float32*", "float32*", "int64", threads=256, registers=16)
    def double(x, y, n):
        i = cuda.grid(1)
        if i < n:
            y[i] = x[i] + x[i]

    double.launch((n + 255) // 256, x, y, n)

A kernel has one signature (``signatures.py``), so a launch chooses nothing: it writes addresses and numbers into a
buffer and calls the driver, at a cost of a few microseconds. Compiling and loading happen at the first launch on a
device. In the simulator the same call runs the Python source.

``MINIGRAD_DEBUG=2`` waits for each launch and prints a line: kernel, grid, microseconds, GB/s or TFLOP/s, and per cent
of what the device was measured to reach (``limits.py``).
"""

import contextlib
import ctypes
import math
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..simulator import simulated_memory, simulator
from . import compiler, libcuda, limits, memory, recording, signatures, streams, tensor_map
from .array import Array
from .language import SIMULATED, THREADS
from .tensor_map import TensorMap

Grid = int | tuple[int, ...]

AHEAD = 256  # launches; a stream's queue holds 1,024
DEBUG: int = int(os.environ.get("MINIGRAD_DEBUG") or 0)
KERNELS: "dict[str, Kernel]" = {}  # all kernels by name, for ``inspect/``
LAZY_KERNELS: "dict[str, Callable[[], Kernel]]" = {}  # and what makes those that are made when first used


class _Queues(threading.local):
    """Keeps a thread's launches from filling a stream's queue.

    There a launch waits with Python's lock, so the thread whose work would empty the queue could not go on: that of
    another rank, in the collective that this stream is in.
    """

    def __init__(self) -> None:
        self._launches: dict[tuple[int, int], int] = {}
        self._marks: dict[tuple[int, int], streams.Event] = {}

    def enter(self, device: int, stream: int) -> None:
        """Before each launch: wait, now and then, until all but the last ``2 * AHEAD`` are over."""
        key = device, stream
        self._launches[key] = count = self._launches.get(key, 0) + 1
        if count % AHEAD == 0 and recording.current() is None:
            before, self._marks[key] = self._marks.get(key), streams.Event()
            self._marks[key].record()
            if before is not None:
                before.synchronize()


_queues = _Queues()


@dataclass(eq=False, repr=False)
class Kernel(compiler.Declaration):
    """A declared kernel, which can be launched; see ``kernel``."""

    def __post_init__(self) -> None:
        signature = self.signature
        self._words = tuple(word if word.endswith("*") or word == signatures.TENSOR_MAP else None for word in signature)
        self._packing = struct.Struct(signatures.packing(signature))
        self._lock = threading.Lock()
        self._buffer = ctypes.create_string_buffer(self._packing.size + tensor_map.MAP_ALIGNMENT)
        self._start: int = -ctypes.addressof(self._buffer) % tensor_map.MAP_ALIGNMENT
        first = ctypes.addressof(self._buffer) + self._start
        places = signatures.places(signature)
        self._arguments = (ctypes.c_void_p * max(len(places), 1))(*(first + place for place in places))
        self._functions: dict[int, ctypes.c_void_p] = {}

    def __call__(self, *_: Any) -> None:
        """No way to start a kernel: TypeError that shows the way."""
        raise TypeError(f"kernel {self} is started with .launch(grid, *arguments)")

    def __getitem__(self, _: Any) -> None:
        """As in Numba, ``kernel[blocks, threads]``: TypeError that shows this project's way."""
        raise TypeError(f"kernel {self} is started with .launch(grid, *arguments), with {self.threads} threads a block")

    def launch(self, grid: Grid, *args: Any, threads: int | tuple[int, ...] | None = None) -> None:
        """Start the kernel on ``grid`` blocks (x, or up to three sizes), as part of the current stream.

        An array stands for each pointer of the signature, a TensorMap for each of those, a number for the rest. An
        empty grid starts nothing. ``threads`` (default: the kernel's) may be fewer than declared. Raises TypeError for
        arguments that do not fit the signature. Raises CudaError with the kernel's name and the arguments if the driver
        refuses, or for an array of another device than the current one.
        """
        device = memory.current_device()
        values: list[Any] = []
        for word, a in zip(self._words, args):
            if type(a) is Array:
                if word not in a.words:
                    raise self._misfit(args)
                if a.memory.device != device:
                    there = f"an array of cuda:{a.memory.device}"
                    raise libcuda.CudaError(f"kernel {self} was launched on cuda:{device} with {there}")
                values.append(a.pointer)
            elif word is None:
                values.append(a)
            elif type(a) is TensorMap and word == signatures.TENSOR_MAP and a.device == device:
                values.append(b"" if SIMULATED else a.encoded())
            else:
                raise self._misfit(args)
        if len(args) != len(self._words):
            raise self._misfit(args)
        x, y, z = (grid, 1, 1) if isinstance(grid, int) else _three(grid)
        if not x or not y or not z:
            return
        width, height, depth = self.threads if threads is None else _three(threads)
        if SIMULATED:
            self._simulate((x, y, z), (width, height, depth), args)
            return
        function = self._functions.get(device) or self._load(device)
        started = time.perf_counter_ns() if DEBUG >= 2 else 0
        stream = memory.current_stream()
        _queues.enter(device, stream)
        settings = (function, x, y, z, width, height, depth, self.shared_bytes, stream, self._arguments, None)
        with self._lock:  # all threads share the buffer, which the driver copies before it returns
            try:
                self._packing.pack_into(self._buffer, self._start, *values)
            except struct.error:
                raise self._misfit(args) from None
            status = _cu_launch_kernel(*settings)
            if status == libcuda.INVALID_CONTEXT:  # the thread has not used the device yet
                memory.set_device(device)
                status = _cu_launch_kernel(*settings)
        if status:
            raise libcuda.CudaError(f"launching {self._call(args, (x, y, z))}: {libcuda.describe(status)}")
        if DEBUG >= 2:
            report(f"{self.name} grid {(x, y, z)}", started, *self.work(args), call=self._call(args, (x, y, z)))

    def launch_each(self, n: int, *args: Any) -> None:
        """Start the kernel with a thread for each of n elements, in blocks of its size or one smaller block."""
        most = self.threads[0]
        self.launch(-(-n // most), *args, threads=max(min(most, n), 1))

    def _load(self, device: int) -> ctypes.c_void_p:
        found = memory.capability(device)
        if found < self.capability or (self.only and found != self.capability):
            needed = _dotted(self.capability) + (" exactly" if self.only else "")
            has = f"cuda:{device} has {_dotted(found)}"
            raise libcuda.CudaError(f"kernel {self} needs compute capability {needed}, {has}")
        cubin = compiler.to_cubin(self, found)
        memory.set_device(device)  # also where this is the first that the thread asks of it: loading needs its context
        function = libcuda.load(cubin, self.symbol, self.shared_bytes)
        self._functions[device] = function
        return function

    def _simulate(self, grid: tuple[int, int, int], threads: tuple[int, int, int], args: tuple[Any, ...]) -> None:
        kept: list[Any] = []  # numbers, and addresses for pointers: what a graph keeps on a GPU
        for word, a in zip(self.signature, args, strict=True):
            if isinstance(a, Array):
                kept.append(a.pointer)
            elif isinstance(a, TensorMap):
                kept.append(a)
            else:
                try:
                    struct.pack(signatures.packing((word,)), a)  # raises where a GPU's launch would
                except struct.error:
                    raise self._misfit(args) from None
                kept.append(int(a) if word.startswith("int") else np.dtype(word).type(a))
        call = self._call(args, grid)
        if math.prod(threads) > math.prod(self.threads) or threads[2] > 64 or max(grid[1:]) > 65535 or grid[0] >= 2**31:
            raise simulated_memory.SimulationError(f"{call} with blocks of {threads}: a GPU refuses that")
        if DEBUG >= 2:
            report(f"{self.name} grid {grid}", 0, 0, 0)
        recording.simulate(self._run_simulated, grid, threads, kept, call)

    def _run_simulated(
        self, grid: tuple[int, int, int], threads: tuple[int, int, int], kept: list[Any], call: str
    ) -> None:
        values = [
            simulated_memory.pointer(memory.simulated_bytes(value), value, signatures.storage(word))
            if word.endswith("*")
            else value
            for word, value in zip(self.signature, kept, strict=True)
        ]
        try:
            simulator.run(self.function, grid, threads, self.shared_bytes, tuple(values))
        except simulated_memory.SimulationError as error:
            raise simulated_memory.SimulationError(f"{call}: {error}") from error

    def work(self, args: tuple[Any, ...]) -> tuple[int, int]:
        """(bytes, floating-point operations) of a launch; bytes are each array's once where nothing else is stated."""
        moved = self.nbytes(*args) if self.nbytes else sum(a.nbytes for a in args if isinstance(a, Array))
        return moved, self.flops(*args) if self.flops else 0

    def _call(self, args: tuple[Any, ...], grid: tuple[int, int, int]) -> str:
        shown = ", ".join(f"{a.dtype.name}{list(a.shape)}" if isinstance(a, Array) else repr(a) for a in args)
        return f"{self.name}({shown}) on a grid of {grid}"

    def _misfit(self, args: tuple[Any, ...]) -> TypeError:
        found = ", ".join(a.words[0] if isinstance(a, Array) else _shown(a) for a in args)
        pointers = "a pointer takes a DeviceArray: from_host(array), or a tensor's .data"
        return TypeError(f"kernel {self} was launched with ({found}); {pointers}")


def kernel(
    *signature: str, threads: int | tuple[int, ...] = THREADS, name: str = "", of: str = "", **stated: Any
) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a kernel, for ``Kernel.launch`` and for ``inspect/``.

    ``signature``: words, ``"float32* x2, int64"`` or one by one (``signatures.py``). ``stated``: the other fields of
    ``compiler.Declaration``, at least ``registers``. ``of``: what a factory makes the kernel of, which follows the
    function's name; or ``name``, all of it. The file's name comes before it.
    """
    words = signatures.words(*signature)
    signatures.check(words)

    def declare(function: Callable[..., None]) -> Kernel:
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        if len(words) != len(parameters):
            shown = f"kernel {function.__name__}({', '.join(parameters)})"
            raise ValueError(f"{shown} has {len(words)} words for {len(parameters)} parameters: ({', '.join(words)})")
        full = f"{function.__module__.rpartition('.')[2]}.{name or function.__name__}{of and '_'}{of}"
        if full in KERNELS:
            raise ValueError(f"there are two kernels {full}")
        KERNELS[full] = Kernel(function, full, words, _three(threads), **stated)
        return KERNELS[full]

    return declare


def report(name: str, started: int, nbytes: int, flops: int, call: str = "") -> None:
    """The line of MINIGRAD_DEBUG=2 about a launch, once the device is done with it; none during capture."""
    if recording.current() is not None:
        return
    if SIMULATED:
        print(f"minigrad: {name} in the simulator", file=sys.stderr)
        return
    try:
        memory.synchronize()
    except Exception as error:
        raise libcuda.CudaError(f"running {call or name}: {error}") from error
    print(described(name, (time.perf_counter_ns() - started) * 1e-9, nbytes, flops), file=sys.stderr)


def described(name: str, seconds: float, nbytes: int, flops: int) -> str:
    """The line: what was launched, microseconds, and what that is of the device's limits."""
    return f"minigrad: {name} {seconds * 1e6:.1f} us, {limits.compared(nbytes, flops, seconds, multiply_adds.launch)}"


def _three(sizes: int | tuple[int, ...]) -> tuple[int, int, int]:
    """A grid's or a block's three sizes. Raises TypeError for what is neither an integer nor up to three."""
    if isinstance(sizes, int):
        return sizes, 1, 1
    if not isinstance(sizes, tuple | list):
        raise TypeError(f"a grid or block of {sizes!r}: expected an integer, or up to three")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _shown(a: Any) -> str:
    """A number as it is, and of anything else the type: an array's numbers would fill the screen."""
    return repr(a) if isinstance(a, int | float | np.number) else type(a).__name__


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


_cu_launch_kernel: Any = None
if not SIMULATED:
    with contextlib.suppress(OSError):  # no driver: kernels can be compiled and inspected, and nothing can be launched
        _cu_launch_kernel = libcuda.library().cuLaunchKernel
        _cu_launch_kernel.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]

multiply_adds: Kernel = kernel("float32*, int32, float32", registers=40)(limits.multiply_adds)
"""What a float32 rate is measured by, for ``MINIGRAD_DEBUG=2``; of no stated work, so that its own line needs none."""
