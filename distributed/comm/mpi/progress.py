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
from typing import Any

from ..call_thread import QueuedCall
from ..calls import Call, PendingWork

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
            operation.owner.stats.begin()
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
