"""What drives the operations of an engine whose messages move only while somebody asks for them, as MPI's do.

An operation is a generator: it starts messages, yields them, and goes on when all have arrived. Operations of one
*channel* (a communicator's collectives, or the messages of one tag to one rank) run one after the other, different
channels side by side. One thread of the process, or a caller who waits anyway while nothing else is under way, asks
("tests") whether messages have arrived, with pauses that leave the cores to whoever computes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ..call_thread import QueuedCall
from ..calls import Call, Work
from ..comm_errors import CommTimeoutError
from ..deadlines import check_seconds, remaining

Messages = list[tuple[Any, int]]  # requests, each with the rank at the other end
Steps = Iterator[Messages]

SPIN = 100e-6  # seconds for which the thread asks without a pause; a caller who has nothing else to do, 20 times that
SHORTEST_PAUSE, LONGEST_PAUSE = 50e-6, 1e-3  # seconds
REACTION = 2.0  # seconds after its deadline in which the driving thread should have ended an operation
_let_others_run = getattr(os, "sched_yield", lambda: time.sleep(0))  # Linux has the call


class Owner(Protocol):
    """The communicator, as its operations see it."""

    timeout: float
    stats: Any

    def idle(self, call: Call) -> None:
        """Nothing has arrived for a while: raise if something is known that makes waiting senseless."""

    def broke(self, operation: Operation, error: BaseException) -> BaseException:
        """The operation failed; returns the error that all unfinished operations of the communicator get."""

    def late(self, operation: Operation, missing: list[int], seconds: float) -> CommTimeoutError:
        """The error for an operation that waits for ``missing`` ranks longer than ``seconds``."""


@dataclass(eq=False)
class Operation(Work):
    """One call under way, for which ``allowed`` seconds are."""

    progress: Progress
    owner: Owner
    call: Call
    channel: Hashable
    steps: Steps
    allowed: float

    def __post_init__(self) -> None:
        self.deadline: float = time.monotonic() + self.allowed
        self.messages: Messages = []
        self.error: BaseException | None = None
        self.over: bool = False
        self.ended: threading.Event | None = None  # only if another thread drives it

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self.over

    def wait(self, timeout: float | None = None) -> None:
        """Block until it has ended; raises its error."""
        if not self.over:
            began = time.monotonic()
            until = self.deadline + REACTION if timeout is None else began + check_seconds("timeout", timeout)
            assert self.ended is not None
            if not self.ended.wait(min(remaining(until), threading.TIMEOUT_MAX)):
                self.progress.expire(self, self.allowed if timeout is None else timeout)
            self.owner.stats.waited_s += time.monotonic() - began
        if self.error is not None:
            raise self.error

    def advance(self, arrived: Callable[[list[Any]], bool]) -> bool:
        """Go on as far as possible without waiting; whether anything moved."""
        moved = False
        try:
            while arrived([request for request, _ in self.messages]):
                moved = True
                self.messages = next(self.steps)
        except StopIteration:
            self.messages = []
            self.finish(None)
        return moved

    def missing(self) -> list[int]:
        """The ranks whose messages have not arrived."""
        return sorted({rank for request, rank in self.messages if not request.Test()})

    def finish(self, error: BaseException | None) -> None:
        """Mark it as ended and wake who waits."""
        self.error = error
        self.over = True
        if self.ended is not None:
            self.ended.set()


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
        self._busy: dict[Owner, float] = {}  # since when a communicator has had operations under way
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
        operation.ended = threading.Event()
        with self._news:
            self._busy.setdefault(operation.owner, time.monotonic())
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
            while not (operation.over or self._channels or self._jobs):  # of another thread, which must not wait
                self._drive(operation, pause)
        except BaseException as error:  # such as KeyboardInterrupt: the others still wait for the rest
            operation.finish(operation.owner.broke(operation, error))
            raise
        finally:
            self.driving.release()
            spent = time.monotonic() - began
            operation.owner.stats.busy_s += spent
            operation.owner.stats.waited_s += spent
        if not operation.over:
            self.submit(operation)
        operation.wait()

    def pending(self, owner: Owner) -> list[Operation]:
        """The operations of a communicator that have not ended."""
        with self._news:
            return [op for queue in self._channels.values() for op in queue if op.owner is owner and not op.over]

    def expire(self, operation: Operation, seconds: float) -> None:
        """End an operation for which its caller waits no longer."""
        mine = self.driving.acquire(timeout=REACTION)  # not to be had if the library hangs
        try:
            if not operation.over:
                error = operation.owner.late(operation, operation.missing() if mine else [], seconds)
                operation.finish(operation.owner.broke(operation, error))
        finally:
            if mine:
                self.driving.release()

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
                if operation.over:
                    self._leave(operation)
            if len(heads) > 1:
                pause.reset() if moved else pause.take()

    def _drive(self, operation: Operation, pause: _Pause | None) -> bool:
        """Advance an operation; if nothing moves, look at the clock and, with ``pause``, rest."""
        try:
            if operation.over or operation.advance(self.arrived):
                if pause is not None:
                    pause.reset()
                return True
            if time.monotonic() > operation.deadline:
                raise operation.owner.late(operation, operation.missing(), operation.allowed)
            if pause is None or pause.long:
                operation.owner.idle(operation.call)
        except Exception as error:
            operation.finish(operation.owner.broke(operation, error))
            return True
        if pause is not None:
            pause.take()
        return False

    def _leave(self, operation: Operation) -> None:
        with self._news:
            queue = self._channels[operation.channel]
            while queue and queue[0].over:
                queue.popleft()
            if not queue:
                del self._channels[operation.channel]
            owner = operation.owner
            if not any(op.owner is owner for queue in self._channels.values() for op in queue):
                owner.stats.busy_s += time.monotonic() - self._busy.pop(owner)


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
