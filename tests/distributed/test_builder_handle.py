"""DdpBuilder and DdpHandle: settings and what is refused, metrics, stop, callbacks, datasets, timeline, devices."""

import logging
import threading

import numpy as np
import pytest
import replica_builder as rb
from refusals import raises

import minigrad
from minigrad import Tensor, nn, optim
from minigrad.distributed import ApplyPolicy, record_scalar
from minigrad.distributed.mirrors.flodl.builder import DdpBuilder
from minigrad.distributed.mirrors.flodl.policies import AverageBackend, AveragingPolicy
from minigrad.distributed.mirrors.flodl.timeline import EventKind, Timeline
from minigrad.distributed.mirrors.flodl.trainer import Trainer


def test_builder_defaults_are_those_of_flodl():
    b = DdpBuilder(rb.Net, rb.adamw, rb.loss_of, rb.X, rb.BATCH, 1)
    assert (b.policy, b.backend) == (rb.CADENCE, rb.COMMUNICATOR)
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
        raises(error, message, lambda options=options: rb.builder(**options).run())


def test_builder_takes_flodls_names():
    assert ApplyPolicy is AveragingPolicy and AverageBackend.NCCL is rb.COMMUNICATOR
    want = rb.arrays(rb.builder(policy=rb.SYNC, backend=rb.CPU).run().join())
    rb.assert_same_bits(rb.arrays(rb.builder(policy="sync", backend="cpu").run().join()), want)
    assert rb.builder(backend="nccl").backend is rb.COMMUNICATOR


def test_builder_factories_get_the_device_if_they_want_it():
    devices = []

    def build(device):
        devices.append(device)
        return rb.Net()

    got = rb.arrays(rb.builder(model_factory=build, policy=rb.SYNC).run().join())
    assert devices == [minigrad.device.CPU] * 2
    rb.assert_same_bits(got, rb.arrays(rb.builder(policy=rb.SYNC).run().join()))


def test_builder_max_batch_diff_0_is_lockstep():
    handle = rb.builder(policy=rb.CADENCE, max_batch_diff=0, num_epochs=3).run()
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
        return rb.loss_of(model, batch)

    handle = rb.builder(policy=rb.SYNC, replicas=1, epoch_fn=each_epoch, train_fn=train).run()
    metrics = handle.next_metrics()
    state = handle.join()
    assert metrics is not None and metrics.scalars["rows"] == rb.BATCH
    assert rates[0] == 0.25 and state.replicas[0][1]["optimizer"]["param_groups"][0]["lr"] == 0.25
    raises(RuntimeError, r"record_scalar\('rows'\) is for the train_fn of a DdpBuilder", record_scalar, "rows", 1)


def test_builder_replicas_must_be_alike():
    made = iter([rb.Net(), nn.Linear(5, 2)])
    raises(ValueError, "^Ddp: replica 1 has 2 parameters, expected 3", rb.builder(model_factory=lambda: next(made)).run)


def test_builder_replicas_begin_with_the_first_ones_values():
    seeds, first = iter(range(3)), []
    rb.builder(
        model_factory=lambda: rb.Net(seed=next(seeds)),
        replicas=3,
        epoch_fn=lambda epoch, replica: first.append(replica.model.w.data.copy()) if epoch == 0 else None,
        policy=rb.SYNC,
    ).run().join()
    assert len(first) == 3 and all(np.array_equal(w, rb.Net(seed=0).w.data) for w in first)


def test_builder_from_trainer():
    got = Trainer.builder(
        rb.Net, rb.adamw, rb.loss_of, dataset=(rb.X, rb.Y), batch_size=rb.BATCH, num_epochs=2, policy=rb.SYNC
    )
    rb.assert_same_bits(rb.arrays(got.run().join()), rb.arrays(rb.builder(replicas=1).run().join()))


def test_handle_metrics_come_in_order_and_end_with_none():
    released = threading.Event()

    def train_fn(model, batch):
        assert released.wait(10)
        return rb.loss_of(model, batch), {"rank": float(rb.is_replica(1))}

    handle = rb.builder(num_epochs=3, train_fn=train_fn).run()
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


def test_handle_poll_drains():
    handle = rb.builder(num_epochs=2, replicas=1).run()
    assert [m.epoch for m in handle.poll_metrics()] == [0, 1]
    assert handle.poll_metrics() == [] and handle.next_metrics() is None


def test_handle_stop_gives_what_has_been_trained():
    began = threading.Event()

    def train_fn(model, batch) -> Tensor:
        began.set()
        return rb.loss_of(model, batch)

    with rb.builder(num_epochs=10**9, train_fn=train_fn).run() as handle:
        assert began.wait(10)
        handle.stop()
        state = handle.join()
    assert state.failures == {} and state.replicas == [] and np.isfinite(state.params["w"]).all()
    raises(ValueError, "the state has optimizers of 0 replicas, for 2", lambda: rb.builder(resume=state).run())


def test_metrics_fn_and_epoch_fn(caplog):
    seen, epochs = [], []

    def metrics_fn(metrics) -> None:
        seen.append(metrics.epoch)
        if metrics.epoch == 1:
            raise RuntimeError("the disk of the metrics is full")

    with caplog.at_level(logging.ERROR, "minigrad.distributed"):
        rb.builder(num_epochs=4, metrics_fn=metrics_fn, epoch_fn=lambda e, r: epochs.append((r.rank, e))).run().join()
    assert seen == [0, 1, 2, 3]
    assert "metrics_fn failed for epoch 1" in caplog.text and "the disk of the metrics is full" in caplog.text
    for rank in (0, 1):
        mine = [e for r, e in epochs if r == rank]
        assert mine == sorted(set(mine))


def test_datasets_of_other_kinds():
    class Rows:
        def __len__(self) -> int:
            return rb.N

        def __getitem__(self, indices: np.ndarray):
            return Tensor(rb.X[indices]), Tensor(rb.Y[indices])

    want = rb.arrays(rb.builder(policy=rb.SYNC).run().join())
    rb.assert_same_bits(rb.arrays(rb.builder(policy=rb.SYNC, dataset=Rows()).run().join()), want)
    only_x = rb.builder(policy=rb.SYNC, dataset=rb.X, train_fn=lambda m, x: (m(x) ** 2).mean()).run().join()
    assert only_x.batches == 24


def test_data_partition_static_ratios_are_kept():
    handle = rb.builder(partition_ratios=[3, 1]).run()
    handle.join()
    assert [m.batch_share for m in handle.poll_metrics()] == [[0.75, 0.25]] * 2


@pytest.mark.parametrize(("backend", "kind"), [(rb.CPU, "AVERAGE"), (rb.COMMUNICATOR, "SYNC")])
def test_timeline_of_a_run(backend, kind):
    timeline = Timeline()
    state = rb.builder(policy=rb.SYNC, backend=backend, timeline=timeline).run().join()
    summary = timeline.summary()
    assert summary.batches == state.report.batches == [12, 12]
    assert summary.averages == state.report.averages == 12 and summary.epochs == 2
    kinds = [event.kind.name for event in timeline.events]
    assert kinds.count(f"{kind}_START") == kinds.count(f"{kind}_END") == 12
    assert kinds.count("EPOCH_START") == 2
    assert [event.detail["epoch"] for event in timeline.events if event.kind is EventKind.EPOCH_END] == [0, 1]
    assert "replica 1" in timeline.draw()


def test_builder_devices_say_how_many_replicas_there_are():
    got = rb.builder(policy=rb.SYNC, replicas=1, devices=["cpu", "cpu"]).run()
    metrics = got.next_metrics()
    assert metrics is not None and metrics.device_indices == [0, 0]
    assert (got.world_size, got.devices) == (2, [minigrad.device.CPU] * 2)
    rb.assert_same_bits(rb.arrays(got.join()), rb.arrays(rb.builder(policy=rb.SYNC).run().join()))
