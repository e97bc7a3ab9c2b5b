"""DdpBuilder: one replica is plain training, SYNC is averaging after each batch, CADENCE spares a slow replica."""

import numpy as np
import pytest
from replica_builder import SYNC, adamw, arrays, assert_same_bits, builder, by_hand

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


def test_seed_decides_the_order():
    a, b, c = (arrays(builder(policy=SYNC, seed=seed).run().join()) for seed in (1, 1, 2))
    assert_same_bits(a, b)
    assert not np.array_equal(a["w"], c["w"])
