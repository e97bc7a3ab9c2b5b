"""MPI in this process: how it is started and ended, and the thread that drives it. Only this file imports mpi4py."""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..calls import DEFAULT_TIMEOUT, remaining
from ..comm_errors import RendezvousError
from ..launchers import discover_place
from .progress import Progress


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
                try:
                    self.progress.call(_library(mpi).MPI_Finalize, longest)
                except TimeoutError:
                    print(f"MPI_Finalize did not end within {longest:g} s", file=sys.stderr)
        elif not self.ours:
            mpi.COMM_WORLD.Abort(1)  # mpi4py would finalize, and wait for the others


def _import_mpi() -> Any:
    try:
        import mpi4py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'MpiCommunicator needs mpi4py and an MPI library: pip install "minigrad-cuda[mpi]"', name="mpi4py"
        ) from error
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (RuntimeError, ImportError) as error:
        raise RuntimeError(
            'mpi4py finds no MPI library that it can load: pip install "minigrad-cuda[mpi]", which brings Open MPI'
        ) from error
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
        raise place.error(
            f"{place.source} started {place.world_size} ranks, but MPI ({mpi.get_vendor()[0]}) sees only this one: "
            "mpirun and mpi4py belong to different MPIs. Start the job with python -m minigrad.distributed.launch"
        )
