"""DdpBuilder and DdpHandle: settings and what is refused, metrics, stop, callbacks, datasets, timeline, devices."""

import logging
import threading

import numpy as np
import pytest
from refusals import raises
from replica_builder import (
    BATCH,
    CADENCE,
    COMMUNICATOR,
    CPU,
    SYNC,
    N,
    Net,
    X,
    Y,
    adamw,
    arrays,
    assert_same_bits,
    builder,
    is_replica,
    loss_of,
)

import minigrad
from minigrad import Tensor, nn, optim
from minigrad.distributed import ApplyPolicy, record_scalar
from minigrad.distributed.comm.threads.thread import ThreadCommunicator
from minigrad.distributed.mirrors.flodl.builder import DdpBuilder
from minigrad.distributed.mirrors.flodl.policies import AverageBackend, AveragingPolicy
from minigrad.distributed.mirrors.flodl.timeline import EventKind, Timeline
from minigrad.distributed.mirrors.flodl.trainer import Trainer

AT_LEAST_0 = ("num_epochs", "prefetch", "max_batch_diff", "max_overshoot")
AT_LEAST_1 = ("batch_size", "replicas", "anchor", "max_anchor", "checkpoint_every")
REQUIRED = ("dataset", "batch_size", "num_epochs")


def test_builder_defaults_are_those_of_flodl():
    b = DdpBuilder(Net, adamw, loss_of, X, BATCH, 1)
    assert (b.policy, b.backend, b.anchor, b.max_anchor, b.overhead_target) == (CADENCE, COMMUNICATOR, 10, 200, 0.1)
    assert b.divergence_threshold == 0.05
    assert b.max_batch_diff is None and b.max_overshoot is None and b.progressive_dispatch is None
    assert (b.max_grad_norm, b.lr_scale_ratio, b.seed, b.snapshot_timeout, b.timeline) == (None, 1.0, 42, 5.0, None)


def test_builder_refuses_values_when_it_gets_them():
    for error, message, options in [
        *((ValueError, f"{name} is -1, expected an integer >= 1", {name: -1}) for name in AT_LEAST_1),
        *((ValueError, f"{name} is -1, expected an integer >= 0", {name: -1}) for name in AT_LEAST_0),
        *((ValueError, f"{name} is -1", {name: -1}) for name in ("seed", "lr_scale_ratio", "max_grad_norm")),
        *((ValueError, f"{name} is 0", {name: 0}) for name in ("batch_timeout", "snapshot_timeout")),
        (ValueError, "replicas is True", {"replicas": True}),
        (ValueError, "policy is 'banana', expected AveragingPolicy.SYNC or ", {"policy": "banana"}),
        (ValueError, "policy is None, expected", {"policy": None}),
        (ValueError, "'gloo', expected AverageBackend.CPU or AverageBackend.COMMUNICATOR, or", {"backend": "gloo"}),
        (ValueError, "overhead_target is 7.0, expected a number below 1", {"overhead_target": 7.0}),
        (ValueError, "divergence_threshold is 0.0", {"divergence_threshold": 0.0}),
        (ValueError, "checkpoint_every and checkpoint_fn go together", {"checkpoint_every": 1}),
        (ValueError, "speed_hint is .0, 0.4., expected .slowest rank, ratio >= 1", {"speed_hint": (0, 0.4)}),
        (ValueError, "is .1, 2, 3., expected 2 numbers > 0", {"partition_ratios": [1, 2, 3]}),
        (ValueError, "have no effect", {"partition_ratios": [1, 2], "progressive_dispatch": True}),
        (ValueError, "with policy SYNC every replica has one", {"partition_ratios": [1, 2], "policy": SYNC}),
        (ValueError, "with policy SYNC every replica has one", {"progressive_dispatch": True, "policy": SYNC}),
        (ValueError, "0 devices for 1 replicas", {"devices": [], "replicas": 1}),
        (ValueError, "3 devices for 2 replicas; leave one of them out", {"devices": ["cpu"] * 3}),
        (ValueError, "NcclComms requires CUDA devices, got CPU", {"devices": ["cpu", "cuda"]}),
        (minigrad.device.DeviceError, "cuda:99 cannot be used", {"devices": ["cuda:99"], "replicas": 1}),
        (TypeError, r"epoch_fn is .*, expected a function of \(epoch, replica\)", {"epoch_fn": lambda epoch: None}),
        (TypeError, r"metrics_fn is 3, expected a function of \(metrics\)", {"metrics_fn": 3}),
        (TypeError, r"train_fn is .*, expected a function of \(model, batch\)", {"train_fn": lambda batch: None}),
        (TypeError, "timeline is 'file', expected a Timeline", {"timeline": "file"}),
        (TypeError, "resume is 'file', expected a TrainedState", {"resume": "file"}),
        *((ValueError, f"{name} is required; options are keywords, .*: {name}=", {name: None}) for name in REQUIRED),
        (ValueError, "slow_rank is 2, expected an integer from 0 to 1", {"speed_hint": (2, 2.0)}),
        (ValueError, "12 batches of 4, too few for a step of 13 replicas", {"policy": SYNC, "replicas": 13}),
        (ValueError, "arrays of the lengths .49, 50., expected equal ones", {"dataset": (X, Y[:-1])}),
        (TypeError, "dataset is a int, expected arrays", {"dataset": 3}),
        (ValueError, "are for several replicas", {"backend": CPU, "communicators": ThreadCommunicator.group(2)}),
        (ValueError, "communicators are .rank, world size. ", {"communicators": ThreadCommunicator.group(3)}),
    ]:
        raises(error, message, lambda options=options: builder(**options))


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
    with pytest.raises(ValueError, match="^Ddp: replica 1 has 2 parameters, expected 3"):
        builder(model_factory=lambda: next(made)).run()


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


def test_handle_poll_drains():
    handle = builder(num_epochs=2, replicas=1).run()
    assert [m.epoch for m in handle.poll_metrics()] == [0, 1]
    assert handle.poll_metrics() == [] and handle.next_metrics() is None


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
