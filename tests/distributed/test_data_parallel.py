"""DataParallelTrainer: N replicas are one device with the whole batch, and nothing that fails changes a weight."""

import os
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from ranks import on_processes, requires_mpi
from refusals import raises
from replica_models import Failing, Net, broken, rows, trained_alone

from minigrad import Tensor, distributed as dist, optim
from minigrad.distributed import DataParallelTrainer, LossKind, ReplicaDroppedReplyError, ReplicaStepResult
from minigrad.distributed.mirrors.atomr import replicas
from minigrad.nn import functional as F
from minigrad.optim import AdamW, AdamWConfig, CosineAnnealing, NonFiniteGradientError

SGD = dist.OptimizerKind.sgd(0.05, momentum=0.9, weight_decay=0.1)
ADAMW = dist.OptimizerKind.adamw(0.02, 0.8, 0.95, 1e-6, 0.1)
WEIGHTS = (0.5, 3.0, 0.0, 1.25)
ABOVE = "replica 1 raised ValueError: a feature is above 1000"  # what a replica that fails says


def config(optimizer=ADAMW, loss=None, clip=None, size=100) -> dist.TrainerConfig:
    return dist.TrainerConfig(size, clip, optimizer, LossKind.mse() if loss is None else loss)


def answer(result: ReplicaStepResult) -> Future[ReplicaStepResult]:
    future: Future[ReplicaStepResult] = Future()
    future.set_result(result)
    return future


class Echo:
    """atomr's test replica: the loss is the mean of the samples' sums; notes what it was given."""

    def __init__(self, **changes) -> None:
        self.steps: list[dist.ReplicaStep] = []
        self.changes = changes

    def make_step(self, step: dist.ReplicaStep) -> Future[ReplicaStepResult]:
        self.steps.append(step)
        n = len(step.labels)
        loss = float(step.features.sum()) / n if n else 0.0
        return answer(ReplicaStepResult(**{"loss": loss, "grad_norm": 1.0, "samples": n, **self.changes}))


class Silent:
    """Begins every step and never answers."""

    def make_step(self, step: dist.ReplicaStep) -> Future[ReplicaStepResult]:
        return Future()


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def threads(stack: ExitStack, n: int, build=Net) -> list[dist.ThreadReplica]:
    return [stack.enter_context(dist.ThreadReplica(build)) for _ in range(n)]


def bits(trainer: DataParallelTrainer):
    arrays, meta = trainer.state_dict()
    model = {name: t.numpy().tobytes() for name, t in trainer.model.state_dict().items()}
    return model, {name: array.tobytes() for name, array in arrays.items()}, meta


def assert_same(trainer, stats, model, want) -> None:
    np.testing.assert_allclose([(s.loss, s.grad_norm) for s in stats], want, rtol=1e-12)
    for name, tensor in model.state_dict().items():
        got = trainer.model.state_dict()[name].numpy()
        np.testing.assert_allclose(got, tensor.numpy(), rtol=1e-11, atol=1e-12, err_msg=name)


# ---------------------------------------------------------------------- DP step API


def test_dp_step_api_losses_3_and_7_give_5() -> None:
    first, second = Echo(), Echo()
    trainer = DataParallelTrainer(config(dist.OptimizerKind.sgd(0.1), size=1), [first, second], model=Net())
    stats = trainer.step([dist.TrainSample([1.0, 2.0], []), dist.TrainSample([3.0, 4.0], [])])
    assert stats.loss == 5.0
    assert isinstance(stats.step_micros, int) and 0 < stats.step_micros < 10**7
    assert first.steps[0].features.tolist() == [[1.0, 2.0]] and second.steps[0].features.tolist() == [[3.0, 4.0]]


def test_dp_step_api_round_robin_and_surplus_replicas() -> None:
    replicas = [Echo() for _ in range(4)]
    trainer = DataParallelTrainer(config(), replicas, model=Net())
    x, y = np.arange(10.0).reshape(10, 1), np.zeros((10, 1))
    trainer.step((x, y))
    assert [r.steps[0].features.ravel().tolist() for r in replicas] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert trainer.step((x[:2], y[:2])).loss == 0.5
    assert [len(r.steps[1].labels) for r in replicas] == [1, 1, 0, 0]
    assert len({request.seed for replica in replicas for request in replica.steps}) == 8  # each has its random numbers


def test_dp_step_api_unequal_sample_weighting() -> None:
    x, y = np.array([[1.0], [10.0], [3.0]]), np.zeros((3, 1))
    trainer = DataParallelTrainer(config(), [Echo(), Echo()], model=Net())
    assert trainer.step((x, y)).loss == pytest.approx((2.0 * 2 + 10.0) / 3, rel=1e-15)
    trainer.set_replicas([Echo(weight=3.0), Echo(weight=0.0, loss=float("nan"))])
    assert trainer.step((x, y)).loss == 2.0
    trainer.set_replicas([Echo(loss=np.float32(3), samples=np.int64(3)), Echo(loss=7, samples=1)])  # NumPy's numbers
    assert trainer.step(rows(4)).loss == 4.0


def test_the_gradient_norm_is_that_of_the_mean_gradient() -> None:
    def gradient(*values: float) -> dict[str, np.ndarray]:
        return {"unused": np.array(values, np.float64)}

    replicas = [Echo(gradients=gradient(3, 0, 4), grad_norm=5.0), Echo(gradients=gradient(-3, 0, 4), grad_norm=5.0)]
    trainer = DataParallelTrainer(config(), replicas, model=Net())
    assert trainer.step((np.ones((2, 1)), np.ones((2, 1)))).grad_norm == 4.0  # the norms' mean is 5


# ---------------------------------------------------------------------- one device


@pytest.mark.parametrize(("n", "samples", "size"), [(2, 7, 100), (3, 10, 2), (4, 3, 1)])
@pytest.mark.parametrize(
    "options",
    [{}, {"tied": True}, {"frozen": ("bias", "head")}, {"running": True, "frozen": ("first",)}],
    ids=["plain", "tied", "frozen", "buffers"],
)
def test_mean_semantics_equal_one_device(stack: ExitStack, n: int, samples: int, size: int, options) -> None:
    if "running" in options:
        size = 100  # averages of several parts of a batch are those of several batches
    classes = 5 if options.get("tied") else 4
    build = partial(Net, classes, **options)
    kind = config(ADAMW, LossKind.cross_entropy(), clip=0.4, size=size)
    batches = [rows(samples, seed, classes) for seed in range(4)]
    other = partial(build, seed=9, frozen=("unused", "head"))  # the trainer's model says what is frozen
    trainer = DataParallelTrainer(kind, threads(stack, n, other), model=build())
    stats, model = [trainer.step(batch) for batch in batches], build()
    assert_same(trainer, stats, model, trained_alone(model, kind, batches).stats)
    assert not np.array_equal(trainer.model.first.data, build().first.data) or "first" in options.get("frozen", ())
    if "running" in options:
        assert trainer.model.batches.item() == 4
        np.testing.assert_array_equal(trainer.model.third.numpy(), build().third.numpy())


def test_kinds_are_the_losses_of_nn_and_the_optimizers_of_optim() -> None:
    x, y = map(Tensor, rows(6))
    classes, weights = Tensor(np.array([0, 3, -100, 1, 1, 2])), Tensor(np.array(WEIGHTS))
    outputs = x[:, :4]
    for kind, labels, loss in [
        (LossKind.mse(), y, F.mse_loss(outputs, y)),
        (LossKind.cross_entropy(), classes, F.cross_entropy(outputs, classes)),
        (LossKind.weighted_cross_entropy(WEIGHTS), classes, F.cross_entropy(outputs, classes, weights)),
    ]:
        assert kind(outputs, labels).item() == loss.item()
    sgd, adamw = SGD.build([x.requires_grad_()]), ADAMW.build([x])
    assert isinstance(sgd, optim.SGD) and sgd.config == optim.SgdConfig(lr=0.05, momentum=0.9, weight_decay=0.1)
    assert isinstance(adamw, AdamW) and (SGD.lr(), ADAMW.lr()) == (0.05, 0.02)
    assert adamw.config == AdamWConfig(lr=0.02, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1)


def test_one_replica_is_bitwise_a_simple_trainer(stack: ExitStack) -> None:
    kind, batches = config(ADAMW, clip=0.4), [rows(7, seed, dtype=np.float32) for seed in range(3)]
    build = partial(Net, dtype="float32")
    trainer = DataParallelTrainer(kind, threads(stack, 1, build), model=build())
    stats = [trainer.step(batch) for batch in batches]
    model = build()
    assert [(s.loss, s.grad_norm) for s in stats] == trained_alone(model, kind, batches).stats
    for name, p in model.named_parameters():
        assert trainer.model.state_dict()[name].numpy().tobytes() == p.data.tobytes(), name


def test_determinism_same_seed_same_run_with_dropout(stack: ExitStack) -> None:
    def run(seed: int):
        build = partial(Net, dropout=0.5)
        trainer = DataParallelTrainer(config(size=2), threads(stack, 3, build), model=build(), seed=seed)
        return [trainer.step(rows(9, step)).loss for step in range(3)], bits(trainer)[0]

    assert run(1) == run(1)
    assert run(1)[0] != run(2)[0]


def test_learning_rate_schedule_sets_every_step(stack: ExitStack) -> None:
    schedule, batches = CosineAnnealing(0.1, 0.0, 0, 4), [rows(6, step) for step in range(3)]
    trainer = DataParallelTrainer(config(), threads(stack, 2), model=Net(), schedule=schedule)
    stats, model = [trainer.step(batch) for batch in batches], Net()
    assert_same(trainer, stats, model, trained_alone(model, config(), batches, schedule).stats)


def test_checkpoint_resumes_bitwise(stack: ExitStack) -> None:
    def trainer() -> DataParallelTrainer:
        build = partial(Net, dropout=0.3, running=True)
        return DataParallelTrainer(config(SGD), threads(stack, 2, build), model=build(seed=8), seed=5)

    first = trainer()
    for step in range(2):
        first.step(rows(5, step))
    weights, saved = first.model.state_dict(), first.state_dict()
    second = trainer()
    second.seed = 0
    second.model.load_state_dict({name: t.numpy().copy() for name, t in weights.items()})
    second.load_state_dict(*saved)
    for step in range(2, 4):
        assert first.step(rows(5, step)).loss == second.step(rows(5, step)).loss
    assert bits(first) == bits(second)
    raises(ValueError, "the saved seed is None", lambda: second.load_state_dict(saved[0], {**saved[1], "seed": None}))


# ---------------------------------------------------------------------- DP errors


def assert_step_fails(trainer: DataParallelTrainer, batch, kind: type[Exception], match: str) -> Exception:
    before = bits(trainer)
    caught = raises(kind, match, trainer.step, batch)
    assert type(caught) is kind
    assert bits(trainer) == before
    return caught


def test_dp_errors_no_replicas_and_late_bound_replicas(stack: ExitStack) -> None:
    trainer = DataParallelTrainer(config(), model=Net())
    assert_step_fails(trainer, rows(4), dist.NoReplicasError, "no replicas configured")
    trainer.set_replicas(threads(stack, 2))
    assert trainer.step(rows(4)).loss > 0
    trainer.set_replicas([])
    assert_step_fails(trainer, rows(4), dist.NoReplicasError, "no replicas configured")
    raises(TypeError, "replica 1 is a int, which has no method make_step", lambda: trainer.set_replicas([Echo(), 3]))
    assert trainer.replicas == () and trainer.global_step == 1


def test_dp_errors_zero_samples(stack: ExitStack) -> None:
    trainer = DataParallelTrainer(config(), threads(stack, 2), model=Net())
    empty = [[], (), (np.zeros((0, 5)), np.zeros((0, 4)))]
    for batch in empty:
        assert_step_fails(trainer, batch, dist.ZeroSamplesError, "trainer: zero samples")
    trainer.set_replicas([Echo(samples=0)])
    assert_step_fails(trainer, rows(4), dist.ZeroSamplesError, "trainer: zero samples")


def test_dp_errors_batches_that_are_none(stack: ExitStack) -> None:
    trainer = DataParallelTrainer(config(), threads(stack, 2), model=Net())
    x, y = rows(4)
    assert_step_fails(trainer, (x, y[:3]), ValueError, r"features \(4, 5\) and labels \(3, 4\)")
    assert_step_fails(trainer, (x, y, y), TypeError, "not one of 3 things")
    assert_step_fails(trainer, [1, 2], TypeError, "a list of TrainSample")
    kind = config(loss=LossKind.weighted_cross_entropy([0, 0, 0, 1]))
    trainer = DataParallelTrainer(kind, threads(stack, 2), model=Net())
    assert_step_fails(trainer, (x, np.zeros(4, np.int64)), ValueError, "weight 0 together")


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("how", "reason"), [("exit", "its thread ended with SystemExit"), ("sleep", "no answer within")]
)
def test_dp_errors_dropped_reply_of_a_thread(stack: ExitStack, how: str, reason: str) -> None:
    trainer = DataParallelTrainer(config(), threads(stack, 3, partial(Failing, how)), model=Net())
    trainer.step(rows(6, 0))
    x, y = rows(6, 1)
    bad = x.copy()
    bad[4] = 2000.0  # goes to replica 1
    trainer.timeout = 1.5 if how == "sleep" else 60.0
    dropped = f"replica dropped reply: replica 1: {reason}"
    error = assert_step_fails(trainer, (bad, y), ReplicaDroppedReplyError, f"trainer: {dropped}")
    assert error.rank == 1  # type: ignore[attr-defined]
    trainer.timeout = 60.0
    if how == "exit":
        assert_step_fails(trainer, (x, y), ReplicaDroppedReplyError, dropped)
    trainer.set_replicas(threads(stack, 2))
    stats, model = [trainer.step((x, y))], Net()
    assert_same(trainer, stats, model, trained_alone(model, config(), [rows(6, 0), rows(6, 1)]).stats[1:])


def test_dp_errors_steps_that_wait_for_a_dead_or_closed_replica_are_answered() -> None:
    state = {name: t.numpy() for name, t in Net().state_dict().items()}
    x, y = rows(2)
    good = dist.ReplicaStep(x, y, state, frozenset(state), LossKind.mse(), 2, 0)
    bad = replace(good, features=x + 2000.0)
    for ending in ("exit", "close"):
        replica = dist.ThreadReplica(partial(Failing, "sleep" if ending == "close" else "exit"))
        first, waiting = replica.make_step(bad), replica.make_step(good)
        if ending == "close":  # ends when it has done what it has
            replica.close()
            assert first.result(timeout=10).samples == waiting.result(timeout=10).samples == 2
        else:
            raises(ReplicaDroppedReplyError, "SystemExit", lambda waiting=waiting: waiting.result(timeout=10))
        time.sleep(0.1)
        with pytest.raises(ReplicaDroppedReplyError, match="SystemExit" if ending == "exit" else "it was closed"):
            replica.make_step(good).result(timeout=10)


def test_dp_errors_dropped_reply_of_ones_own_protocol() -> None:
    class Cancels:
        def make_step(self, step: dist.ReplicaStep) -> Future[ReplicaStepResult]:
            future: Future[ReplicaStepResult] = Future()
            future.cancel()
            return future

    for other in (Silent(), Cancels()):
        trainer = DataParallelTrainer(config(), [Echo(), other], model=Net(), timeout=0.2)
        assert_step_fails(trainer, rows(4), ReplicaDroppedReplyError, "trainer: replica dropped reply: replica 1")


BAD_ANSWERS = [
    (None, "make_step of replica 1 returned a NoneType, expected a Future"),
    (ReplicaStepResult(1.0, 1.0, 1), "make_step of replica 1 returned a ReplicaStepResult"),
    (answer(3), "replica 1 answered with a int, expected a ReplicaStepResult"),  # type: ignore[arg-type]
    (answer(ReplicaStepResult("1", 1.0, 1)), "replica 1 answered with loss='1'"),  # type: ignore[arg-type]
    (answer(ReplicaStepResult(1.0, 1.0, 1, {"embed": [1.0]})), "1: the gradient of embed is a list, expected an"),
]


@pytest.mark.parametrize(("made", "match"), BAD_ANSWERS)
def test_dp_errors_answers_of_ones_own_protocol_that_cannot_be_used(made, match: str) -> None:
    class Own:
        def make_step(self, step: dist.ReplicaStep):
            return made

    assert_step_fails(DataParallelTrainer(config(), [Echo(), Own()], model=Net()), rows(4), TypeError, match)


def test_dp_errors_a_threads_exception_is_forwarded_with_its_rank(stack: ExitStack) -> None:
    replicas = [*threads(stack, 2, partial(Failing, "raise")), Silent()]
    trainer = DataParallelTrainer(config(), replicas, model=Net(), timeout=threading.TIMEOUT_MAX)
    x, y = rows(6)
    x[1] = 2000.0
    error = assert_step_fails(trainer, (x, y), dist.ReplicaError, ABOVE)
    assert isinstance(error, dist.ReplicaError)
    assert (error.rank, error.kind) == (1, "ValueError") and isinstance(error.__cause__, ValueError)
    trainer.set_replicas(replicas[:2])
    assert trainer.step(rows(6)).loss > 0  # one that raised goes on


def test_non_finite_names_replica_parameter_and_step(stack: ExitStack) -> None:
    trainer = DataParallelTrainer(config(), threads(stack, 2), model=Net())
    trainer.step(rows(6))
    x, y = rows(6)
    y[3, 2] = np.inf
    assert_step_fails(trainer, (x, y), dist.NonFiniteLossError, "the loss of step 2 is inf on replica 1")
    bad = np.zeros(3)
    bad[1] = np.nan
    trainer.set_replicas([Echo(), Echo(), Echo(gradients={"unused": bad})])
    assert_step_fails(trainer, (x, x), NonFiniteGradientError, "step 2: the gradient of unused on replica 2")


def test_shape_dtype_mismatch_raises_before_averaging() -> None:
    for changes, match in [
        ({"gradients": {"unused": np.zeros(4)}}, r"replica 1: the gradient of unused has shape \(4,\), float64; the"),
        ({"gradients": {"unused": np.zeros(3, np.float32)}}, r"has shape \(3,\), float32; the parameter"),
        ({"gradients": {"other": np.zeros(3)}}, "a gradient of 'other', which is no trained parameter"),
        ({"gradients": {"bias": np.zeros(5)}}, "a gradient of 'bias', which is no trained parameter"),
        ({"samples": -1}, "replica 1 answered for samples is -1, expected a finite number"),
        ({"weight": np.nan}, "weight is nan, expected a finite number"),
        ({"buffers": {"other": np.zeros(3)}}, r"replica 1: buffer other is \(3,\) float64; the model has no such"),
    ]:
        trainer = DataParallelTrainer(config(), [Echo(), Echo(**changes)], model=Net(frozen=("bias",)))
        assert_step_fails(trainer, rows(4), ValueError, match)


def test_buffers_are_means_over_samples_and_counts_the_largest() -> None:
    def buffers(batches: int, mean: float) -> dict[str, np.ndarray]:
        return {"mean": np.full(5, mean), "batches": np.array(batches), "third": np.full(3, 1 / 3)}

    net = Net(running=True)
    trainer = DataParallelTrainer(config(), [Echo(buffers=buffers(1, 2.0)), Echo(buffers=buffers(2, 5.0))], model=net)
    trainer.step(rows(3))
    assert net.batches.item() == 2
    np.testing.assert_allclose(net.mean.numpy(), 3.0, rtol=1e-15)  # of 2 samples with 2, 1 with 5


# ---------------------------------------------------------------------- replicas that are processes


@pytest.mark.long
def test_peer_loss_processes_equal_one_device_and_a_killed_one_is_replaced(stack: ExitStack) -> None:
    build = partial(Failing, "raise", running=True)
    replicas = [stack.enter_context(dist.ProcessReplica(build)) for _ in range(3)]
    spare = stack.enter_context(dist.ProcessReplica(broken))
    kind = config(ADAMW, LossKind.weighted_cross_entropy(WEIGHTS), clip=0.4)
    trainer = DataParallelTrainer(kind, replicas[:2], model=Net(running=True), timeout=60)
    batches = [rows(7, seed, 4) for seed in range(4)]
    stats = [trainer.step(batches[0])]

    x, y = batches[1]
    bad = x.copy()
    bad[1] = 2000.0
    error = assert_step_fails(trainer, (bad, y), dist.ReplicaError, ABOVE)
    assert isinstance(error, dist.ReplicaError) and (error.rank, error.kind) == (1, "ValueError")
    assert "in forward" in error.trace
    trainer.set_replicas([replicas[0], spare])
    assert_step_fails(trainer, (x, y), dist.ReplicaError, "replica 1 raised RuntimeError: no model today")
    trainer.set_replicas(replicas[:2])
    stats.append(trainer.step(batches[1]))

    assert replicas[1].pid is not None
    os.kill(replicas[1].pid, signal.SIGKILL)
    for _ in range(2):
        error = assert_step_fails(
            trainer, batches[2], ReplicaDroppedReplyError, "replica dropped reply: replica 1: process .* exit code -9"
        )
    trainer.set_replicas([replicas[0], replicas[2]])
    stats.append(trainer.step(batches[2]))

    assert replicas[2].pid is not None
    os.kill(replicas[2].pid, signal.SIGSTOP)
    trainer.timeout = 0.5
    assert_step_fails(trainer, batches[3], ReplicaDroppedReplyError, "replica 1: no answer within 0.5 s")
    replicas[2].close()
    trainer.timeout = 60
    trainer.set_replicas([replicas[0], *threads(stack, 1, build)])
    stats.append(trainer.step(batches[3]))
    model = Net(running=True)
    assert_same(trainer, stats, model, trained_alone(model, kind, batches).stats)


def test_a_process_has_weights_and_gradients_in_memory_that_it_shares(stack: ExitStack, monkeypatch: Any) -> None:
    """The pipe carries less than a gradient, whatever it was used for before."""
    kind, build, piped = config(loss=LossKind.cross_entropy()), partial(Net, 20_000), []
    message, parts = replicas.message, replicas.parts
    monkeypatch.setattr(replicas, "message", lambda *args: piped.append(message(*args)) or piped[-1])
    monkeypatch.setattr(replicas, "parts", lambda raw: piped.append(raw) or parts(raw))
    process = stack.enter_context(dist.ProcessReplica(build))
    ours, theirs = (DataParallelTrainer(kind, [r], model=build()) for r in (process, *threads(stack, 1, build)))
    for seed, wrong in enumerate((Net(20_000, "float32"), Net(30_000))):
        for trainer in (ours, theirs, ours, theirs):
            trainer.step(rows(4, seed, 20_000))
        assert bits(ours) == bits(theirs)
        other, words = DataParallelTrainer(kind, [process], model=wrong), ("first is float64 here", "shape: head")[seed]
        assert_step_fails(other, rows(4, 0, 20_000), dist.ReplicaError, words)
    assert max(map(len, piped)) < 2000


def test_a_process_takes_a_function_that_it_can_import():
    with pytest.raises(TypeError, match="cannot be sent to another process .*; pass a function that a module defines"):
        dist.ProcessReplica(lambda: None)


# ---------------------------------------------------------------------- replicas that are other ranks

X, Y = rows(6)
BAD = np.concatenate([X[:1], X[1:2] + 2000.0, X[2:]])  # replica 1 of 2 fails


def on_ranks(n: int, build, train, **options) -> None:
    """``train`` in rank 0, and the others serve it."""

    def run(comm: dist.Communicator) -> None:
        if comm.rank:
            dist.serve_replica(comm, build())
        else:
            train(comm)

    dist.run_threads(n, run, **{"timeout": 60.0, **options})


CASES = {
    "uneven": (config(clip=0.4), {}, 7, None),
    "in parts, with dropout": (config(size=2), {"dropout": 0.5}, 10, None),
    "tied": (config(loss=LossKind.cross_entropy()), {"tied": True, "classes": 5}, 7, 5),
    "frozen, with buffers": (config(), {"frozen": ("first", "bias"), "running": True}, 7, None),
    "weights of classes": (config(loss=LossKind.weighted_cross_entropy(WEIGHTS)), {"running": True}, 8, 4),
    "fewer samples than ranks": (config(), {"running": True}, 1, None),
}


def compare(comm: dist.Communicator, name: str, dtype: str, trainer: int = 0) -> None:
    """Of float32, weights are the same to the bit; of float64, the last bits may differ, as do those of losses."""
    kind, options, samples, classes = CASES[name]
    build = partial(Net, dtype=dtype, **options)
    if comm.rank != trainer:
        dist.serve_replica(
            comm, build(seed=9, frozen=("unused",)), trainer
        )  # its own values and freezing do not matter
        return
    with ExitStack() as stack:
        groups = stack.enter_context(dist.RankReplicas(comm)), threads(stack, comm.world_size - 1, build)
        ours, theirs = (DataParallelTrainer(kind, replicas, model=build(), seed=5) for replicas in groups)
        batches = [rows(samples, seed, classes, dtype) for seed in range(3)]
        stats = [[step(batch) for batch in batches] for step in (ours.step, theirs.step)]
    want = theirs.model
    assert_same(ours, stats[0], want, [(s.loss, s.grad_norm) for s in stats[1]])
    assert dtype == "float64" or bits(ours)[:2] == bits(theirs)[:2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_ranks_are_replicas_in_threads(name: str, dtype: str) -> None:
    dist.run_threads(4, lambda comm: compare(comm, name, dtype, trainer=2 if name == "tied" else 0), timeout=60)


def test_a_rank_sends_each_gradient_once_and_no_weights() -> None:
    build = partial(Net, 20_000)
    size = sum(p.data.nbytes for p in build().parameters())

    def train(comm: dist.Communicator) -> None:
        with dist.RankReplicas(comm) as replicas:
            DataParallelTrainer(config(loss=LossKind.cross_entropy()), replicas, model=build()).step(rows(4, 0, 20_000))
        assert (
            size < comm.stats.bytes_sent < 1.1 * size
        )  # as any rank: its zeros of the sum; a broadcast is not counted

    on_ranks(3, build, train)


def errors(comm: dist.Communicator) -> None:
    """Those after which the ranks can be used."""
    far, nothing = Y.copy(), config(loss=LossKind.weighted_cross_entropy([0, 0, 0, 1]))
    far[3, 2] = np.inf
    with dist.RankReplicas(comm) as replicas:
        trainer = DataParallelTrainer(config(), replicas, model=Net())
        stats, model = [trainer.step((X, Y))], Net()
        error = assert_step_fails(trainer, (BAD, Y), dist.ReplicaError, "replica 1 raised ValueError: a feature is")
        assert (error.rank, error.kind) == (1, "ValueError") and "in forward" in error.trace
        assert_step_fails(trainer, (X, far), dist.NonFiniteLossError, "the loss of step 2 is inf on replica 1")
        assert_step_fails(trainer, (X + 0j, Y), dist.ReplicaError, "replica 1 raised .*complex128")
        weightless = DataParallelTrainer(nothing, replicas, model=Net())
        assert_step_fails(weightless, (X, np.zeros(6, np.int64)), ValueError, "weight 0 together")
        first, second = replicas
        trainer.set_replicas([first, Refusing(), second])
        assert_step_fails(trainer, (X, Y), dist.ReplicaError, "replica 1 raised OSError: not today")
        trainer.set_replicas([second, first])  # the first one's request of that step is forgotten
        stats.append(trainer.step((X, Y)))
        trainer.set_replicas(replicas)
        stats.append(trainer.step((X, Y)))
        assert_same(trainer, stats, model, trained_alone(model, config(), [(X, Y)] * 3).stats)
    assert_step_fails(trainer, (X, Y), ReplicaDroppedReplyError, "replica 0: it was closed")


class Refusing:
    def make_step(self, step):
        raise OSError("not today")


def test_errors_name_the_replica_and_leave_the_ranks_usable() -> None:
    on_ranks(3, partial(Failing, "raise"), errors)


def loss_of_a_rank(comm: dist.Communicator) -> None:
    """Rank 2, which is replica 1, fails; others take its place."""
    trainer = DataParallelTrainer(config(), dist.RankReplicas(comm), model=Net())
    stats, model = [trainer.step((X, Y))], Net()
    for _ in range(2):
        assert_step_fails(trainer, (BAD, Y), ReplicaDroppedReplyError, "dropped reply: replica 1: .* rank 2")
    with ExitStack() as stack:
        trainer.set_replicas(threads(stack, 2))
        stats.append(trainer.step((X, Y)))
    assert_same(trainer, stats, model, trained_alone(model, config(), [(X, Y)] * 2).stats)


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("how", "kind"), [("exit", SystemExit), ("sleep", dist.CommError)])
def test_peer_loss_a_rank_that_ends_or_is_late_is_replaced(how: str, kind: type[BaseException]) -> None:
    caught = raises(kind, "", lambda: on_ranks(3, partial(Failing, how), loss_of_a_rank, timeout=1.5))
    assert 0 not in caught.rank_errors  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", [3, 5, 8, 11])
def test_a_rank_that_dies_in_any_operation_changes_nothing(call: int) -> None:
    def train(comm: dist.Communicator) -> None:
        trainer = DataParallelTrainer(config(), dist.RankReplicas(comm), model=Net())
        assert_step_fails(trainer, (X, Y), ReplicaDroppedReplyError, "dropped reply: replica 1: .*rank 2")

    with pytest.raises(Exception, match="rank 2 was killed") as caught:
        on_ranks(3, Net, train, timeout=5, fault=dist.FaultPlan([dist.Fault("kill", rank=2, call=call)]))
    assert 0 not in caught.value.rank_errors  # type: ignore[attr-defined]


def test_a_part_of_the_ranks_is_refused() -> None:
    def train(comm: dist.Communicator) -> None:
        with dist.RankReplicas(comm) as replicas:
            trainer, (one, two) = DataParallelTrainer(config(), replicas, model=Net()), replicas
            raises(ValueError, r"RankReplicas of \[1\] of ranks \[1, 2\].*split", lambda: trainer.set_replicas([one]))
            raises(ValueError, r"\[1, 1, 2\]", lambda: trainer.set_replicas([one, two, one]))
            trainer.step((X, Y))

    on_ranks(3, Net, train)


def test_peer_loss_an_exception_of_the_trainers_rank_ends_the_others_at_once(monkeypatch: Any) -> None:
    ended, whole = threading.Barrier(3), replicas.broadcast_params

    def broadcast(comm: dist.Communicator, *rest: Any) -> None:
        if comm.rank == 0:
            raise MemoryError("no more")
        whole(comm, *rest)

    def run(comm: dist.Communicator) -> None:
        if comm.rank:
            raises(dist.PeerLostError, "rank 0", lambda: dist.serve_replica(comm, Net()))
        else:
            trainer = DataParallelTrainer(config(), dist.RankReplicas(comm), model=Net())
            assert_step_fails(trainer, (X, Y), dist.ReplicaError, "raised MemoryError: no more")
            assert_step_fails(trainer, (X, Y), ReplicaDroppedReplyError, "ended with MemoryError: no more")
        ended.wait(20)

    monkeypatch.setattr(replicas, "broadcast_params", broadcast)
    dist.run_threads(3, run, timeout=60)


def test_another_model_or_no_rank_is_an_error() -> None:
    def train(comm: dist.Communicator) -> None:
        trainer = DataParallelTrainer(config(), dist.RankReplicas(comm), model=Net(5))
        assert_step_fails(trainer, (X, Y), ReplicaDroppedReplyError, "replica 0: .* on rank 1, .* on rank 0")

    raises(dist.CollectiveMismatchError, "parameters differ: .* on rank 1, .* on rank 0", on_ranks, 3, Net, train)
    alone = DataParallelTrainer(config(), dist.RankReplicas(dist.NoOpCommunicator()), model=Net())
    assert_step_fails(alone, (X, Y), dist.NoReplicasError, "no replicas")


def as_in_threads(comm: dist.Communicator) -> str:
    """The same in processes; at the end rank 2 is killed."""
    for name in CASES:
        for dtype in ("float32", "float64"):
            compare(comm, name, dtype, trainer=comm.world_size - 1)
    if comm.rank:
        dist.serve_replica(comm, Failing("raise"))
        dist.serve_replica(comm, Failing("kill"))
    else:
        errors(comm)
        loss_of_a_rank(comm)
    return "passed"


@pytest.mark.long
@requires_mpi
def test_peer_loss_processes_are_threads_and_a_killed_one_is_replaced() -> None:
    result = on_processes(3, as_in_threads, returncode=137)
    assert result.lines(0) == ["passed"], result.text
    assert "rank 2 failed first: killed by SIGKILL" in result.stderr
