"""AutoBalancer: how a batch is divided among ranks that are not equally fast (flodl's auto-balancer).

Throughput in samples per millisecond is measured in each step and smoothed; every now and then the ranks' shares of the
batch are set in proportion to it. Pure arithmetic: no threads, no devices, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minigrad.errors import check_float, check_int

from .el_che import round_half_up

DEFAULT_CALIBRATION_STEPS = 10
DEFAULT_REBALANCE_INTERVAL = 50
EMA_ALPHA = 0.3
MIN_SHARE = 0.05


class AutoBalancer:
    """Shares of the batch for ``world_size`` ranks: equal at first, in proportion to throughput from step
    ``calibration_steps`` on, adjusted every ``rebalance_interval`` steps.

    ::

        balancer = AutoBalancer(2)
        sizes = balancer.shard_sizes(32)  # [16, 16]
        balancer.update(sizes, [5.0, 15.0])  # milliseconds of each rank; after 10 steps the shares are 0.75 and 0.25

    ``step_count`` is the number of steps reported so far.
    """

    def __init__(
        self,
        world_size: int,
        calibration_steps: int = DEFAULT_CALIBRATION_STEPS,
        rebalance_interval: int = DEFAULT_REBALANCE_INTERVAL,
    ) -> None:
        check_int("world_size", world_size, 1)
        self._calibration_steps = check_int("calibration_steps", calibration_steps, 1)
        self._interval = check_int("rebalance_interval", rebalance_interval, 1)
        self._ratios = [1.0 / world_size] * world_size
        self._throughput = [0.0] * world_size
        self.step_count: int = 0

    @property
    def ratios(self) -> list[float]:
        """Each rank's share of the batch; they add up to 1."""
        return list(self._ratios)

    @property
    def throughput(self) -> list[float]:
        """Smoothed samples per millisecond of each rank; 0 where nothing has been measured."""
        return list(self._throughput)

    @property
    def is_balanced(self) -> bool:
        """Whether all shares are equal, but for rounding."""
        return all(abs(ratio - self._ratios[0]) < 1e-6 for ratio in self._ratios)

    def apply_speed_hint(self, slow_rank: int, ratio: float) -> None:
        """Begin with shares as if all other ranks were ``ratio`` >= 1 times as fast as ``slow_rank``."""
        n = len(self._ratios)
        check_int("slow_rank", slow_rank, 0, n - 1)
        check_float("ratio (how many times as fast the others are)", ratio, 1.0)
        self._ratios = balanced_ratios([1.0 if r == slow_rank else float(ratio) for r in range(n)])

    def shard_sizes(self, batch_size: int) -> list[int]:
        """How many of ``batch_size`` samples each rank gets at present; see the function of this name."""
        return shard_sizes(batch_size, self._ratios)

    def update(self, sizes: Sequence[int], ms: Sequence[float]) -> bool:
        """Count a step in which rank r computed ``sizes[r]`` samples in ``ms[r]`` milliseconds.

        A rank without samples or time tells nothing about its throughput. Returns whether the shares were set anew.
        """
        n = len(self._ratios)
        if len(sizes) != n or len(ms) != n:
            raise ValueError(f"update: {len(sizes)} sizes and {len(ms)} times for {n} ranks")
        if any(not math.isfinite(value) or value < 0 for value in (*sizes, *ms)):
            raise ValueError(f"update: sizes {list(sizes)} and times {list(ms)}, expected finite numbers >= 0")
        for r, (size, time) in enumerate(zip(sizes, ms, strict=True)):
            if size > 0 and time > 0:
                old, new = self._throughput[r], size / time
                self._throughput[r] = EMA_ALPHA * new + (1.0 - EMA_ALPHA) * old if old else new
        self.step_count += 1
        since = self.step_count - self._calibration_steps
        if since < 0 or since % self._interval or not any(self._throughput):
            return False
        self._ratios = balanced_ratios(self._throughput)
        return True


def balanced_ratios(throughput: Sequence[float], floor: float = MIN_SHARE) -> list[float]:
    """Shares in proportion to ``throughput``, none below ``floor`` (1/n where n such floors would be more than 1).

    Water-filling: those below the floor get it, the others divide what is left, until nobody is below it.
    """
    n = len(throughput)
    floor = min(floor, 1.0 / n)
    at_floor: set[int] = set()
    while True:
        free = [r for r in range(n) if r not in at_floor]
        total = sum(throughput[r] for r in free)
        rest = 1.0 - floor * len(at_floor)
        shares = {r: rest * (throughput[r] / total) if total > 0 else 0.0 for r in free}
        low = [r for r in free if shares[r] < floor]
        if not low:
            return [shares.get(r, floor) for r in range(n)]
        at_floor.update(low)


def shard_sizes(batch_size: int, ratios: Sequence[float]) -> list[int]:
    """Divide ``batch_size`` samples in these ratios: whole numbers that add up to it, each at least 1 if it is large
    enough. With fewer samples than ranks those with the largest ratios get one each, the others none.
    """
    check_int("batch_size", batch_size, 0)
    n = len(ratios)
    if batch_size < n:
        first = sorted(range(n), key=lambda r: -ratios[r])[:batch_size]
        return [int(r in first) for r in range(n)]
    sizes, remaining = [], batch_size
    for r, ratio in enumerate(ratios[:-1]):
        after = n - r - 1  # each of these ranks needs a sample
        sizes.append(min(max(round_half_up(batch_size * ratio), 1), remaining - after))
        remaining -= sizes[-1]
    return [*sizes, remaining]
