"""CommunicatorGroup: data x pipeline x tensor, whose trainers are one process with the whole batch."""

import numpy as np
import pytest
from refusals import raises
from replica_models import Part, assert_same_part, trained_alone

import minigrad
from minigrad import Tensor, models, nn
from minigrad import distributed as dist

RNG = np.random.default_rng(0)
BATCHES = [RNG.integers(0, 11, (5, 7)) for _ in range(3)]
CONFIG = dist.TrainerConfig(2, 0.5, dist.OptimizerKind.adamw(0.02), dist.LossKind.cross_entropy())


def gpt2() -> models.GPT2:
    minigrad.manual_seed(3)
    return models.GPT2(models.GPT2Config(11, 6, n_layer=2, n_head=2, n_embd=8, tied=False)).double()


def labels(tokens: np.ndarray) -> np.ndarray:
    """The next tokens; row 1 has fewer that count."""
    wanted = tokens[:, 1:].copy()
    wanted[1:2, 2:] = -100
    return wanted


class Embed(nn.Module):
    def __init__(self, model: models.GPT2) -> None:
        super().__init__()
        self.wte, self.wpe = model.wte, model.wpe

    def forward(self, tokens: Tensor) -> Tensor:
        return self.wte(tokens) + self.wpe(minigrad.arange(tokens.shape[1]))


def split(block: nn.Block, comm: dist.Communicator) -> nn.Block:
    """The block with its MLP over the ranks."""
    whole = block.mlp.c_fc, block.mlp.c_proj
    hidden, channels = whole[0].weight.shape
    block.mlp.c_fc = dist.ColumnParallelLinear(channels, hidden, comm, gather_output=False, dtype=minigrad.float64)
    block.mlp.c_proj = dist.RowParallelLinear(hidden, channels, comm, input_is_parallel=True, dtype=minigrad.float64)
    for part, one in zip((block.mlp.c_fc, block.mlp.c_proj), whole, strict=True):
        part.take(one)
    return block


def train(world: dist.Communicator, sizes: dict[str, int]) -> Part:
    group = dist.CommunicatorGroup(world, **sizes)
    model = gpt2()
    if sizes["tensor"] > 1:
        for block in model.h:
            split(block, group.tensor)
    stages = [nn.Sequential(Embed(model), model.h[0]), nn.Sequential(model.h[1], model.ln_f, model.lm_head)]
    if sizes["pipeline"] == 2:
        trainer = dist.PipelineParallelTrainer(CONFIG, stages[group.pipeline.rank], group)
    else:
        trainer = dist.TensorParallelTrainer(CONFIG, nn.Sequential(*stages), group)
    mine = {0: slice(0, 2), 1: slice(2, 5)}[group.data.rank] if sizes["data"] == 2 else slice(None)
    found = [trainer.step((tokens[mine, :-1], labels(tokens)[mine])) for tokens in BATCHES]
    own = {id(p) for p in (trainer.stage if sizes["pipeline"] == 2 else trainer.model).parameters()}
    held = {name: p for name, p in model.named_parameters() if id(p) in own}
    weights = {name: p.detach().numpy() for name, p in held.items()}
    for i, block in enumerate(model.h):
        for name in ("c_fc", "c_proj") if sizes["tensor"] > 1 and f"h.{i}.mlp.c_fc.weight" in held else ():
            whole = getattr(block.mlp, name).whole()
            weights |= {f"h.{i}.mlp.{name}.{key}": value.numpy() for key, value in whole.items()}
    group.close()
    return Part([(stats.loss, stats.grad_norm) for stats in found], weights)


@pytest.mark.parametrize(("data", "pipeline", "tensor"), [(2, 2, 2), (1, 2, 2), (2, 2, 1), (2, 1, 2)])
def test_a_gpt2_over_all_dimensions_is_one_process(data, pipeline, tensor):
    """Replicas with unequally many labels, clipping by the norm of the whole model."""
    alone = trained_alone(gpt2(), CONFIG, [(tokens[:, :-1], labels(tokens)) for tokens in BATCHES])
    sizes = {"data": data, "pipeline": pipeline, "tensor": tensor}
    ranks = dist.run_threads(data * pipeline * tensor, lambda comm: train(comm, sizes), timeout=60)
    assert set().union(*(part.weights for part in ranks)) == alone.weights.keys()
    assert_same_part(ranks, alone)


def test_the_ranks_of_each_dimension():
    def places(world: dist.Communicator) -> list[tuple[int, int]]:
        group = dist.CommunicatorGroup(world, data=2, pipeline=3, tensor=2)
        parts = [(one.rank, one.world_size) for one in (group.data, group.pipeline, group.tensor, group.model)]
        group.close()
        return parts

    found = dist.run_threads(12, places, timeout=30)
    for d in range(2):
        for p in range(3):
            for t in range(2):
                assert found[(d * 3 + p) * 2 + t] == [(d, 2), (p, 3), (t, 2), (p * 2 + t, 6)]


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"2 x 1 x 1 ranks \(data, pipeline, tensor\) of 1"):
        dist.CommunicatorGroup(dist.NoOpCommunicator(), data=2)
    raises(ValueError, "tensor is 0", lambda: dist.CommunicatorGroup(dist.NoOpCommunicator(), tensor=0))
    alone = dist.CommunicatorGroup(dist.NoOpCommunicator())
    assert alone.data.world_size == alone.pipeline.world_size == alone.tensor.world_size == 1
