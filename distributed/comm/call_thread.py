"""A thread that makes calls which may never return, so that those who wait for them can give up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class QueuedCall:
    """A function handed to another thread: ``ended`` is set when it has returned or raised."""

    def __init__(self) -> None:
        self.ended: threading.Event = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None

    def wait(self, seconds: float) -> bool:
        """Whether it has ended; blocks until then, at most for so long."""
        return self.ended.wait(min(seconds, threading.TIMEOUT_MAX))

    def run(self, function: Callable[[], Any]) -> None:
        """Call it here and now, and keep what comes of it."""
        try:
            self.result = function()
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()


class CallThread:
    """Calls functions one after the other. A daemon: stuck in foreign code, it does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[QueuedCall, Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[[], Any]) -> QueuedCall:
        """Have the function called."""
        job = QueuedCall()
        self._jobs.put((job, function))
        return job

    def stop(self) -> None:
        """End the thread once it has done what was submitted."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            item[0].run(item[1])
            del item  # and with it the arrays that the function refers to
