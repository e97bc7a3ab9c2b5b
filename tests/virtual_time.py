"""A clock for the replicas of a ``DdpBuilder``, so that what a test measures does not depend on the machine."""

import threading

import pytest

from minigrad.distributed.mirrors.flodl import builder, replica_threads
from minigrad.distributed.mirrors.flodl.replica_threads import DdpHandle


class VirtualTime:
    """Takes the place of ``time`` in the replicas' threads, which really run.

    It goes on only when every replica sleeps or waits for others, to the first one's end of sleep; what else they do
    takes no time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._waiting: set[str] = set()  # for other replicas
        self._asleep: dict[str, float] = {}  # until when
        for module in (builder, replica_threads):
            monkeypatch.setattr(module, "time", self)
        init, start, run, pause = (getattr(DdpHandle, name) for name in ("__init__", "start", "run", "_pause"))

        def patched_init(threads: DdpHandle, *arguments) -> None:
            init(threads, *arguments)
            notify = threads.changed.notify_all

            def notify_all() -> None:
                with self._changed:
                    self._running |= self._waiting
                    self._waiting.clear()
                notify()

            threads.changed.notify_all = notify_all  # type: ignore[method-assign]

        def patched_start(threads: DdpHandle) -> None:
            self._running = {f"replica-{replica.rank}" for replica in threads.replicas}
            start(threads)

        def patched_run(threads: DdpHandle, replica) -> None:
            run(threads, replica)
            with self._changed:
                self._running.discard(threading.current_thread().name)
                self._go_on()

        def patched_pause(threads: DdpHandle) -> None:
            name = threading.current_thread().name
            if name not in self._running:  # whoever waits for the end of the run
                pause(threads)
                return
            with self._changed:
                self._running.remove(name)
                self._waiting.add(name)
                self._go_on()
            pause(threads)
            with self._changed:
                self._waiting.discard(name)
                self._running.add(name)

        for name, function in (
            ("__init__", patched_init),
            ("start", patched_start),
            ("run", patched_run),
            ("_pause", patched_pause),
        ):
            monkeypatch.setattr(DdpHandle, name, function)

    def perf_counter(self) -> float:
        """The time, in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Called by a replica: return when it is so much later."""
        name = threading.current_thread().name
        with self._changed:
            self._running.remove(name)
            self._asleep[name] = self.now + seconds
            self._go_on()
            self._changed.wait_for(lambda: name in self._running)

    def _go_on(self) -> None:
        """Wake the replica whose sleep ends first, where nobody runs."""
        if not self._running and self._asleep:
            name = min(self._asleep, key=lambda name: (self._asleep[name], name))
            self.now = max(self.now, self._asleep.pop(name))
            self._running.add(name)
            self._changed.notify_all()
