"""DdpBuilder: its options, what its functions are given, learning rates, data sets, batches made ahead."""

import threading
import traceback

import numpy as np
import pytest
from builder_runs import BATCH, N, Net, X, Y, adamw, arrays, builder, loss_of
from harness import assert_same_bits
from refusals import raises

import minigrad
from minigrad import Tensor, nn, optim
from minigrad.distributed import ApplyPolicy, AverageBackend, AveragingPolicy
from minigrad.distributed.mirrors.flodl.builder import DdpBuilder
from minigrad.distributed.mirrors.flodl.replica_threads import Replica, ReplicaFailedError
from minigrad.distributed.mirrors.flodl.trainer import Trainer


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

    builder(policy="sync", replicas=world, scheduler=schedule, lr_scale_ratio=ratio, epoch_fn=epoch_fn).run().join()
    want = [scale * optim.CosineAnnealing(0.1, 0.0, 3, 30).get_lr(step) for step in range(2 * (12 // world))]
    assert asked == [world]
    for rank in range(world):
        assert seen[rank] == want


def test_lr_without_a_schedule_is_scaled_once():
    rates = []
    fn = lambda epoch, replica: rates.append(replica.trainer.optimizer.lr)  # noqa: E731
    builder(policy="sync", epoch_fn=fn, lr_scale_ratio=0.5, replicas=3).run().join()
    assert rates == [0.02 * 2] * 6


def test_builder_defaults_are_those_of_flodl():
    b = DdpBuilder(Net, adamw, loss_of, X, BATCH, 1)
    assert (b.policy, b.backend) == (AveragingPolicy.CADENCE, AverageBackend.COMMUNICATOR)
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
    assert ApplyPolicy is AveragingPolicy and AverageBackend.NCCL is AverageBackend.COMMUNICATOR
    want = arrays(builder(policy=AveragingPolicy.SYNC, backend=AverageBackend.CPU).run().join())
    assert_same_bits(arrays(builder(policy="sync", backend="cpu").run().join()), want)
    assert builder(backend="nccl").backend is AverageBackend.COMMUNICATOR


def test_builder_factories_get_the_device_if_they_want_it():
    devices = []

    def build(device):
        devices.append(device)
        return Net()

    got = arrays(builder(model_factory=build, policy="sync").run().join())
    assert devices == [minigrad.device.CPU] * 2
    assert_same_bits(got, arrays(builder(policy="sync").run().join()))


def test_builder_replicas_must_be_alike():
    made = iter([Net(), nn.Linear(5, 2)])
    raises(ValueError, "^Ddp: replica 1 has 2 parameters, expected 3", builder(model_factory=lambda: next(made)).run)


def test_builder_replicas_begin_with_the_first_ones_values():
    seeds, first = iter(range(3)), []
    builder(
        model_factory=lambda: Net(seed=next(seeds)),
        replicas=3,
        epoch_fn=lambda epoch, replica: first.append(replica.model.w.data.copy()) if epoch == 0 else None,
        policy="sync",
    ).run().join()
    assert len(first) == 3 and all(np.array_equal(w, Net(seed=0).w.data) for w in first)


def test_builder_from_trainer():
    got = Trainer.builder(Net, adamw, loss_of, dataset=(X, Y), batch_size=BATCH, num_epochs=2, policy="sync")
    assert_same_bits(arrays(got.run().join()), arrays(builder(replicas=1).run().join()))


def test_datasets_of_other_kinds():
    class Rows:
        def __len__(self) -> int:
            return N

        def __getitem__(self, indices: np.ndarray):
            return Tensor(X[indices]), Tensor(Y[indices])

    want = arrays(builder(policy="sync").run().join())
    assert_same_bits(arrays(builder(policy="sync", dataset=Rows()).run().join()), want)
    only_x = builder(policy="sync", dataset=X, train_fn=lambda m, x: (m(x) ** 2).mean()).run().join()
    assert only_x.batches == 24


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
    want = builder(policy="sync", replicas=replicas, dataset=plain, prefetch=0).run().join()
    got = builder(policy="sync", replicas=replicas, dataset=ahead, prefetch=prefetch).run().join()
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
    runs = [builder(policy="sync", dataset=Noted(noise=True), prefetch=depth).run().join() for depth in (1, 3)]
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
