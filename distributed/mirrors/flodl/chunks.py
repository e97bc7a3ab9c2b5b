"""Which batches of an epoch a replica gets: pure arithmetic on batch numbers, so that no batch is done twice."""

from __future__ import annotations

import math
from collections.abc import Sequence

MIN_CHUNK = 4  # batches; smaller ones are handed out only at the end of an epoch


def interleaved(batches: int, world: int) -> list[range]:
    """Every replica's batches where all step together: rank, rank + world, ...; what fills no round is left out."""
    whole = batches - batches % world
    return [range(rank, whole, world) for rank in range(world)]


def partition(batches: int, shares: Sequence[float]) -> list[range]:
    """Neighbouring batches for each replica, in proportion to ``shares``: disjoint, and complete.

    If there are as many batches as replicas, none gets nothing.
    """
    world, total = len(shares), math.fsum(shares)
    least = 1 if batches >= world else 0
    exact = [(batches - least * world) * share / total for share in shares]
    sizes = [least + math.floor(e) for e in exact]
    by_rest = sorted(range(world), key=lambda rank: exact[rank] - math.floor(exact[rank]), reverse=True)
    for rank in by_rest[: batches - sum(sizes)]:
        sizes[rank] += 1
    ends = [sum(sizes[: rank + 1]) for rank in range(world)]
    return [range(end - size, end) for end, size in zip(ends, sizes)]


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
