"""What a run of several replicas reports of an epoch: sums per replica while it runs, means when it is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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


@dataclass
class _Sums:
    batches: int = 0
    samples: int = 0
    loss: float = 0.0
    compute_ms: float = 0.0
    waited_ms: float = 0.0
    scalars: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


class EpochSums:
    """Collects the batches of one epoch of ``batches`` until all are done."""

    def __init__(self, epoch: int, batches: int, world: int, began: float) -> None:
        self.epoch: int = epoch
        self.batches: int = batches
        self.began: float = began
        self._ranks = [_Sums() for _ in range(world)]

    @property
    def done(self) -> bool:
        """Whether every batch has been reported."""
        return sum(sums.batches for sums in self._ranks) == self.batches

    def add(self, rank: int, samples: int, loss: float, scalars: Mapping[str, float], compute_ms: float) -> None:
        """One batch of a replica."""
        sums = self._ranks[rank]
        sums.batches += 1
        sums.samples += samples
        sums.loss += loss
        sums.compute_ms += compute_ms
        for name, value in scalars.items():
            sums.scalars[name] = sums.scalars.get(name, 0.0) + float(value)
            sums.counts[name] = sums.counts.get(name, 0) + 1

    def waited(self, rank: int, ms: float) -> None:
        """A replica has waited for others."""
        self._ranks[rank].waited_ms += ms

    def metrics(self, now: float) -> EpochMetrics:
        """Means over the batches; ``now`` is on the clock of ``began``, in seconds."""
        ranks, batches = self._ranks, max(1, self.batches)
        names = sorted({name for sums in ranks for name in sums.scalars})
        return EpochMetrics(
            epoch=self.epoch,
            avg_loss=sum(sums.loss for sums in ranks) / batches,
            scalars={
                name: sum(s.scalars.get(name, 0.0) for s in ranks) / sum(s.counts.get(name, 0) for s in ranks)
                for name in names
            },
            epoch_ms=(now - self.began) * 1e3,
            per_rank=[
                ReplicaEpoch(
                    sums.batches,
                    sums.samples,
                    sums.loss / max(1, sums.batches),
                    {name: value / sums.counts[name] for name, value in sums.scalars.items()},
                    sums.compute_ms,
                    sums.waited_ms,
                )
                for sums in ranks
            ],
            per_rank_throughput=[s.samples / s.compute_ms if s.compute_ms > 0 else 0.0 for s in ranks],
            batch_share=[sums.batches / batches for sums in ranks],
        )
