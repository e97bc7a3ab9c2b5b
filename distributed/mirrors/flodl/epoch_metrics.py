"""What a run of several replicas reports of an epoch: sums per replica while it runs, means when it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    scalars: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By name the sum, and the number of batches that had one."""


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
            total, count = sums.scalars.get(name, (0.0, 0))
            sums.scalars[name] = total + float(value), count + 1

    def waited(self, rank: int, ms: float) -> None:
        """A replica has waited for others."""
        self._ranks[rank].waited_ms += ms

    def metrics(self, now: float) -> EpochMetrics:
        """Means over the batches; ``now`` is on the clock of ``began``, in seconds."""
        ranks, batches = self._ranks, max(1, self.batches)
        return EpochMetrics(
            epoch=self.epoch,
            avg_loss=sum(sums.loss for sums in ranks) / batches,
            scalars=_means(ranks),
            epoch_ms=(now - self.began) * 1e3,
            per_rank=[
                ReplicaEpoch(s.batches, s.samples, s.loss / max(1, s.batches), _means([s]), s.compute_ms, s.waited_ms)
                for s in ranks
            ],
            per_rank_throughput=[s.samples / s.compute_ms if s.compute_ms > 0 else 0.0 for s in ranks],
            batch_share=[sums.batches / batches for sums in ranks],
        )


def _means(ranks: Sequence[_Sums]) -> dict[str, float]:
    """Each scalar's mean over the batches that had it."""
    names = sorted({name for sums in ranks for name in sums.scalars})
    parts = {name: [sums.scalars[name] for sums in ranks if name in sums.scalars] for name in names}
    return {name: sum(total for total, _ in pairs) / sum(count for _, count in pairs) for name, pairs in parts.items()}
