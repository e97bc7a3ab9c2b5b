"""MPI in this process: how it is started and ended, and the thread that drives it. Only this file imports mpi4py.

MPI's messages move only while somebody asks for them. An operation is a generator: it starts messages, yields them, and
goes on when all have arrived. A *channel* is a communicator's collectives, or the messages of one tag to one rank.
Operations of one channel run one after the other, different channels side by side. One thread of the process, or a
caller who waits anyway while nothing else is under way, asks ("tests") whether messages have arrived. Pauses in between
leave the cores to whoever computes (``Progress``).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from types import TracebackType
from typing import Any

from minigrad.errors import of_extra

from ..call_thread import QueuedCall
from ..calls import DEFAULT_TIMEOUT, Call, PendingWork, remaining
from ..comm_errors import RendezvousError
from ..launchers import discover_place, launch_command
from .rank_parent import DONE, tell

Messages = list[tuple[Any, int]]  # requests, each with the rank at the other end
Steps = Iterator[Messages]

SPIN = 100e-6  # seconds for which the thread asks without a pause; a caller who has nothing else to do, 20 times that
SHORTEST_PAUSE, LONGEST_PAUSE = 50e-6, 1e-3  # seconds
_let_others_run = getattr(os, "sched_yield", lambda: time.sleep(0))  # Linux has the call


class Operation(PendingWork):
    """One call under way. Its owner, the communicator, has three methods for it: ``idle(call)`` raises if something is
    known that makes waiting senseless; ``broke(operation, error)`` makes the error that all its unfinished operations
    get; ``late(operation, missing_ranks, seconds)`` makes the error of one that took too long."""

    grace = 2.0

    def __init__(
        self, progress: Progress, owner: Any, call: Call, channel: Hashable, steps: Steps, allowed: float
    ) -> None:
        super().__init__(owner, call, allowed)
        self.progress: Progress = progress
        self.channel: Hashable = channel
        self.steps: Steps = steps
        self.messages: Messages = []

    def expire(self, seconds: float) -> None:
        """End it, for its caller waits no longer."""
        mine = self.progress.driving.acquire(timeout=self.grace)  # not to be had if the library hangs
        try:
            if not self.is_completed():
                self.end(self.owner.broke(self, self.owner.late(self, self.missing() if mine else [], seconds)))
        finally:
            if mine:
                self.progress.driving.release()

    def advance(self, arrived: Callable[[list[Any]], bool]) -> bool:
        """Go on as far as possible without waiting; whether anything moved."""
        moved = False
        try:
            while arrived([request for request, _ in self.messages]):
                moved = True
                self.messages = next(self.steps)
        except StopIteration:
            self.messages = []
            self.end()
        return moved

    def missing(self) -> list[int]:
        """The ranks whose messages have not arrived."""
        return sorted({rank for request, rank in self.messages if not request.Test()})


class Progress:
    """Drives the operations of all communicators of the process.

    ``arrived(requests)`` says whether all of them are complete. Whoever holds ``driving`` makes the library's calls.
    """

    def __init__(self, name: str) -> None:
        self.arrived: Callable[[list[Any]], bool] = all
        self.driving: threading.Lock = threading.Lock()
        self._channels: dict[Hashable, deque[Operation]] = {}
        self._jobs: deque[Callable[[], None]] = deque()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ for callers

    def call(self, function: Callable[[], Any], timeout: float) -> Any:
        """The result of ``function``, called in the thread. Raises TimeoutError if it takes longer than ``timeout``."""
        job = QueuedCall()
        with self._news:
            self._jobs.append(lambda: job.run(function))
            self._news.notify()
        if not job.wait(timeout):
            raise TimeoutError(f"not done after {timeout:g} s")
        return job.result()

    def submit(self, operation: Operation) -> None:
        """Give an operation to the thread."""
        with self._news:
            operation.owner.stats.begin(operation.now())
            self._channels.setdefault(operation.channel, deque()).append(operation)
            self._news.notify()

    def run(self, operation: Operation) -> None:
        """Run an operation to its end: in the caller, as long as nothing else is under way, else in the thread."""
        if self._channels or not self.driving.acquire(blocking=False):
            self.submit(operation)
            operation.wait()
            return
        began = time.monotonic()
        try:
            pause = _Pause(20 * SPIN)
            # Until another thread, which must not wait, has something.
            while not (operation.is_completed() or self._channels or self._jobs):
                self._drive(operation, pause)
        except BaseException as error:  # such as KeyboardInterrupt: the others still wait for the rest
            operation.end(operation.owner.broke(operation, error))
            raise
        finally:
            self.driving.release()
            spent = time.monotonic() - began
            operation.owner.stats.busy_s += spent
            operation.owner.stats.waited_s += spent
        if not operation.is_completed():
            self.submit(operation)
        operation.wait()

    def pending(self, owner: Any) -> list[Operation]:
        """The operations of a communicator that have not ended."""
        with self._news:
            known = [op for queue in self._channels.values() for op in queue if op.owner is owner]
        return [op for op in known if not op.is_completed()]

    # ------------------------------------------------------------------ driving

    def _run(self) -> None:
        pause = _Pause(SPIN)
        while True:
            with self._news:
                while not self._jobs and not self._channels:
                    self._news.wait()
                    pause.reset()
                job = self._jobs.popleft() if self._jobs else None
                heads = [queue[0] for queue in self._channels.values()]
            if job is not None:
                with self.driving:
                    job()
            moved = False
            for operation in heads:
                with self.driving:
                    moved |= self._drive(operation, None if moved or len(heads) > 1 else pause)
                if operation.is_completed():
                    self._leave(operation)
            if len(heads) > 1:
                pause.reset() if moved else pause.take()

    def _drive(self, operation: Operation, pause: _Pause | None) -> bool:
        """Advance an operation; if nothing moves, look at the clock and, with ``pause``, rest."""
        try:
            if operation.is_completed() or operation.advance(self.arrived):
                if pause is not None:
                    pause.reset()
                return True
            if time.monotonic() > operation.deadline:
                raise operation.owner.late(operation, operation.missing(), operation.allowed)
            if pause is None or pause.long:
                operation.owner.idle(operation.call)
        except Exception as error:
            operation.end(operation.owner.broke(operation, error))
            return True
        if pause is not None:
            pause.take()
        return False

    def _leave(self, operation: Operation) -> None:
        with self._news:
            queue = self._channels[operation.channel]
            while queue and queue[0].is_completed():
                queue.popleft().owner.stats.end(time.monotonic())
            if not queue:
                del self._channels[operation.channel]


class _Pause:
    """Rests between questions: first only lets others run, then sleeps, longer and longer."""

    def __init__(self, spin: float) -> None:
        self.spin = spin
        self.reset()

    def reset(self) -> None:
        """Something has happened: ask quickly again."""
        self.since = time.monotonic()
        self.length = SHORTEST_PAUSE
        self.long = False

    def take(self) -> None:
        """Rest once."""
        if not self.long and time.monotonic() - self.since < self.spin:
            _let_others_run()
            return
        self.long = True
        time.sleep(self.length)
        self.length = min(1.5 * self.length, LONGEST_PAUSE)


class Runtime:
    """MPI in this process: started once, with the thread that drives it, and ended at exit if all went well."""

    one: Runtime | None = None

    @classmethod
    def get(cls, timeout: float) -> Runtime:
        """The process's own; MPI is started if nobody has."""
        if cls.one is None:
            cls.one = cls(timeout)
        return cls.one

    def __init__(self, timeout: float) -> None:
        mpi = _import_mpi()
        self.mpi: Any = mpi
        self.start_all: Any = mpi.Prequest.Startall
        self.contexts: dict[int, int] = {}  # of each wire, by handle, the largest that a group of this rank has
        self.progress: Progress = Progress("minigrad-mpi")
        self.progress.arrived = mpi.Request.Testall
        self.communicators: list[Any] = []  # the MpiCommunicators
        self.crashed: bool = False  # the program ended with an exception
        self.ours: bool = not mpi.Is_initialized()
        if self.ours:
            try:
                self.progress.call(lambda: _init(mpi), timeout)
            except TimeoutError as error:
                raise RendezvousError(f"MPI did not start within {timeout:g} s; a rank is missing") from error
        if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
            raise RuntimeError("MPI was started without support for threads; let MpiCommunicator start it")
        self.largest_tag: int = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)
        _check_world(mpi)
        self._previous_hooks = sys.excepthook, threading.excepthook
        sys.excepthook = self._main_thread_died
        threading.excepthook = self._thread_died
        atexit.register(self._at_exit)

    def duplicate(self, deadline: float) -> Any:
        """An MPI communicator with messages of its own. Raises TimeoutError if not all ranks ask for it.

        The thread that drives MPI is asked again and again, so that other threads' operations go on meanwhile.
        """

        def ask(function: Callable[[], Any]) -> Any:
            return self.progress.call(function, remaining(deadline) + 1)

        out, request = ask(self.mpi.COMM_WORLD.Idup)
        while not ask(request.Test):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(1e-3)
        ask(lambda: out.Set_errhandler(self.mpi.ERRORS_RETURN))
        return out

    def _main_thread_died(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._previous_hooks[0](kind, error, trace)
        self.crashed = True
        self._fail_all(error, None)

    def _thread_died(self, died: threading.ExceptHookArgs) -> None:
        self._previous_hooks[1](died)
        if died.exc_value is not None and died.thread is not None:
            self._fail_all(died.exc_value, died.thread.ident)

    def _fail_all(self, error: BaseException, thread: int | None) -> None:
        if not self.progress.driving.acquire(timeout=1.0):
            return  # MPI hangs; the others have their deadlines
        try:
            for comm in self.communicators:
                comm.give_up(error, thread)
        finally:
            self.progress.driving.release()

    def _at_exit(self) -> None:
        """Say goodbye and finalize; skip what would wait for ranks that do not come."""
        mpi = self.mpi
        for comm in list(self.communicators):
            comm.close()
        broken = self.crashed or any(comm._error is not None for comm in self.communicators)
        if mpi.Is_finalized():
            return
        if not broken:
            longest = max((comm.timeout for comm in self.communicators), default=DEFAULT_TIMEOUT)
            if self.ours:
                tell(DONE)
                try:
                    self.progress.call(_library(mpi).MPI_Finalize, longest)
                except TimeoutError:
                    print(f"MPI_Finalize did not end within {longest:g} s", file=sys.stderr)
        elif not self.ours:
            mpi.COMM_WORLD.Abort(1)  # mpi4py would finalize, and wait for the others


def _import_mpi() -> Any:
    mpi4py = of_extra("mpi", "mpi4py", "MpiCommunicator needs mpi4py and an MPI library")
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (RuntimeError, ImportError) as error:
        remedy = 'pip install "minigrad-cuda[mpi]", which brings Open MPI'
        raise RuntimeError(f"mpi4py finds no MPI library that it can load: {remedy}") from error
    return MPI


def _library(mpi: Any) -> ctypes.CDLL:
    """The C library below mpi4py, which keeps the interpreter lock while it starts and ends MPI; ctypes does not."""
    return ctypes.CDLL(mpi.__file__)


def _init(mpi: Any) -> None:
    """Start MPI, which waits for all ranks."""
    provided = ctypes.c_int()
    code = _library(mpi).MPI_Init_thread(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(provided))
    if code:
        raise RendezvousError(f"MPI did not start: error {code}")


def _check_world(mpi: Any) -> None:
    """Raise RendezvousError if the launcher says more ranks than MPI: then each process is a world of its own."""
    place, size = discover_place(), mpi.COMM_WORLD.Get_size()
    if place.world_size > 1 and size == 1:
        alone = f"MPI ({mpi.get_vendor()[0]}) sees only this one: what started it speaks no PMIx, or is another MPI's"
        start = f"Start the job with {launch_command(place.world_size)}"
        raise place.error(f"{place.source} started {place.world_size} ranks, but {alone}. {start}")
