"""Work for ranks that are not equally fast. ElChe: how many batches each computes between two averagings, so that fast
ranks never wait for slow ones (flodl's ``ElChe``; "the column marches at the pace of its slowest man").

    anchor     batches of the slowest rank between two averagings
    count_r    anchor * (slowest time per batch) / (time per batch of rank r), so that all ranks end together

AutoBalancer: how one batch is divided among them (flodl's auto-balancer).

Pure arithmetic on measured times: no threads, no devices, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minigrad.errors import check_float, check_int

from .options import clamped_overhead

DEFAULT_OVERHEAD_TARGET = 0.10
DEFAULT_MAX_ANCHOR = 200
DEAD_ZONE = 0.10  # share of a count below which a change of measured speed is noise
MIN_ALPHA, MAX_ALPHA = 0.1, 0.8
ROUNDING = 1e-9  # a quotient this far above a whole number is that number

# of AutoBalancer
DEFAULT_CALIBRATION_STEPS = 10
DEFAULT_REBALANCE_INTERVAL = 50
EMA_ALPHA = 0.3
MIN_SHARE = 0.05


def round_half_up(x: float) -> int:
    """The nearest integer, halves upwards; Python's ``round`` takes them to the even neighbour."""
    return math.floor(x + 0.5)


class ElChe:
    """The counts of batches of ``world_size`` ranks, adapted after every averaging.

    ::

        cadence = ElChe(2, anchor=10).with_overhead_target(0.1)
        cadence.report_timing([500.0, 1000.0], cadence.batch_counts, sync_ms=400.0)
        cadence.anchor, cadence.batch_counts  # 40, [80, 40]

    The anchor grows while averaging takes more than the overhead target's share of the time, up to ``max_anchor``. It
    falls back by one batch, not below where it began, while that share is under half of the target.

    Raises ValueError for fewer than two ranks and for an anchor below 1.

    Attributes, to be read only:
        world_size: number of ranks.
        anchor: batches of the slowest rank between two averagings; ``max_anchor`` is the largest that it may become.
        overhead_target: averaging's share of the time to aim at.
        max_batch_diff: the most by which a report after the first may change a count; None for no limit.
    """

    def __init__(self, world_size: int, anchor: int) -> None:
        if check_int("world_size", world_size) < 2:
            raise ValueError(f"El Che requires at least 2 devices, got {world_size}")
        if check_int("anchor", anchor) < 1:
            raise ValueError(f"anchor must be >= 1, got {anchor}")
        self.world_size: int = world_size
        self.anchor: int = anchor
        self._initial_anchor = anchor
        self.max_anchor: int = max(anchor, DEFAULT_MAX_ANCHOR)
        self.overhead_target: float = DEFAULT_OVERHEAD_TARGET
        self.max_batch_diff: int | None = None
        self._hint = [1.0] * world_size  # speeds relative to the slowest rank, until they are measured
        self._ms: list[float | None] = [None] * world_size
        self._counts = self._ideal_counts()

    # ------------------------------------------------------------------ settings

    def with_overhead_target(self, target: float) -> ElChe:
        """Averaging's share of the time to aim at, 0 to 1, clamped to 0.01 ... 0.5; returns the object."""
        self.overhead_target = clamped_overhead("overhead_target", target)
        return self

    def with_max_anchor(self, max_anchor: int) -> ElChe:
        """The largest anchor, >= 1; an anchor above it, and the counts, come down at once. Returns the object."""
        self.max_anchor = check_int("max_anchor", max_anchor, 1)
        self._set_anchor(min(self.anchor, max_anchor))
        return self

    def with_max_batch_diff(self, max_batch_diff: int | None) -> ElChe:
        """The most by which a report after the first may change a count, >= 0; None: no limit. Returns the object."""
        self.max_batch_diff = None if max_batch_diff is None else check_int("max_batch_diff", max_batch_diff, 0)
        return self

    def with_speed_ratio(self, slow_rank: int, ratio: float) -> ElChe:
        """A guess until speeds are measured: all other ranks are ``ratio`` >= 1 times as fast as ``slow_rank``. Returns
        the object. (flodl takes a ratio below 1 for 1.)
        """
        self._hint = _hinted(self.world_size, slow_rank, ratio)
        self._counts = self._ideal_counts()
        return self

    # ------------------------------------------------------------------ what it says

    @property
    def batch_counts(self) -> list[int]:
        """Batches of each rank until the next averaging, each >= 1."""
        return list(self._counts)

    def batches(self, rank: int) -> int:
        """Batches of one rank until the next averaging."""
        return self._counts[rank]

    @property
    def total_batches(self) -> int:
        """Batches of all ranks together until the next averaging."""
        return sum(self._counts)

    @property
    def ms_per_batch(self) -> list[float]:
        """Smoothed milliseconds per batch of each rank; 0 where nothing has been measured."""
        return [ms or 0.0 for ms in self._ms]

    @property
    def is_calibrated(self) -> bool:
        """Whether every rank's speed has been measured."""
        return None not in self._ms

    @property
    def anchor_wall_ms(self) -> float:
        """Milliseconds from one averaging to the next: the anchor times the slowest rank's; 0 before calibration."""
        return self.anchor * max(self.ms_per_batch) if self.is_calibrated else 0.0

    def clamp_total(self, max_total: int) -> list[int]:
        """The counts scaled down to at most ``max_total`` batches together, as for the rest of an epoch.

        Ranks keep at least one batch each while there are enough; with fewer batches than ranks the last ranks get 0.
        """
        check_int("max_total", max_total, 0)
        counts, total = self._counts, sum(self._counts)
        if total <= max_total:
            return list(counts)
        clamped = [max(count * max_total // total, 1) for count in counts]
        for r in range(self.world_size):
            if sum(clamped) < max_total and clamped[r] < counts[r]:
                clamped[r] += 1
        while sum(clamped) > max_total:
            clamped[max(range(self.world_size), key=lambda r: (clamped[r], r))] -= 1
        return clamped

    # ------------------------------------------------------------------ what it learns

    def report_timing(self, wall_ms: Sequence[float], actual_batches: Sequence[int], sync_ms: float) -> None:
        """Learn from one round: each rank's milliseconds and batches since the last averaging, and the milliseconds
        that the averaging itself took.

        Times are smoothed, the more a new one differs the less. A rank without batches or time tells nothing of its
        speed. Counts follow the anchor at once, and measured speeds only when they ask for a change of more than 10 %;
        one report changes a count by ``max_batch_diff`` at most. The first complete measurement is exempt from both.

        Raises ValueError, before anything is changed, for lists of another length and for times that are negative or
        not finite.
        """
        walls = _of_ranks("report_timing: wall_ms", wall_ms, self.world_size)
        batches = _of_ranks("report_timing: actual_batches", actual_batches, self.world_size)
        sync = check_float("sync_ms", sync_ms)

        first = not self.is_calibrated
        for r, (wall, count) in enumerate(zip(walls, batches, strict=True)):
            if wall > 0 and count > 0:
                self._ms[r] = _smoothed(self._ms[r], wall / count)
        if max(walls) > 0:
            self._tune_anchor(sync / max(walls))
        if self.is_calibrated:
            self._move_counts(first)

    def nudge_anchor_down(self, factor: float) -> None:
        """Average more often: the anchor times ``factor`` (clamped to 0.1 ... 1), rounded up, never below 1."""
        factor = min(max(check_float("factor", factor, -math.inf), 0.1), 1.0)
        self._set_anchor(min(self.anchor, max(1, _ceil(self.anchor * factor))))

    def _tune_anchor(self, overhead: float) -> None:
        target, anchor = self.overhead_target, self.anchor
        if overhead > target:
            wanted = _ceil(min(anchor * overhead / target, self.max_anchor))
            self.anchor = min(max(wanted, self._initial_anchor), self.max_anchor)
        elif overhead < target / 2 and anchor > self._initial_anchor:
            self.anchor = anchor - 1

    def _set_anchor(self, anchor: int) -> None:
        if anchor != self.anchor:
            self.anchor = anchor
            self._counts = self._ideal_counts()

    def _move_counts(self, first: bool) -> None:
        ideal = self._ideal_counts()
        if first:
            self._counts = ideal
            return
        ms = self.ms_per_batch
        slowest = ms.index(max(ms))
        # The dead zone is for noise, not for the anchor's own changes.
        behind = self._counts[slowest] != self.anchor
        for r, count in enumerate(self._counts):
            change = ideal[r] - count
            if behind or abs(change) > DEAD_ZONE * count:
                limit = abs(change) if self.max_batch_diff is None else self.max_batch_diff
                self._counts[r] = count + min(max(change, -limit), limit)

    def _ideal_counts(self) -> list[int]:
        if self.is_calibrated:
            ms = self.ms_per_batch
            return [max(1, round_half_up(self.anchor * max(ms) / own)) for own in ms]
        return [max(1, round_half_up(self.anchor * speed)) for speed in self._hint]


def _hinted(world_size: int, slow_rank: int, ratio: float) -> list[float]:
    """Each rank's speed, where all others are ``ratio`` times as fast as ``slow_rank``."""
    speeds = [check_float("ratio (how many times as fast the others are)", ratio, 1.0)] * world_size
    speeds[check_int("slow_rank", slow_rank, 0, world_size - 1)] = 1.0
    return speeds


def _of_ranks(name: str, values: Sequence[float], world_size: int) -> list[float]:
    """One number >= 0 of each rank."""
    if len(values) != world_size:
        raise ValueError(f"{name} has {len(values)} entries for {world_size} ranks")
    return [check_float(f"{name}[{r}]", value) for r, value in enumerate(values)]


def _smoothed(old: float | None, new: float) -> float:
    """Exponential moving average whose weight for the new value is its relative change, clamped to 0.1 ... 0.8."""
    if old is None:
        return new
    alpha = min(max(abs(new - old) / old, MIN_ALPHA), MAX_ALPHA)
    return alpha * new + (1.0 - alpha) * old


def _ceil(x: float) -> int:
    return math.ceil(x - ROUNDING)


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
        self._ratios = balanced_ratios(_hinted(len(self._ratios), slow_rank, ratio))

    def shard_sizes(self, batch_size: int) -> list[int]:
        """How many of ``batch_size`` samples each rank gets at present; see the function of this name."""
        return shard_sizes(batch_size, self._ratios)

    def update(self, sizes: Sequence[int], ms: Sequence[float]) -> bool:
        """Count a step in which rank r computed ``sizes[r]`` samples in ``ms[r]`` milliseconds.

        A rank without samples or time tells nothing about its throughput. Returns whether the shares were set anew.
        """
        n = len(self._ratios)
        for r, (size, time) in enumerate(zip(_of_ranks("update: sizes", sizes, n), _of_ranks("update: ms", ms, n))):
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
