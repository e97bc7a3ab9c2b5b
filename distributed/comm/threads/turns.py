"""Which of the ranks that are threads runs, and what time it is: as it comes, or decided by a seed."""

import random
import threading
import time

ALREADY = threading.Event()
ALREADY.set()


class Turns:
    """The operating system decides, and time is that of the clock."""

    ordered: bool = False

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return time.monotonic()

    def pause(self, rank: int, until: float, event: threading.Event = ALREADY) -> None:
        """Called by a rank, which goes on when the event is set, or at this time."""
        if not event.is_set():
            event.wait(min(max(0.0, until - self.now), threading.TIMEOUT_MAX))

    def leave(self, rank: int) -> None:
        """Called by a rank that makes no more operations."""


class SeededTurns(Turns):
    """One rank at a time runs; when it pauses or leaves, a seed decides which goes on, the same in every run.

    Time is virtual, and waiting takes none: it stands still while a rank runs, and jumps to the first end of a pause
    when no rank could run otherwise.
    """

    ordered = True

    def __init__(self, ranks: int, seed: int) -> None:
        self._now = 0.0
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._running = set(range(ranks))  # until each has paused once, all of them
        self._paused: dict[int, tuple[float, threading.Event]] = {}

    @property
    def now(self) -> float:
        """The time, in seconds from the beginning."""
        return self._now

    def pause(self, rank: int, until: float, event: threading.Event = ALREADY) -> None:
        """Called by a rank, which goes on when its turn comes, after the event is set or at this time."""
        with self._changed:
            self._paused[rank] = until, event
            self._hand_over(rank)
            self._changed.wait_for(lambda: rank in self._running)

    def leave(self, rank: int) -> None:
        """Called by a rank that makes no more operations."""
        with self._changed:
            self._hand_over(rank)

    def _hand_over(self, rank: int) -> None:
        self._running.discard(rank)
        if self._running or not self._paused:
            return
        able = sorted(r for r, (_, event) in self._paused.items() if event.is_set())
        following = self._random.choice(able or [min(self._paused, key=lambda r: (self._paused[r][0], r))])
        until, event = self._paused.pop(following)
        if not event.is_set():
            self._now = max(self._now, until)
        self._running.add(following)
        self._changed.notify_all()
