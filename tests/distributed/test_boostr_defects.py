"""boostr's data-parallel layer had fifteen defects that its tests, in a world of one rank, could not see. For each, a
test in a world of several ranks that fails where the defect is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from data_parallel import KINDS, LR, Scenario, Watched, feed, make_trainer, parameters, run, shares
from in_threads import in_threads

import minigrad
from minigrad import GradStore, Tensor
from minigrad.distributed import (
    Communicator,
    DistributedTrainer,
    FusedDistributedOptimizer,
    FusedOptimizerConfig,
    GradientBucketManager,
    ThreadCommunicator,
    Work,
    all_reduce_hook,
    run_threads,
)
from minigrad.dtypes import bfloat16, float16, float32, float64
from minigrad.optim import SGD, AdamWConfig, Constant, NonFiniteGradientError

ALL_KINDS = pytest.mark.parametrize("kind", KINDS)
LINEAR = pytest.mark.parametrize("kind", ["distributed", "bucketed"])  # those that take an SGD


def store(params: Sequence[Tensor], values: Sequence[Any], order: Sequence[int] | None = None) -> GradStore:
    grads = GradStore()
    for i in range(len(params)) if order is None else order:
        if values[i] is not None:
            grads.insert(params[i], Tensor(np.broadcast_to(values[i], params[i].shape), dtype=params[i].dtype))
    return grads


def sgd_trainer(kind: str, comm: Communicator, params: Sequence[Tensor], **options: Any) -> DistributedTrainer:
    """One whose step takes the mean gradient itself off the weights."""
    return make_trainer(kind, comm, optimizer=SGD(params, lr=1.0), **options)


def mean_gradients(params: Sequence[Tensor]) -> list[np.ndarray]:
    """What one step of ``sgd_trainer`` took off weights that were zero."""
    return [-p.data for p in params]


@in_threads(2)
def test_defect_01_one_timestep_for_all_buckets(comm: ThreadCommunicator):
    # With a timestep per bucket, bucket 10 would move by 0.48 lr in the first step, and further and further later on.
    params = parameters(*[(4,)] * 10, dtype=np.float64)
    config = FusedOptimizerConfig(AdamWConfig(lr=LR, weight_decay=0.0), bucket_size_bytes=32)
    trainer = FusedDistributedOptimizer(config, comm)
    for step in range(1, 4):
        trainer.step(params, store(params, [3.0] * 10), 1.0)
        assert trainer.num_buckets == 10
        assert trainer.timestep == trainer.global_step == step
        assert [trainer.optimizer.state[p.id].step for p in params] == [step] * 10
        for p in params:  # a constant gradient: each step is lr, as long as the correction is that step's
            np.testing.assert_allclose(p.data, -LR * step, rtol=1e-6)


@LINEAR
@pytest.mark.parametrize("form", ["named", "ids"])
@in_threads(3)
def test_defect_02_the_order_of_dictionaries_pairs_nothing_wrongly(comm: ThreadCommunicator, kind, form):
    # Equally large parameters: pairing the wrong ones raises nothing, it only gives wrong numbers.
    params = parameters(*[(4,)] * 6)
    trainer = sgd_trainer(kind, comm, params, bucket=16)
    for step in range(3):
        rng = np.random.default_rng([comm.rank, step])
        order = [int(i) for i in rng.permutation(6)]
        before = [p.data.copy() for p in params]
        names = [(f"p{i}", params[i]) for i in order]
        given: Any = names if form == "named" else {params[i].id: params[i] for i in order}
        values = [10.0 * i + comm.rank for i in range(6)]
        trainer.step(given, store(params, values, [int(i) for i in rng.permutation(6)]), 1.0)
        for i, p in enumerate(params):
            np.testing.assert_array_equal(before[i] - p.data, 10.0 * i + 1.0)  # the mean of ranks 0, 1, 2


@ALL_KINDS
def test_defect_03_a_window_is_reduced_once(kind):
    scenario = Scenario(shares(2, steps=2, accum=4), accum=4)

    def body(comm: ThreadCommunicator) -> None:
        net = scenario.net()
        trainer = make_trainer(kind, comm, accum=4)
        nbytes = sum(p.data.nbytes for p in net.parameters())
        for step in range(2):
            sent: list[tuple[int, int]] = []
            for share in scenario.steps[step][comm.rank]:
                operations, before = comm.stats.operations, comm.stats.bytes_sent
                feed(trainer, net, net.loss(*scenario.batch(step, share.rows)))
                sent.append((comm.stats.operations - operations, comm.stats.bytes_sent - before))
            if step:  # in the first step the ranks also compare what they have
                assert sent[:3] == [(0, 0)] * 3
                assert sent[3] == (trainer.num_buckets + 1, nbytes + 49)  # all gradients, and a record of 49 bytes

    run_threads(2, body, timeout=30)


@ALL_KINDS
@in_threads(2)
def test_defect_04_buckets_are_flat_and_the_next_is_sent_before_the_last_is_awaited(comm: ThreadCommunicator, kind):
    params = parameters(*[(2, 2)] * 20)
    watched = Watched(4)
    watched.gates = {i: watched.launched[i + 1] for i in range(3)}  # bucket i arrives after i + 1 has been sent
    sizes = []

    def hook(communicator: Communicator, bucket: Tensor) -> Work:
        sizes.append(bucket.shape)
        return watched(communicator, bucket)

    trainer = make_trainer(kind, comm, bucket=5 * 16, hook=hook)
    trainer.step(params, store(params, [1.0] * 20), 1.0)
    assert sizes == [(20,)] * 4  # one collective per bucket of five tensors, not per tensor
    assert watched.events.index(("launch", 3)) < watched.events.index(("arrived", 0))


class _Late(Work):
    """Reduces only in ``wait``: who reads earlier gets this rank's own gradient."""

    def __init__(self, communicator: Communicator, bucket: Tensor) -> None:
        self.communicator, self.bucket = communicator, bucket

    def is_completed(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> None:
        all_reduce_hook(self.communicator, self.bucket).wait()


@ALL_KINDS
def test_defect_05_nothing_is_sent_before_it_is_computed_nor_read_before_it_has_arrived(kind):
    scenario = Scenario(shares(2, steps=2))
    snapshots: dict[int, list[np.ndarray]] = {0: [], 1: []}

    def hook(communicator: Communicator, bucket: Tensor) -> Work:
        snapshots[communicator.rank].append(bucket.data.copy())
        return _Late(communicator, bucket)

    def body(comm: ThreadCommunicator) -> None:
        net = scenario.net()
        trainer = make_trainer(kind, comm, bucket=200, hook=hook)
        for step in range(2):
            share = scenario.steps[step][comm.rank][0]
            grads = net.loss(*scenario.batch(step, share.rows)).backward()
            own = [np.zeros(p.shape) if p not in grads else grads[p].data.copy() for p in net.parameters()]
            snapshots[comm.rank].clear()
            feed(trainer, net, net.loss(*scenario.batch(step, share.rows)))
            sent = np.concatenate(snapshots[comm.rank])
            np.testing.assert_array_equal(sent, np.concatenate([g.ravel() for g in reversed(own)]))
            # The next window must not begin with what this one left behind.
            manager = trainer._step.reducer.manager
            assert manager is not None
            for flat in manager.flat_buffers():
                flat.data[...] = np.nan

    run_threads(2, body, timeout=30)
    plain = run(kind, scenario)
    assert [r.bits() for r in run(kind, scenario, hook=_Late)] == [r.bits() for r in plain]


@ALL_KINDS
def test_defect_06_only_gradients_of_parameters_are_kept_sent_and_measured(kind):
    scenario = Scenario(shares(2))

    def body(comm: ThreadCommunicator, leaves: bool) -> tuple[Any, int]:
        net = scenario.net()
        trainer = make_trainer(kind, comm, clip=1e6, accum=2)
        for i in range(2):
            x, y = scenario.batch(i, (comm.rank, 3))
            if leaves:  # inputs that want gradients too, large ones; what they are is nobody's business
                x.requires_grad_()
                extra = Tensor(np.full(7, 1e3), requires_grad=True)
                loss = net.loss(x, y) + (extra * 0.0).sum() + (extra - 1e3).sum() * 5.0
            else:
                loss = net.loss(x, y)
            metrics = feed(trainer, net, loss)
            assert set(trainer._step.accumulator._sums) <= {p.id for p in net.parameters()}
        assert metrics is not None
        return (
            metrics.grad_norm,
            {name: p.data.tobytes() for name, p in net.named_parameters()},
        ), comm.stats.bytes_sent

    with_leaves = run_threads(2, lambda comm: body(comm, True), timeout=30)
    without = run_threads(2, lambda comm: body(comm, False), timeout=30)
    assert with_leaves == without


@LINEAR
@pytest.mark.parametrize("accum", [1, 2])
@pytest.mark.parametrize("weight", [1, 3])
@in_threads(3)
def test_defect_07_gradients_that_share_memory_count_once(comm: ThreadCommunicator, kind, weight, accum):
    # Reduced or scaled in place for each of k names, a shared gradient would come out up to W^(k-1) times too large.
    params = parameters((3,), (3,), (3,))
    trainer = sgd_trainer(kind, comm, params, accum=accum)
    for _ in range(accum):
        shared = Tensor(np.full(3, 2.0 + comm.rank, np.float32))
        grads = GradStore()
        for p in params:
            grads.insert(p, shared)
        trainer.step(params, grads, 1.0, weight)
    for got in mean_gradients(params):
        np.testing.assert_allclose(got, 3.0, rtol=1e-6)
    assert len({p.data.ctypes.data for p in params}) == 3


@ALL_KINDS
@in_threads(3)
def test_defect_07_gradients_of_a_sum_share_no_memory(comm: ThreadCommunicator, kind):
    a, b = parameters((3,), (3,), dtype=np.float64)
    grads = (a + b).sum().backward()
    assert not np.shares_memory(grads[a].data, grads[b].data)
    trainer = make_trainer(kind, comm, clip=1e6)
    metrics = feed(trainer, minigrad.nn.Module(), (a + b).sum() * float(comm.rank + 1), 1.0, [a, b])
    assert metrics is not None and metrics.grad_norm == pytest.approx(math.sqrt(6 * 2.0**2), rel=1e-14)


@LINEAR
@pytest.mark.parametrize("accum", [1, 2])
def test_defect_08_transposed_gradients_are_taken_as_they_are_meant(kind, accum):
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((4, 3)).astype(np.float32) for _ in range(2)]

    def body(comm: ThreadCommunicator) -> None:
        params = parameters((3, 4), (5,))
        trainer = sgd_trainer(kind, comm, params, accum=accum)
        for _ in range(accum):
            grads = GradStore()
            view = Tensor(values[comm.rank]).T
            wide = Tensor(np.arange(10, dtype=np.float32))[::2]
            assert not view.data.flags.c_contiguous and not wide.data.flags.c_contiguous
            grads.insert(params[0], view)
            grads.insert(params[1], wide)
            trainer.step(params, grads, 1.0)
        got = mean_gradients(params)
        np.testing.assert_allclose(got[0], (values[0].T + values[1].T) / 2, rtol=1e-6)
        np.testing.assert_allclose(got[1], [0.0, 2.0, 4.0, 6.0, 8.0], rtol=1e-6)

    run_threads(2, body, timeout=30)


@in_threads(2)
def test_defect_08_transposed_gradients_enter_a_bucket_as_they_are_meant(comm: ThreadCommunicator):
    (p,) = parameters((3, 4))
    manager = GradientBucketManager([p], comm)
    values = np.arange(12, dtype=np.float32).reshape(4, 3) * (1 + comm.rank)
    manager.mark_grad_ready(p.id, Tensor(values).T)
    np.testing.assert_array_equal(manager.wait_and_unflatten()[p].data, np.arange(12).reshape(4, 3).T * 1.5)


@ALL_KINDS
def test_defect_09_a_bucket_with_an_unused_parameter_is_reduced_all_the_same(kind):
    def body(comm: ThreadCommunicator) -> list[bytes]:
        params = parameters((2,), (2,), (2,))
        trainer = make_trainer(kind, comm, bucket=10**6)
        for step in range(2):
            values = [1.0 + comm.rank, None, 5.0 if comm.rank == step else None]
            trainer.step(params, store(params, values), 1.0)
            trainer.assert_replicas_identical(params)
        assert [trainer.optimizer.state[p.id].step for p in (params[0], params[2])] == [2, 2]
        assert params[1].id not in trainer.optimizer.state
        m = trainer.optimizer.state[params[0].id].arrays["exp_avg"]
        np.testing.assert_allclose(m, 2.0 * (1 - 0.9**2), rtol=1e-5)
        return [p.data.tobytes() for p in params]

    results = run_threads(3, body, timeout=30)
    assert results == [results[0]] * 3


@ALL_KINDS
@in_threads(2)
def test_defect_09_errors_of_a_hook_are_raised(comm: ThreadCommunicator, kind):
    broken = [True]

    def hook(communicator: Communicator, bucket: Tensor) -> Work:
        if broken[0] and bucket.numel() == 3:
            raise ArithmeticError("the hook's own")
        return all_reduce_hook(communicator, bucket)

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
def test_defect_10_ranks_without_gradients_neither_hang_nor_miss_a_step(kind, who):
    def body(comm: ThreadCommunicator) -> bytes:
        params = parameters((2,), (3,))
        trainer = make_trainer(kind, comm)
        for step in range(1, 4):
            values = [2.0, None] if who == f"rank {comm.rank}" else [None, None]
            metrics = trainer.step(params, store(params, values), 1.0)
            assert metrics is not None and metrics.step == step
            assert trainer.optimizer.timestep == trainer.global_step == step
        assert (params[0].id in trainer.optimizer.state) == (who != "nobody")
        return params[0].data.tobytes()

    results = run_threads(2, body, timeout=30)
    assert results[0] == results[1]


@ALL_KINDS
def test_defect_11_the_loss_is_that_of_all_ranks_and_schedules_are_taken(kind):
    def body(comm: ThreadCommunicator) -> tuple[float, float]:
        params = parameters((2,))
        trainer = make_trainer(kind, comm, accum=2).with_lr_schedule(Constant(0.125))
        trainer.step(params, store(params, [1.0]), 1.0 + comm.rank, 1.0)
        metrics = trainer.step(params, store(params, [1.0]), 10.0 * (1 + comm.rank), 3.0)
        assert metrics is not None
        return metrics.loss, metrics.lr

    want = (1.0 + 2.0 + 3.0 + 3 * (10.0 + 20.0 + 30.0)) / 12
    assert run_threads(3, body, timeout=30) == [(pytest.approx(want, rel=1e-15), 0.125)] * 3


@ALL_KINDS
def test_defect_12_all_ranks_clip_by_the_same_bits_and_a_nan_norm_makes_no_step(kind):
    # Sizes so unlike that the order of adding decides the last bits, and another order of the dictionary on each rank.
    def body(comm: ThreadCommunicator) -> Any:
        params = parameters(*[(3,)] * 12)
        trainer = make_trainer(kind, comm, clip=0.01)
        norms = []
        for step in range(4):
            rng = np.random.default_rng([comm.rank, step])
            values = [rng.standard_normal() * 10.0 ** (i % 5 - 2) for i in range(12)]
            metrics = trainer.step(params, store(params, values, [int(i) for i in rng.permutation(12)]), 1.0)
            assert metrics is not None
            norms.append(metrics.grad_norm)
            trainer.assert_replicas_identical(params)
        before = [p.data.tobytes() for p in params]
        with pytest.raises(NonFiniteGradientError):
            trainer.step(params, store(params, [1.0, math.nan if comm.rank == 2 else 1.0] + [1.0] * 10), 1.0)
        assert [p.data.tobytes() for p in params] == before and trainer.optimizer.timestep == 4
        return norms, before

    results = run_threads(4, body, timeout=30)
    assert all(result == results[0] for result in results)


@ALL_KINDS
@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16], ids=str)
@in_threads(2)
def test_defect_13_norms_of_every_dtype_are_numbers(comm: ThreadCommunicator, kind, dtype):
    params = parameters((1,), (1,), dtype=dtype)
    trainer = make_trainer(kind, comm, clip=1.0)
    metrics = trainer.step(params, store(params, [3.0, 4.0]), 1.0)
    assert metrics is not None and metrics.grad_norm == pytest.approx(5.0, rel=1e-12)
    moments = [float(trainer.optimizer.state[p.id].arrays["exp_avg"][0]) for p in params]
    np.testing.assert_allclose(moments, [0.1 * 0.6, 0.1 * 0.8], rtol=2.0**-6 if dtype.itemsize == 2 else 1e-6)


@ALL_KINDS
@in_threads(2)
def test_defect_14_nothing_is_kept_lost_or_half_counted(comm: ThreadCommunicator, kind):
    params = parameters((2,), (3,))
    trainer = make_trainer(kind, comm, accum=3)
    window = trainer._step.accumulator

    def counted() -> Any:
        sums = [total.tolist() for total in window._sums.values()]
        return window.current_step, window.weight, window._loss_sum, sums

    for _ in range(2):  # as the first micro-batch of a window, and as its second
        before = counted()
        wrong = store(params, [1.0, 1.0])
        wrong.insert(params[1], Tensor(np.ones(4, np.float32)))
        with pytest.raises(ValueError, match="has shape"):
            trainer.step(params, wrong, 100.0)
        assert counted() == before
        if not window.current_step:
            trainer.step(params, store(params, [1.0, 1.0]), 1.0)
    metrics = trainer.flush(params)  # a window that the data did not fill
    assert metrics is not None and (metrics.step, metrics.loss) == (1, 1.0)
    assert (window.current_step, window._sums) == (0, {})
    # The gradients that arrived are held once, in the flat buffers.
    manager = trainer._step.reducer.manager
    assert manager is not None
    assert sum(flat.data.nbytes for flat in manager.flat_buffers()) == sum(p.data.nbytes for p in params)
    assert all(bucket.work is None for bucket in manager._buckets)
    for _ in range(3):  # nor is anything of it in the next window
        metrics = trainer.step(params, store(params, [1.0, None]), 3.0)
    assert metrics is not None and (metrics.step, metrics.loss) == (2, 3.0)
    assert [trainer.optimizer.state[p.id].step for p in params] == [2, 1]


@ALL_KINDS
@in_threads(2)
def test_defect_15_deep_graphs_need_no_recursion(comm: ThreadCommunicator, kind):
    (p,) = parameters((2,))
    x = p + float(comm.rank)
    for _ in range(5000):
        x = x + 1.0
    metrics = feed(make_trainer(kind, comm, clip=1e6), minigrad.nn.Module(), x.sum(), 1.0, [p])
    assert metrics is not None and metrics.grad_norm == pytest.approx(math.sqrt(2.0), rel=1e-12)
