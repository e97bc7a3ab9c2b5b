"""DdpBuilder: batches made ahead in a thread are those made at once, and no thread is left."""

import threading
import traceback

import numpy as np
import pytest
from replica_builder import SYNC, X, Y, arrays, assert_same_bits, builder, loss_of

import minigrad
from minigrad.distributed.mirrors.flodl.replica_threads import ReplicaFailedError


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
