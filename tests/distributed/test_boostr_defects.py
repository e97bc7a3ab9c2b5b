"""Defects of boostr's data-parallel layer that its tests, in a world of one rank, could not see.

It had fifteen. Here is a test in a world of several ranks for each that no test of a property notices. The others, with
their numbers, are noticed elsewhere: a timestep for each bucket (01), several reductions of a window (03), tensors sent
one by one (04), unused parameters (09), the loss of one rank (11), norms that differ by rank or dtype (12, 13), windows
half counted (14), recursion (15).
"""

from functools import partial

import numpy as np
import pytest
from data_parallel import HOOKED, KINDS, Scenario, feed, make_trainer, parameters, run, shares, store
from in_threads import good, in_threads, outcomes

import minigrad
from minigrad import GradStore, Tensor, TensorId, distributed as dist, optim

ALL_KINDS = pytest.mark.parametrize("kind", KINDS)
LINEAR = pytest.mark.parametrize("kind", ["distributed", "bucketed"])  # those that take an SGD


def sgd_trainer(kind: str, comm: dist.Communicator, params, **options) -> dist.DistributedTrainer:
    """One whose step takes the mean gradient itself off the weights."""
    return make_trainer(kind, comm, optimizer=optim.SGD(params, lr=1.0), **options)


@LINEAR
@pytest.mark.parametrize("form", ["named", "ids"])
@in_threads(3)
def test_defect_02_the_order_of_dictionaries_pairs_nothing_wrongly(comm: dist.ThreadCommunicator, kind, form):
    # Equally large parameters: pairing the wrong ones raises nothing, it only gives wrong numbers.
    params = parameters(*[(4,)] * 6)
    trainer = sgd_trainer(kind, comm, params, bucket=16)
    for step in range(3):
        rng = np.random.default_rng([comm.rank, step])
        order = [int(i) for i in rng.permutation(6)]
        before = [p.data.copy() for p in params]
        names = [(f"p{i}", params[i]) for i in order]
        given = names if form == "named" else {params[i].id: params[i] for i in order}
        values = [10.0 * i + comm.rank for i in range(6)]
        trainer.step(given, store(params, values, [int(i) for i in rng.permutation(6)]), 1.0)
        for i, p in enumerate(params):
            np.testing.assert_array_equal(before[i] - p.data, 10.0 * i + 1.0)  # the mean of ranks 0, 1, 2


class _Late(dist.Work):
    """Reduces only in ``wait``: who reads earlier gets this rank's own gradient."""

    def __init__(self, communicator: dist.Communicator, bucket: Tensor) -> None:
        self.communicator, self.bucket = communicator, bucket

    def is_completed(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> None:
        dist.all_reduce_hook(self.communicator, self.bucket).wait()


@ALL_KINDS
def test_defect_05_nothing_is_read_before_it_has_arrived(kind):
    scenario = Scenario(shares(2, steps=2))
    assert [r.bits() for r in run(kind, scenario, hook=_Late)] == [r.bits() for r in run(kind, scenario)]


@ALL_KINDS
def test_defect_06_only_gradients_of_parameters_are_kept_sent_and_measured(kind):
    scenario = Scenario(shares(2))

    def body(comm: dist.ThreadCommunicator, leaves: bool):
        net = scenario.net()
        trainer = make_trainer(kind, comm, clip=1e6, accum=2)
        for i in range(2):
            x, y = scenario.batch(i, (comm.rank, 3))
            loss = net.loss(x.requires_grad_(leaves), y)
            if leaves:  # inputs that want gradients too, large ones; what they are is nobody's business
                extra = Tensor(np.full(7, 1e3), requires_grad=True)
                loss = loss + (extra - 1e3).sum() * 5.0
            metrics = feed(trainer, net, loss)
            assert set(trainer._step.accumulator._sums) <= {p.id for p in net.parameters()}
        return metrics, [p.data.tobytes() for p in net.parameters()], comm.stats.bytes_sent

    left, whole = (dist.run_threads(2, partial(body, leaves=leaves), timeout=30) for leaves in (True, False))
    assert left == whole


@LINEAR
@pytest.mark.parametrize("accum", [1, 2])
@pytest.mark.parametrize("weight", [1, 3])
@in_threads(3)
def test_defect_07_gradients_that_share_memory_count_once(comm: dist.ThreadCommunicator, kind, weight, accum):
    # Reduced or scaled in place for each of k names, a shared gradient would come out up to W^(k-1) times too large.
    params = parameters((3,), (3,), (3,))
    trainer = sgd_trainer(kind, comm, params, accum=accum, bucket=12)
    for _ in range(accum):
        shared = Tensor(np.full(3, 2.0 + comm.rank, np.float32))
        trainer.step(params, GradStore({p._id: shared for p in params}), 1.0, weight)
    for p in params:
        np.testing.assert_allclose(p.data, -3.0, rtol=1e-6)


@in_threads(2)
def test_defect_08_transposed_gradients_enter_a_bucket_as_they_are_meant(comm: dist.ThreadCommunicator):
    transposed, strided = parameters((3, 4), (5,))
    manager = dist.GradientBucketManager([transposed, strided], comm)
    values = np.arange(12, dtype=np.float32).reshape(4, 3) * (1 + comm.rank)
    manager.mark_grad_ready(transposed.id, Tensor(values).T)
    manager.mark_grad_ready(strided.id, Tensor(np.arange(10, dtype=np.float32))[::2])
    grads = manager.wait_and_unflatten()
    np.testing.assert_array_equal(grads[transposed].data, np.arange(12).reshape(4, 3).T * 1.5)
    assert grads[strided].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("kind", HOOKED)
@in_threads(2)
def test_defect_09_errors_of_a_hook_are_raised(comm: dist.ThreadCommunicator, kind):
    broken = [True]

    def hook(communicator: dist.Communicator, bucket: Tensor) -> dist.Work:
        if broken[0] and bucket.numel() == 3:
            raise ArithmeticError("the hook's own")
        return dist.all_reduce_hook(communicator, bucket)

    params = parameters((2,), (3,), (4,))
    trainer = make_trainer(kind, comm, bucket=4, hook=hook)
    before = [p.data.tobytes() for p in params]
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="the hook's own"):
            feed(trainer, minigrad.nn.Module(), sum(((p + 1.0) ** 2).sum() for p in params), 1.0, params)
        assert [p.data.tobytes() for p in params] == before and trainer.global_step == 0
    broken[0] = False
    assert feed(trainer, minigrad.nn.Module(), sum(((p + 1.0) ** 2).sum() for p in params), 1.0, params)
    trainer.assert_replicas_identical(params)


@ALL_KINDS
@pytest.mark.parametrize("who", ["nobody", "rank 0", "rank 1"])
@in_threads(2)
def test_defect_10_ranks_without_gradients_neither_hang_nor_miss_a_step(comm: dist.ThreadCommunicator, kind, who):
    params = parameters((2,), (3,))
    trainer = make_trainer(kind, comm)
    for step in range(1, 4):
        values = [2.0, None] if who == f"rank {comm.rank}" else [None, None]
        metrics = trainer.step(params, store(params, values), 1.0)
        assert metrics is not None and metrics.step == trainer.optimizer.timestep == step
    assert ("0" in trainer.state_dict(params)[1]["optimizer"]["steps"]) == (who != "nobody")
    trainer.assert_replicas_identical(params)


# --------------------------------------------------------------------- what boostr's own tests ask for, with its values


@pytest.mark.parametrize("kind", [dist.SimpleTrainer, dist.DistributedTrainer, dist.FusedDistributedOptimizer])
def test_a_gradient_belongs_to_the_tensor_under_its_key(kind):
    """The seed makes ids of its own: the same one is the key of a parameter and of its gradient."""
    (first, second), ids = parameters((2,), (1,)), [TensorId.new(), TensorId.new()]
    grads = GradStore()
    for id, value in zip(ids, ([0.1, -0.2], [0.3]), strict=True):
        grads.insert(id, Tensor(np.array(value, np.float32)))
    trainer = kind() if kind is dist.SimpleTrainer else kind(None, dist.NoOpCommunicator())
    assert trainer.step({ids[1]: second, ids[0]: first}, grads, 0.5) is not None
    assert first[0].item() < 0 < first[1].item() and second.item() < 0


@pytest.mark.parametrize("world", [1, 2])
def test_distributed_trainer_send_sync(world):
    """Rust's ``Send + Sync``: a trainer made in one thread is used in others, one after the other."""
    params = [parameters((2,)) for _ in range(world)]
    comms = dist.ThreadCommunicator.group(world, timeout=20)
    trainers = [dist.DistributedTrainer(dist.TrainingConfig(), comm) for comm in comms]
    for turn in range(2):
        step = lambda rank: trainers[rank].step(params[rank], store(params[rank], [0.1]), 0.5)  # noqa: E731
        steps = good([*outcomes(range(world), step).values()])
        assert [metrics.step for metrics in steps] == [turn + 1] * world
