"""DdpBuilder: averages and their weights as written down by hand, for every policy and backend."""

import threading
from collections import Counter

import numpy as np
import pytest
from builder_runs import BATCH, N, Net, X, Y, adamw, arrays, builder, is_replica, loss_of
from harness import assert_same_bits

from minigrad import Tensor, data, distributed, optim
from minigrad.distributed import AverageBackend, AveragingPolicy
from minigrad.distributed.mirrors.flodl import replica_threads
from minigrad.distributed.mirrors.flodl.replica_group import average, weighted_mean
from minigrad.distributed.train.config import TrainingConfig
from minigrad.distributed.train.simple_trainer import SimpleTrainer


def batches_of(epochs: int) -> list[np.ndarray]:
    """The rows of each batch of the first epochs."""
    sampler, found = data.EpochSampler(N, BATCH, 42, drop_last=True), []
    for sampler.epoch in range(epochs):
        found += list(sampler)
    return found


def by_hand(*shares: list[np.ndarray], clip: float | None = None) -> dict[str, np.ndarray]:
    """Per-batch averaging written down: each replica steps on the next batch of its share, then all get their mean."""
    models, states, trainers = [Net() for _ in shares], [], []
    for model in models:
        states.append({name: t.data for name, t in [*model.named_parameters(), *model.named_buffers()]})
        optimizer = adamw([(name, p) for name, p in model.named_parameters() if p.requires_grad])
        trainers.append(SimpleTrainer(TrainingConfig(max_grad_norm=clip), optimizer))
    for step in zip(*shares):
        for rows, model, trainer in zip(step, models, trainers):
            loss = loss_of(model, (Tensor(X[rows]), Tensor(Y[rows])))
            trainer.step(list(model.named_parameters()), loss.backward(), loss.item())
        for name in ("w", "v", "mean"):
            mean = sum(state[name] for state in states) / len(shares)
            for state in states:
                state[name][...] = mean
    return states[0]


@pytest.mark.parametrize("policy", AveragingPolicy)
def test_one_call_setup_one_replica_is_plain_training_to_the_bit(policy):
    state = builder(replicas=1, policy=policy, num_epochs=3, max_grad_norm=0.5, lr_scale_ratio=1.0).run().join()
    assert_same_bits(arrays(state), by_hand(batches_of(3), clip=0.5))
    assert state.epoch == 3 and state.batches == 36


@pytest.mark.parametrize("backend", AverageBackend)
@pytest.mark.parametrize("world", [2, 3])
def test_policies_sync_is_per_batch_averaging(world, backend):
    state = builder(replicas=world, policy="sync", backend=backend, max_grad_norm=0.5).run().join()
    want = by_hand(*(batches_of(2)[rank::world] for rank in range(world)), clip=0.5)
    for name in ("w", "v", "mean", "bias"):
        np.testing.assert_allclose(arrays(state)[name], want[name], rtol=0, atol=1e-12)
    assert arrays(state)["bias"].tobytes() == want["bias"].tobytes()  # frozen: not even rounded


def test_seed_decides_the_order():
    a, b, c = (arrays(builder(policy="sync", seed=seed).run().join()) for seed in (1, 1, 2))
    assert_same_bits(a, b)
    assert not np.array_equal(a["w"], c["w"])


def test_clipping_is_each_replicas_own_before_averaging(monkeypatch):
    norms: dict[int, list[float]] = {0: [], 1: []}
    original = optim.SGD.step

    def step(self: optim.SGD, grads) -> None:
        squares = sum(float((g.data.astype(np.float64) ** 2).sum()) for _, g in grads.items())
        norms[int(is_replica(1))].append(np.sqrt(squares))
        original(self, grads)

    monkeypatch.setattr(optim.SGD, "step", step)

    def unequal(model, batch) -> Tensor:
        return loss_of(model, batch) * (100.0 if is_replica(1) else 1e-3)

    state = (
        builder(
            policy="sync", optim_factory=lambda params: optim.SGD(params, lr=0.05), train_fn=unequal, max_grad_norm=0.25
        )
        .run()
        .join()
    )
    assert norms[1] == pytest.approx([0.25] * 12, rel=1e-4)
    assert all(norm < 0.25 for norm in norms[0])  # not clipped by the other's norm
    assert np.isfinite(state.params["w"]).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_average_is_weighted_and_the_same_on_all(dtype):
    world, weights = 3, [7, 3, 1]

    def replicas() -> list[list[Tensor]]:
        made = []
        for rank in range(world):
            model = Net(seed=rank, dtype=dtype)
            model.mean.data[...] = rank
            model.seen.data[...] = (5, 9, 2)[rank]
            made.append([*model.parameters(), *model.buffers()])
        return made

    want = [sum(w * r[i].data.astype(np.float64) for w, r in zip(weights, replicas())) / 11 for i in range(5)]
    mine = replicas()
    deltas = distributed.run_threads(world, lambda comm: average(comm, mine[comm.rank], weights), timeout=5)
    for tensors_of_rank in mine:
        assert [a.data.tobytes() for a in tensors_of_rank] == [a.data.tobytes() for a in mine[0]]
    host, tolerance = mine[0], 4 * float(np.finfo(dtype).eps)
    for i, a in enumerate(host):
        assert a.dtype == replicas()[0][i].dtype
        if i not in (2, 4):  # the frozen bias stays, a counter becomes the largest
            np.testing.assert_allclose(a.data.astype(np.float64), want[i], rtol=tolerance, atol=tolerance)
    assert host[4].item() == 9 and host[2].data.tobytes() == replicas()[0][2].data.tobytes()
    alone = weighted_mean(replicas(), weights)
    assert [a.data.tobytes() for a in alone] == [a.data.tobytes() for a in host]
    both = replicas()[1], host
    pre, post = (np.concatenate([r[i].data.astype(np.float64).ravel() for i in (0, 1, 3)]) for r in both)
    assert deltas[1] == pytest.approx(np.linalg.norm(pre - post) / np.linalg.norm(post), rel=10 * tolerance)


@pytest.mark.parametrize("policy", ["cadence", "async"])
@pytest.mark.parametrize("backend", AverageBackend)
def test_backends_learn_with_every_policy(policy, backend):
    handle = builder(policy=policy, backend=backend, num_epochs=25, anchor=2, max_anchor=4).run()
    losses = []
    while (metrics := handle.next_metrics()) is not None:
        losses.append(metrics.avg_loss)
    state = handle.join()
    assert len(losses) == 25 and losses[-1] < 0.3 * losses[0]
    assert sum(state.report.batches) == 25 * 12 and state.report.averages > 1


@pytest.mark.parametrize("backend", AverageBackend)
def test_backends_weight_with_the_batches_done(backend):
    """With so large an anchor there is one average, at the end: of 9 batches and of 3."""
    options = {"policy": "cadence", "anchor": 200, "partition_ratios": [3, 1], "num_epochs": 1}
    state = builder(**options, backend=backend).run().join()
    alone = [by_hand(batches_of(1)[:9]), by_hand(batches_of(1)[9:])]
    assert state.report.count_history == [[9, 3]]
    for name in ("w", "v", "mean"):
        want = (9 * alone[0][name] + 3 * alone[1][name]) / 12
        np.testing.assert_allclose(arrays(state)[name], want, rtol=0, atol=1e-14)
    assert arrays(state)["seen"] == 9


def test_backends_of_the_cpu_average_while_all_replicas_train(monkeypatch):
    """Each average waits for the other replica's next batch, which never comes if that stands still."""
    done, overlapping, changed = Counter(), [], threading.Condition()

    def train(model, batch):
        with changed:
            done[threading.current_thread().name] += 1
            changed.notify_all()
        return loss_of(model, batch)

    def slow_mean(parts, weights):
        with changed:
            before = done.copy()
            me = threading.current_thread().name
            overlapping.append(
                changed.wait_for(lambda: any(done[name] > before[name] for name in done if name != me), 1)
            )
        return weighted_mean(parts, weights)

    monkeypatch.setattr(replica_threads, "weighted_mean", slow_mean)
    options = {"anchor": 2, "max_anchor": 2, "num_epochs": 8}
    report = builder(train_fn=train, policy="async", backend="cpu", **options).run().join().report
    assert sum(overlapping) >= 3  # some find it at its limit of overshoot, or at the end of the run
    assert sum(report.batches) == 8 * 12 and report.averages > len(overlapping)


def test_builder_max_batch_diff_0_is_lockstep():
    handle = builder(policy="cadence", max_batch_diff=0, num_epochs=3).run()
    while (metrics := handle.next_metrics()) is not None:
        counts = [replica.batches for replica in metrics.per_rank]
        assert max(counts) - min(counts) <= 1
    handle.join()


def test_data_partition_static_ratios_are_kept():
    handle = builder(partition_ratios=[3, 1]).run()
    handle.join()
    assert [m.batch_share for m in handle.poll_metrics()] == [[0.75, 0.25]] * 2
