"""The coordinator of a ``DdpBuilder`` run: who trains on which batch, who waits, and when all are averaged.

Pure logic on one clock: replicas ask for their ``next`` task and report what they have done, and nothing here blocks,
starts a thread or touches a tensor. ``replica_threads`` calls it under a lock; tests call it with a virtual clock.

    replica    next() -> Batch      train, batch_done()
                      -> Average    all stand still: average, average_done(); or see Average.overlaps
                      -> Wait       until something changes
                      -> Stop
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .el_che import ElChe
from .policies import NUDGE, AverageBackend, AveragingPolicy, DivergenceGuard, OvershootLimit, should_average
from .timeline import EventKind, NoTimeline, Timeline
from .trained_state import RunReport
from .workload import Batch, CadencePlan, Done, EpochMetrics, Workload


class ReplicaStuckError(TimeoutError):
    """A replica has not come back from its task within the deadline."""


@dataclass(frozen=True)
class Wait:
    """There is nothing to do until something changes."""

    reason: str


@dataclass(frozen=True)
class Stop:
    """The run is over, or has failed."""


@dataclass
class Average:
    """Take part in this average, number ``number``.

    ``checkpoint`` is the number of epochs done, where the state is to be saved after it. ``taken`` are the steps and
    times that count, of those who are at it, and ``collected`` is when the last one came. ``begun`` are those who were
    told so, and ``deltas`` how far those who have made it were from it.

    If it ``overlaps``, nobody stands still: a replica gets it twice, and trains between the two. First it hands in a
    copy of its tensors (``parts``); once the ``mean`` of all is there, it takes that over. ``cost_ms`` is what this
    took the slowest one.
    """

    number: int
    started: float
    checkpoint: int | None = None
    overlaps: bool = False
    taken: dict[int, tuple[int, float]] = field(default_factory=dict)
    collected: float | None = None
    begun: set[int] = field(default_factory=set)
    parts: dict[int, Any] = field(default_factory=dict)
    mean: Any = None
    deltas: dict[int, float] = field(default_factory=dict)
    cost_ms: float = 0.0

    def awaits(self, rank: int) -> bool:
        """Whether all stand still, and count on this replica."""
        return not self.overlaps and self.collected is not None and rank not in self.begun

    def has_task(self, rank: int) -> bool:
        """Whether it overlaps, and this replica can do something for it now."""
        return self.overlaps and (rank not in self.taken or (self.mean is not None and rank not in self.deltas))


Task = Batch | Average | Wait | Stop


@dataclass(eq=False)
class Coordinator:
    """Deals out batches, decides on averages, and notices what goes wrong. Not thread-safe."""

    plan: CadencePlan
    clock: Callable[[], float]
    el_che: ElChe | None = None
    guard: DivergenceGuard | None = None
    overshoot: OvershootLimit | None = None
    timeline: Timeline = field(default_factory=NoTimeline)

    def __post_init__(self) -> None:
        plan, world = self.plan, self.plan.world
        self.steps: list[int] = [0] * world  # since the last average, as the next
        self.wall_ms: list[float] = [0.0] * world
        self.total_batches: list[int] = [0] * world
        self.total_ms: list[float] = [0.0] * world
        self.waited_ms: list[float] = [0.0] * world
        self.round: Average | None = None
        self.rounds: int = 0
        self.aborted: int = 0
        self.failures: dict[int, BaseException] = {}
        self.left: set[int] = set()
        self.lr_step: int = plan.batches_before // world  # of the next batch after the last average
        self.ready: deque[EpochMetrics] = deque()  # epochs that are over, in order
        self.count_history: list[list[int]] = []
        self.work: Workload = Workload(plan, self.counts)
        self._running: list[Batch | None] = [None] * world
        self._busy_since: list[float | None] = [self.clock()] * world
        self._throttled = [False] * world
        self._newest_epoch = plan.first_epoch - 1
        self._late: set[int] = set()  # missing when a round was given up; the next one waits for them
        self.stopping: bool = False  # before all epochs are done

    # ------------------------------------------------------------------ what a replica calls

    def next(self, rank: int) -> Task:
        """What this replica does now. A replica that gets ``Wait`` asks again when something has changed.

        To ask means to stand still; an average begins when all do.
        """
        task = self._next(rank)
        self._busy_since[rank] = None if isinstance(task, Wait) else self.clock()
        return task

    def batch_done(
        self, rank: int, samples: int, loss: float, wall_ms: float, scalars: Mapping[str, float] | None = None
    ) -> None:
        """The replica has trained on its batch in ``wall_ms``. Nothing else counts as a batch."""
        batch = self._running[rank]
        assert batch is not None, f"replica {rank} reports a batch that it was not given"
        self._running[rank] = None
        self._late.discard(rank)
        self.steps[rank] += 1
        self.wall_ms[rank] += wall_ms
        self.total_batches[rank] += 1
        self.total_ms[rank] += wall_ms
        self.work.sums[batch.epoch].ranks[rank].append(Done(samples, loss, scalars or {}, wall_ms))
        for metrics in self.work.end_epochs(self.clock()):
            self.ready.append(replace(metrics, device_indices=list(self.plan.device_indices or [0] * self.plan.world)))
            self.timeline.event(EventKind.EPOCH_END, epoch=metrics.epoch)
        if self._average_due():
            self._start_round(self.plan.policy is AveragingPolicy.ASYNC and not self._by_communicator)

    def average_done(self, rank: int, delta: float) -> None:
        """The replica holds the average, from which it was away by ``delta`` (relative)."""
        assert self.round is not None
        self.round.deltas[rank] = delta
        self._busy_since[rank] = None
        if len(self.round.deltas) == self.plan.world:
            self._close_round(self.round)

    def waited(self, rank: int, ms: float) -> None:
        """The replica has waited for others."""
        self.waited_ms[rank] += ms
        self.work.waited(rank, ms)

    def failed(self, rank: int, error: BaseException) -> None:
        """The replica is gone, or another one has found it to be: all others stop."""
        self.failures[rank] = error
        self.stopping = True

    def leave(self, rank: int) -> None:
        """The replica's thread has ended."""
        self.left.add(rank)
        self._busy_since[rank] = None

    def stop(self) -> None:
        """All replicas stop after their batch."""
        self.stopping = True

    # ------------------------------------------------------------------ what others ask

    @property
    def over(self) -> bool:
        """Whether every replica has ended, or has failed."""
        return len(self.left | self.failures.keys()) == self.plan.world

    @property
    def epochs_done(self) -> int:
        """Epochs that are over, counted from the run's very first."""
        return self.work.oldest

    @property
    def batches_ever(self) -> int:
        """Batches of all replicas, those before a resumed run included."""
        return self.plan.batches_before + sum(self.total_batches)

    def report(self) -> RunReport:
        """How the run has gone so far."""
        history = [list(counts) for counts in self.count_history]
        times = (list(self.total_ms), list(self.waited_ms))
        return RunReport(list(self.total_batches), *times, len(history), self.aborted, history, self.counts())

    def counts(self) -> list[int]:
        """Batches that each replica shall do between two averages."""
        return self.el_che.batch_counts if self.el_che is not None else [1] * self.plan.world

    def next_deadline(self) -> float:
        """When ``check`` has to look again, on the clock; infinity for never."""
        times = [since + self.plan.batch_timeout for since in self._busy_since if since is not None]
        if (round := self._abortable()) is not None:
            times.append(round.started + self.plan.snapshot_timeout)
        return min(times, default=float("inf"))

    def check(self) -> bool:
        """Give up a round that is late and replicas that are stuck; whether there was any."""
        now, changed = self.clock(), False
        for rank, since in enumerate(self._busy_since):
            if since is not None and now - since >= self.plan.batch_timeout and rank not in self.failures:
                self._busy_since[rank] = None
                doing = "its task" if self._running[rank] is None else f"{self._running[rank]}"
                error = ReplicaStuckError(f"replica {rank} has not ended {doing} within {self.plan.batch_timeout:g} s")
                self.failed(rank, error)
                changed = True
        round = self._abortable()
        if round is not None and now - round.started >= self.plan.snapshot_timeout:
            self._late = set(range(self.plan.world)) - round.taken.keys()
            self.round, self.aborted, changed = None, self.aborted + 1, True
        return changed

    # ------------------------------------------------------------------ tasks

    def _next(self, rank: int) -> Task:
        if self.stopping and not (self.round is not None and self.round.awaits(rank)):
            return Stop()
        if self.round is not None and self.round.has_task(rank):
            self._take_part(rank, self.round)
            return self.round
        if self.round is None or self.round.overlaps:
            batch = self._try_batch(rank)
            if batch is not None:
                return batch
            if self.round is None and self._stalled():
                if not any(self.steps) and not self.work.held:
                    return Stop()  # nobody has work, and the last average is behind us
                self._start_round()
        round = self.round
        if round is None or round.overlaps:
            return Wait(self._blocked(rank) or "no batch left")
        self._take_part(rank, round)
        if not round.awaits(rank):
            return Wait("average")
        round.begun.add(rank)
        return round

    def _try_batch(self, rank: int) -> Batch | None:
        reason = self._blocked(rank)
        if reason == "throttle" and not self._throttled[rank]:
            self.timeline.event(EventKind.THROTTLE, rank, lead=self._lead(rank))
        self._throttled[rank] = reason == "throttle"
        if reason is not None:
            return None
        # This replica's part of the pace of all, waiting included; not known until all have done a batch.
        share = self.total_batches[rank] / sum(self.total_batches) if min(self.total_batches) else None
        batch = self.work.take(rank, share, self.clock())
        if batch is not None and batch.epoch > self._newest_epoch:
            self._newest_epoch = batch.epoch
            self.timeline.event(EventKind.EPOCH_START, epoch=batch.epoch)
        self._running[rank] = batch
        return batch

    def _blocked(self, rank: int) -> str | None:
        """Why this replica must not train now, though there may be work."""
        if self.plan.world == 1 or self.draining:
            return None
        if self.plan.policy is AveragingPolicy.SYNC:
            return "average" if self.steps[rank] else None
        if self.plan.max_batch_diff is not None and self._lead(rank) >= max(self.plan.max_batch_diff, 1):
            return "throttle"
        round = self.round
        handed_in = round.taken.get(rank, (0, 0.0))[0] if round is not None and round.overlaps else 0
        if self.overshoot is not None and self.steps[rank] - handed_in >= self.counts()[rank] + self.overshoot.limit:
            return "overshoot"
        return None

    def _lead(self, rank: int) -> int:
        """Batches ahead of the slowest of those that have work."""
        able = [r for r in range(self.plan.world) if self._running[r] is not None or self.work.has_work(r)]
        return self.steps[rank] - min((self.steps[r] for r in able), default=self.steps[rank])

    def _stalled(self) -> bool:
        """Whether no replica can go on, so that only an average (or the end) helps."""
        can_go_on = (self._blocked(r) is None and self.work.has_work(r) for r in range(self.plan.world))
        return not (any(batch is not None for batch in self._running) or any(can_go_on))

    def _abortable(self) -> Average | None:
        """Without an average after each batch, a round that a replica is late for can be made later."""
        later = self.plan.policy is not AveragingPolicy.SYNC
        return self.round if later and self.round is not None and self.round.collected is None else None

    @property
    def draining(self) -> bool:
        """Whether a replica has done all that it will ever do."""
        idle = (r for r in range(self.plan.world) if self._running[r] is None)
        return self.work.last_epochs_open() and any(not self.work.has_work(r) for r in idle)

    # ------------------------------------------------------------------ rounds

    def _average_due(self) -> bool:
        if self.plan.world == 1 or self.round is not None or self._late or self.stopping or self.left or self.draining:
            return False
        anchor_wall_ms = 0.0 if self.el_che is None else self.el_che.anchor_wall_ms
        return should_average(self.plan.policy, self.steps, self.wall_ms, self.counts(), anchor_wall_ms)

    def _start_round(self, overlaps: bool = False) -> None:
        self.rounds += 1
        checkpoint = self.work.oldest if self.work.held else None
        self.round = Average(self.rounds, self.clock(), checkpoint, overlaps and checkpoint is None)

    def _take_part(self, rank: int, round: Average) -> None:
        round.taken.setdefault(rank, (self.steps[rank], self.wall_ms[rank]))
        if round.collected is None and len(round.taken) == self.plan.world:
            round.collected = self.clock()
            started = EventKind.SYNC_START if self._by_communicator else EventKind.AVERAGE_START
            self.timeline.event(started, round=round.number)
            if not round.overlaps:
                self._busy_since = [round.collected] * self.plan.world

    def _close_round(self, round: Average) -> None:
        assert round.collected is not None
        steps, wall_ms = (list(part) for part in zip(*(round.taken[rank] for rank in range(self.plan.world))))
        sync_ms = round.cost_ms if round.overlaps else (self.clock() - round.collected) * 1e3
        ended = EventKind.SYNC_END if self._by_communicator else EventKind.AVERAGE_END
        self.timeline.event(ended, round=round.number, ms=sync_ms)
        drifts = self.guard is not None and self.guard.observe(list(round.deltas.values()))
        if self.el_che is not None:
            before = self.el_che.anchor
            if min(steps) >= 1:
                self.el_che.report_timing(wall_ms, steps, sync_ms)
            if drifts:
                self.el_che.nudge_anchor_down(NUDGE)
            if self.el_che.anchor != before:
                self.timeline.event(EventKind.ANCHOR_CHANGED, before=before, after=self.el_che.anchor)
        if self.overshoot is not None:
            self.overshoot.averaged(drifts)
        self.count_history.append(steps)
        self.steps = [now - then for now, then in zip(self.steps, steps)]
        self.wall_ms = [now - then for now, then in zip(self.wall_ms, wall_ms)]
        self.lr_step = (self.batches_ever - sum(self.steps)) // self.plan.world
        if round.checkpoint is not None:
            self.work.held = False
        self.round = None

    @property
    def _by_communicator(self) -> bool:
        return self.plan.backend is AverageBackend.COMMUNICATOR
