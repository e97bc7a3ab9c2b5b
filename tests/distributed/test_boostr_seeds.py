"""What tests of boostr 0.1.0 ask for ``DistributedTrainer`` and ``FusedDistributedOptimizer``, with its values.

Like there, the world has one rank. What it takes several ranks to see is in test_boostr_defects.py.
"""

import numpy as np
import pytest
from data_parallel import parameters, store
from in_threads import good, in_threads, outcomes

from minigrad import GradStore, Tensor, TensorId, nn
from minigrad import distributed as dist


def parameter(values: list[float]) -> Tensor:
    return Tensor(np.array(values, np.float32), requires_grad=True)


def gradient(p: Tensor, values: list[float]) -> GradStore:
    return store([p], [values])


# ---------------------------------------------------------------------- DistributedTrainer


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
