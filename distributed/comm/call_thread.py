"""A thread that makes calls which may never return, so that those who wait for them can give up."""

import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any


class QueuedCall(Future[Any]):
    """A function handed to another thread, and what has become of it."""

    def wait(self, seconds: float) -> bool:
        """Whether it has ended; blocks until then, at most for so long."""
        return self.done() or bool(wait([self], min(seconds, threading.TIMEOUT_MAX)).done)

    @property
    def error(self) -> BaseException | None:
        """What it raised; None if it has not ended, too."""
        return self.exception() if self.done() else None

    def run(self, function: Callable[[], Any]) -> None:
        """Call it here and now, unless it was cancelled, and keep what comes of it."""
        if self.set_running_or_notify_cancel():
            try:
                self.set_result(function())
            except BaseException as error:
                self.set_exception(error)


class CallThread:
    """Calls functions one after the other. A daemon: stuck in foreign code, it does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[QueuedCall, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Any]) -> QueuedCall:
        """Have the function called."""
        job = QueuedCall()
        self._jobs.put((job, function))
        return job

    def stop(self, seconds: float = 0.0) -> None:
        """End the thread once it has done what was submitted; waits for that at most for so long."""
        self._jobs.put(None)
        if seconds:
            self._thread.join(seconds)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            item[0].run(item[1])
            del item  # and with it the arrays that the function refers to


def in_threads(name: str, n: int, work: Callable[[int], Any]) -> list[QueuedCall]:
    """Have ``work(i)`` called for each i below ``n``, each in a thread of its own, ``name-i``."""
    jobs = []
    for i in range(n):
        thread = CallThread(f"{name}-{i}")
        jobs.append(thread.submit(functools.partial(work, i)))
        thread.stop()
    return jobs
