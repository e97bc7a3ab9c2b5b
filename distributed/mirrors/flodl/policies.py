"""When the replicas of a ``DdpBuilder`` run are averaged (flodl's three policies), and what keeps them together: the
guard that sees them drift apart, and how far one may run ahead.

flodl's guard could only stop the overshoot from growing; here it makes averaging more frequent as well.
"""

import enum
import itertools
from collections import deque
from collections.abc import Sequence

RING = 5
RISES = 3
OVERSHOOT_CEILING = 15
NUDGE = 0.5  # what the anchor is multiplied with when the replicas drift apart


class AveragingPolicy(enum.Enum):
    """How often the replicas' parameters are averaged.

    - SYNC: after every batch.
    - CADENCE: when every replica has computed for as long as the slowest one needs for its anchor of batches. Nobody
      waits longer than for one batch, and a fast replica does more of them.
    - ASYNC: when every replica has done the number of batches that ElChe has given it; until then a replica may
      overshoot its own by a few.
    """

    SYNC = "sync"
    CADENCE = "cadence"
    ASYNC = "async"


class AverageBackend(enum.Enum):
    """What adds the replicas up: this process, in host memory, or their communicator.

    In host memory averages of policy ASYNC are made while all replicas go on; others are waited for by all.
    """

    CPU = "cpu"
    COMMUNICATOR = "communicator"
    NCCL = "communicator"  # noqa: PIE796  # flodl's name for the same


ApplyPolicy = AveragingPolicy  # flodl's name


def should_average(
    policy: AveragingPolicy,
    steps: Sequence[int],
    wall_ms: Sequence[float],
    counts: Sequence[int],
    anchor_wall_ms: float,
) -> bool:
    """Whether an average is due, of what has happened since the last one, in order of rank: ``steps`` batches done,
    ``wall_ms`` time computed. ElChe wants ``counts`` batches of each; its anchor takes ``anchor_wall_ms`` (0 before it
    has measured anything).
    """
    if min(steps) < 1:
        return False
    if policy is AveragingPolicy.SYNC:
        return True
    if policy is AveragingPolicy.CADENCE and anchor_wall_ms > 0:
        return min(wall_ms) >= anchor_wall_ms
    return all(done >= wanted for done, wanted in zip(steps, counts, strict=True))


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

    def averaged(self, drifts: bool) -> None:
        """After an average: one more, or, where the guard has seen the replicas drift apart, back to the start."""
        self.limit = self.start if drifts else min(self.limit + 1, self.cap)
