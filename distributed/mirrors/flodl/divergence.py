"""Keeping replicas together: the guard that sees them drift apart, and how far one may run ahead.

Both are flodl's. Its guard could only stop the overshoot from growing; here it makes averaging more frequent as well.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

RING = 5
RISES = 3
OVERSHOOT_CEILING = 15
NUDGE = 0.5  # what the anchor is multiplied with when the replicas drift apart


class DivergenceGuard:
    """Watches how far an average moves the replicas: max over ranks of |before - after| / |after|.

    It keeps the last 5. After 3 strictly rising ones, the last above ``threshold``, ``observe`` returns True: the
    replicas drift apart, so average more often. It then starts afresh.
    """

    def __init__(self, threshold: float = 0.05) -> None:
        if not threshold > 0:
            raise ValueError(f"divergence_threshold is {threshold!r}, expected a number > 0, or None for no guard")
        self.threshold: float = threshold
        self.ring: deque[float] = deque(maxlen=RING)

    def observe(self, deltas: Sequence[float]) -> bool:
        """Take in one average's change of each replica; whether they drift apart."""
        self.ring.append(max(deltas))
        last = list(self.ring)[-RISES:]
        drifts = len(last) == RISES and all(a < b for a, b in itertools.pairwise(last)) and last[-1] > self.threshold
        if drifts:
            self.ring.clear()
        return drifts


class OvershootLimit:
    """How many batches beyond its count a replica may do while it waits for the others (policy ASYNC).

    Starts at batches / 100, within 2 and 5; grows by 1 with each average at which the replicas hold together, up to
    batches / 50, within 3 and 10, or to ``max_overshoot``; 15 at most. ``batches`` are those of one replica's epoch.
    """

    def __init__(self, batches: int, max_overshoot: int | None = None) -> None:
        cap = min(max(batches // 50, 3), 10) if max_overshoot is None else max_overshoot
        self.cap: int = min(cap, OVERSHOOT_CEILING)
        self.start: int = min(max(batches // 100, 2), 5, self.cap)
        self.limit: int = self.start

    def stable(self) -> None:
        """An average at which the replicas hold together."""
        self.limit = min(self.limit + 1, self.cap)

    def drifting(self) -> None:
        """The guard has seen them drift apart: back to the start."""
        self.limit = self.start
