"""The nine tests that boostr 0.1.0 has for ``DistributedTrainer`` and ``FusedDistributedOptimizer``, with its values.

Like there, the world has one rank. What it takes several ranks to see is in test_boostr_defects.py.
"""

import numpy as np
import pytest
from data_parallel import parameters, store
from in_threads import good, in_threads, outcomes

from minigrad import GradStore, Tensor, TensorId, nn
from minigrad import distributed as dist

PLAIN = dist.TrainingConfig(learning_rate=1e-4, weight_decay=0.0, grad_accum_steps=1, max_grad_norm=None)


def parameter(values: list[float]) -> Tensor:
    return Tensor(np.array(values, np.float32), requires_grad=True)


def gradient(p: Tensor, values: list[float]) -> GradStore:
    return store([p], [values])


# ---------------------------------------------------------------------- DistributedTrainer


def test_distributed_trainer_creation_and_broadcast_noop():
    trainer = dist.DistributedTrainer(PLAIN, dist.NoOpCommunicator())
    assert trainer.global_step == 0
    t = Tensor(np.array([1.0, 2.0], np.float32))
    trainer.broadcast_params({t.id: t})
    assert t.tolist() == [1.0, 2.0]


def test_distributed_trainer_step():
    trainer = dist.DistributedTrainer(PLAIN, dist.NoOpCommunicator())
    param = parameter([1.0, 2.0])
    metrics = trainer.step({param.id: param}, gradient(param, [0.1, 0.2]), 0.5)
    assert metrics is not None
    assert metrics.step == 1
    assert (metrics.loss, metrics.grad_norm, metrics.lr) == (0.5, None, 1e-4)
    # The first step of AdamW is lr in the direction of the sign, but for eps.
    np.testing.assert_allclose(param.data, [1.0 - 1e-4, 2.0 - 1e-4], rtol=2e-7)


@pytest.mark.parametrize("kind", [dist.SimpleTrainer, dist.DistributedTrainer, dist.FusedDistributedOptimizer])
def test_a_gradient_belongs_to_the_tensor_under_its_key(kind):
    """The seed makes ids of its own: the same one is the key of a parameter and of its gradient."""
    first, second, ids = parameter([1.0, 2.0]), parameter([3.0]), [TensorId.new(), TensorId.new()]
    grads = GradStore()
    for id, value in zip(ids, ([0.1, -0.2], [0.3]), strict=True):
        grads.insert(id, Tensor(np.array(value, np.float32)))
    trainer = kind() if kind is dist.SimpleTrainer else kind(None, dist.NoOpCommunicator())
    before = first.tolist()
    assert trainer.step({ids[1]: second, ids[0]: first}, grads, 0.5) is not None
    assert before[0] > first[0].item() and before[1] < first[1].item() and second.item() < 3.0


@pytest.mark.parametrize("given", [nn.Linear(2, 2), parameter([1.0]), 3])
def test_what_is_no_collection_of_parameters_is_refused(given):
    with pytest.raises(TypeError, match=rf"params is a {type(given).__name__}, expected .*model.named_parameters\(\)"):
        dist.SimpleTrainer().step(given, GradStore(), 0.5)


def test_distributed_trainer_grad_accumulation():
    trainer = dist.DistributedTrainer(PLAIN.with_grad_accum_steps(2), dist.NoOpCommunicator())
    param = parameter([1.0, 2.0])
    params = {param.id: param}
    assert trainer.step(params, gradient(param, [0.1, 0.2]), 0.5) is None  # still accumulating
    assert param.tolist() == [1.0, 2.0]
    metrics = trainer.step(params, gradient(param, [0.3, 0.4]), 0.6)
    assert metrics is not None
    assert metrics.step == 1
    assert metrics.loss == 0.55
    moment = trainer.optimizer.state[param.id].arrays["exp_avg"]
    np.testing.assert_allclose(moment, [0.1 * 0.2, 0.1 * 0.3], rtol=1e-6)  # (1 - beta1) times the mean gradient


@pytest.mark.parametrize("world", [1, 2])
def test_distributed_trainer_send_sync(world):
    """Rust's ``Send + Sync``: a trainer made in one thread is used in others, one after the other."""
    params = [parameter([1.0, 2.0]) for _ in range(world)]
    comms = dist.ThreadCommunicator.group(world, timeout=20)
    trainers = [dist.DistributedTrainer(dist.TrainingConfig(), comm) for comm in comms]

    def step(rank: int) -> dist.TrainingMetrics | None:
        return trainers[rank].step([params[rank]], gradient(params[rank], [0.1, 0.2]), 0.5)

    for turn in range(2):
        steps = good(list(outcomes(range(world), step).values()))
        assert [metrics.step for metrics in steps] == [turn + 1] * world


# ---------------------------------------------------------------------- FusedDistributedOptimizer


def test_fused_optimizer_single_device():
    opt = dist.FusedDistributedOptimizer(dist.FusedOptimizerConfig(), dist.NoOpCommunicator())
    param = parameter([1.0, 2.0, 3.0])
    opt.step({param.id: param}, gradient(param, [0.1, 0.2, 0.3]))
    assert opt.timestep == 1
    assert param.tolist() != [1.0, 2.0, 3.0]
    decayed = np.array([1.0, 2.0, 3.0]) * (1 - 1e-3 * 0.01)
    np.testing.assert_allclose(param.data, decayed - 1e-3, rtol=2e-7)


def test_fused_optimizer_no_grads():
    opt = dist.FusedDistributedOptimizer(dist.FusedOptimizerConfig(), dist.NoOpCommunicator())
    opt.step({}, GradStore())
    assert opt.timestep == 1  # counted even with no matching gradients


@pytest.mark.parametrize(("size", "buckets"), [(16, 2), (31, 2), (32, 1)])
@in_threads(2)
def test_fused_optimizer_bucket_building(comm: dist.ThreadCommunicator, size, buckets):
    # 16 bytes are 4 floats: the first gradient fits, the second begins another bucket.
    opt = dist.FusedDistributedOptimizer(dist.FusedOptimizerConfig(bucket_size_bytes=size), comm)
    params = parameters((4,), (4,))
    opt.step(params, store(params, [1.0, 2.0]))
    assert opt.num_buckets == buckets


def test_fused_optimizer_set_lr():
    opt = dist.FusedDistributedOptimizer(dist.FusedOptimizerConfig(), dist.NoOpCommunicator())
    opt.set_lr(0.01)
    assert opt.optimizer.lr == 0.01
    param = parameter([1.0])
    metrics = opt.step([param], gradient(param, [0.1]))
    assert metrics is not None and metrics.lr == 0.01
