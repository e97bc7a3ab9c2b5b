"""AutoBalancer: shares of the batch in proportion to throughput, against hand-computed values, over random inputs."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad.distributed.mirrors.flodl.el_che import AutoBalancer, balanced_ratios, shard_sizes


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
