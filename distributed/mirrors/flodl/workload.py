"""The batches of a ``DdpBuilder`` run: which epochs are open, what each replica has of them, which are over, and what
is reported of these: sums per replica while an epoch runs, means when it is over.

Pure bookkeeping on batch numbers, used by ``coordinator``; no batch is done twice.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .el_che import round_half_up
from .policies import AverageBackend, AveragingPolicy

MIN_CHUNK = 4  # batches; smaller ones are handed out only at the end of an epoch
LOOKAHEAD = 1  # epochs that a replica may be ahead of the oldest one that is not over


@dataclass(frozen=True)
class Batch:
    """Train on batch number ``index`` of ``epoch``."""

    epoch: int
    index: int


@dataclass(frozen=True)
class CadencePlan:
    """What a run does. ``batches`` are those of an epoch, ``partition_ratios`` and ``progressive`` how they are dealt
    out. ``first_epoch`` and ``batches_before`` (of all replicas) are where a resumed run begins. ``device_indices`` are
    the replicas' GPUs, by default 0; the rest is as in ``DdpBuilder``."""

    world: int
    batches: int
    epochs: int
    policy: AveragingPolicy = AveragingPolicy.CADENCE
    backend: AverageBackend = AverageBackend.COMMUNICATOR
    first_epoch: int = 0
    batches_before: int = 0
    progressive: bool = True
    partition_ratios: Sequence[float] | None = None
    max_batch_diff: int | None = None
    checkpoint_every: int | None = None
    snapshot_timeout: float = 5.0
    batch_timeout: float = 300.0
    device_indices: Sequence[int] = ()


@dataclass(eq=False)
class Workload:
    """Deals the batches of the plan's epochs out to its replicas.

    With policy SYNC, each step of all replicas takes neighbouring batches. Otherwise replicas take chunks while an
    epoch runs (``progressive``), or each has its part of it from the beginning. These parts are in proportion to
    ``partition_ratios`` or, without them, to ``counts()``.

    A replica may begin an epoch while others are in the one before. After every ``checkpoint_every`` epochs none begins
    the next as long as ``held`` is true. ``oldest`` is the first epoch that is not over.
    """

    plan: CadencePlan
    counts: Callable[[], Sequence[float]]

    def __post_init__(self) -> None:
        self._queues: list[deque[Batch]] = [deque() for _ in range(self.plan.world)]
        self.sums: dict[int, EpochSums] = {}
        """Where the batches of each open epoch are to be reported."""
        self._epoch_of = [self.plan.first_epoch] * self.plan.world  # where each looks for work
        self.oldest: int = self.plan.first_epoch
        self.held: bool = False

    def has_work(self, rank: int) -> bool:
        """Whether there may be a batch for this replica now."""
        epochs = range(self._epoch_of[rank], self._limit())
        return bool(self._queues[rank]) or any(e not in self.sums or self.sums[e].pool.left(rank) for e in epochs)

    def last_epochs_open(self) -> bool:
        """Whether a replica without work now will have none later."""
        return self._limit() == self.plan.epochs

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

    def waited(self, rank: int, ms: float) -> None:
        """A replica has waited, in the epoch in which it looks for work."""
        if self._epoch_of[rank] in self.sums:
            self.sums[self._epoch_of[rank]].waited_ms[rank] += ms

    def end_epochs(self, now: float) -> list[EpochMetrics]:
        """The epochs that are over and were not before, in order."""
        ended = []
        while self.oldest in self.sums and self.sums[self.oldest].done:
            ended.append(self.sums.pop(self.oldest).metrics(now))
            self.oldest += 1
            self._epoch_of = [max(epoch, self.oldest) for epoch in self._epoch_of]
            if self.plan.checkpoint_every is not None and self.oldest % self.plan.checkpoint_every == 0:
                self.held = True
        return ended

    def _limit(self) -> int:
        """The first epoch that may not begin yet."""
        limit, every = min(self.oldest + LOOKAHEAD + 1, self.plan.epochs), self.plan.checkpoint_every
        if every is not None:
            limit = min(limit, self.oldest if self.held else (self.oldest // every + 1) * every)
        return limit

    def _pool(self, epoch: int, now: float) -> FixedParts | ChunkPool:
        if epoch not in self.sums:
            pool: FixedParts | ChunkPool
            plan = self.plan
            if plan.world == 1 or plan.policy is AveragingPolicy.SYNC:
                pool = FixedParts(interleaved(plan.batches, plan.world))
            elif plan.progressive:
                pool = ChunkPool(plan.batches, plan.world)
            else:
                pool = FixedParts(partition(plan.batches, plan.partition_ratios or self.counts()))
            self.sums[epoch] = EpochSums(epoch, pool, plan.world, now)
        return self.sums[epoch].pool


def interleaved(batches: int, world: int) -> list[range]:
    """Every replica's batches where all step together: rank, rank + world, ...; what fills no round is left out."""
    return [range(rank, batches - batches % world, world) for rank in range(world)]


def partition(batches: int, shares: Sequence[float]) -> list[range]:
    """Neighbouring batches for each replica, in proportion to ``shares``: disjoint, and complete.

    If there are as many batches as replicas, none gets nothing.
    """
    sums = [*itertools.accumulate(shares)]
    least = 1 if batches >= len(sums) else 0
    free = batches - least * len(sums)
    ends = [least * rank + round_half_up(free * part / sums[-1]) for rank, part in enumerate([0.0, *sums])]
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


class FixedParts:
    """An epoch whose batches are dealt out when it begins; each replica takes its part at once."""

    def __init__(self, parts: Sequence[range]) -> None:
        self.batches: int = sum(map(len, parts))
        self._parts = list(parts)

    def left(self, rank: int) -> bool:
        """Whether there is anything to take for this replica."""
        return bool(self._parts[rank])

    def take(self, rank: int, share: float | None) -> range:
        """The replica's part; empty if it has it already."""
        part, self._parts[rank] = self._parts[rank], range(0)
        return part


class ChunkPool:
    """Hands out an epoch's batches in chunks as replicas ask for them (flodl's progressive dispatch).

    A replica whose speed is not known gets a probe of max(4, batches / (10 world)); later it gets half of its share of
    what remains, and at least 4. So chunks shrink, and all replicas end at about the same time, also if the shares were
    wrong (factoring: Hummel, Schonberg, Flynn 1992; flodl gives the whole share at once). In the tail, and where there
    are few batches, a chunk may be smaller, so that each replica finds one.
    """

    def __init__(self, batches: int, world: int) -> None:
        self.batches: int = batches
        self.world: int = world
        self.next_batch: int = 0

    @property
    def remaining(self) -> int:
        """Batches not handed out."""
        return self.batches - self.next_batch

    def left(self, rank: int) -> bool:
        """Whether there is anything to take, for any replica."""
        return self.remaining > 0

    def take(self, rank: int, share: float | None) -> range:
        """The next chunk for a replica with this share of the pace of all (None: not known), empty if none is left."""
        if share is None:
            size = min(max(MIN_CHUNK, self.batches // (10 * self.world)), math.ceil(self.remaining / self.world))
        else:
            size = math.ceil(self.remaining * share / 2)
            if self.remaining >= MIN_CHUNK * self.world:
                size = max(MIN_CHUNK, size)
        size = min(max(size, 1), self.remaining)
        chunk = range(self.next_batch, self.next_batch + size)
        self.next_batch += size
        return chunk


@dataclass(frozen=True)
class ReplicaEpoch:
    """One replica's part of an epoch; losses are means over its batches, times in milliseconds."""

    batches: int
    samples: int
    avg_loss: float
    scalars: dict[str, float]
    compute_ms: float
    waited_ms: float


@dataclass(frozen=True)
class EpochMetrics:
    """An epoch that all replicas have ended (flodl's ``EpochMetrics``).

    ``avg_loss`` and ``scalars`` are means over all batches, whoever did them. ``per_rank_throughput`` is a replica's
    samples by the milliseconds that it computed; ``batch_share`` its part of all batches; ``device_indices`` the number
    of its GPU, 0 for the CPU. Lists are in order of rank.
    """

    epoch: int
    avg_loss: float
    scalars: dict[str, float]
    epoch_ms: float
    per_rank: list[ReplicaEpoch]
    per_rank_throughput: list[float]
    batch_share: list[float]
    device_indices: list[int] = field(default_factory=list)


class Done(NamedTuple):
    """What a replica reports of a batch."""

    samples: int
    loss: float
    scalars: Mapping[str, float]
    ms: float


class EpochSums:
    """Collects the batches of one epoch, dealt out from ``pool``, until all are done."""

    def __init__(self, epoch: int, pool: FixedParts | ChunkPool, world: int, began: float) -> None:
        self.epoch: int = epoch
        self.pool: FixedParts | ChunkPool = pool
        self.began: float = began
        self.ranks: list[list[Done]] = [[] for _ in range(world)]
        self.waited_ms: list[float] = [0.0] * world

    @property
    def done(self) -> bool:
        """Whether every batch has been reported."""
        return sum(map(len, self.ranks)) == self.pool.batches

    def metrics(self, now: float) -> EpochMetrics:
        """Means over the batches; ``now`` is on the clock of ``began``, in seconds."""
        batches = max(1, self.pool.batches)
        losses = [sum(done.loss for done in rank) for rank in self.ranks]
        per_rank = []
        for rank, loss, waited in zip(self.ranks, losses, self.waited_ms):
            samples, ms = sum(done.samples for done in rank), sum(done.ms for done in rank)
            per_rank.append(ReplicaEpoch(len(rank), samples, loss / max(1, len(rank)), _means([rank]), ms, waited))
        return EpochMetrics(
            epoch=self.epoch,
            avg_loss=sum(losses) / batches,
            scalars=_means(self.ranks),
            epoch_ms=(now - self.began) * 1e3,
            per_rank=per_rank,
            per_rank_throughput=[one.samples / one.compute_ms if one.compute_ms > 0 else 0.0 for one in per_rank],
            batch_share=[one.batches / batches for one in per_rank],
        )


def _means(ranks: Sequence[Sequence[Done]]) -> dict[str, float]:
    """Each scalar's mean over the batches that had it."""
    names = sorted({name for rank in ranks for done in rank for name in done.scalars})
    values = {name: [[d.scalars[name] for d in rank if name in d.scalars] for rank in ranks] for name in names}
    return {name: sum(map(sum, lists)) / sum(map(len, lists)) for name, lists in values.items()}
