"""Layers split over ranks are the whole layers, forward and backward; TensorParallelTrainer trains one model."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from in_threads import in_threads
from refusals import raises
from replica_models import VOCABULARY, TensorCase, Words, assert_same_part, rows

from minigrad import Tensor, distributed as dist, nn
from minigrad.distributed.comm.communicator import part_of
from minigrad.nn import functional as F

WORLDS = pytest.mark.parametrize("world", [1, 2, 3, 4])
RNG = np.random.default_rng(0)
X, DY = RNG.standard_normal((3, 2, 6)), RNG.standard_normal((3, 2, 5))


def whole_linear(bias: bool = True) -> nn.Linear:
    rng, layer = np.random.default_rng(1), nn.Linear(6, 5, bias, dtype="float64")
    for p in layer.parameters():
        p.data[...] = rng.standard_normal(p.shape)
    return layer


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-12, atol=1e-12)


def test_parts_are_disjoint_and_complete() -> None:
    for n in (0, 1, 5, 6, 7, 12):
        for world in (1, 2, 3, 4, 5):
            parts = dist.run_threads(world, partial(part_of, n))
            assert [i for begin, end in parts for i in range(begin, end)] == list(range(n))
            assert max(end - begin for begin, end in parts) == -(-n // world)
    assert dist.run_threads(4, partial(part_of, 5)) == [(0, 2), (2, 4), (4, 5), (5, 5)]


@WORLDS
@pytest.mark.parametrize("kind", ["column", "row"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_the_whole_layer_forward_and_backward(world: int, kind: str, whole: bool, bias: bool) -> None:
    linear = whole_linear(bias)
    x = Tensor(X, requires_grad=True)
    y = linear(x)
    want = y.backward(Tensor(DY))

    def check(comm: dist.Communicator) -> None:
        ins, outs = slice(None), slice(None)  # of the weight that this rank has
        layer: Any
        if kind == "column":
            layer = dist.ColumnParallelLinear(6, 5, comm, bias, gather_output=whole, dtype="float64")
            outs = slice(*part_of(5, comm))
        else:
            layer = dist.RowParallelLinear(6, 5, comm, bias, input_is_parallel=not whole, dtype="float64")
            ins = slice(*part_of(6, comm))
        layer.take(linear)
        given, made = (slice(None), slice(None)) if whole else (ins, outs)  # of the input and the output
        mine = Tensor(np.ascontiguousarray(X[..., given]), requires_grad=True)
        y_r = layer(mine)
        close(y_r.detach(), y.detach().numpy()[..., made])
        grads = y_r.backward(Tensor(np.ascontiguousarray(DY[..., made])))
        close(grads[mine], want[x].numpy()[..., given])
        close(grads[layer.weight], want[linear.weight].numpy()[outs, ins])
        if bias:
            close(grads[layer.bias], want[linear.bias].numpy()[outs])
        for name, tensor in layer.whole().items():
            assert np.array_equal(tensor.numpy(), getattr(linear, name).data), name
        assert f"part {comm.rank} of {world}" in repr(layer)

    dist.run_threads(world, check, timeout=30)


@WORLDS
def test_embedding_equals_the_whole_table(world: int) -> None:
    table = nn.Embedding(5, 4, dtype="float64")
    indices, dy = np.array([[4, 0, 2], [2, 2, 1]]), RNG.standard_normal((2, 3, 4))
    y = table(Tensor(indices))
    want = y.backward(Tensor(dy))

    def check(comm: dist.Communicator) -> None:
        layer = dist.VocabParallelEmbedding(5, 4, comm, dtype="float64")
        layer.take(table)
        y_r = layer(Tensor(indices))
        assert np.array_equal(y_r.detach().numpy(), y.detach().numpy())
        begin, end = part_of(5, comm)
        if begin < end:
            close(y_r.backward(Tensor(dy))[layer.weight], want[table.weight].numpy()[begin:end])
        assert np.array_equal(layer.whole()["weight"].numpy(), table.weight.data)
        for bad in (5, -1):
            raises(IndexError, f"index {bad} at position 1 is out of range for 5", layer, Tensor(np.array([0, bad])))

    dist.run_threads(world, check, timeout=30)


@WORLDS
@pytest.mark.parametrize("weighted", [True, False])
def test_cross_entropy_equals_that_of_the_whole_logits(world: int, weighted: bool) -> None:
    logits, target = RNG.standard_normal((6, 5)) * 30, np.array([4, 0, -100, 2, 2, 3])
    weight = Tensor(np.array([0.5, 2.0, 1.0, 0.0, 3.0])) if weighted else None
    x = Tensor(logits, requires_grad=True)
    loss = F.cross_entropy(x, Tensor(target), weight)
    want = loss.backward()[x].numpy()

    def check(comm: dist.Communicator) -> None:
        begin, end = part_of(5, comm)
        mine = Tensor(np.ascontiguousarray(logits[:, begin:end]), requires_grad=True)
        loss_r = dist.vocab_parallel_cross_entropy(mine, Tensor(target), 5, comm, weight)
        close(loss_r.item(), loss.item())
        close(loss_r.backward()[mine], want[:, begin:end])
        with pytest.raises(IndexError, match="target 5 at position 0 is out of range for 5 classes"):
            dist.vocab_parallel_cross_entropy(mine, Tensor(np.full(6, 5)), 5, comm)
        raises(ValueError, r"expected \(N, ", dist.vocab_parallel_cross_entropy, mine, Tensor(target[:5]), 5, comm)
        with pytest.raises(ValueError, match=r"weight \(4,\); expected \(5,\)"):
            dist.vocab_parallel_cross_entropy(mine, Tensor(target), 5, comm, Tensor(np.ones(4)))

    dist.run_threads(world, check, timeout=30)


def test_layers_begin_with_the_weights_of_one_whole_layer() -> None:
    def check(comm: dist.Communicator) -> list[bytes]:
        layers: list[Any] = [
            dist.ColumnParallelLinear(6, 5, comm),
            dist.RowParallelLinear(6, 5, comm),
            dist.VocabParallelEmbedding(5, 4, comm),
        ]
        found = [tensor.numpy() for layer in layers for tensor in layer.whole().values()]
        assert all(array.dtype == np.float32 and array.std() > 0 for array in found)
        raises(ValueError, r"a weight of shape \(5, 5\), expected \(5, 6\)", lambda: layers[0].take(nn.Linear(5, 5)))
        raises(ValueError, r"a weight of shape \(6, 4\), expected \(5, 4\)", lambda: layers[2].take(nn.Embedding(6, 4)))
        return [array.tobytes() for array in found]

    results = dist.run_threads(3, check, timeout=30)
    assert results[0] == results[1] == results[2]


# ---------------------------------------------------------------------- the trainer

CASES = [
    TensorCase(),
    TensorCase(tied=False, weighted=True, clip=None, size=100),
    TensorCase(gather=True, frozen=("embed.weight", "down.bias", "norm.weight")),
]


@WORLDS
@pytest.mark.parametrize("case", CASES, ids=str)
def test_tensor_parallel_equals_the_unsharded_model(world: int, case: TensorCase) -> None:
    def train(comm: dist.Communicator) -> Any:
        part, model = case.train(comm)
        whole = [("norm.weight", model.norm.weight), ("norm.bias", model.norm.bias), ("down.bias", model.down.bias)]
        dist.assert_replicas_identical(comm, whole)  # bit for bit
        return part

    assert_same_part(dist.run_threads(world, train, timeout=30), case.alone())


def test_dropout_is_the_same_on_all_ranks_and_a_run_repeats() -> None:
    def train(comm: dist.Communicator) -> list[float]:
        model = nn.Sequential(nn.Dropout(0.5), dist.ColumnParallelLinear(5, 4, comm, dtype="float64"), nn.Dropout(0.5))
        model[1].take(nn.Linear(5, 4, dtype="float64")) if comm.world_size == 1 else None
        trainer = dist.TensorParallelTrainer(config(), model, comm, seed=3)
        for p in model.parameters():
            p.data[...] = 0.25
        return [trainer.step(rows(6, step)).loss for step in range(3)]

    one, two = dist.run_threads(1, train), dist.run_threads(2, train)
    np.testing.assert_allclose(two[0], one[0], rtol=1e-12)
    assert two[0] == two[1] and len(set(one[0])) == 3


def config(loss: dist.LossKind | None = None) -> dist.TrainerConfig:
    return dist.TrainerConfig(3, None, dist.OptimizerKind.sgd(0.1), dist.LossKind.mse() if loss is None else loss)


@in_threads(2)
def test_no_shards(comm: dist.Communicator) -> None:
    raises(dist.NoShardsError, "no shards: no layer", dist.TensorParallelTrainer, config(), nn.Linear(5, 4), comm)
    with pytest.raises(ValueError, match="split_classes is 4, but the loss is mse"):
        dist.TensorParallelTrainer(config(), dist.ColumnParallelLinear(5, 4, comm), comm, split_classes=4)


@in_threads(2)
def test_other_parameters_that_differ_are_refused(comm: dist.Communicator) -> None:
    norm = nn.LayerNorm(4, dtype="float64")
    model = nn.Sequential(dist.ColumnParallelLinear(5, 4, comm, dtype="float64"), norm)
    trainer = dist.TensorParallelTrainer(config(), model, comm)
    norm.bias.data[0] = comm.rank
    before = [p.data.copy() for p in model.parameters()]
    raises(dist.ReplicaMismatchError, "'1.bias'", lambda: trainer.step(rows(6)))
    assert all(np.array_equal(p.data, old) for p, old in zip(model.parameters(), before, strict=True))
    norm.bias.data[0] = 0.0
    assert trainer.step(rows(6)).grad_norm > 0


def test_batches_that_give_no_step() -> None:
    x, y = rows(5)
    bad = y.copy()
    bad[1, 1] = np.nan

    def check(comm: dist.Communicator) -> None:
        model = dist.ColumnParallelLinear(5, 4, comm, dtype="float64")
        trainer = dist.TensorParallelTrainer(config(), model, comm)
        before = model.weight.data.copy()
        other = dist.CollectiveMismatchError
        cases: list[Any] = [
            ([], dist.ZeroSamplesError, "trainer: zero samples"),
            ((x, y[:4]), ValueError, "features .* and labels"),
            ((x, bad), dist.NonFiniteLossError, "the loss of step 1 is nan"),
            ((x + comm.rank, y), other, "the ranks' batches differ: 5 samples on rank [01], 5 here"),
            ((x, y[: 5 - comm.rank]), ValueError if comm.rank else other, "features"),
        ]
        for batch, error, match in cases:
            raises(error, match, trainer.step, batch)
            assert np.array_equal(model.weight.data, before) and trainer.global_step == 0
        assert trainer.step((x, y)).loss > 0
        zero = dist.TensorParallelTrainer(config(dist.LossKind.weighted_cross_entropy([0, 1, 1, 1])), model, comm)
        raises(ValueError, "weight 0 together", lambda: zero.step((x, np.zeros(5, np.int64))))

    dist.run_threads(2, check, timeout=30)


@pytest.mark.parametrize("kind", ["kill", "delay"])
def test_shard_dropped_reply(kind: str) -> None:
    def train(comm: dist.Communicator) -> None:
        model = Words(comm)
        trainer = dist.TensorParallelTrainer(TensorCase().config, model, comm, split_classes=VOCABULARY)
        before = [p.data.tobytes() for p in model.parameters()]
        batch = TensorCase().batches()[0]
        if comm.rank == 1:
            trainer.step(batch)
        else:
            words = "shard dropped reply: .*; no weight was changed"
            assert raises(dist.ShardDroppedReplyError, words, trainer.step, batch).rank == 1
        assert [p.data.tobytes() for p in model.parameters()] == before

    plan = dist.FaultPlan([dist.Fault(kind, rank=1, call=20, seconds=3.0 if kind == "delay" else 0.0)], order=0)
    with pytest.raises((dist.RankKilledError, dist.ShardDroppedReplyError)) as caught:
        dist.run_threads(3, train, timeout=1.0, fault=plan)
    assert set(caught.value.rank_errors) == {1}  # type: ignore[attr-defined]
