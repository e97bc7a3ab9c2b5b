"""ElChe and AutoBalancer: counts of batches and shares of ranks, by hand and over random histories. Pure logic."""

import math

import pytest
from hypothesis import given, settings, strategies as st
from refusals import raises

from minigrad.distributed.mirrors.flodl.el_che import AutoBalancer, ElChe, balanced_ratios, shard_sizes

TIMES = st.floats(0.1, 1e4)


def report(cadence: ElChe, wall: list[float], sync: float) -> ElChe:
    cadence.report_timing(wall, cadence.batch_counts, sync)
    return cadence


def test_it_begins_with_the_anchor_for_every_rank() -> None:
    cadence = ElChe(3, 10)
    assert (cadence.world_size, cadence.anchor, cadence.batch_counts, cadence.total_batches) == (3, 10, [10] * 3, 30)
    assert not cadence.is_calibrated
    assert (cadence.anchor_wall_ms, cadence.overhead_target, cadence.max_anchor) == (0.0, 0.1, 200)
    assert cadence.max_batch_diff is None


def test_el_che_vectors_of_the_overhead() -> None:
    for cadence, wall, sync, anchor, counts in [
        (ElChe(2, 10), [500, 1000], 400, 40, [80, 40]),
        (ElChe(2, 10), [1000, 1000], 500, 50, [50, 50]),
        (ElChe(3, 10).with_overhead_target(0.5), [333, 500, 1000], 10, 10, [30, 20, 10]),
        (ElChe(2, 10).with_max_anchor(25), [100, 100], 100, 25, [25, 25]),
        (ElChe(2, 10), [1, 1], 1e9, 200, [200, 200]),  # as many as max_anchor says
        (ElChe(2, 300), [1, 1], 1e9, 300, [300, 300]),
        # 0.001 counts as 0.01, and 0.07 / 0.01 is above 7 but for rounding; 0.9 counts as 0.5
        (ElChe(2, 1).with_overhead_target(0.001), [100, 100], 7, 7, [7, 7]),
        (ElChe(2, 1).with_overhead_target(0.9), [100, 100], 100, 2, [2, 2]),
    ]:
        before = cadence.anchor
        report(cadence, wall, sync)
        assert (cadence.anchor, cadence.batch_counts) == (anchor, counts)
        assert [cadence.batches(r) for r in range(cadence.world_size)] == counts
        assert cadence.anchor_wall_ms == pytest.approx(max(wall) * anchor / before)


def test_el_che_vector_of_max_batch_diff() -> None:
    cadence = ElChe(2, 10).with_max_batch_diff(3)
    assert report(cadence, [100, 20], 0).batch_counts == [10, 50]  # the first report is exempt
    assert report(cadence, [100, 450], 0).batch_counts == [10, 47]


def test_el_che_vector_of_the_smoothed_times() -> None:
    cadence = ElChe(2, 1)
    seen = []
    for ms in (100, 105, 300):
        cadence.report_timing([ms, 1000], [1, 1], 0)
        seen.append(cadence.ms_per_batch[0])
    assert seen == pytest.approx([100, 100.5, 260.1])


def test_changes_within_the_dead_zone_are_left_alone() -> None:
    cadence = report(ElChe(2, 10).with_speed_ratio(1, 1), [500, 1000], 0)
    assert cadence.batch_counts == [20, 10]
    report(cadence, [800, 800], 0)  # 40 ms, 80 ms: smoothed 48 and 96
    assert cadence.batch_counts == [20, 10]
    cadence.report_timing([47.0, 100.0], [1, 1], 0)  # 21.1 against 20
    assert cadence.batch_counts == [20, 10]
    for _ in range(20):
        cadence.report_timing([30.0, 100.0], [1, 1], 0)
    assert cadence.batch_counts == [30, 10]  # of which 33.3 is within 10 %, rounded


def test_the_anchor_falls_by_one_while_overhead_is_low_and_stops_where_it_began() -> None:
    cadence = report(ElChe(2, 10), [1000, 1000], 130)
    assert cadence.anchor == 13
    assert report(cadence, [1000, 1000], 70).anchor == 13  # between half of the target and the target
    assert [report(cadence, [1000, 1000], 49).anchor for _ in range(5)] == [12, 11, 10, 10, 10]


def test_counts_follow_an_anchor_that_falls_within_the_dead_zone() -> None:
    cadence = report(ElChe(2, 10), [1000, 1000], 110)
    assert cadence.batch_counts == [11, 11]
    assert report(cadence, [1100, 1100], 0).batch_counts == [10, 10]


def test_el_che_counts_are_refreshed_by_max_anchor() -> None:
    cadence = ElChe(2, 10).with_max_anchor(1)
    assert (cadence.anchor, cadence.batch_counts) == (1, [1, 1])
    assert ElChe(2, 10).with_speed_ratio(0, 3).with_max_anchor(4).batch_counts == [4, 12]
    assert report(cadence, [100, 200], 0).batch_counts == [2, 1]


def test_a_speed_hint_sets_the_others_counts() -> None:
    assert ElChe(3, 10).with_speed_ratio(1, 2.25).batch_counts == [23, 10, 23]
    assert report(ElChe(2, 10).with_speed_ratio(1, 9), [500, 1000], 0).batch_counts == [180, 10]
    wrong = ElChe(2, 10).with_speed_ratio(1, 3)
    wrong.report_timing([30, 10], [3, 3], 0)
    assert wrong.batch_counts == [10, 30]


def test_el_che_clamp_is_at_most_max() -> None:
    cadence = ElChe(2, 10).with_speed_ratio(0, 3)
    assert cadence.clamp_total(100) == [10, 30]
    assert cadence.clamp_total(20) == [5, 15]
    assert cadence.clamp_total(7) == [2, 5]  # 1.75 and 5.25: what is left over goes to the left
    assert ElChe(3, 1).clamp_total(1) == [1, 0, 0]
    assert ElChe(3, 5).clamp_total(0) == [0, 0, 0]
    assert ElChe(3, 1).with_speed_ratio(1, 100).clamp_total(4) == [2, 1, 1]
    assert cadence.batch_counts == [10, 30]
    assert ElChe(3, 1).with_speed_ratio(0, 5).clamp_total(10) == [1, 5, 4]  # rank 0 has all it wants


def test_the_anchor_is_nudged_down_only() -> None:
    cadence = report(ElChe(2, 10), [500, 1000], 400)
    cadence.nudge_anchor_down(0.5)
    assert (cadence.anchor, cadence.batch_counts) == (20, [40, 20])
    cadence.nudge_anchor_down(7.0)
    assert cadence.anchor == 20
    cadence.nudge_anchor_down(0.33)
    assert cadence.anchor == 7
    cadence.nudge_anchor_down(0.0)  # counts as 0.1
    assert (cadence.anchor, cadence.batch_counts) == (1, [2, 1])
    cadence.nudge_anchor_down(0.1)
    assert cadence.anchor == 1
    assert report(cadence, [100, 100], 11).anchor == 10  # which is where it began: too much overhead


def test_a_rank_without_batches_keeps_its_speed() -> None:
    cadence = report(ElChe(2, 10), [500, 1000], 0)
    for wall in (0, 7):
        cadence.report_timing([wall, 1000], [0, 10], 0)
        assert cadence.ms_per_batch == [50.0, 100.0]
    fresh = ElChe(2, 10)
    fresh.report_timing([0, 1000], [0, 10], 0)
    assert (fresh.is_calibrated, fresh.batch_counts, fresh.anchor_wall_ms) == (False, [10, 10], 0.0)
    fresh.report_timing([0, 0], [0, 0], 0)
    assert fresh.anchor == 10


def test_a_refused_report_changes_nothing() -> None:
    cadence = report(ElChe(2, 10), [500, 1000], 0)
    raises(ValueError, "", cadence.report_timing, [1.0, 1.0], [1, 1], -1)
    assert (cadence.ms_per_batch, cadence.batch_counts) == ([50.0, 100.0], [20, 10])


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(2, 6), anchor=st.integers(1, 30), limit=st.none() | st.integers(0, 5), cap=st.integers(1, 60),
    data=st.data(),
)  # fmt: skip
def test_counts_stay_in_bounds_whatever_is_measured(n: int, anchor: int, limit: int | None, cap: int, data) -> None:
    cadence = ElChe(n, anchor).with_max_batch_diff(limit).with_max_anchor(cap)
    times = st.lists(TIMES, min_size=n, max_size=n)
    for i in range(data.draw(st.integers(1, 6))):
        before = cadence.batch_counts
        report(cadence, data.draw(times), data.draw(st.floats(0, 1e4)))
        counts = cadence.batch_counts
        assert min(anchor, cap) <= cadence.anchor <= cap
        assert all(count >= 1 for count in counts)
        if limit is not None and i > 0:
            assert all(abs(a - b) <= limit for a, b in zip(counts, before, strict=True))
        if limit is None:
            ms = cadence.ms_per_batch
            assert counts[ms.index(max(ms))] == cadence.anchor
            for count, own in zip(counts, ms, strict=True):
                ideal = cadence.anchor * max(ms) / own
                assert abs(count - ideal) <= 0.5 + 0.1 * count + 1e-6
        total = data.draw(st.integers(0, 100))
        clamped = cadence.clamp_total(total)
        assert sum(clamped) == min(total, sum(counts))
        assert all(0 <= a <= b for a, b in zip(clamped, counts, strict=True))
        assert total < n or min(clamped) >= 1


def test_balancer_rebalances_at_10_60_110() -> None:
    balancer = AutoBalancer(2)
    changed = []
    for step in range(1, 120):
        assert balancer.is_balanced == (step <= 10)
        if balancer.update([16, 16], [1.0, 3.0]):
            changed.append(step)
        assert balancer.ratios == (pytest.approx([0.75, 0.25]) if changed else [0.5, 0.5])
    assert changed == [10, 60, 110] and balancer.step_count == 119
    assert balancer.shard_sizes(32) == [24, 8]


def test_balancer_smooths_throughput() -> None:
    balancer = AutoBalancer(2)
    balancer.update([10, 10], [1.0, 2.0])
    balancer.throughput[0] = balancer.ratios[0] = 9.0  # of a copy
    assert (balancer.throughput, balancer.ratios) == ([10.0, 5.0], [0.5, 0.5])
    balancer.update([20, 0], [1.0, 1.0])  # nothing new of rank 1
    assert balancer.throughput == pytest.approx([0.3 * 20 + 0.7 * 10, 5.0])
    balancer.update([20, 10], [0.0, 1.0])
    assert balancer.throughput == pytest.approx([13.0, 0.3 * 10 + 0.7 * 5])


def test_balancer_without_data_changes_nothing() -> None:
    balancer = AutoBalancer(3, calibration_steps=1)
    assert not balancer.update([1, 1, 1], [0.0, 0.0, 0.0])
    assert balancer.ratios == [1 / 3] * 3


def test_balancer_speed_hint() -> None:
    balancer = AutoBalancer(3)
    balancer.apply_speed_hint(1, 2.0)
    assert balancer.ratios == pytest.approx([0.4, 0.2, 0.4])


def test_shards_half_up() -> None:
    assert shard_sizes(5, [0.5, 0.5]) == [3, 2]
    assert shard_sizes(10, [0.7, 0.3]) == [7, 3]
    assert shard_sizes(7, [0.05, 0.90, 0.05]) == [1, 5, 1]


@settings(max_examples=200, deadline=None)
@given(
    throughput=st.lists(st.floats(0, 1e6) | st.just(0.0), min_size=1, max_size=20).filter(any),
    batch=st.integers(0, 300),
)
def test_floor_and_shards_whatever_was_measured(throughput: list[float], batch: int) -> None:
    n = len(throughput)
    ratios = balanced_ratios(throughput)
    assert math.isclose(sum(ratios), 1.0, abs_tol=1e-12)
    assert min(ratios) >= 0.05
    above = [r for r in range(n) if ratios[r] > 0.05 + 1e-9]
    for a in above:  # in proportion to throughput, among those that are not held up by the floor
        for b in above:
            assert ratios[a] * throughput[b] == pytest.approx(ratios[b] * throughput[a], rel=1e-6)
    for a in range(n):
        for b in range(n):
            assert throughput[a] > throughput[b] or ratios[a] <= ratios[b] + 1e-9
    sizes = shard_sizes(batch, ratios)
    assert sum(sizes) == batch
    assert min(sizes) >= (1 if batch >= n else 0)
    assert batch >= n or max(sizes) <= 1
