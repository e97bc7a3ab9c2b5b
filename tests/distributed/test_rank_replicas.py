"""Replicas that are ranks of a communicator are replicas in threads, and nothing that fails changes a weight."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import requires_mpi, run_ranks
from replica_models import Failing, Net, bits, rows, trained_alone

from minigrad.distributed import (
    CollectiveMismatchError,
    CommError,
    Communicator,
    DataParallelTrainer,
    Fault,
    FaultPlan,
    LossKind,
    NoReplicasError,
    NonFiniteLossError,
    NoOpCommunicator,
    OptimizerKind,
    RankReplicas,
    ReplicaDroppedReplyError,
    ReplicaError,
    ThreadReplica,
    TrainerConfig,
    run_threads,
    serve_replica,
)
from minigrad.optim import NonFiniteGradientError

SGD = OptimizerKind.sgd(0.05, momentum=0.9, weight_decay=0.1)
ADAMW = OptimizerKind.adamw(0.02, 0.8, 0.95, 1e-6, 0.1)
WEIGHTS = (0.5, 3.0, 0.0, 1.25)
Build = Callable[[], Any]


def config(loss: LossKind | None = None, size: int = 100) -> TrainerConfig:
    return TrainerConfig(size, 0.4, ADAMW, LossKind.mse() if loss is None else loss)


def run_of(trainer: DataParallelTrainer, batches: Sequence[Any]) -> list[Any]:
    """Each step's loss and norm, then all values to the bit."""
    stats = [trainer.step(batch) for batch in batches]
    return [*((s.loss, s.grad_norm) for s in stats), bits(trainer.model)]


def by_ranks(comm: Communicator, kind: TrainerConfig, build: Build, batches: Sequence[Any], trainer: int = 0) -> Any:
    """A run whose replicas are the other ranks; their own first values do not matter."""
    if comm.rank != trainer:
        return serve_replica(comm, build(seed=9, frozen=("unused",)), trainer)
    with RankReplicas(comm) as replicas:
        return run_of(DataParallelTrainer(kind, replicas, model=build(), seed=5), batches)


def by_threads(n: int, kind: TrainerConfig, build: Build, batches: Sequence[Any]) -> list[Any]:
    with ExitStack() as stack:
        replicas = [stack.enter_context(ThreadReplica(build)) for _ in range(n)]
        return run_of(DataParallelTrainer(kind, replicas, model=build(), seed=5), batches)


def assert_same(got: list[Any], want: list[Any], dtype: str) -> None:
    """Float32 weights are the same to the bit; of other numbers the last bits of float64 may differ."""
    np.testing.assert_allclose(got[:-1], want[:-1], rtol=1e-12 if dtype == "float64" else 1e-6)
    for name, values in want[-1].items():
        if dtype == "float32":
            assert got[-1][name] == values, name
        else:
            found, wanted = np.frombuffer(got[-1][name], dtype), np.frombuffer(values, dtype)
            np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13, err_msg=name)


CASES: dict[str, tuple[TrainerConfig, dict[str, Any], int, int | None]] = {
    "uneven": (config(), {}, 7, None),
    "in parts, with dropout": (config(size=2), {"dropout": 0.5}, 10, None),
    "tied": (config(LossKind.cross_entropy()), {"tied": True, "classes": 5}, 7, 5),
    "frozen, with buffers": (config(), {"frozen": ("first", "bias"), "running": True}, 7, None),
    "weights of classes": (config(LossKind.weighted_cross_entropy(WEIGHTS)), {"running": True}, 8, 4),
    "fewer samples than ranks": (config(), {"running": True}, 1, None),
}


def compare(comm: Communicator, name: str, dtype: str, trainer: int = 0) -> None:
    kind, options, samples, classes = CASES[name]
    build = partial(Net, dtype=dtype, **options)
    batches = [rows(samples, seed, classes, dtype) for seed in range(3)]
    got = by_ranks(comm, kind, build, batches, trainer)
    if comm.rank == trainer:
        assert_same(got, by_threads(comm.world_size - 1, kind, build, batches), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_ranks_are_replicas_in_threads(name: str, dtype: str) -> None:
    run_threads(4, lambda comm: compare(comm, name, dtype, trainer=2 if name == "tied" else 0), timeout=60)


def test_ranks_beside_a_thread_are_one_device() -> None:
    kind, batches = config(LossKind.weighted_cross_entropy(WEIGHTS)), [rows(9, seed, 4) for seed in range(3)]

    def run(comm: Communicator) -> None:
        if comm.rank:
            return serve_replica(comm, Net())
        with ThreadReplica(Net) as local, RankReplicas(comm) as ranks:
            got = run_of(DataParallelTrainer(kind, [local, *ranks], model=Net()), batches)
        model = Net()
        stats = trained_alone(model, kind, batches).stats
        assert_same(got, [*stats, bits(model)], "float64")

    run_threads(3, run, timeout=60)


def test_what_is_sent_in_a_step_is_weights_once_and_gradients_once() -> None:
    def run(comm: Communicator) -> int:
        model = Net(dtype="float32", classes=20_000)
        if comm.rank:
            serve_replica(comm, model)
        else:
            with RankReplicas(comm) as replicas:
                batch = rows(4, classes=20_000, dtype=np.float32)
                DataParallelTrainer(config(LossKind.cross_entropy()), replicas, model=model).step(batch)
        return comm.stats.bytes_sent

    size = 4 * sum(p.numel() for p in Net(classes=20_000).parameters())
    for sent in run_threads(3, run, timeout=60):
        assert size < sent < 1.1 * size  # a broadcast counts as received; the rest is records


# ---------------------------------------------------------------------- what goes wrong


def fails(trainer: DataParallelTrainer, batch: Any, kind: type[Exception], match: str) -> Any:
    before = bits(trainer.model), repr(trainer.state_dict())
    with pytest.raises(kind, match=match) as caught:
        trainer.step(batch)
    assert type(caught.value) is kind
    assert (bits(trainer.model), repr(trainer.state_dict())) == before
    return caught.value


def errors_that_leave_the_ranks_usable(comm: Communicator) -> None:
    if comm.rank:
        return serve_replica(comm, Failing("raise"))
    x, y = rows(6)
    bad, far, none = x.copy(), y.copy(), y.copy()
    bad[1], far[3, 2], none[:] = 2000.0, np.inf, np.nan
    with RankReplicas(comm) as replicas:
        trainer = DataParallelTrainer(config(), replicas, model=Net())
        trainer.step((x, y))
        error = fails(trainer, (bad, y), ReplicaError, "replica 1 raised ValueError: a feature is above 1000; no weight")
        assert (error.rank, error.kind) == (1, "ValueError") and "in forward" in error.trace
        fails(trainer, (x, far), NonFiniteLossError, "the loss of step 2 is inf on replica 1")
        fails(trainer, (x, none), NonFiniteLossError, "the loss of step 2 is nan on replica 0")
        fails(trainer, (x.astype(np.complex64), y), ReplicaError, "replica 1 raised .*complex64")
        nothing = TrainerConfig(9, None, ADAMW, LossKind.weighted_cross_entropy([0, 0, 0, 1]))
        fails(DataParallelTrainer(nothing, replicas, model=Net()), (x, np.zeros(6, int)), ValueError, "weight 0 tog")
        refusing = DataParallelTrainer(config(), [*replicas], model=Net())
        refusing.set_replicas([next(iter(replicas)), _Refusing(), *list(replicas)[1:]])
        fails(refusing, (x, y), ReplicaError, "replica 1 raised OSError: not today")
        trainer.step((x, y))
    fails(trainer, (x, y), ReplicaDroppedReplyError, "replica 0: it was closed")
    replicas.close()
    model = Net()
    trained_alone(model, config(), [(x, y)] * 2)
    for name, values in bits(model).items():
        found = np.frombuffer(bits(trainer.model)[name])
        np.testing.assert_allclose(found, np.frombuffer(values), rtol=1e-11, atol=1e-12)


class _Refusing:
    def make_step(self, step: Any) -> Any:
        raise OSError("not today")


def test_errors_name_the_replica_and_leave_the_ranks_usable() -> None:
    run_threads(3, errors_that_leave_the_ranks_usable, timeout=60)


def test_a_gradient_that_is_not_finite_names_replica_and_parameter() -> None:
    class Steep(Net):
        def forward(self, x: Any) -> Any:
            return (x[:, :1] * self.unused.sum().abs().sqrt()) @ self.bias.reshape(1, 5)[:, :4]

    def run(comm: Communicator) -> None:
        model = Steep()
        model.unused.data[...] = 0.0  # where the root has no derivative
        if comm.rank:
            return serve_replica(comm, model)
        x, y = rows(4)
        with RankReplicas(comm) as replicas:
            trainer = DataParallelTrainer(config(), replicas, model=model)
            fails(trainer, (x, y), NonFiniteGradientError, "step 1: the gradient of unused on replica 0 is not finite")

    run_threads(3, run, timeout=60)


@pytest.mark.parametrize(("how", "kind"), [("exit", SystemExit), ("sleep", CommError)])
def test_a_rank_that_ends_or_is_late_is_named_and_others_take_its_place(how: str, kind: type[BaseException]) -> None:
    def run(comm: Communicator) -> None:
        if comm.rank:
            return serve_replica(comm, Failing(how))
        x, y = rows(6)
        bad = x.copy()
        bad[1] = 2000.0
        trainer = DataParallelTrainer(config(), [*RankReplicas(comm)], model=Net())
        trainer.step((x, y))
        began = time.monotonic()
        for _ in range(2):
            error = fails(trainer, (bad, y), ReplicaDroppedReplyError, "dropped reply: replica 1: .* rank 2")
            assert error.rank == 1
        assert time.monotonic() - began < 2.4
        with ThreadReplica(Net) as one, ThreadReplica(Net) as two:
            trainer.set_replicas([one, two])
            trainer.step((x, y))
        assert trainer.global_step == 2

    with pytest.raises(kind) as caught:
        run_threads(3, run, timeout=1.5)
    assert 0 not in caught.value.rank_errors  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", [3, 5, 8, 11])
def test_a_rank_that_dies_in_any_operation_changes_nothing(call: int) -> None:
    def run(comm: Communicator) -> None:
        if comm.rank:
            return serve_replica(comm, Net())
        trainer = DataParallelTrainer(config(), RankReplicas(comm), model=Net())
        fails(trainer, rows(6), ReplicaDroppedReplyError, "dropped reply: replica 1: .*rank 2")

    with pytest.raises(Exception, match="rank 2 was killed") as caught:
        run_threads(3, run, timeout=5, fault=FaultPlan([Fault("kill", rank=2, call=call)]))
    assert 0 not in caught.value.rank_errors  # type: ignore[attr-defined]


def test_another_model_is_an_error_on_every_rank() -> None:
    def run(comm: Communicator) -> None:
        if comm.rank:
            with pytest.raises(CollectiveMismatchError, match="parameters differ: rank 1 has"):
                serve_replica(comm, Net(classes=3 + comm.rank))
            return
        with RankReplicas(comm) as replicas:
            trainer = DataParallelTrainer(config(), replicas, model=Net(classes=5))
            fails(trainer, rows(4, classes=4), ReplicaDroppedReplyError, "replica 0: .* rank 1 has .*, rank 0 has")

    run_threads(3, run, timeout=60)


def test_a_communicator_of_one_rank_has_no_replicas() -> None:
    with RankReplicas(NoOpCommunicator()) as replicas:
        fails(DataParallelTrainer(config(), replicas, model=Net()), rows(4), NoReplicasError, "no replicas")


# ---------------------------------------------------------------------- processes

PROCESSES = """
import sys
sys.path[:0] = sys.argv[1:]
from minigrad.distributed import MpiCommunicator
from test_rank_replicas import CASES, compare, errors_that_leave_the_ranks_usable

with MpiCommunicator(timeout=60) as comm:
    for name in CASES:
        for dtype in ("float32", "float64"):
            compare(comm, name, dtype, trainer=comm.world_size - 1)
    if comm.world_size == 3:
        errors_that_leave_the_ranks_usable(comm)
    print("passed")
"""

KILLED = """
import sys
sys.path[:0] = sys.argv[1:]
from minigrad.distributed import MpiCommunicator
from test_rank_replicas import *

with MpiCommunicator(timeout=20) as comm:
    if comm.rank:
        serve_replica(comm, Failing("kill"))
    x, y = rows(6)
    bad = x.copy()
    bad[1] = 2000.0
    trainer = DataParallelTrainer(config(), [*RankReplicas(comm)], model=Net())
    trainer.step((x, y))
    fails(trainer, (bad, y), ReplicaDroppedReplyError, "dropped reply: replica 1: .* rank 2")
    with ThreadReplica(Net) as one:
        trainer.set_replicas([one])
        trainer.step((x, y))
    print("went on", flush=True)
"""


@requires_mpi
@pytest.mark.parametrize("n", [2, 3])
def test_ranks_that_are_processes_are_replicas_in_threads(n: int) -> None:
    here = Path(__file__).parent
    result = run_ranks(n, PROCESSES, here, here.parent, timeout=300)
    assert result.returncode == 0, result.text
    assert [result.lines(rank) for rank in range(n)] == [["passed"]] * n


@requires_mpi
def test_a_process_that_is_killed_is_named_and_others_take_its_place() -> None:
    here = Path(__file__).parent
    result = run_ranks(3, KILLED, here, here.parent, timeout=100)
    assert result.lines(0) == ["went on"], result.text
    assert "rank 2 failed first: killed by SIGKILL" in result.stderr
