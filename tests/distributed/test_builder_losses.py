"""DdpBuilder: replicas that raise, hang or are killed are left out, and the survivors' average is the result."""

import threading
import time

import numpy as np
import pytest
from builder_runs import Net, builder, is_replica, loss_of

from minigrad import Tensor
from minigrad.distributed import AverageBackend, AveragingPolicy
from minigrad.distributed.comm.threads.faults import Fault, FaultPlan
from minigrad.distributed.comm.threads.thread import ThreadCommunicator
from minigrad.distributed.mirrors.flodl import replica_group, workload
from minigrad.distributed.mirrors.flodl.coordinator import CadencePlan, Coordinator
from minigrad.distributed.mirrors.flodl.replica_threads import DdpHandle, ReplicaFailedError


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


@pytest.mark.parametrize("policy", AveragingPolicy)
@pytest.mark.parametrize("backend", AverageBackend)
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

    handle = builder(policy="sync", replicas=3, train_fn=ruin).run()
    with pytest.warns(RuntimeWarning, match="replica 2: RuntimeError: ruined"):
        state = handle.join()
    assert np.abs(state.params["w"]).max() < 100


FAULTS = [
    (Fault("kill", rank=1, call=2), 5.0, "RankKilledError"),
    (Fault("kill", rank=1, call=4), 5.0, "RankKilledError"),
    (Fault("drop", rank=1, call=2), 0.5, r"CommTimeoutError: .*average of replica 0, 2$"),
]


@pytest.mark.parametrize("policy", ["sync", "cadence"])
@pytest.mark.parametrize(("fault", "timeout", "words"), FAULTS)
def test_death_in_the_midst_of_an_average(policy, fault, timeout, words):
    """One whose words never arrive does not know that it is lost: the others find out by the deadline, and name it."""
    comms = ThreadCommunicator.group(3, timeout=timeout, fault=FaultPlan([fault]))
    handle = builder(policy=policy, replicas=3, num_epochs=1000, communicators=comms, anchor=1).run()
    with pytest.warns(RuntimeWarning, match=f"replica 1: {words}"):
        state = handle.join()
    assert list(state.failures) == [1]
    assert all(np.isfinite(array).all() for array in state.params.values())


@pytest.mark.parametrize("policy", AveragingPolicy)
def test_death_in_the_midst_of_an_average_in_host_memory(policy, monkeypatch):
    def pack(tensors, share: float):
        if is_replica(1):
            raise MemoryError("no room for the sum")
        return original(tensors, share)

    original = replica_group.pack
    monkeypatch.setattr(replica_group, "pack", pack)
    handle = builder(policy=policy, backend="cpu", replicas=3, num_epochs=1000, anchor=1).run()
    with handle.changed:
        handle.wait(lambda: False)
    monkeypatch.undo()
    with pytest.warns(RuntimeWarning, match=r"\(replica 1: MemoryError: .*average of replica 0, 2$"):
        state = handle.join()
    assert list(state.failures) == [1]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("policy", AveragingPolicy)
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
    coordinator = Coordinator(CadencePlan(2, 8, 1, AveragingPolicy.SYNC, batch_timeout=0.3), time.perf_counter)
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
    with pytest.raises(ReplicaFailedError, match="no trained replica is left: replica .: KeyError: 'column'") as info:
        handle.join()
    assert isinstance(info.value.__cause__, KeyError) and info.value.failures


def test_death_by_numbers_that_are_not_finite_names_the_step():
    def train_fn(model, batch) -> Tensor:
        loss = loss_of(model, batch)
        return loss * float("nan") if is_replica(1) and int(model.seen.item()) > 2 else loss

    with pytest.warns(RuntimeWarning, match="replica 1: NonFiniteLossError: the loss of step 3 is nan"):
        state = builder(policy="sync", train_fn=train_fn).run().join()
    assert np.isfinite(state.params["w"]).all()


def test_death_of_the_only_one_by_the_keyboard_is_passed_on():
    with pytest.raises(KeyboardInterrupt):
        builder(replicas=1, train_fn=lambda m, b: raising(KeyboardInterrupt())()).run()
