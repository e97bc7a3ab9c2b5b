"""Mesh: a model over data x pipeline x tensor, with sharded states, is one process with the whole batch."""

import json
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from ranks import on_processes, requires_mpi
from refusals import raises
from replica_models import Part, trained_alone

import minigrad
from minigrad import Tensor, distributed as dist, models, nn
from minigrad.distributed.comm.communicator import all_gather_json
from minigrad.nn import functional as F

SGD, ADAMW = dist.OptimizerKind.sgd(0.5, 0.9), dist.OptimizerKind.adamw(0.02)
ROWS = {1: [0, 5], 2: [0, 1, 5], 4: [0, 1, 2, 3, 5]}  # of a batch, by replica
BATCHES = []
for tokens in np.random.default_rng(0).integers(0, 11, (4, 5, 7)):
    BATCHES.append((tokens[:, :-1], tokens[:, 1:].copy()))
    BATCHES[-1][1][1, 2:] = -100  # row 1 has fewer labels that count


def config(optimizer: dist.OptimizerKind = SGD, size: int = 1) -> dist.TrainerConfig:
    return dist.TrainerConfig(size, 0.5, optimizer, dist.LossKind.cross_entropy())


def gpt2(**options: Any) -> models.GPT2:
    minigrad.manual_seed(3)
    sizes = {"vocab_size": 11, "block_size": 6, "n_layer": 3, "n_head": 2, "n_embd": 8}
    return models.GPT2(models.GPT2Config(**sizes | options))


def llama(**options: Any) -> models.Llama:
    minigrad.manual_seed(3)
    sizes = {"n_layer": 2, "n_head": 4, "n_kv_head": 2, "n_embd": 16, "n_inner": 11}
    return models.Llama(models.LlamaConfig(11, 6, **sizes | options))


class Trunk(nn.Module):
    """The blocks are within a module that has what comes before and after them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.MLP(8, hidden=5)) for _ in range(3))
        self.norm = nn.LayerNorm(8)


class Mine(nn.Module):
    """A user's model: a tied head, two layers that are one, parameters of its own, one of them unused, and a buffer."""

    def __init__(self) -> None:
        minigrad.manual_seed(5)
        super().__init__()
        self.shift, self.unused = nn.Parameter(minigrad.randn(8)), nn.Parameter(minigrad.ones(2))
        self.trunk, self.out = Trunk(), nn.Linear(8, 11)
        self.trunk.layers[2][0] = self.trunk.layers[0][0]
        self.out.weight = self.trunk.words.weight
        self.register_buffer("scale", minigrad.full((8,), 2.0))

    def embed(self, x: Tensor) -> Tensor:
        return self.trunk.words(x)

    def head(self, x: Tensor) -> Tensor:
        return self.out(self.trunk.norm(x * self.scale + self.shift))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.Sequential(*self.trunk.layers)(self.embed(x)))


def with_other_head() -> models.GPT2:
    model = gpt2(tied=False)
    model.lm_head = nn.Sequential(model.lm_head)
    return model


def tied_by_hand() -> models.GPT2:
    model = gpt2(tied=False)
    model.lm_head.weight = model.wte.weight
    return model


def layers() -> nn.Sequential:
    minigrad.manual_seed(6)
    return nn.Sequential(nn.Embedding(11, 6), nn.MLP(6), nn.LayerNorm(6), nn.Linear(6, 11))


def train(comm: dist.Communicator, model: nn.Module, kind, sizes, batches=BATCHES, state=None, **options) -> Part:
    for p in model.parameters() if comm.rank else []:
        p.data[...] += 1.0  # rank 0's count
    with dist.Mesh(comm, **sizes) as mesh:
        part = mesh.split(model)
        trainer = dist.MeshTrainer(kind, part, mesh, **options)
        if state is not None:
            trainer.load_state_dict(*state)
        ends = ROWS[mesh.data.world_size]
        mine = slice(*ends[mesh.data.rank : mesh.data.rank + 2])
        steps = [trainer.step((x[mine], y[mine])) for x, y in batches]
        return Part([(step.loss, step.grad_norm) for step in steps], part.whole_state(), state=trainer.state_dict())


def run(make, kind, data: int, pipeline: int, tensor: int, **options: Any) -> list[Part]:
    sizes = {"data": data, "pipeline": pipeline, "tensor": tensor}
    return dist.run_threads(
        data * pipeline * tensor, lambda comm: train(comm, make(), kind, sizes, **options), timeout=60
    )


def assert_same(got: Part, want: Part, tolerance: float) -> None:
    np.testing.assert_allclose(got.stats, want.stats, rtol=tolerance)
    assert json.dumps(got.state[1]) == json.dumps(want.state[1])
    for mine, other in ((got.weights, want.weights), (got.state[0], want.state[0])):
        assert {name: (a.shape, a.dtype) for name, a in mine.items()} == {
            k: (a.shape, a.dtype) for k, a in other.items()
        }
        for name, array in mine.items():
            np.testing.assert_allclose(array, other[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize(
    "sizes", [(1, 2, 2), (2, 2, 1), (2, 1, 2), (1, 4, 1), (4, 1, 1), (2, 2, 2), (2, 4, 1), (4, 2, 1)]
)
def test_a_gpt2_on_4_and_8_ranks_is_one_process(sizes, shard):
    """In float32, to 1e-6: losses, norms, weights after clipped steps, and the momentum, a sum of gradients."""
    make = partial(gpt2, n_layer=4, checkpoint_blocks=shard == 1)
    for got in run(make, config(), *sizes, shard=shard, pipeline_schedule=("1f1b", "gpipe")[shard % 2]):
        assert_same(got, trained_alone(make(), config(), BATCHES), 1e-6)


MODELS = {
    "mine": (Mine, (2, 2, 1), ()), "frozen": (partial(gpt2, tied=False, bias=False), (2, 2, 2), ("w", "h.0", "h.1")),
    "llama": (llama, (2, 2, 2), ("layers.1.mlp.up",)), "layers": (layers, (2, 2, 2), ()),
    "tied by hand": (tied_by_hand, (2, 1, 2), ()),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("shard", [0, 2])
@pytest.mark.parametrize("name", MODELS)
def test_other_models_are_one_process(name, shard):
    """With AdamW, in float64; a whole stage is frozen, or a layer, or nobody uses a parameter."""
    kind, sizes, frozen = MODELS[name]

    def make() -> nn.Module:
        model = kind().double()
        for key, p in model.named_parameters():
            p.requires_grad_(not key.startswith(frozen))
        return model

    for got in run(make, config(ADAMW, 2), *sizes, shard=shard):
        assert_same(got, trained_alone(make(), config(ADAMW), BATCHES), 1e-11)


@pytest.mark.long
def test_a_run_goes_on_in_other_meshes_and_in_one_process():
    def after(part: Part) -> models.GPT2:
        model = gpt2().double()
        model.load_state_dict(part.weights)
        return model

    kind = config(ADAMW)
    one = run(lambda: gpt2().double(), kind, 2, 2, 2, batches=BATCHES[:2], shard=2)[3]
    two = run(lambda: after(one), kind, 2, 1, 2, batches=BATCHES[2:3], state=one.state, shard=1)[1]
    alone = trained_alone(after(two), kind, BATCHES[3:], saved=two.state)
    for three in (alone, *run(lambda: after(two), kind, 1, 3, 1, batches=BATCHES[3:], state=two.state)):
        whole = Part(one.stats + two.stats + three.stats, three.weights, state=three.state)
        assert_same(whole, trained_alone(gpt2().double(), kind, BATCHES), 1e-10)
    strange = {**two.state[0], "optimizer.exp_avg.h.9": np.zeros(1)}, two.state[1]
    raises(ValueError, "h.9' belongs to no", run, lambda: after(two), kind, 1, 2, 1, state=strange)


@pytest.mark.parametrize("kind", [dist.TensorParallelTrainer, dist.PipelineParallelTrainer, dist.MeshTrainer])
def test_trainers_take_a_mesh(kind):
    def trained(comm: dist.Communicator) -> list[float]:
        sizes = {"pipeline": 2} if kind is dist.PipelineParallelTrainer else {"tensor": 2}
        with dist.Mesh(comm, **sizes) as mesh:
            part = mesh.split(gpt2(tied=kind is dist.MeshTrainer))
            options = {"split_classes": part.classes} if kind is dist.TensorParallelTrainer else {}
            trainer = kind(config(), part, mesh, **options)
            mine = slice(*ROWS[2][mesh.data.rank : mesh.data.rank + 2])
            return [trainer.step((x[mine], y[mine])).loss for x, y in BATCHES]

    want = [loss for loss, _ in trained_alone(gpt2(tied=kind is dist.MeshTrainer), config(), BATCHES).stats]
    for losses in dist.run_threads(4, trained, timeout=30):
        np.testing.assert_allclose(losses, want, rtol=1e-6)


def compare_with_one_process(comm: dist.Communicator) -> str:
    got = train(comm, gpt2(), config(), {"pipeline": 2, "tensor": 2}, shard=1)
    assert_same(got, trained_alone(gpt2(), config(), BATCHES), 1e-6)
    return "passed"


@pytest.mark.long
@requires_mpi
def test_a_mesh_of_processes_is_one_process():
    result = on_processes(4, compare_with_one_process)
    assert [result.lines(rank) for rank in range(4)] == [["passed"]] * 4


@pytest.mark.long
def test_what_a_rank_keeps():
    """Its part of the layers, and of the replicas' moments its share; after a step of stage 2 no bucket."""

    def kept(comm: dist.Communicator, shard: int) -> tuple[int, int, int]:
        with dist.Mesh(comm, data=2, tensor=2) as mesh:
            trainer = dist.MeshTrainer(config(ADAMW), part := mesh.split(gpt2(n_embd=32)), mesh, shard=shard)
            trainer.step(BATCHES[0])
            optimizer = trainer._shares.own if shard else trainer._step.optimizer
            states = sum(array.size for state in optimizer.state.values() for array in state.arrays.values())
            flat = sum("flat" in vars(bucket) for bucket in trainer._step.reducer.manager.buckets)
            return sum(p.numel() for p in part.parameters()), states, flat

    whole = gpt2(n_embd=32).num_parameters()
    for shard, flat in enumerate((1, 1, 0)):
        for parameters, states, buckets in dist.run_threads(4, partial(kept, shard=shard), timeout=30):
            assert 0.5 * whole < parameters < 0.53 * whole
            assert states == pytest.approx(2 * parameters / (2 if shard else 1), abs=4) and buckets == flat


def draws(comm: dist.Communicator) -> tuple[list[int], list[np.ndarray]]:
    """By step, the seed of what is common to the ranks of a stage, and what two equal heads, one a rank, give."""
    seeds: list[int] = []
    heads: list[np.ndarray] = []

    def note(module: nn.Module, x: tuple[Tensor]) -> None:
        seeds.append(minigrad.default_generator.seed)
        heads.append(x[0].detach().numpy().copy())

    with dist.Mesh(comm, data=2, pipeline=2, tensor=2) as mesh:
        model = gpt2(n_layer=2, dropout=0.5)
        for block in model.h:
            qkv = block.attn.c_attn.weight.data.reshape(3, 2, 4, 8)
            qkv[:, 1] = qkv[:, 0]
        trainer = dist.MeshTrainer(config(dist.OptimizerKind.sgd(1e-30), 5), part := mesh.split(model), mesh)
        next(iter(part.model.h)).attn.c_proj.register_forward_pre_hook(note)
        for _ in range(2):
            trainer.step(BATCHES[0])
        common = [(name, p) for name, p in part.named_parameters() if name not in part.cuts]
        dist.assert_replicas_identical(mesh.tensor, common)
        return seeds, heads


@pytest.mark.long
def test_each_part_drops_out_by_itself_and_what_ranks_have_in_common_alike():
    ranks, again = (dist.run_threads(8, draws, timeout=30) for _ in range(2))
    assert [seeds for seeds, _ in ranks[::2]] == [seeds for seeds, _ in ranks[1::2]]
    assert len({seed for seeds, _ in ranks for seed in seeds}) == 8  # of replica, stage and step
    heads = [array for _, arrays in ranks for array in arrays]
    assert len(heads) == 16 and all(not np.array_equal(a, b) for i, a in enumerate(heads) for b in heads[:i])
    assert all(np.array_equal(a, b) for a, b in zip(heads, [array for _, arrays in again for array in arrays]))


# ---------------------------------------------------------------------- schedules


class Slow(minigrad.Function):
    """y = x, in a second of virtual time;  dx = dy, in two."""

    is_view = True

    def forward(self, x: Any, *, wait: Any) -> Any:
        self.wait = wait
        wait(1.0)
        return x

    def backward(self, dy: Any) -> Any:
        self.wait(2.0)
        return dy


class Stage(nn.Module):
    def __init__(self, comm: Any) -> None:
        super().__init__()
        self.comm, self.turns, self.weight = comm, comm._group.turns, nn.Parameter(minigrad.ones(()))

    def wait(self, seconds: float) -> None:
        self.turns.pause(self.comm.rank, self.turns.now + seconds, threading.Event())

    def forward(self, x: Tensor) -> Tensor:
        return Slow.apply(x * self.weight, wait=self.wait)


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 8), (4, 4), (4, 12), (3, 1)])
def test_the_bubble_is_that_of_the_formula(p, m):
    """(p - 1) / (m + p - 1) of a step, by the ranks' virtual clock; the two schedules give the same bits."""

    def trained(comm: Any, schedule: str) -> tuple[float, int, bytes]:
        stage = Stage(comm)
        trainer = dist.PipelineParallelTrainer(MSE, stage, comm, pipeline_schedule=schedule)
        trainer.step((np.arange(m, dtype=np.float32), np.ones(m, np.float32)))
        return 1 - 3 * m / stage.turns.now, trainer.most_in_flight, stage.weight.data.tobytes()

    ordered = dist.FaultPlan([], order=0)
    one, two = (dist.run_threads(p, partial(trained, schedule=s), fault=ordered) for s in ("1f1b", "gpipe"))
    assert [idle for idle, *_ in one + two] == pytest.approx([(p - 1) / (m + p - 1)] * 2 * p)
    assert [kept for _, kept, _ in one + two] == [min(m, p - i) for i in range(p)] + [m] * p
    assert [bits for *_, bits in one] == [bits for *_, bits in two]


# ---------------------------------------------------------------------- what is refused


def split(make: Any, *arguments: Any, **options: Any) -> Any:
    return lambda mesh: mesh.split(make(*arguments, **options))


def step(batch: Any = None, **options: Any) -> Any:
    """A step; ``batch(mesh)`` and callable options are of the rank."""

    def call(mesh: dist.Mesh) -> None:
        chosen = {key: value(mesh) if callable(value) else value for key, value in options.items()}
        dist.MeshTrainer(config(), mesh.split(gpt2()), mesh, **chosen).step(batch(mesh))

    return call


def last(mesh: dist.Mesh) -> bool:
    return mesh.world.rank == mesh.world.world_size - 1


MSE = dist.TrainerConfig(1, None, SGD, dist.LossKind.mse())
DIFFER, NOT_MINE = dist.CollectiveMismatchError, (TypeError, ValueError)
REFUSED: list[tuple[Any, str, Any, dict[str, int]]] = [
    (ValueError, "pipeline is 4, but GPT2 has 3 blocks", split(gpt2), {"pipeline": 4}),
    (ValueError, r"tensor is 4, but h.0.attn \(SelfAttention\) has n_head=2, no", split(gpt2), {"tensor": 4}),
    (ValueError, "n_kv_head=1, no multiple", split(llama, n_kv_head=1), {"tensor": 2}),
    (ValueError, "has q_norm.weight beside the layers", split(llama, qk_norm=True), {"tensor": 2}),
    (dist.NoShardsError, "tensor is 2, but Linear has no SelfAttention, MLP", split(nn.Linear, 2, 2), {"tensor": 2}),
    (ValueError, "has a Sequential where tokens have rows", split(with_other_head), {"tensor": 2}),
    (ValueError, "the loss is mse", lambda mesh: dist.MeshTrainer(MSE, mesh.split(gpt2()), mesh), {"tensor": 2}),
    (ValueError, "Trunk lacks embed or head: a model in stages has", split(Trunk), {"pipeline": 2}),
    (ValueError, "Linear has 0 ModuleLists", split(nn.Linear, 2, 2), {"pipeline": 2}),
    (TypeError, "split takes a Module, not int", split(int), {"data": 2}),
    (NOT_MINE, "split takes a Module, not int", lambda mesh: mesh.split(3 if last(mesh) else gpt2()), {"data": 2}),
    (DIFFER, r"wte.weight is \(12, 8\)", lambda mesh: mesh.split(gpt2(vocab_size=11 + last(mesh))), {"data": 2}),
    (ValueError, "shard is 3, but stages keep", step(shard=3), {"data": 2}),
    (ValueError, "shard is 4", step(shard=4), {"data": 2}),
    (DIFFER, "shard is 1 on rank 1", step(shard=lambda mesh: int(last(mesh))), {"data": 2}),
    (ValueError, "pipeline_schedule.*2f2b", step(pipeline_schedule="2f2b"), {"data": 2}),
    (TypeError, "part is not what mesh.split", lambda mesh: dist.MeshTrainer(config(), gpt2(), mesh), {"data": 2}),
    (DIFFER, "the ranks' batches differ", step(lambda mesh: BATCHES[last(mesh)]), {"tensor": 2}),
    (dist.ZeroSamplesError, "on rank 1", step(lambda mesh: [] if last(mesh) else BATCHES[0]), {"data": 2}),
]


@pytest.mark.parametrize(("kind", "words", "call", "sizes"), REFUSED)
def test_what_cannot_be_done_is_one_error_on_all_ranks(kind, words, call, sizes):
    def check(comm: dist.Communicator) -> None:
        with dist.Mesh(comm, **sizes) as mesh:
            raises(kind, words, call, mesh)
            comm.barrier()  # which is of use afterwards

    dist.run_threads(max(sizes.values()), check, timeout=10)


def test_sizes_that_make_no_mesh():
    def check(comm: dist.Communicator) -> None:
        raises(ValueError, "2 x 3 x 1 ranks .* of 4; expected sizes whose product", dist.Mesh, comm, data=2, pipeline=3)
        raises(ValueError, "1 x 1 x 8 ranks", dist.Mesh, comm, tensor=8)
        raises(ValueError, "tensor is 0", dist.Mesh, comm, tensor=0)
        raises(DIFFER, "tensor is 2 on rank 1, 1 on", dist.Mesh, comm, tensor=1 + comm.rank % 2)
        assert dist.Mesh(comm, tensor=2).data.world_size == 2

    dist.run_threads(4, check, timeout=10)


def test_a_group_numbers_its_ranks():
    def numbers(comm: dist.Communicator) -> list[list[int]]:
        group = dist.CommunicatorGroup(comm, data=2, pipeline=3, tensor=2)
        return [all_gather_json(part, comm.rank) for part in (group.data, group.pipeline, group.tensor, group.model)]

    ranks, found = np.arange(12).reshape(2, 3, 2), dist.run_threads(12, numbers, timeout=30)
    for (d, p, t), rank in np.ndenumerate(ranks):
        parts = ranks[:, p, t], ranks[d, :, t], ranks[d, p], ranks[d]
        assert found[rank] == [part.ravel().tolist() for part in parts]


@pytest.mark.long(but=2)
@pytest.mark.parametrize("call", [80, 50, 100, 140, 160])
@pytest.mark.parametrize("kind", ["kill", "stop"])
def test_no_rank_waits_for_one_that_is_gone(kind, call):
    """In what they do to split, in a pipeline, in a layer and between replicas."""
    sizes, seen = {"data": 2, "pipeline": 2, "tensor": 2}, {}

    def check(comm: dist.Communicator) -> None:
        try:
            train(comm, gpt2(), config(), sizes, shard=2)
        except Exception as error:
            seen[comm.rank] = error
            raise

    plan = dist.FaultPlan([dist.Fault(kind, rank=3, call=call)], order=0)
    raises(Exception, "", dist.run_threads, 8, check, timeout=1.0, fault=plan)
    assert isinstance(seen.pop(3), dist.RankKilledError) and len(seen) == 7
    assert all(isinstance(error, (dist.PeerLostError, dist.CommTimeoutError)) for error in seen.values())


def test_weights_of_another_stage_are_named():
    def check(comm: dist.Communicator) -> None:
        model = dist.Mesh(comm, pipeline=2).split(Mine()).model
        if comm.rank:
            raises(
                AttributeError,
                "another stage has this module",
                lambda: F.linear(minigrad.ones(1, 8), model.trunk.words.weight),
            )
            raises(AttributeError, "another stage has this module", model.embed, minigrad.ones(1, 8))

    dist.run_threads(2, check, timeout=10)
