"""DdpBuilder: averages as written down by hand, resumed runs, batches made ahead, lost replicas, what a handle says."""

import logging
import threading
import time
import traceback
from collections import Counter

import numpy as np
import pytest
from refusals import raises

import minigrad
from minigrad import Tensor, data, distributed, nn, optim, serialization
from minigrad.distributed import ApplyPolicy, record_scalar
from minigrad.distributed.comm.threads.faults import Fault, FaultPlan
from minigrad.distributed.comm.threads.thread import ThreadCommunicator
from minigrad.distributed.mirrors.flodl import policies, replica_group, replica_threads, workload
from minigrad.distributed.mirrors.flodl.builder import DdpBuilder
from minigrad.distributed.mirrors.flodl.coordinator import CadencePlan, Coordinator
from minigrad.distributed.mirrors.flodl.policies import AverageBackend, AveragingPolicy
from minigrad.distributed.mirrors.flodl.replica_group import average, weighted_mean
from minigrad.distributed.mirrors.flodl.replica_threads import DdpHandle, Replica, ReplicaFailedError
from minigrad.distributed.mirrors.flodl.timeline import EventKind, Timeline
from minigrad.distributed.mirrors.flodl.trained_state import TrainedState
from minigrad.distributed.mirrors.flodl.trainer import Trainer
from minigrad.distributed.train.config import TrainingConfig
from minigrad.distributed.train.simple_trainer import SimpleTrainer
from minigrad.nn import functional as F

SYNC, CADENCE, ASYNC = AveragingPolicy.SYNC, AveragingPolicy.CADENCE, AveragingPolicy.ASYNC
COMMUNICATOR, CPU = AverageBackend.COMMUNICATOR, AverageBackend.CPU
N, BATCH = 50, 4

rng = np.random.default_rng(0)
X = rng.standard_normal((N, 5))
Y = np.tanh(X @ rng.standard_normal((5, 2)))


class Net(nn.Module):
    """Two layers with a running mean of the inputs, which evaluation subtracts; the bias is frozen."""

    def __init__(self, seed: int = 0, dtype=np.float64) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.w = nn.Parameter(Tensor(rng.standard_normal((5, 6)).astype(dtype)))
        self.v = nn.Parameter(Tensor(rng.standard_normal((6, 2)).astype(dtype)))
        self.bias = nn.Parameter(Tensor(np.array([0.1, 0.7], dtype)), requires_grad=False)
        self.register_buffer("mean", minigrad.zeros(5, dtype=dtype))
        self.register_buffer("seen", minigrad.zeros((), dtype=np.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.data[...] = 0.9 * self.mean.data + 0.1 * x.data.mean(0)
            self.seen.data[...] += 1
        return (x @ self.w).tanh() @ self.v + self.bias


def loss_of(model, batch) -> Tensor:
    x, y = batch
    return ((model(x) - y) ** 2).mean()


def trained(model: nn.Module):
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def adamw(params) -> optim.AdamW:
    return optim.AdamW(params, lr=0.02, weight_decay=0.1)


def sgd(params) -> optim.SGD:
    return optim.SGD(params, lr=0.05)


def builder(**options) -> DdpBuilder:
    parts = {"model_factory": Net, "optim_factory": adamw, "train_fn": loss_of, "dataset": (X, Y), "batch_size": BATCH}
    sizes = {"num_epochs": 2, "replicas": 2, "lr_scale_ratio": 0.0, "batch_timeout": 20.0}
    return DdpBuilder(**{**parts, **sizes, **options})


def epoch_batches(epoch: int, seed: int = 42) -> list[np.ndarray]:
    sampler = data.EpochSampler(N, BATCH, seed, drop_last=True)
    sampler.epoch = epoch
    return list(sampler)


def tensors(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: t.data for name, t in [*model.named_parameters(), *model.named_buffers()]}


def plain(batches: list[np.ndarray], optimizer) -> dict[str, np.ndarray]:
    """What one model is after a step with each of these rows."""
    model = Net()
    trainer = SimpleTrainer(TrainingConfig(max_grad_norm=None), optimizer(trained(model)))
    for rows in batches:
        loss = loss_of(model, (Tensor(X[rows]), Tensor(Y[rows])))
        trainer.step(list(model.named_parameters()), loss.backward(), loss.item())
    return tensors(model)


def by_hand(world: int, optimizer, epochs: int, clip: float | None = None) -> dict[str, np.ndarray]:
    """Per-batch averaging written down: each replica steps on its batch, then all are set to their mean."""
    models = [Net() for _ in range(world)]
    trainers = [SimpleTrainer(TrainingConfig(max_grad_norm=clip), optimizer(trained(m))) for m in models]
    for epoch in range(epochs):
        batches = epoch_batches(epoch)
        for step in range(len(batches) // world):
            for rank, (model, trainer) in enumerate(zip(models, trainers)):
                rows = batches[step * world + rank]
                loss = loss_of(model, (Tensor(X[rows]), Tensor(Y[rows])))
                trainer.step(list(model.named_parameters()), loss.backward(), loss.item())
            states = [tensors(model) for model in models]
            for name in ("w", "v", "mean"):
                mean = sum(state[name] for state in states) / world
                for state in states:
                    state[name][...] = mean
    return tensors(models[0])


def arrays(state: TrainedState) -> dict[str, np.ndarray]:
    return {**state.params, **state.buffers}


def assert_same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes(), name


def is_replica(rank: int) -> bool:
    return threading.current_thread().name == f"replica-{rank}"


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

    state = builder(policy=SYNC, optim_factory=sgd, train_fn=unequal, max_grad_norm=0.25).run().join()
    assert norms[1] == pytest.approx([0.25] * 12, rel=1e-4)
    assert all(norm < 0.25 for norm in norms[0])  # not clipped by the other's norm
    assert np.isfinite(state.params["w"]).all()


@pytest.mark.parametrize(("world", "ratio", "scale"), [(1, 1.0, 1.0), (2, 1.0, 2.0), (3, 0.5, 2.0), (2, 0.0, 1.0)])
def test_lr_sequence_of_the_schedule(world, ratio, scale):
    seen: dict[int, list[float]] = {rank: [] for rank in range(world)}
    asked = []

    def schedule(n: int) -> optim.CosineAnnealing:
        asked.append(n)
        return optim.CosineAnnealing(0.1, 0.0, 3, 30)

    def epoch_fn(epoch: int, replica: Replica) -> None:
        step = replica.trainer.optimizer.step

        def watched(grads) -> None:
            seen[replica.rank].append(replica.trainer.optimizer.lr)
            step(grads)

        if epoch == 0:
            replica.trainer.optimizer.step = watched  # type: ignore[method-assign]

    builder(policy=SYNC, replicas=world, scheduler=schedule, lr_scale_ratio=ratio, epoch_fn=epoch_fn).run().join()
    want = [scale * optim.CosineAnnealing(0.1, 0.0, 3, 30).get_lr(step) for step in range(2 * (12 // world))]
    assert asked == [world]
    for rank in range(world):
        assert seen[rank] == want


def test_lr_without_a_schedule_is_scaled_once():
    rates = []
    fn = lambda epoch, replica: rates.append(replica.trainer.optimizer.lr)  # noqa: E731
    builder(policy=SYNC, epoch_fn=fn, lr_scale_ratio=0.5, replicas=3).run().join()
    assert rates == [0.02 * 2] * 6


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


@pytest.mark.parametrize("policy", [CADENCE, ASYNC])
@pytest.mark.parametrize("backend", policies.AverageBackend)
def test_backends_learn_with_every_policy(policy, backend):
    handle = builder(policy=policy, backend=backend, num_epochs=25, anchor=2, max_anchor=4).run()
    losses = []
    while (metrics := handle.next_metrics()) is not None:
        losses.append(metrics.avg_loss)
    state = handle.join()
    assert len(losses) == 25 and losses[-1] < 0.3 * losses[0]
    assert sum(state.report.batches) == 25 * 12 and state.report.averages > 1


@pytest.mark.parametrize("backend", policies.AverageBackend)
def test_backends_weight_with_the_batches_done(backend):
    """With so large an anchor there is one average, at the end: of 9 batches and of 3."""
    options = {"policy": CADENCE, "anchor": 200, "partition_ratios": [3, 1], "num_epochs": 1}
    state = builder(**options, backend=backend).run().join()
    alone = [plain(part, adamw) for part in (epoch_batches(0)[:9], epoch_batches(0)[9:])]
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
    report = builder(train_fn=train, policy=ASYNC, backend=policies.AverageBackend.CPU, **options).run().join().report
    assert sum(overlapping) >= 3  # some find it at its limit of overshoot, or at the end of the run
    assert sum(report.batches) == 8 * 12 and report.averages > len(overlapping)


def test_builder_defaults_are_those_of_flodl():
    b = DdpBuilder(Net, adamw, loss_of, X, BATCH, 1)
    assert (b.policy, b.backend) == (CADENCE, COMMUNICATOR)
    assert (b.anchor, b.max_anchor, b.overhead_target) == (10, 200, 0.1)
    assert b.divergence_threshold == 0.05
    assert b.max_batch_diff is None and b.max_overshoot is None and b.progressive_dispatch is None
    assert (b.max_grad_norm, b.lr_scale_ratio, b.seed, b.snapshot_timeout, b.timeline) == (None, 1.0, 42, 5.0, None)


def test_builder_refuses_what_does_not_fit_before_it_starts():
    for error, message, options in [
        (TypeError, r"scheduler\(2\) returned 0.1, expected an LrS", {"scheduler": lambda world: 0.1}),
        (TypeError, r"scheduler\(2\) returned None, expected an LrS", {"scheduler": lambda world: None}),
        (TypeError, r"optim_factory\(params\) returned NoneType, exp", {"optim_factory": lambda params: None}),
    ]:
        raises(error, message, lambda options=options: builder(**options).run())


def test_builder_takes_flodls_names():
    assert ApplyPolicy is AveragingPolicy and AverageBackend.NCCL is COMMUNICATOR
    want = arrays(builder(policy=SYNC, backend=CPU).run().join())
    assert_same_bits(arrays(builder(policy="sync", backend="cpu").run().join()), want)
    assert builder(backend="nccl").backend is COMMUNICATOR


def test_builder_factories_get_the_device_if_they_want_it():
    devices = []

    def build(device):
        devices.append(device)
        return Net()

    got = arrays(builder(model_factory=build, policy=SYNC).run().join())
    assert devices == [minigrad.device.CPU] * 2
    assert_same_bits(got, arrays(builder(policy=SYNC).run().join()))


def test_builder_max_batch_diff_0_is_lockstep():
    handle = builder(policy=CADENCE, max_batch_diff=0, num_epochs=3).run()
    while (metrics := handle.next_metrics()) is not None:
        counts = [replica.batches for replica in metrics.per_rank]
        assert max(counts) - min(counts) <= 1
    handle.join()


def test_builder_workers_set_their_learning_rate_and_record_scalars():
    rates = []

    def each_epoch(epoch, worker):
        assert worker.local_step == worker.trainer.global_step
        if epoch == 0:
            worker.set_lr(0.5)
            worker.scale_lr(0.5)
        else:
            worker.set_scheduler(optim.Constant(0.125))
            worker.scale_lr(2.0)
        rates.append(worker.current_lr)

    def train(model, batch):
        record_scalar("rows", len(batch[0]))
        return loss_of(model, batch)

    handle = builder(policy=SYNC, replicas=1, epoch_fn=each_epoch, train_fn=train).run()
    metrics = handle.next_metrics()
    state = handle.join()
    assert metrics is not None and metrics.scalars["rows"] == BATCH
    assert rates[0] == 0.25 and state.replicas[0][1]["optimizer"]["param_groups"][0]["lr"] == 0.25
    raises(RuntimeError, r"record_scalar\('rows'\) is for the train_fn of a DdpBuilder", record_scalar, "rows", 1)


def test_builder_replicas_must_be_alike():
    made = iter([Net(), nn.Linear(5, 2)])
    raises(ValueError, "^Ddp: replica 1 has 2 parameters, expected 3", builder(model_factory=lambda: next(made)).run)


def test_builder_replicas_begin_with_the_first_ones_values():
    seeds, first = iter(range(3)), []
    builder(
        model_factory=lambda: Net(seed=next(seeds)),
        replicas=3,
        epoch_fn=lambda epoch, replica: first.append(replica.model.w.data.copy()) if epoch == 0 else None,
        policy=SYNC,
    ).run().join()
    assert len(first) == 3 and all(np.array_equal(w, Net(seed=0).w.data) for w in first)


def test_builder_from_trainer():
    got = Trainer.builder(Net, adamw, loss_of, dataset=(X, Y), batch_size=BATCH, num_epochs=2, policy=SYNC)
    assert_same_bits(arrays(got.run().join()), arrays(builder(replicas=1).run().join()))


def test_handle_metrics_come_in_order_and_end_with_none():
    released = threading.Event()

    def train_fn(model, batch):
        assert released.wait(10)
        return loss_of(model, batch), {"rank": float(is_replica(1))}

    handle = builder(num_epochs=3, train_fn=train_fn).run()
    assert handle.world_size == 2
    assert handle.poll_metrics() == []  # run() has not waited for anything
    released.set()
    got = [handle.next_metrics() for _ in range(3)]
    assert [m.epoch for m in got if m is not None] == [0, 1, 2]
    assert handle.next_metrics() is None and handle.next_metrics() is None and handle.poll_metrics() == []
    for metrics in got:
        assert metrics is not None
        assert sum(r.batches for r in metrics.per_rank) == 12
        assert metrics.scalars["rank"] == pytest.approx(metrics.batch_share[1])
        assert sum(metrics.batch_share) == pytest.approx(1)
    state = handle.join()
    assert handle.join() is state and state.epoch == 3 and state.failures == {}


def test_handle_stop_gives_what_has_been_trained():
    began = threading.Event()

    def train_fn(model, batch) -> Tensor:
        began.set()
        return loss_of(model, batch)

    with builder(num_epochs=10**9, train_fn=train_fn).run() as handle:
        assert began.wait(10)
        handle.stop()
        state = handle.join()
    assert state.failures == {} and state.replicas == [] and np.isfinite(state.params["w"]).all()
    raises(ValueError, "the state has optimizers of 0 replicas, for 2", lambda: builder(resume=state).run())


def test_metrics_fn_and_epoch_fn(caplog):
    seen, epochs = [], []

    def metrics_fn(metrics) -> None:
        seen.append(metrics.epoch)
        if metrics.epoch == 1:
            raise RuntimeError("the disk of the metrics is full")

    with caplog.at_level(logging.ERROR, "minigrad.distributed"):
        builder(num_epochs=4, metrics_fn=metrics_fn, epoch_fn=lambda e, r: epochs.append((r.rank, e))).run().join()
    assert seen == [0, 1, 2, 3]
    assert "metrics_fn failed for epoch 1" in caplog.text and "the disk of the metrics is full" in caplog.text
    for rank in (0, 1):
        mine = [e for r, e in epochs if r == rank]
        assert mine == sorted(set(mine))


def test_datasets_of_other_kinds():
    class Rows:
        def __len__(self) -> int:
            return N

        def __getitem__(self, indices: np.ndarray):
            return Tensor(X[indices]), Tensor(Y[indices])

    want = arrays(builder(policy=SYNC).run().join())
    assert_same_bits(arrays(builder(policy=SYNC, dataset=Rows()).run().join()), want)
    only_x = builder(policy=SYNC, dataset=X, train_fn=lambda m, x: (m(x) ** 2).mean()).run().join()
    assert only_x.batches == 24


def test_data_partition_static_ratios_are_kept():
    handle = builder(partition_ratios=[3, 1]).run()
    handle.join()
    assert [m.batch_share for m in handle.poll_metrics()] == [[0.75, 0.25]] * 2


@pytest.mark.parametrize(("backend", "kind"), [(CPU, "AVERAGE"), (COMMUNICATOR, "SYNC")])
def test_timeline_of_a_run(backend, kind):
    timeline = Timeline()
    state = builder(policy=SYNC, backend=backend, timeline=timeline).run().join()
    summary = timeline.summary()
    assert summary.batches == state.report.batches == [12, 12]
    assert summary.averages == state.report.averages == 12 and summary.epochs == 2
    kinds = [event.kind.name for event in timeline.events]
    assert kinds.count(f"{kind}_START") == kinds.count(f"{kind}_END") == 12
    assert kinds.count("EPOCH_START") == 2
    assert [event.detail["epoch"] for event in timeline.events if event.kind is EventKind.EPOCH_END] == [0, 1]
    assert "replica 1" in timeline.draw()


def test_builder_devices_say_how_many_replicas_there_are():
    got = builder(policy=SYNC, replicas=1, devices=["cpu", "cpu"]).run()
    metrics = got.next_metrics()
    assert metrics is not None and metrics.device_indices == [0, 0]
    assert (got.world_size, got.devices) == (2, [minigrad.device.CPU] * 2)
    assert_same_bits(arrays(got.join()), arrays(builder(policy=SYNC).run().join()))


class Noted:
    """Rows of which it is noted which thread asked, and for what."""

    def __init__(self, fails_at: int | None = None, noise: bool = False) -> None:
        self.threads: list[str] = []
        self.fails_at, self.noise = fails_at, noise

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, indices: np.ndarray):
        self.threads.append(threading.current_thread().name)
        if len(self.threads) == self.fails_at:
            raise OSError("the disk is gone")
        x = X[indices]
        if self.noise:
            x = x + minigrad.rand(*x.shape).numpy()
        return minigrad.tensor(x), minigrad.tensor(Y[indices])


def assert_no_loader_is_left() -> None:
    for thread in [thread for thread in threading.enumerate() if thread.name == "replica-loader"]:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_prefetch_gives_the_bits_of_no_prefetch(replicas, prefetch):
    plain, ahead = Noted(), Noted()
    want = builder(policy=SYNC, replicas=replicas, dataset=plain, prefetch=0).run().join()
    got = builder(policy=SYNC, replicas=replicas, dataset=ahead, prefetch=prefetch).run().join()
    assert_same_bits(arrays(got), arrays(want))
    assert "replica-loader" not in plain.threads and set(ahead.threads) == {"replica-loader"}
    assert len(ahead.threads) == len(plain.threads), "no batch was made in vain"
    assert_no_loader_is_left()


def test_prefetch_makes_batches_while_the_replica_computes():
    both = threading.Barrier(2)  # the loader makes the second batch while the first one trains

    class Meeting(Noted):
        def __getitem__(self, indices: np.ndarray):
            if len(self.threads) == 1:
                both.wait(10)
            return super().__getitem__(indices)

    calls = []

    def train_fn(model, batch):
        calls.append(1)
        if len(calls) == 1:
            both.wait(10)
        return loss_of(model, batch)

    builder(dataset=Meeting(), replicas=1, num_epochs=1, train_fn=train_fn).run().join()


def test_prefetch_draws_the_same_random_numbers_in_every_run():
    runs = [builder(policy=SYNC, dataset=Noted(noise=True), prefetch=depth).run().join() for depth in (1, 3)]
    assert_same_bits(*map(arrays, runs))


def test_prefetch_forwards_the_datasets_error_with_its_traceback():
    with pytest.raises(ReplicaFailedError, match="OSError: the disk is gone") as caught:
        builder(dataset=Noted(fails_at=1), replicas=1).run().join()
    cause = caught.value.__cause__
    assert cause is not None and "__getitem__" in "".join(traceback.format_exception(cause))
    assert_no_loader_is_left()


def test_prefetch_ends_with_a_run_that_is_stopped():
    with builder(dataset=Noted(), replicas=2, num_epochs=10_000).run():
        pass
    assert_no_loader_is_left()


@pytest.mark.parametrize("backend", AverageBackend)
def test_resume_is_the_uninterrupted_run_to_the_bit(backend, tmp_path):
    options = {"policy": SYNC, "backend": backend, "num_epochs": 4, "max_grad_norm": 0.5}
    options["scheduler"] = lambda world: optim.CosineAnnealing(0.05, 0.0, 3, 25)

    def checkpoint_fn(epoch: int, state: TrainedState) -> None:
        assert epoch == state.epoch
        state.save(tmp_path / "run", keep=None)

    whole = builder(**options, checkpoint_every=1, checkpoint_fn=checkpoint_fn).run().join()
    plain = builder(**options).run().join()  # checkpoints change nothing
    assert_same_bits(arrays(whole), arrays(plain))
    for epochs in (1, 3):
        saved = TrainedState.load(tmp_path / "run", step=12 * epochs)
        assert saved.epoch == epochs
        resumed = builder(**options, resume=saved, model_factory=lambda: Net(seed=9)).run().join()
        assert_same_bits(arrays(resumed), arrays(whole))
        for (a, meta), (b, want) in zip(resumed.replicas, whole.replicas):
            assert_same_bits(a, b)
            assert meta["optimizer"] == want["optimizer"]
    half = builder(**{**options, "num_epochs": 2}).run().join()  # what join gives is a checkpoint as well
    assert_same_bits(arrays(builder(**options, resume=half).run().join()), arrays(whole))


@pytest.mark.parametrize("replicas", [1, 3])
def test_resume_continues_the_random_numbers(replicas, tmp_path):
    """Dropout's masks are each replica's own, the same in every run, and go on where they were."""
    masks: dict[int, list[bytes]] = {}

    def train_fn(model, batch) -> Tensor:
        kept = F.dropout(Tensor(np.ones(64, np.float32)), 0.5)
        rank = 0 if replicas == 1 else next(rank for rank in range(replicas) if is_replica(rank))
        masks.setdefault(rank, []).append(kept.data.tobytes())
        return loss_of(model, batch) * (1 + kept.mean())

    def run(epochs: int, **options) -> TrainedState:
        minigrad.manual_seed(3)
        masks.clear()
        return builder(policy=SYNC, replicas=replicas, num_epochs=epochs, train_fn=train_fn, **options).run().join()

    whole = run(4)
    steps = len(masks[0])
    drawn = [mask for own in masks.values() for mask in own]
    assert sorted(masks) == list(range(replicas)) and len(set(drawn)) == len(drawn) == replicas * steps
    assert_same_bits(arrays(run(4)), arrays(whole))
    run(2).save(tmp_path)
    assert_same_bits(arrays(run(4, resume=TrainedState.load(tmp_path))), arrays(whole))


def test_resume_checks_what_it_is_given(tmp_path):
    state = builder(policy=SYNC).run().join()
    words = "the state has optimizers of 2 replicas, for 3: the numbers must be equal"
    raises(ValueError, words, lambda: builder(replicas=3, resume=state).run())
    raises(data.DataError, "the state is of seed 42, here it is 7", lambda: builder(seed=7, resume=state).run())
    other = builder(model_factory=lambda: nn.Linear(5, 2), resume=state)
    raises(ValueError, r"does not fit the module:\n  missing: weight\n(.*\n)*  unexpected: mean", other.run)
    serialization.save_checkpoint(tmp_path, {"params": state.params}, {"step": 3})
    raises(serialization.CheckpointError, "is no checkpoint of replicas", lambda: TrainedState.load(tmp_path))
    state.save(tmp_path / "whole")
    files, meta, *_ = serialization.load_checkpoint(tmp_path / "whole")
    del files["replica-1"]
    serialization.save_checkpoint(tmp_path / "part", files, meta)
    raises(serialization.CheckpointError, "is no checkpoint of replicas", lambda: TrainedState.load(tmp_path / "part"))


@pytest.mark.parametrize("policy", [CADENCE, ASYNC])
def test_checkpoint_between_epochs_has_exactly_these_epochs(policy):
    saved = []

    def note(epoch: int, state: TrainedState) -> None:
        saved.append((epoch, state.epoch, state.batches, len(state.replicas)))

    builder(policy=policy, num_epochs=5, checkpoint_every=2, checkpoint_fn=note).run().join()
    assert saved == [(2, 2, 24, 2), (4, 4, 48, 2)]


def test_checkpoint_fn_that_raises_is_logged(caplog):
    def checkpoint_fn(epoch: int, state: TrainedState) -> None:
        raise OSError("no space left")

    with caplog.at_level(logging.ERROR, "minigrad.distributed"):
        state = builder(checkpoint_every=1, checkpoint_fn=checkpoint_fn).run().join()
    assert state.epoch == 2
    assert caplog.text.count("checkpoint_fn failed after epoch") == 2 and "no space left" in caplog.text


def failing(rank: int, at: int, how):
    done = [0]

    def train_fn(model, batch) -> Tensor:
        if is_replica(rank):
            done[0] += 1
            if done[0] == at:
                how()
        return loss_of(model, batch)

    return train_fn


def raising(error: BaseException):
    def how() -> None:
        raise error

    return how


@pytest.mark.parametrize("policy", policies.AveragingPolicy)
@pytest.mark.parametrize("backend", policies.AverageBackend)
@pytest.mark.parametrize("error", [ValueError("bad row"), SystemExit("killed")])
def test_death_a_replica_that_raises_leaves_the_survivors_state(policy, backend, error):
    handle = builder(
        policy=policy, backend=backend, replicas=3, num_epochs=1000, train_fn=failing(1, 5, raising(error))
    ).run()
    with pytest.warns(RuntimeWarning, match=f"replica 1: {type(error).__name__}: .*average of replica 0, 2"):
        state = handle.join()
    assert state.failures == {1: error}
    handle.poll_metrics()
    assert handle.next_metrics() is None
    assert all(np.isfinite(array).all() for array in state.params.values())
    assert not np.array_equal(state.params["w"], Net().w.data)


def test_death_the_survivors_average_is_weighted_and_without_the_lost_one():
    """The lost replica has ruined its weights before: nothing of that may be left."""

    def ruin(model, batch) -> Tensor:
        if is_replica(2) and int(model.seen.item()) > 0:
            model.w.data[...] = 1e30
            raise RuntimeError("ruined")
        return loss_of(model, batch)

    handle = builder(policy=SYNC, replicas=3, train_fn=ruin).run()
    with pytest.warns(RuntimeWarning, match="replica 2: RuntimeError: ruined"):
        state = handle.join()
    assert np.abs(state.params["w"]).max() < 100


FAULTS = [
    (Fault("kill", rank=1, call=2), 5.0, "RankKilledError"),
    (Fault("kill", rank=1, call=4), 5.0, "RankKilledError"),
    (Fault("drop", rank=1, call=2), 0.5, r"CommTimeoutError: .*average of replica 0, 2$"),
]


@pytest.mark.parametrize("policy", [SYNC, CADENCE])
@pytest.mark.parametrize(("fault", "timeout", "words"), FAULTS)
def test_death_in_the_midst_of_an_average(policy, fault, timeout, words):
    """One whose words never arrive does not know that it is lost: the others find out by the deadline, and name it."""
    comms = ThreadCommunicator.group(3, timeout=timeout, fault=FaultPlan([fault]))
    handle = builder(policy=policy, replicas=3, num_epochs=1000, communicators=comms, anchor=1).run()
    with pytest.warns(RuntimeWarning, match=f"replica 1: {words}"):
        state = handle.join()
    assert list(state.failures) == [1]
    assert all(np.isfinite(array).all() for array in state.params.values())


@pytest.mark.parametrize("policy", policies.AveragingPolicy)
def test_death_in_the_midst_of_an_average_in_host_memory(policy, monkeypatch):
    def pack(tensors, share: float):
        if is_replica(1):
            raise MemoryError("no room for the sum")
        return original(tensors, share)

    original = replica_group.pack
    monkeypatch.setattr(replica_group, "pack", pack)
    handle = builder(policy=policy, backend=policies.AverageBackend.CPU, replicas=3, num_epochs=1000, anchor=1).run()
    with handle.changed:
        handle.wait(lambda: False)
    monkeypatch.undo()
    with pytest.warns(RuntimeWarning, match=r"\(replica 1: MemoryError: .*average of replica 0, 2$"):
        state = handle.join()
    assert list(state.failures) == [1]


@pytest.mark.parametrize("policy", policies.AveragingPolicy)
def test_death_a_stuck_replica_is_left_behind_at_its_deadline(policy):
    release = threading.Event()
    handle = builder(policy=policy, batch_timeout=1.0, train_fn=failing(0, 3, release.wait), num_epochs=1000).run()
    try:
        with pytest.warns(RuntimeWarning, match=r"replica 0: ReplicaStuckError: replica 0 has not ended .* within 1 s"):
            state = handle.join()
        assert list(state.failures) == [0]
    finally:
        release.set()


def test_death_is_watched_by_those_who_began_to_wait_before_the_replica_was_busy():
    """All wait, with nothing to watch; one is woken alone, gets a batch, and never comes back."""
    coordinator = Coordinator(CadencePlan(2, 8, 1, SYNC, batch_timeout=0.3), time.perf_counter)
    threads = DdpHandle(coordinator, [], None, [], None)  # type: ignore[arg-type]
    for rank in (0, 1):
        assert isinstance(coordinator.next(rank), workload.Batch)
    coordinator.batch_done(0, 4, 0.0, 1.0)
    woken = threading.Thread(target=threads._next, args=(0,), daemon=True)
    woken.start()
    watching = threading.Event()

    def watch() -> None:
        with threads.changed:
            watching.set()
            threads.wait(lambda: False)

    watcher = threading.Thread(target=watch, daemon=True)
    while not threads.changed._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)
    with threads.changed:
        coordinator.batch_done(1, 4, 0.0, 1.0)
        for rank in (0, 1):
            coordinator.next(rank)
        for rank in (0, 1):
            coordinator.average_done(rank, 0.0)
        coordinator.leave(1)
    watcher.start()
    assert watching.wait(5)
    with threads.changed:
        threads.changed.notify(1)  # the first that waits: the replica
    watcher.join(5)
    assert not watcher.is_alive() and list(coordinator.failures) == [0]


@pytest.mark.parametrize("replicas", [1, 2])
def test_death_of_all_is_a_clear_error(replicas):
    def train_fn(model, batch) -> Tensor:
        raise KeyError("column")

    handle = builder(train_fn=train_fn, replicas=replicas).run()
    assert handle.next_metrics() is None
    info = raises(ReplicaFailedError, "no trained replica is left: replica .: KeyError: 'column'", handle.join)
    assert isinstance(info.__cause__, KeyError) and info.failures


def test_death_by_numbers_that_are_not_finite_names_the_step():
    def train_fn(model, batch) -> Tensor:
        loss = loss_of(model, batch)
        return loss * float("nan") if is_replica(1) and int(model.seen.item()) > 2 else loss

    with pytest.warns(RuntimeWarning, match="replica 1: NonFiniteLossError: the loss of step 3 is nan"):
        state = builder(policy=SYNC, train_fn=train_fn).run().join()
    assert np.isfinite(state.params["w"]).all()


def test_death_of_the_only_one_by_the_keyboard_is_passed_on():
    with pytest.raises(KeyboardInterrupt):
        builder(replicas=1, train_fn=lambda m, b: raising(KeyboardInterrupt())()).run()
