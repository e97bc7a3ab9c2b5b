"""The one thread pool of the CPU backend, and ``task_kernel``: a serial kernel that is run as several tasks on it.

All parallel work runs on Numba's pool. A second pool (OpenBLAS under ``np.matmul``) spins after each call and starves
the first: on two cores the naive combination is ten times slower than one pool, which is why float products are our
own.

The layer is chosen here, before Numba starts it: TBB when it is installed (``pip install tbb``), else OpenMP, else
Numba's workqueue (30 times the launch cost). ``NUMBA_THREADING_LAYER`` overrides. OpenMP's threads spin while they
wait, by default for milliseconds, in which another program has no core. Here it is microseconds, as long as a step's
kernels follow each other: GOMP_SPINCOUNT and OMP_WAIT_POLICY in the environment override (docs/lab/threads.md). In a
list of launches threads do not sleep: who waits gives the core to others. A thread that wakes on the launching thread's
core goes to another one.

Numba compiles a ``prange`` loop through four nested wrappers, and links and optimises everything that the loop calls
anew in each of them: most of the compile time of a large kernel. Here one ``prange`` loop, compiled once for the whole
library, calls any kernel through a pointer. The kernel itself is compiled once, as serial code:

    @task_kernel
    def _scale(task, tasks, x, factor):                       # handles its share of the work: part `task` of `tasks`
        for i in range(task * len(x) // tasks, (task + 1) * len(x) // tasks):
            x[i] *= factor

    _scale.launch(x.dtype, 4, x, 2.0)

The arguments travel in a *frame*, a block of memory that holds the kernel's address and the arguments' values.
"""

import ctypes
import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from .jit import compiled, emits, kernel

FRAME_BYTES = 4096
WORDS = 8  # of int64, are a line of the cache
CORES = 128  # bytes of the C library's sets of cores
LOOKS = 200  # at what others do; then a thread that waits lets other programs have the core
FACTOR = 4  # by which a launch of a graph is quicker than one by itself
PIECES, PIECE = 4, 16  # tasks of a thread in a launch of a graph, at most, and how many times `least` each is, at least
INT64: Any = ir.IntType(64)
# int64 entry(frame, task, tasks): 1 if the kernel failed
ENTRY_TYPE: Any = ir.FunctionType(INT64, [INT64] * 3)
NO_FRAME = np.empty(0, np.uint8)


# ---------------------------------------------------------------- the pool

_MODULES = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}


def _preload_tbb() -> None:
    """pip puts libtbb where the dynamic loader does not look; once loaded globally, Numba finds it."""
    for library in sorted(Path(sys.prefix, "lib").glob("libtbb.so.12*")):
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return


def _choose_layer() -> str:
    _preload_tbb()
    requested = os.environ.get("NUMBA_THREADING_LAYER")
    if requested in _MODULES:
        return requested
    for layer, module in _MODULES.items():
        try:
            importlib.import_module(f"numba.np.ufunc.{module}")
        except ImportError:
            continue
        return layer
    return "workqueue"


if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # read when OpenMP is loaded
LAYER = _choose_layer()
numba.config.THREADING_LAYER = LAYER


@functools.cache
def _threads_of_pool() -> Callable[[], int]:
    """The pool's own C function. Numba's takes two locks before it calls that, at more than a small kernel's cost."""
    numba.get_num_threads()  # starts the pool
    pool = importlib.import_module(f"numba.np.ufunc.{_MODULES[numba.threading_layer()]}")
    return ctypes.PYFUNCTYPE(ctypes.c_int)(pool.get_num_threads)


_forked = False
_lasting: list[Any] = []


def lasting_words(words: Sequence[int]) -> int:
    """The address of int64 words that stay for the process's life; no array, whose memory goes too late at its end."""
    _lasting.append((ctypes.c_int64 * len(words))(*words))
    return ctypes.addressof(_lasting[-1])


@functools.cache
def run_within() -> int:
    """The address of a word: that of ``_run``, or 0 where kernels must not call it; the pool is started.

    Numba's workqueue ends the process on concurrent launches, and only Python waits for others.
    """
    return lasting_words([_address_of_run() if LAYER != "workqueue" and not _forked and _threads_of_pool()() else 0])


def _after_fork() -> None:
    """GNU's OpenMP ends a process that uses the threads of its parent."""
    global _forked
    _forked = LAYER == "omp" and _threads_of_pool.cache_info().currsize > 0
    if _forked and run_within.cache_info().currsize:
        ctypes.c_int64.from_address(run_within()).value = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def get_num_threads() -> int:
    """Threads that a parallel kernel launched from the calling thread uses."""
    return _threads_of_pool()()


def shares(work: int, least: int = 16384) -> int:
    """How many tasks ``work`` is, elements unless ``least`` says so: one for each thread, if it is more than ``least``.

    A launch of a graph follows at once on the one before, so there less is worth it. Much work is more tasks there: a
    thread that is done takes what a slower one has not begun.
    """
    if work * FACTOR <= least or (work <= least and recording.launches is None):
        return 1
    count = get_num_threads()
    return count if recording.launches is None else count * max(1, min(PIECES, work // (count * PIECE * least)))


def tasks_of_rows(rows: int, width: int, elements: int) -> int:
    """How many tasks of about ``elements`` elements ``rows`` rows of ``width`` are, so that all threads get like
    shares; 1 if there are no more than ``elements``.
    """
    count = shares(rows * width, elements)
    return min(rows, count * max(1, round(rows * width / (elements * count)))) if count > 1 else 1


def set_num_threads(n: int) -> None:
    """Use ``n`` threads for kernels launched from the calling thread, 1 <= n <= the number of cores at start.

    Raises ValueError for a count out of range (the pool's size is fixed when the process starts:
    ``NUMBA_NUM_THREADS``).
    """
    most = int(numba.config.NUMBA_NUM_THREADS)
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= most:
        raise ValueError(
            f"set_num_threads({n!r}): expected an integer from 1 to {most}, the pool's size; "
            "set the environment variable NUMBA_NUM_THREADS before the start for more"
        )
    numba.set_num_threads(n)


parallel_kernel: Any = functools.partial(compiled, parallel=True)
"""Compile a kernel whose ``numba.prange`` loops run on the one thread pool. Compile time is mostly that of the parallel
transformation: for a kernel of the library ``task_kernel`` is the way."""


def _locked(dispatcher: Any) -> Any:
    """A kernel that runs others on the pool. Numba's workqueue layer aborts the process on concurrent launches."""

    def alone(*args: Any) -> Any:
        with _workqueue_lock:
            return dispatcher(*args)

    return alone if LAYER == "workqueue" else dispatcher


_workqueue_lock = threading.Lock()


# ---------------------------------------------------------------- tasks


def _frame_types(frame: Any, address: Any, arguments: Any) -> Any:
    return types.int64(frame, types.int64, arguments) if isinstance(arguments, types.BaseTuple) else None


@emits(_frame_types)
def _fill_frame(context: Any, builder: Any, signature: Any, frame: Any, address: Any, packed: Any) -> Any:
    """Store the kernel's address and arguments in the frame; returns the address of their entry function.

    Arrays are stored as borrowed memory, without the reference count of this call: the caller keeps them alive.
    """
    of_frame, _, of_arguments = signature.args
    frame_type = ir.LiteralStructType([INT64, packed.type])
    if context.get_abi_sizeof(frame_type) > FRAME_BYTES:
        raise ValueError(f"the arguments of a task kernel need more than {FRAME_BYTES} bytes")
    borrowed = []
    for type_, value in zip(of_arguments.types, cgutils.unpack_tuple(builder, packed), strict=True):
        if isinstance(type_, types.Array):
            array = context.make_array(type_)(context, builder, value)
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            array.parent = cgutils.get_null_value(array.parent.type)
            value = array._getvalue()
        borrowed.append(value)
    target = builder.bitcast(context.make_array(of_frame)(context, builder, frame).data, frame_type.as_pointer())
    content = cgutils.pack_array if isinstance(packed.type, ir.ArrayType) else cgutils.pack_struct
    builder.store(address, cgutils.gep_inbounds(builder, target, 0, 0))
    builder.store(content(builder, borrowed), cgutils.gep_inbounds(builder, target, 0, 1))
    entry = _emit_entry(context, builder.module, frame_type, of_arguments.types)
    return builder.ptrtoint(entry, INT64)


def _emit_entry(context: Any, module: Any, frame_type: Any, argument_types: Any) -> Any:
    """A function that unpacks a frame and calls the kernel as Numba does: int f f(result*, exception**, *arguments)."""
    entry = ir.Function(module, ENTRY_TYPE, module.get_unique_name("minigrad.task.entry"))
    entry.linkage = "internal"
    builder = ir.IRBuilder(entry.append_basic_block())
    frame, task, tasks = entry.args
    source = builder.inttoptr(frame, frame_type.as_pointer())
    address, packed = (builder.load(cgutils.gep_inbounds(builder, source, 0, i)) for i in range(2))
    parameter_types = (types.int64, types.int64, *argument_types)
    values = (task, tasks, *cgutils.unpack_tuple(builder, packed))
    status = emit_call(context, builder, address, parameter_types, values)
    builder.ret(builder.zext(cgutils.is_not_null(builder, status), INT64))
    return entry


def emit_call(context: Any, builder: Any, address: Any, parameter_types: Any, values: Any) -> Any:
    """Call the machine code of a kernel; the status, 0 unless it failed."""
    convention = context.call_conv
    kernel_type = convention.get_function_type(types.none, parameter_types)
    result, exception = (cgutils.alloca_once(builder, pointer.pointee) for pointer in kernel_type.args[:2])
    flat = convention._get_arg_packer(parameter_types).as_arguments(builder, values)
    return builder.call(builder.inttoptr(address, kernel_type.as_pointer()), [result, exception, *flat])


def _passed_as(argument: Any) -> Any:
    """The type as which a kernel knows an argument that is a constant, a tuple with some, or a read-only array."""
    if isinstance(argument, types.BaseTuple):
        return types.BaseTuple.from_types(tuple(map(_passed_as, argument.types)))
    if isinstance(argument, types.Array):
        return types.Array(argument.dtype, argument.ndim, argument.layout)
    return types.unliteral(argument)


@emits(lambda entry, frame, task, tasks: types.int64(*[types.int64] * 4))
def _enter(context: Any, builder: Any, signature: Any, entry: Any, frame: Any, task: Any, tasks: Any) -> Any:
    """Call an entry function."""
    return builder.call(builder.inttoptr(entry, ENTRY_TYPE.as_pointer()), [frame, task, tasks])


def _of_linux(name: str, types_of: Callable[..., Any]) -> Any:
    """A function of Linux's C library, of integers; elsewhere -1."""

    def emit(context: Any, builder: Any, signature: Any, *given: Any) -> Any:
        if sys.platform != "linux":
            return ir.Constant(INT64, -1)
        kind = ir.FunctionType(ir.IntType(32), [INT64] * len(given))
        return builder.sext(builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given), INT64)

    return emits(types_of)(emit)


_core: Any = _of_linux("sched_getcpu", lambda: types.int64())
_cores: Any = _of_linux("sched_getaffinity", lambda thread, size, cores: types.int64(*[types.int64] * 3))
_set_cores: Any = _of_linux("sched_setaffinity", lambda thread, size, cores: types.int64(*[types.int64] * 3))


@kernel
def _leave(core):
    """Move this thread to another core than this one, if it may run on others; and let it run on all as before.

    Linux wakes a thread where it slept, and may keep two of a step on one core for seconds, while another is idle.
    """
    cores = np.zeros(CORES, np.uint8)
    bit = np.uint8(1 << (core & 7))
    if core < 8 * CORES and _cores(0, CORES, cores.ctypes.data) == 0:
        cores[core >> 3] &= ~bit
        if cores.any() and _set_cores(0, CORES, cores.ctypes.data) == 0:
            cores[core >> 3] |= bit
            _set_cores(0, CORES, cores.ctypes.data)


@parallel_kernel
def _run(entry, frame, tasks):
    failures = 0
    address = frame.ctypes.data
    core = _core()
    for task in numba.prange(tasks):
        if numba.get_thread_id() and core >= 0 and _core() == core:
            _leave(core)
        failures += _enter(entry, address, np.int64(task), tasks)
    if failures:
        raise MemoryError("no memory for a kernel's workspace")


@emits(lambda address, arguments: types.int64(address, arguments))
def call_at(context: Any, builder: Any, signature: Any, address: Any, packed: Any) -> Any:
    """In a kernel: call another by its address, 1 if it failed. Linked with it, this one would compile for longer."""
    status = emit_call(context, builder, address, signature.args[1].types, cgutils.unpack_tuple(builder, packed))
    return builder.zext(cgutils.is_not_null(builder, status), INT64)


@kernel
def start(frame: np.ndarray, address: int, arguments: Any, run: int, tasks: int) -> int:
    """Fill the frame of a launch: the entry function's address. Or run tasks, with an own frame; if they failed."""
    frame = np.empty(FRAME_BYTES, np.uint8) if tasks else frame
    entry = _fill_frame(frame, address, arguments)
    return call_at(run, (entry, frame, tasks)) if tasks else entry


_start: Any = _locked(start)


@functools.cache
def _address_of_run() -> int:
    return compiled_address(_run, types.int64, numba.typeof(NO_FRAME), types.int64)


@emits(lambda address, n: types.int64(types.int64, types.int64))
def _fetch_add(context: Any, builder: Any, signature: Any, address: Any, n: Any) -> Any:
    """Add to an integer that other threads change, too; what it was. What either did before is seen after."""
    return builder.atomic_rmw("add", builder.inttoptr(address, INT64.as_pointer()), n, "acq_rel")


@emits(lambda address: types.int64(types.int64))
def _look(context: Any, builder: Any, signature: Any, address: Any) -> Any:
    """An integer that other threads change, and, seen after it, what they did before."""
    return builder.load_atomic(builder.inttoptr(address, INT64.as_pointer()), "acquire", 8)


@emits(lambda: types.void())
def _give_way(context: Any, builder: Any, signature: Any) -> None:
    """Let another thread have the core, if one waits for it; Windows is not asked."""
    if not hasattr(os, "sched_yield"):
        return
    cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), "sched_yield")
    builder.call(builder.module.globals["sched_yield"], [])


@kernel
def _share(table, progress, member, members):
    """One member's part of all launches: of each its own tasks, then those that others have not begun.

    progress: int64 (launches, WORDS * n), zeros at first: how many tasks are done, and then of each member's how many
    were begun. Who waits, waits for tasks that others are at; so it ends also if only one member runs at all.
    """
    failures = 0
    for i in range(table.shape[0]):
        entry, frame, tasks = table[i, 0], table[i, 1], table[i, 2]
        done = progress.ctypes.data + i * progress.strides[0]
        mine = 0
        for k in range(members):
            owner = (member + k) % members
            first, end = owner * tasks // members, (owner + 1) * tasks // members
            while first < end:
                task = first + _fetch_add(done + 8 * (1 + owner), 1)
                if task >= end:
                    break
                failures += _enter(entry, frame, task, tasks)
                mine += 1
        looks = 0
        _fetch_add(done, mine)
        while _look(done) < tasks:
            looks += 1
            if looks > LOOKS:
                _give_way()
    return failures


@_locked
@parallel_kernel
def _walk(table, progress, members):
    failures = 0
    for member in numba.prange(members):
        failures += _share(table, progress, member, members)
    return failures


class Launch(NamedTuple):
    """A task kernel with its arguments, which may be launched again as long as the arrays among them are there."""

    entry: int
    frame: np.ndarray
    tasks: int
    arguments: tuple[Any, ...]


class Launches:
    """Launches in their order, each of which waits for the one before, as one call; by the calling thread alone if all
    are of one task.
    """

    def __init__(self, launches: Iterable[Launch]) -> None:
        launches = list(launches)
        self._frames = [one.frame for one in launches]
        rows = [(one.entry, one.frame.ctypes.data, one.tasks) for one in launches]
        self._table = np.array(rows, np.int64).reshape(-1, 3)
        self._most = int(self._table[:, 2].max(initial=1))

    def run(self) -> None:
        """Do them all. Raises MemoryError if a kernel got no memory for its workspace."""
        members = 1 if _forked else min(self._most, get_num_threads())
        progress = np.zeros((len(self._table), (members // WORDS + 1) * WORDS), np.int64)
        if _walk(self._table, progress, members) if members > 1 else _share(self._table, progress, 0, 1):
            raise MemoryError("no memory for a kernel's workspace")


class Recording(threading.local):
    """What the calling thread launches, where somebody wants to know."""

    launches: list[Launch] | None = None
    constant: Callable[[np.ndarray], np.ndarray]


recording: Recording = Recording()
GENERATORS: set[int] = set()
"""Where the graphs of this process keep their random generators' seed and offset: uint64 (2,)."""


def constant(array: np.ndarray) -> np.ndarray:
    """``array``, of the host's: sizes or addresses that do not depend on the values of a launch's other arrays."""
    return array if recording.launches is None else recording.constant(array)


def known_by_address(arrays: Iterable[np.ndarray]) -> None:
    """Which arrays the last launch knows by their addresses only, for who records it."""
    if recording.launches is not None:
        last = recording.launches[-1]
        recording.launches[-1] = last._replace(arguments=(*last.arguments, *arrays))


class TaskKernel:
    """A kernel ``fn(task, tasks, *arguments)``; what it writes must not depend on how many tasks share the work."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.kernel: Any = kernel(fn)
        self._compiled: dict[Hashable, tuple[Callable[..., None], int]] = {}
        self.__doc__ = fn.__doc__

    def launch(self, key: Hashable, tasks: int, *arguments: Any) -> None:
        """Run ``tasks`` tasks on the pool; a single one in the calling thread.

        ``key`` stands for the types of the arguments (usually a dtype): calls with equal keys must have equal types,
        but that an array may be read-only.
        """
        if recording.launches is not None:
            recording.launches.append(self.prepared(key, tasks, arguments))
        call, address = self._compiled.get(key) or self._compile(key, arguments)
        if tasks < 2 or _forked:
            for task in range(tasks):
                call(task, tasks, *arguments)
        elif _start(NO_FRAME, address, arguments, _address_of_run(), tasks):
            raise MemoryError(f"{self.kernel.__name__}: no memory for the kernel's workspace")

    def prepared(self, key: Hashable, tasks: int, arguments: tuple[Any, ...]) -> Launch:
        """A launch with these arguments, which is not made yet."""
        frame = constant(np.empty(FRAME_BYTES, np.uint8))
        _, address = self._compiled.get(key) or self._compile(key, arguments)
        return Launch(_start(frame, address, arguments, 0, 0), frame, tasks, arguments)

    def _compile(self, key: Hashable, arguments: tuple[Any, ...]) -> tuple[Callable[..., None], int]:
        """The kernel for arguments of these types, as Python calls it, and where its machine code is.

        The kernel itself, a dispatcher, would look at the types of all arguments first, which takes as long again.
        """
        given = (types.int64, types.int64, *map(_passed_as, map(numba.typeof, arguments)))
        address = compiled_address(self.kernel, *given)
        return self._compiled.setdefault(key, (self.kernel.overloads[given].entry_point, address))


def tasks_of(elements: int, chunk: int) -> int:
    """How many tasks of ``chunk`` elements, the last of perhaps fewer, there are; 1 if there is nothing to do."""
    return -(-elements // chunk) or 1


def compiled_address(kernel: Any, *argument_types: Any) -> int:
    """Where the machine code of a kernel for arguments of these Numba types is."""
    kernel.compile(argument_types)
    compiled = kernel.overloads[argument_types]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def task_kernel(fn: Any = None, name: str = "") -> Any:
    """Compile ``fn(task, tasks, *arguments)`` so that ``fn.launch(key, tasks, *arguments)`` runs it in parallel.

    Kernels that a function makes from one source need a name each: ``@task_kernel(name=...)``.
    """
    if fn is None:
        return functools.partial(task_kernel, name=name)
    fn.__name__, fn.__qualname__ = name or fn.__name__, name or fn.__qualname__
    return TaskKernel(fn)
