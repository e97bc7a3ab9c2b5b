"""The batches of a ``DdpBuilder`` run: which epochs are open, what each replica has of them, and which are over.

Pure bookkeeping on batch numbers, used by ``coordinator``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .chunks import ChunkPool, FixedParts, interleaved, partition
from .epoch_metrics import EpochMetrics, EpochSums

LOOKAHEAD = 1  # epochs that a replica may be ahead of the oldest one that is not over


@dataclass(frozen=True)
class Batch:
    """Train on batch number ``index`` of ``epoch``."""

    epoch: int
    index: int


@dataclass(eq=False)
class Workload:
    """Deals the batches of the epochs from ``first_epoch`` to ``epochs`` out to ``world`` replicas.

    ``lockstep``: each step of all replicas takes neighbouring batches. Otherwise replicas take chunks while an epoch
    runs (``progressive``), or each has its part of it from the beginning, in proportion to ``shares()``.

    A replica may begin an epoch while others are in the one before. After every ``hold_every`` epochs none begins the
    next before ``release`` is called.

    ``oldest`` is the first epoch that is not over; ``held`` says whether all wait for ``release``.
    """

    world: int
    batches: int
    epochs: int
    first_epoch: int = 0
    lockstep: bool = False
    progressive: bool = True
    shares: Callable[[], Sequence[float]] | None = None
    hold_every: int | None = None

    def __post_init__(self) -> None:
        self._queues: list[deque[Batch]] = [deque() for _ in range(self.world)]
        self._pools: dict[int, FixedParts | ChunkPool] = {}
        self._sums: dict[int, EpochSums] = {}
        self._epoch_of = [self.first_epoch] * self.world  # where each looks for work
        self.oldest: int = self.first_epoch
        self.held: bool = False

    def has_work(self, rank: int) -> bool:
        """Whether there may be a batch for this replica now."""
        return bool(self._queues[rank]) or any(
            epoch not in self._pools or self._pools[epoch].left(rank)
            for epoch in range(self._epoch_of[rank], self._limit())
        )

    def last_epochs_open(self) -> bool:
        """Whether a replica without work now will have none later."""
        return self._limit() == self.epochs

    def take(self, rank: int, share: float | None, now: float) -> Batch | None:
        """The replica's next batch; None if there is none for it now. ``share`` is its part of the speed of all (None:
        not known), ``now`` the time in seconds at which an epoch that this opens begins."""
        while not self._queues[rank] and self.has_work(rank):
            epoch = self._epoch_of[rank]
            chunk = self._pool(epoch, now).take(rank, share)
            self._queues[rank].extend(Batch(epoch, i) for i in chunk)
            if not chunk:
                self._epoch_of[rank] += 1
        return self._queues[rank].popleft() if self._queues[rank] else None

    def upcoming(self, rank: int, count: int) -> list[Batch]:
        """Up to ``count`` batches that are the replica's already, in order."""
        return list(itertools.islice(self._queues[rank], count))

    def sums(self, epoch: int) -> EpochSums:
        """Where the epoch's batches are to be reported."""
        return self._sums[epoch]

    def waited(self, rank: int, ms: float) -> None:
        """A replica has waited, in the epoch in which it looks for work."""
        if self._epoch_of[rank] in self._sums:
            self._sums[self._epoch_of[rank]].waited(rank, ms)

    def end_epochs(self, now: float) -> list[EpochMetrics]:
        """The epochs that are over and were not before, in order."""
        ended = []
        while self.oldest in self._sums and self._sums[self.oldest].done:
            ended.append(self._sums.pop(self.oldest).metrics(now))
            del self._pools[self.oldest]
            self.oldest += 1
            self._epoch_of = [max(epoch, self.oldest) for epoch in self._epoch_of]
            if self.hold_every is not None and self.oldest % self.hold_every == 0:
                self.held = True
        return ended

    def release(self) -> None:
        """Let the next epoch begin."""
        self.held = False

    def _limit(self) -> int:
        """The first epoch that may not begin yet."""
        limit = min(self.oldest + LOOKAHEAD + 1, self.epochs)
        if self.hold_every is not None:
            limit = min(limit, self.oldest if self.held else (self.oldest // self.hold_every + 1) * self.hold_every)
        return limit

    def _pool(self, epoch: int, now: float) -> FixedParts | ChunkPool:
        if epoch not in self._pools:
            pool: FixedParts | ChunkPool
            if self.lockstep:
                pool = FixedParts(interleaved(self.batches, self.world))
            elif self.progressive:
                pool = ChunkPool(self.batches, self.world)
            else:
                pool = FixedParts(partition(self.batches, self.shares() if self.shares else [1.0] * self.world))
            self._pools[epoch] = pool
            self._sums[epoch] = EpochSums(epoch, pool.batches, self.world, now)
        return self._pools[epoch]
