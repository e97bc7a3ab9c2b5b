"""Faults on purpose: a plan says what goes wrong at which call of which rank, the same in every run.

ThreadCommunicator asks the plan before each operation. The idea is that of torchft's ``fail_at(rank, step)`` and of
simulation testing: what a failure does is tested by replaying it, with the seed as its whole description.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..place import device_of, is_on_host

KINDS = ("delay", "drop", "kill", "stop", "flip", "damage")


class RankKilledError(Exception):
    """A plan ended this rank. Not a CommError: code that handles those must not survive its own death."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong at operation number ``call`` (from 1) of rank ``rank``; sub-groups' operations count too.

    - ``delay``: the rank sleeps ``seconds`` before it makes the call.
    - ``drop``: what the rank sends never arrives; the others wait for it until their deadline.
    - ``kill``: the rank dies: RankKilledError for itself, PeerLostError for the others.
    - ``stop``: the rank stands still for good; the others, which are not told, name it when their deadline comes.
      In a plan with an ``order`` it ends with RankKilledError when the others have ended; without one, never.
    - ``flip``: bit number ``bit`` (modulo how many there are) of the tensor that the rank contributes is changed on the
      way; nothing where it contributes none.
    - ``damage``: so is a bit of the weights and moments that the rank's trainer holds, from its first step on.
    """

    kind: str
    rank: int
    call: int
    seconds: float = 0.0
    bit: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a fault of kind {self.kind!r}: expected one of {', '.join(KINDS)}")
        if self.rank < 0 or self.call < 1 or self.seconds < 0 or self.bit < 0:
            raise ValueError(f"{self}: rank, seconds and bit are at least 0, call at least 1")


class FaultPlan:
    """Which faults happen; at most one for each call of a rank.

    With a number as ``order``, ranks run one at a time. At each operation that number decides which goes on, so that a
    run replays exactly. Time is then virtual: delays and deadlines take none. Such ranks wait for each other in
    operations only, and close their communicators, as those of ``run_threads`` do.
    """

    def __init__(self, faults: Sequence[Fault], order: int | None = None) -> None:
        self.order = order
        self.faults: tuple[Fault, ...] = tuple(faults)
        self._by_call = {(f.rank, f.call): f for f in self.faults}
        if len(self._by_call) != len(self.faults):
            raise ValueError(f"two faults for the same call of a rank: {self.faults}")

    @classmethod
    def random(
        cls, seed: int, world_size: int, calls: int, count: int = 1, kinds: Sequence[str] = KINDS,
        max_delay: float = 0.01,
    ) -> "FaultPlan":  # fmt: skip
        """``count`` faults of these kinds at different places among the first ``calls`` calls of ``world_size`` ranks,
        in the order of the seed. Delays are up to ``max_delay`` seconds; the same arguments give the same plan."""
        rng = np.random.default_rng(seed)
        places = rng.choice(world_size * calls, size=count, replace=False)

        def fault(place: int) -> Fault:
            kind, seconds, bit = rng.choice(list(kinds)), rng.uniform(0, max_delay), rng.integers(2**31)
            return Fault(str(kind), place // calls, place % calls + 1, float(seconds), int(bit))

        return cls([fault(place) for place in places.tolist()], order=seed)

    def at(self, rank: int, call: int) -> Fault | None:
        """The fault at operation number ``call`` of rank ``rank``."""
        return self._by_call.get((rank, call))

    def of_rank(self, rank: int) -> Iterator[Fault | None]:
        """What happens at each of a rank's operations, one after the other; several threads may ask."""
        return map(functools.partial(self.at, rank), itertools.count(1))

    def __repr__(self) -> str:
        return f"FaultPlan({list(self.faults)}, order={self.order})"


def with_flipped_bit(array: Any, bit: int) -> Any:
    """A copy of the array in which bit number ``bit``, modulo how many there are, is changed; an empty one as it is."""
    if not is_on_host(array):
        kernels = device_of(array).kernels
        return kernels.from_host(with_flipped_bit(kernels.to_host(array), bit))
    copy = array.copy()
    if copy.size:
        octets = copy.reshape(-1).view(np.uint8)
        bit %= 8 * octets.size
        octets[bit // 8] ^= np.uint8(1 << (bit % 8))
    return copy
