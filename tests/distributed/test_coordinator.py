"""flodl's coordinator and its policies: pure logic against tables, and runs in virtual time."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings, strategies as st
from refusals import raises

from minigrad.distributed.mirrors.flodl import coordinator, el_che, policies, timeline
from minigrad.distributed.mirrors.flodl.workload import MIN_CHUNK, Batch, ChunkPool, partition

SYNC, CADENCE, ASYNC = policies.AveragingPolicy.SYNC, policies.AveragingPolicy.CADENCE, policies.AveragingPolicy.ASYNC


class World:
    """Replicas that take ``ms[rank]`` for a batch, played one event after the other."""

    def __init__(self, plan, ms, anchor=4, average_ms=1.0, rising=0.0, threshold=None, max_overshoot=None) -> None:
        self.now, self.ms, self.average_ms, self.rising = 0.0, ms, average_ms, rising
        self.timeline = timeline.Timeline(clock=lambda: self.now)
        sync = plan.world == 1 or plan.policy is SYNC
        self.el_che = None if sync else el_che.ElChe(plan.world, anchor).with_max_batch_diff(plan.max_batch_diff)
        self.overshoot = policies.OvershootLimit(plan.batches, max_overshoot) if plan.policy is ASYNC else None
        guard = None if threshold is None else policies.DivergenceGuard(threshold)
        self.c = coordinator.Coordinator(plan, lambda: self.now, self.el_che, guard, self.overshoot, self.timeline)
        self.batches: list[tuple[int, Batch]] = []
        self.leads: list[int] = []
        self.limits: list[int] = []  # of overshoot, after each average
        self.reports = itertools.count(1)
        self.lr_steps: list[list[int]] = [[] for _ in range(plan.world)]
        self.checkpoints: list[tuple[int, list[tuple[int, Batch]]]] = []

    def run(self, limit: int = 100_000) -> World:
        world = self.c.plan.world
        free_at: dict[int, float] = {}  # of replicas that train
        waiting = set(range(world))
        stopped: set[int] = set()
        for _ in range(limit):
            for rank in sorted(waiting):
                task = self.c.next(rank)
                while isinstance(task, coordinator.Average) and task.overlaps:
                    if task.mean is not None:
                        self.c.average_done(rank, self.rising * next(self.reports))
                    elif task.collected is not None:
                        task.mean = []
                    task = self.c.next(rank)
                if isinstance(task, Batch):
                    self.batches.append((rank, task))
                    self.lr_steps[rank].append(self.c.lr_step + self.c.steps[rank])
                    free_at[rank] = self.now + self.ms[rank] / 1e3
                    waiting.discard(rank)
                elif isinstance(task, coordinator.Stop):
                    stopped.add(rank)
                    waiting.discard(rank)
            if len(stopped) == world:
                return self
            round = self.c.round
            if round is not None and round.collected is not None and not round.overlaps:
                self.now += self.average_ms / 1e3
                if round.checkpoint is not None:
                    self.checkpoints.append((round.checkpoint, list(self.batches)))
                for rank in range(world):
                    self.c.average_done(rank, self.rising * next(self.reports))
                if self.overshoot is not None:
                    self.limits.append(self.overshoot.limit)
                continue
            if free_at:
                self.now = max(self.now, min(free_at.values()))
                for rank in [r for r in sorted(free_at) if free_at[r] <= self.now + 1e-9]:
                    del free_at[rank]
                    self.c.batch_done(rank, 2, float(rank), self.ms[rank])
                    waiting.add(rank)
                if not self.c.draining:
                    self.leads.append(max(self.c.steps) - min(self.c.steps))
            else:
                assert waiting - stopped, "nothing happens"
        raise AssertionError(f"no end after {limit} events: a deadlock")


def numbers(world: World) -> list[tuple[int, int]]:
    return [(batch.epoch, batch.index) for _, batch in world.batches]


def plan(policy, world=2, batches=48, epochs=3, **options) -> coordinator.CadencePlan:
    return coordinator.CadencePlan(world, batches, epochs, policy, **{"progressive": policy is not SYNC, **options})


# ------------------------------------------------------------------ nobody waits for ever, no batch is lost


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(list(policies.AveragingPolicy)), backend=st.sampled_from(list(policies.AverageBackend)),
    world=st.integers(1, 4), batches=st.integers(1, 40), epochs=st.integers(0, 4), progressive=st.booleans(),
    diff=st.sampled_from([None, 1, 2, 5]), overshoot=st.sampled_from([None, 0, 1]),
    every=st.sampled_from([None, 1, 2, 3]), anchor=st.integers(1, 12), seed=st.integers(0, 999),
)  # fmt: skip
def test_data_partition_every_batch_once_and_no_deadlock(
    policy, backend, world, batches, epochs, progressive, diff, overshoot, every, anchor, seed
):
    rng = random.Random(seed)
    ms = [rng.choice([1.0, 2.0, 7.0, 30.0]) for _ in range(world)]
    if policy is SYNC:
        batches = max(batches, world)
    options = {"max_batch_diff": diff, "checkpoint_every": every, "progressive": progressive and policy is not SYNC}
    options["backend"] = backend
    w = World(plan(policy, world, batches, epochs, **options), ms, anchor, max_overshoot=overshoot).run()
    whole = batches - batches % world if policy is SYNC else batches
    assert sorted(numbers(w)) == [(e, i) for e in range(epochs) for i in range(whole)]
    assert [m.epoch for m in w.c.ready] == list(range(epochs))  # in order
    assert w.c.epochs_done == epochs
    assert [epoch for epoch, _ in w.checkpoints] == ([] if every is None else list(range(every, epochs + 1, every)))
    for epoch, seen in w.checkpoints:  # all of these epochs, and nothing of the next
        assert sorted((b.epoch, b.index) for _, b in seen) == [(e, i) for e in range(epoch) for i in range(whole)]
    if world > 1 and epochs:
        assert not any(w.c.steps)  # the last average has everything in it


def test_data_partition_at_most_one_epoch_ahead():
    w = World(plan(CADENCE, batches=8, epochs=5, progressive=False), [1.0, 1.0], anchor=100)
    assert w.c.next(1) == Batch(0, 4)  # and it stays in there
    seen = []
    while isinstance(task := w.c.next(0), Batch):
        seen.append(task)
        w.c.batch_done(0, 2, 0.0, 1.0)
    assert seen == [Batch(epoch, i) for epoch in (0, 1) for i in range(4)] and task == coordinator.Wait("no batch left")


# ------------------------------------------------------------------ throttle and overshoot


@pytest.mark.parametrize("policy", [CADENCE, ASYNC])
@pytest.mark.parametrize("diff", [1, 2, 5])
def test_throttle_lead_never_exceeds_the_limit_and_events_are_not_repeated(policy, diff):
    w = World(plan(policy, batches=400, epochs=1, max_batch_diff=diff), [1.0, 30.0], anchor=10).run()
    assert max(w.leads) == diff
    assert len(w.leads) > 200  # most of the run; at its very end the one that still has batches is alone
    throttled = [e for e in w.timeline.events if e.kind is timeline.EventKind.THROTTLE]
    assert throttled and all(e.rank == 0 for e in throttled)


# ------------------------------------------------------------------ guard


def test_guard_drifting_replicas_are_averaged_more_often():
    def run(delta: float, threshold: float | None) -> World:
        cadence = plan(CADENCE, batches=400, epochs=1)
        return World(cadence, [10.0, 10.0], anchor=8, threshold=threshold, rising=delta).run()

    assert run(0.1, None).c.count_history[5] == [8, 8]
    assert run(1e-9, 0.05).c.count_history[5] == [8, 8]  # rises, but is nothing
    drifting = run(0.1, 0.05)
    assert [counts[0] for counts in drifting.c.count_history[:7]] == [8, 8, 8, 4, 4, 4, 2]
    changed = [e.detail for e in drifting.timeline.events if e.kind is timeline.EventKind.ANCHOR_CHANGED]
    assert changed[:2] == [{"before": 8, "after": 4}, {"before": 4, "after": 2}]


def test_guard_takes_overshoot_back():
    w = World(plan(ASYNC, batches=800, epochs=1), [10.0, 10.0], anchor=5, threshold=0.05, rising=0.1).run()
    assert w.limits[:4] == [6, 7, 5, 6]  # up, up, drifting, up


# ------------------------------------------------------------------ late, stuck and lost replicas


def one_batch_each(w: World) -> None:
    for rank in (0, 1):
        assert isinstance(w.c.next(rank), Batch)


def test_stale_snapshots_are_dropped_and_the_average_is_made_later():
    w = World(plan(CADENCE, batches=100, snapshot_timeout=5.0), [1.0, 1.0], anchor=1)
    one_batch_each(w)
    w.c.batch_done(0, 2, 0.0, 1.0)
    assert isinstance(w.c.next(0), Batch)
    w.c.batch_done(1, 2, 0.0, 1.0)  # all have one: an average begins; replica 0 is in its second batch
    assert [w.c.next(1) for _ in range(2)] == [coordinator.Wait("average")] * 2
    w.now += 4.9
    assert not w.c.check()
    w.now += 0.2
    assert w.c.next_deadline() <= w.now and w.c.check() and w.c.aborted == 1
    assert isinstance(w.c.next(1), Batch)
    w.c.batch_done(1, 2, 0.0, 1.0)
    assert isinstance(w.c.next(1), Batch)  # it does not wait again before the late one is back
    w.c.batch_done(0, 2, 0.0, 1.0)
    w.c.batch_done(1, 2, 0.0, 1.0)
    assert w.c.next(0) == coordinator.Wait("average")
    again = w.c.next(1)
    assert isinstance(again, coordinator.Average) and again.number == 2


def test_sync_waits_for_a_late_replica_until_that_is_stuck_and_who_waits_is_not():
    w = World(plan(SYNC, snapshot_timeout=5.0, batch_timeout=60.0), [1.0, 1.0])
    one_batch_each(w)
    w.c.batch_done(0, 2, 0.0, 1.0)
    assert w.c.next(0) == coordinator.Wait("average")
    w.now += 59.0
    assert not w.c.check() and w.c.round is None
    w.now += 2.0
    assert w.c.check() and list(w.c.failures) == [1]


def test_an_average_that_has_begun_is_everyones_once_also_if_the_run_is_stopped():
    w = World(plan(SYNC), [1.0, 1.0])
    one_batch_each(w)
    for rank in (0, 1):
        w.c.batch_done(rank, 2, 0.0, 1.0)
    assert w.c.next(0) == coordinator.Wait("average")
    assert isinstance(w.c.next(1), coordinator.Average) and w.c.next(1) == coordinator.Wait("average")
    w.c.stop()
    assert isinstance(w.c.next(0), coordinator.Average)
    assert w.c.next(0) == w.c.next(1) == coordinator.Stop()


# ------------------------------------------------------------------ learning rate and metrics


@pytest.mark.parametrize("policy", policies.AveragingPolicy)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_lr_sequence_is_that_of_batches_by_replicas(policy, world):
    w = World(plan(policy, world=world, batches=60, epochs=2), [10.0] * world).run()
    for steps in w.lr_steps:
        assert steps == list(range(120 // world))  # averages and acknowledgements do not count


def test_lr_of_unequal_replicas_advances_with_their_mean():
    w = World(plan(CADENCE, batches=240), [10.0, 30.0]).run()
    assert w.c.lr_step == 720 // 2
    fast, slow = w.lr_steps
    assert fast[0] == slow[0] == 0 and max(*fast, *slow) < 720 // 2 + 12
    starts = [sum(map(sum, w.c.count_history[:i])) // 2 for i in range(len(w.c.count_history))]
    assert [step for step in fast if step in starts][: len(starts)]
    assert set(starts) <= set(fast) and set(starts) <= set(slow)


def test_chunk_dispatch_metrics_are_weighted_by_batches_and_throughput_by_time():
    w = World(plan(CADENCE, batches=120, epochs=2), [10.0, 30.0]).run()
    for metrics in w.c.ready:
        a, b = (r.batches for r in metrics.per_rank)
        assert a + b == 120 and metrics.batch_share == [a / 120, b / 120]
        assert metrics.avg_loss == pytest.approx(b / 120)  # the loss of replica r is r
        assert metrics.per_rank_throughput == pytest.approx([2 / 10, 2 / 30])  # samples per ms
        assert [r.avg_loss for r in metrics.per_rank] == [0.0, 1.0]
        assert metrics.epoch_ms >= 10 * a


def test_an_average_in_host_memory_overlaps_and_keeps_what_is_trained_meanwhile():
    c = coordinator.Coordinator(plan(ASYNC, backend=policies.AverageBackend.CPU), lambda: 0.0, el_che.ElChe(2, 1))
    started = [c.next(rank) for rank in range(2)]
    for rank in range(2):
        c.batch_done(rank, 2, 0.0, 1.0)
    tasks = [[c.next(rank), c.next(rank)] for rank in range(2)]  # a copy is handed in, and the next batch begins
    assert all(isinstance(task, Batch) for task in (*started, *(second for _, second in tasks)))
    assert tasks[0][0] is tasks[1][0] is c.round and c.round.collected == 0.0
    c.batch_done(0, 2, 0.0, 1.0)
    assert isinstance(c.next(0), Batch) and c.round is not None  # the mean is not there yet
    c.round.mean = [0.0]
    for rank in range(2):
        c.batch_done(rank, 2, 0.0, 1.0)
        assert c.next(rank) is c.round
        c.average_done(rank, 0.0)
    assert c.round is None and c.count_history == [[1, 1]] and c.steps == [2, 1]
    c.stop()
    assert isinstance(c.next(0), coordinator.Stop)


def test_policies_truth_table():
    for steps, wall_ms, anchor_wall_ms, sync, cadence, asynchronous in [  # counts are 2 and 6
        ((0, 0), (0.0, 0.0), 0.0, False, False, False),
        ((1, 0), (9.0, 0.0), 0.0, False, False, False),
        ((1, 1), (9.0, 3.0), 0.0, True, False, False),
        ((2, 5), (18.0, 15.0), 0.0, True, False, False),
        ((2, 6), (18.0, 18.0), 0.0, True, True, True),  # before calibration CADENCE goes by counts
        ((2, 6), (18.0, 18.0), 20.0, True, False, True),
        ((3, 5), (27.0, 20.0), 20.0, True, True, False),  # then by time
        ((3, 5), (27.0, 19.9), 20.0, True, False, False),
        ((9, 0), (81.0, 50.0), 20.0, False, False, False),  # nobody is averaged without a step of his own
    ]:
        view = steps, wall_ms, (2, 6), anchor_wall_ms
        found = [policies.should_average(policy, *view) for policy in (SYNC, CADENCE, ASYNC)]
        assert found == [sync, cadence, asynchronous]


# ------------------------------------------------------------------ guard and overshoot


def test_guard_three_rises_above_the_threshold():
    for deltas, verdicts in [
        ([0.06, 0.07], [False, False]),
        ([0.06, 0.07, 0.08], [False, False, True]),
        ([0.01, 0.02, 0.05], [False, False, False]),  # not above the threshold
        ([0.01, 0.02, 0.051], [False, False, True]),  # only the last one must be
        ([0.06, 0.07, 0.07], [False, False, False]),  # strictly
        ([0.09, 0.07, 0.08, 0.10], [False, False, False, True]),
        ([0.06, 0.07, 0.08, 0.09, 0.10, 0.11], [False, False, True, False, False, True]),  # afresh after each
    ]:
        guard = policies.DivergenceGuard(0.05)
        assert [guard.observe([0.0, delta]) for delta in deltas] == verdicts


def test_guard_keeps_five_and_takes_the_largest_over_ranks():
    guard = policies.DivergenceGuard(1.0)
    for i in range(9):
        guard.observe([0.1 * i, 0.3, 0.2])
    assert list(guard.ring) == [max(0.1 * i, 0.3) for i in range(4, 9)]
    raises(ValueError, "divergence_threshold is 0, expected a number > 0, or None", policies.DivergenceGuard, 0)


@pytest.mark.parametrize(
    ("batches", "given_cap", "start", "cap"),
    [(10, None, 2, 3), (300, None, 3, 6), (10_000, None, 5, 10), (300, 1, 1, 1), (300, 0, 0, 0), (300, 99, 3, 15)],
)
def test_overshoot_starts_grows_and_falls_back(batches, given_cap, start, cap):
    overshoot = policies.OvershootLimit(batches, given_cap)
    assert overshoot.limit == start
    seen = []
    for _ in range(30):
        overshoot.averaged(drifts=False)
        seen.append(overshoot.limit)
    assert seen[0] == min(start + 1, cap) and seen[-1] == cap <= policies.OVERSHOOT_CEILING
    overshoot.averaged(drifts=True)
    assert overshoot.limit == start


# ------------------------------------------------------------------ who gets which batches


@given(batches=st.integers(0, 300), shares=st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_data_partition_is_disjoint_complete_and_in_proportion(batches, shares):
    parts = partition(batches, shares)
    assert [i for part in parts for i in part] == list(range(batches))
    if batches >= len(shares):
        assert all(parts)
    for part, share in zip(parts, shares):
        assert abs(len(part) - batches * share / sum(shares)) <= len(shares) + 1


def test_data_partition_of_three_to_one():
    assert list(map(len, partition(100, [3, 1]))) == [75, 25]
    assert list(map(len, partition(10, [1000, 1]))) == [9, 1]


def test_chunk_dispatch_probes_then_goes_by_speed():
    pool = ChunkPool(400, 2)
    assert len(pool.take(0, None)) == 20  # 400 / (10 * 2)
    assert len(ChunkPool(60, 2).take(0, None)) == MIN_CHUNK
    assert len(pool.take(0, 0.75)) == 143  # half of 0.75 * 380
    assert len(pool.take(1, 0.25)) == 30  # half of 0.25 * 237
    assert len(pool.take(1, 0.01)) == MIN_CHUNK
    assert pool.remaining == 203
    assert len(ChunkPool(7, 2).take(0, 0.5)) == 2  # too few for a small chunk for each


@pytest.mark.parametrize("world", [2, 3, 5])
def test_chunk_dispatch_of_few_batches_leaves_one_for_each(world):
    pool = ChunkPool(world, world)
    assert [len(pool.take(rank, None)) for rank in range(world)] == [1] * world
