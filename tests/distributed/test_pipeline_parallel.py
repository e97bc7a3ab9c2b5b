"""PipelineParallelTrainer: stages on several ranks are one model with the whole batch, and no rank waits for ever."""

import math
from functools import partial

import numpy as np
import pytest
from in_threads import in_threads
from ranks import on_processes, requires_mpi
from refusals import raises
from replica_models import PipelineCase, TensorCase, assert_same_part, rows

from minigrad import distributed as dist, nn
from minigrad.optim import NonFiniteGradientError

ADAMW = dist.OptimizerKind.adamw(0.02, 0.8, 0.95, 1e-6, 0.1)


def config(size: int = 2, clip: float | None = None, loss: dist.LossKind | None = None) -> dist.TrainerConfig:
    return dist.TrainerConfig(size, clip, ADAMW, dist.LossKind.mse() if loss is None else loss)


CASES = [
    PipelineCase(1, size=3), PipelineCase(2, size=100, clip=0.3),
    PipelineCase(2, size=3, samples=7, loss="weighted_cross_entropy", clip=0.3),
    PipelineCase(3, size=2, samples=7, frozen=("0.weight", "0.bias", "2.bias")),
    PipelineCase(4, size=1, samples=6, loss="cross_entropy", tied=True),
    PipelineCase(4, size=4, samples=5, frozen=("0.weight", "0.bias"), running=True),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pipeline_equals_the_unsharded_model_forward_and_backward(case: PipelineCase) -> None:
    results = dist.run_threads(case.world, case.train, timeout=30)
    assert_same_part(results, case.alone())
    assert [r.most_in_flight for r in results] == [min(case.micro_batches, n) for n in range(case.world, 0, -1)]


def test_one_rank_is_bitwise_the_unsharded_model() -> None:
    case = PipelineCase(1, size=100, clip=0.3, dtype="float32")
    (got,), want = dist.run_threads(1, case.train), case.alone()
    assert got.stats == want.stats
    assert all(got.weights[name].tobytes() == array.tobytes() for name, array in want.weights.items())


class Logging(dist.PipelineParallelTrainer):
    """Notes when it does what."""

    events = ""

    def _backward(self, *args):
        self.events += "B"
        return super()._backward(*args)


def test_the_schedule_is_one_forward_one_backward() -> None:
    def train(comm: dist.Communicator) -> str:
        stage = PipelineCase(3).stages()[comm.rank]
        trainer = Logging(config(1), stage, comm)

        def note(*args) -> None:
            trainer.events += "F"

        stage.register_forward_hook(note)
        trainer.step(rows(4))
        return trainer.events

    assert dist.run_threads(3, train, timeout=30) == ["FFFBFBBB", "FFBFBFBB", "FBFBFBFB"]


def test_activations_of_other_dtypes_and_without_gradient() -> None:
    class Choose(nn.Module):
        def forward(self, x):
            return (x[:, 0] > 0).long()

    def train(comm: dist.Communicator):
        table = nn.Embedding(2, 4)
        table.weight.data[...] = 0.5
        trainer = dist.PipelineParallelTrainer(config(2), Choose() if comm.rank == 0 else table, comm)
        return trainer.step(rows(6)).loss, table.weight.data.copy()

    results = dist.run_threads(2, train, timeout=30)
    y = rows(6)[1]
    assert results[0][0] == results[1][0] == pytest.approx(np.square(0.5 - y).mean(), rel=1e-6)
    assert (results[0][1] == 0.5).all() and (results[1][1] != 0.5).all()


# ---------------------------------------------------------------------- errors


def failing(comm: dist.Communicator, batch, kind: dist.TrainerConfig, error: type[Exception], match: str) -> None:
    """A step that fails on this rank, with no weight changed, and one after it that does not."""
    stage = PipelineCase(comm.world_size).stages()[comm.rank]
    trainer = dist.PipelineParallelTrainer(kind, stage, comm)
    before = [p.data.tobytes() for p in stage.parameters()]
    raises(error, match, trainer.step, batch)
    assert [p.data.tobytes() for p in stage.parameters()] == before and trainer.global_step == 0
    assert math.isfinite(trainer.step(rows(5, classes=None if kind.loss.name == "mse" else 4)).loss)


@in_threads(3)
def test_no_stages(comm: dist.Communicator) -> None:
    with pytest.raises(dist.NoStagesError, match="no stages on rank 0, 2 of 3"):
        dist.PipelineParallelTrainer(config(), nn.Linear(5, 5) if comm.rank == 1 else None, comm)


def test_batches_that_give_no_step() -> None:
    x, y = rows(5)
    bad = y.copy()
    bad[1, 1] = np.inf
    zero = dist.TrainerConfig(2, None, ADAMW, dist.LossKind.weighted_cross_entropy([1, 0, 1, 1]))
    cases = [
        ([], config(), dist.ZeroSamplesError, "trainer: zero samples on rank 0"),
        ((x, y[:4]), config(), ValueError, "features .* and labels"),
        ((x, bad), config(), dist.NonFiniteLossError, "the loss of step 1 is inf"),
        ((x, np.ones(5, np.int64)), zero, ValueError, "weight 0 together"),
    ]
    for batch, kind, error, match in cases:
        dist.run_threads(3, partial(failing, batch=batch, kind=kind, error=error, match=match), timeout=30)


def test_the_ranks_batches_and_configurations_must_agree() -> None:
    def other_batch(comm: dist.Communicator) -> None:
        batch = rows(5) if comm.rank else (rows(6)[0], rows(6)[1])
        failing(comm, batch, config(), dist.CollectiveMismatchError, "the ranks' batches differ: [56] samples on rank")

    def bad_batch(comm: dist.Communicator) -> None:
        x, y = rows(5)
        kind = (ValueError, "labels") if comm.rank == 1 else (dist.CollectiveMismatchError, "ValueError: features")
        failing(comm, (x, y[: 5 - comm.rank]), config(), *kind)

    def other_config(comm: dist.Communicator) -> None:
        with pytest.raises(dist.CollectiveMismatchError, match="the configuration is"):
            dist.PipelineParallelTrainer(config(2 + comm.rank), nn.Linear(5, 5), comm)

    for check in (other_batch, bad_batch, other_config):
        dist.run_threads(2, check, timeout=30)


def test_a_gradient_that_is_not_finite_on_one_stage_stops_all() -> None:
    class Steep(nn.Module):  # a finite loss with an infinite slope
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(np.zeros(1))

        def forward(self, x):
            return x + self.p.sqrt()

    def train(comm: dist.Communicator) -> None:
        stage = Steep() if comm.rank == 1 else nn.Linear(5, 5 - comm.rank // 2, dtype="float64")
        trainer = dist.PipelineParallelTrainer(config(100, clip=1.0), stage, comm)
        before = [p.data.tobytes() for p in stage.parameters()]
        raises(NonFiniteGradientError, "step 1: the gradient norm is (inf|nan) on rank 1; no", trainer.step, rows(5))
        assert [p.data.tobytes() for p in stage.parameters()] == before

    dist.run_threads(3, train, timeout=30)


DROPPED = [
    (1, "kill", dist.StageDroppedReplyError, "stage dropped reply"),
    (2, "kill", dist.FinalStageDroppedReplyError, "final stage dropped reply"),
    (2, "delay", dist.StageDroppedReplyError, "stage dropped reply"),  # the last, or the one that waits for it
]


@pytest.mark.parametrize(("rank", "kind", "error", "words"), DROPPED)
def test_stage_dropped_reply(rank: int, kind: str, error: type[Exception], words: str) -> None:
    seen: dict[int, Exception] = {}

    def train(comm: dist.Communicator) -> None:
        stage = PipelineCase(3).stages()[comm.rank]
        trainer = dist.PipelineParallelTrainer(config(1), stage, comm)
        before = [p.data.tobytes() for p in stage.parameters()]
        try:
            trainer.step(rows(4))
        except Exception as caught:
            seen[comm.rank] = caught
            raise
        finally:
            assert [p.data.tobytes() for p in stage.parameters()] == before

    plan = dist.FaultPlan([dist.Fault(kind, rank=rank, call=12, seconds=3.0 if kind == "delay" else 0.0)], order=0)
    raises((dist.RankKilledError, error), "", lambda: dist.run_threads(3, train, timeout=1.0, fault=plan))
    others = [seen[r] for r in range(3) if r != rank]
    assert all(type(e) is error or (kind == "delay" and isinstance(e, error)) for e in others), others
    assert all(words in str(e) and "step 1" in str(e) and "no weight was changed" in str(e) for e in others)


# ---------------------------------------------------------------------- processes


def compare_with_one_process(comm: dist.Communicator) -> str:
    for shards in (TensorCase(), TensorCase(tied=False, weighted=True, gather=True)):
        assert_same_part([shards.train(comm)[0]], shards.alone(), comm.rank)
    for clip, size, samples, loss in ((0.3, 2, 7, "mse"), (None, 1, 5, "weighted_cross_entropy")):
        case = PipelineCase(3, size=size, samples=samples, loss=loss, clip=clip)
        got = case.train(comm)
        assert_same_part([got], case.alone(), comm.rank)
        assert got.most_in_flight == 3 - comm.rank
    return "passed"


@pytest.mark.long
@requires_mpi
def test_pipelines_and_tensor_parallel_on_processes_equal_the_unsharded_model() -> None:
    result = on_processes(3, compare_with_one_process)
    assert [result.lines(rank) for rank in range(3)] == [["passed"]] * 3
