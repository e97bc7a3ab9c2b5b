"""DdpBuilder: what a handle, its metrics, the functions of an epoch and the timeline say of a run."""

import logging
import threading

import numpy as np
import pytest
from builder_runs import BATCH, arrays, builder, is_replica, loss_of
from harness import assert_same_bits
from refusals import raises

import minigrad
from minigrad import Tensor, optim
from minigrad.distributed import record_scalar
from minigrad.distributed.mirrors.flodl.timeline import EventKind, Timeline


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

    handle = builder(policy="sync", replicas=1, epoch_fn=each_epoch, train_fn=train).run()
    metrics = handle.next_metrics()
    state = handle.join()
    assert metrics is not None and metrics.scalars["rows"] == BATCH
    assert rates[0] == 0.25 and state.replicas[0][1]["optimizer"]["param_groups"][0]["lr"] == 0.25
    raises(RuntimeError, r"record_scalar\('rows'\) is for the train_fn of a DdpBuilder", record_scalar, "rows", 1)


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


@pytest.mark.parametrize(("backend", "kind"), [("cpu", "AVERAGE"), ("communicator", "SYNC")])
def test_timeline_of_a_run(backend, kind):
    timeline = Timeline()
    state = builder(policy="sync", backend=backend, timeline=timeline).run().join()
    summary = timeline.summary()
    assert summary.batches == state.report.batches == [12, 12]
    assert summary.averages == state.report.averages == 12 and summary.epochs == 2
    kinds = [event.kind.name for event in timeline.events]
    assert kinds.count(f"{kind}_START") == kinds.count(f"{kind}_END") == 12
    assert kinds.count("EPOCH_START") == 2
    assert [event.detail["epoch"] for event in timeline.events if event.kind is EventKind.EPOCH_END] == [0, 1]
    assert "replica 1" in timeline.draw()


def test_builder_devices_say_how_many_replicas_there_are():
    got = builder(policy="sync", replicas=1, devices=["cpu", "cpu"]).run()
    metrics = got.next_metrics()
    assert metrics is not None and metrics.device_indices == [0, 0]
    assert (got.world_size, got.devices) == (2, [minigrad.device.CPU] * 2)
    assert_same_bits(arrays(got.join()), arrays(builder(policy="sync").run().join()))
