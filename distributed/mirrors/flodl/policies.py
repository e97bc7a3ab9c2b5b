"""When the replicas of a ``DdpBuilder`` run are averaged: flodl's three policies, as pure functions."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


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


@dataclass(frozen=True)
class RoundView:
    """What has happened since the last average, in order of rank.

    ``steps`` batches done, ``wall_ms`` time computed, ``counts`` batches that ElChe wants of each, ``anchor_wall_ms``
    the time that its anchor takes (0 before it has measured anything). An average is ``in_flight``, a replica has
    ``exited``, or one has no more batches (``epochs_done``).
    """

    steps: Sequence[int]
    wall_ms: Sequence[float]
    counts: Sequence[int]
    anchor_wall_ms: float
    in_flight: bool = False
    exited: bool = False
    epochs_done: bool = False


def should_average(policy: AveragingPolicy, view: RoundView) -> bool:
    """Whether an average is due."""
    if view.in_flight or view.exited or view.epochs_done or min(view.steps) < 1:
        return False
    if policy is AveragingPolicy.SYNC:
        return True
    if policy is AveragingPolicy.CADENCE and view.anchor_wall_ms > 0:
        return min(view.wall_ms) >= view.anchor_wall_ms
    return all(done >= wanted for done, wanted in zip(view.steps, view.counts, strict=True))
