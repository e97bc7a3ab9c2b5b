"""DdpBuilder: one replica is plain training, SYNC is averaging after each batch, CADENCE spares a slow replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from replica_builder import (
    CADENCE,
    SYNC,
    adamw,
    arrays,
    assert_same_bits,
    builder,
    by_hand,
    epoch_batches,
    is_replica,
    loss_of,
    plain,
    sgd,
)
from virtual_time import VirtualTime

from minigrad import Tensor
from minigrad.distributed.mirrors.flodl.policies import AverageBackend, AveragingPolicy


@pytest.mark.parametrize("policy", AveragingPolicy)
def test_one_call_setup_one_replica_is_plain_training_to_the_bit(policy):
    state = builder(replicas=1, policy=policy, num_epochs=3, max_grad_norm=0.5, lr_scale_ratio=1.0).run().join()
    assert_same_bits(arrays(state), by_hand(1, adamw, 3, clip=0.5))
    assert state.epoch == 3 and state.batches == 36


@pytest.mark.parametrize("backend", AverageBackend)
@pytest.mark.parametrize("world", [2, 3])
def test_policies_sync_is_per_batch_averaging(world, backend):
    state = builder(replicas=world, policy=SYNC, backend=backend, max_grad_norm=0.5).run().join()
    want = by_hand(world, adamw, 2, clip=0.5)
    for name in ("w", "v", "mean", "bias"):
        np.testing.assert_allclose(arrays(state)[name], want[name], rtol=0, atol=1e-12)
    assert arrays(state)["bias"].tobytes() == want["bias"].tobytes()  # frozen: not even rounded


def test_policies_sync_with_sgd_is_one_device_with_the_whole_batch():
    """The mean of two SGD steps is the SGD step of the mean gradient."""
    pairs = [np.concatenate(epoch_batches(epoch)[i : i + 2]) for epoch in range(2) for i in range(0, 12, 2)]
    want = plain(pairs, sgd)
    state = builder(policy=SYNC, optim_factory=sgd).run().join()
    for name in ("w", "v"):
        np.testing.assert_allclose(state.params[name], want[name], rtol=0, atol=1e-12)


def test_seed_decides_the_order():
    a, b, c = (arrays(builder(policy=SYNC, seed=seed).run().join()) for seed in (1, 1, 2))
    assert_same_bits(a, b)
    assert not np.array_equal(a["w"], c["w"])


def test_slow_rank_counts_three_to_one_and_waits_less_than_in_lockstep(monkeypatch):
    clock = VirtualTime(monkeypatch)

    def train_fn(model: Any, batch: Any) -> Tensor:
        clock.sleep(0.03 if is_replica(1) else 0.01)
        return loss_of(model, batch)

    waited = {}
    for policy in (SYNC, CADENCE):
        began = clock.now
        state = builder(policy=policy, num_epochs=8, train_fn=train_fn, anchor=3).run().join()
        waited[policy] = sum(state.report.waited_ms) / sum(state.report.compute_ms)
        assert (clock.now - began) * 1e3 == pytest.approx(state.report.compute_ms[1] + state.report.waited_ms[1])
        if policy is CADENCE:
            settled = state.report.count_history[1:-1]
            fast, slow = (sum(counts[rank] for counts in settled) for rank in (0, 1))
            assert len(settled) > 3 and 2.6 <= fast / slow <= 3.4
            assert state.report.counts[0] == 3 * state.report.counts[1]
    assert waited[SYNC] == pytest.approx(0.5) and waited[CADENCE] < 0.1
