"""flodl's policies, guard, overshoot and chunk dispatch: pure logic, each against its table or its definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises

from minigrad.distributed.mirrors.flodl import policies
from minigrad.distributed.mirrors.flodl.workload import MIN_CHUNK, ChunkPool, partition

SYNC, CADENCE, ASYNC = policies.AveragingPolicy.SYNC, policies.AveragingPolicy.CADENCE, policies.AveragingPolicy.ASYNC


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
