"""Models for the tests of replicas, pipelines and shards; processes import them, so they need no pytest."""

import os
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigrad import Tensor, distributed as dist, nn
from minigrad.nn import functional as F
from minigrad.optim import LrSchedule


class Net(nn.Module):
    """tanh(x W + b), perhaps shifted by a running mean and dropped out, times a head (5, C); x (rows, 5)."""

    def __init__(self, classes=4, dtype="float64", seed=0, tied=False, frozen=(), running=False, dropout=0.0) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(Tensor(np.asarray(rng.standard_normal(shape), dtype)))

        self.first = parameter(5, 5)
        self.bias = parameter(5)
        self.unused = parameter(3)
        self.head = self.first if tied else parameter(5, classes)
        self.running, self.dropout = running, dropout
        if running:
            self.register_buffer("mean", Tensor(np.zeros(5, dtype)))
            self.register_buffer("batches", Tensor(np.zeros((), np.int64)))
            self.register_buffer("third", Tensor(np.full(3, 1 / 3, dtype)))
        for name, p in self.named_parameters():
            p.requires_grad_(name not in frozen)

    def forward(self, x: Tensor) -> Tensor:
        h = (x @ self.first + self.bias).tanh()
        if self.running:  # as batch normalisation keeps its averages, while the batch itself has no part in the result
            h = h - self.mean
            self.mean = self.mean * 0.9 + h.detach().mean(0) * 0.1
            self.batches = self.batches + 1
        return F.dropout(h, self.dropout, True) @ self.head


class Failing(Net):
    """Raises ValueError, or ends its thread or process, or sleeps, where a feature is larger than 1000."""

    def __init__(self, how: str, **options) -> None:
        super().__init__(**options)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() and x.max().item() > 1000:
            if self.how == "raise":
                raise ValueError("a feature is above 1000")
            if self.how == "exit":
                raise SystemExit(3)
            if self.how == "kill":
                os.kill(os.getpid(), 9)
            time.sleep(2.5)
        return super().forward(x)


class Normed(nn.Module):
    """Linear, LayerNorm, ReLU, Linear: under autocast half, float32 and half."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(inputs, hidden), nn.LayerNorm(hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu())

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)


def broken() -> nn.Module:
    """A function that makes no model."""
    raise RuntimeError("no model today")


def rows(n: int, seed: int = 0, classes: int | None = None, dtype=np.float64) -> tuple[np.ndarray, np.ndarray]:
    """A batch: features (n, 5), and labels (n, 4), or class indices (n,)."""
    rng = np.random.default_rng([3, seed])
    x, y = rng.standard_normal((n, 5)).astype(dtype), rng.standard_normal((n, 4)).astype(dtype)
    return x, y if classes is None else rng.integers(0, classes, n)


def host(model: nn.Module) -> dict[str, np.ndarray]:
    """Its parameters and buffers by name, wherever they are."""
    return {name: t.detach().cpu().numpy() for name, t in (*model.named_parameters(), *model.named_buffers())}


def bits(model: nn.Module) -> dict[str, bytes]:
    """The same to the last bit."""
    return {name: values.tobytes() for name, values in host(model).items()}


# Models in parts ------------------------------------------------------------------------------------------------------


@dataclass
class Part:
    """What a rank has after some steps: (loss, norm) of each, parameters and buffers by name, the trainer's state."""

    stats: list[tuple[float, float]] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    most_in_flight: int = 0
    state: Any = None


def trained_alone(
    model: nn.Module, config: dist.TrainerConfig, batches, schedule: LrSchedule | None = None, saved: Any = None
) -> Part:
    """One process, which has the whole model and each batch at once, and may go on with a state."""
    named = list(model.named_parameters())
    optimizer = config.optimizer.build([(name, p) for name, p in named if p.requires_grad])
    trainer = dist.SimpleTrainer(dist.TrainingConfig(max_grad_norm=config.max_grad_norm), optimizer, schedule)
    part = Part()
    if saved is not None:
        trainer.load_state_dict(named, *saved)
    for x, y in batches:
        metrics = trainer.backward_and_step(config.loss(model(Tensor(x)), Tensor(y)), named)
        assert metrics is not None and metrics.grad_norm is not None
        part.stats.append((metrics.loss, metrics.grad_norm))
    part.state = trainer.state_dict(named)
    part.weights = {name: t.numpy().copy() for name, t in model.state_dict().items()}
    return part


def assert_same_part(parts, want: Part, first: int = 0) -> None:
    """The ranks from ``first`` on have what one process has."""
    for rank, part in enumerate(parts, first):
        np.testing.assert_allclose(part.stats, want.stats, rtol=1e-12, err_msg=f"rank {rank}")
        for name, array in part.weights.items():
            np.testing.assert_allclose(
                array, want.weights[name], rtol=1e-11, atol=1e-12, err_msg=f"{name} on rank {rank}"
            )


class Twice(nn.Module):
    """Two products with the same matrix, tied within a stage."""

    def __init__(self, dtype: str, running: bool) -> None:
        super().__init__()
        self.one = nn.Linear(5, 5, dtype=dtype)
        self.two = nn.Linear(5, 5, dtype=dtype)
        self.two.weight = self.one.weight
        self.running = running
        self.register_buffer("largest", Tensor(np.zeros((), dtype)))

    def forward(self, x: Tensor) -> Tensor:
        if self.running:
            self.largest = self.largest.maximum(x.detach().abs().max())
        return self.two(self.one(x).tanh())


@dataclass(frozen=True)
class PipelineCase:
    """A model of ``world`` stages and how it is trained."""

    world: int
    size: int = 2
    samples: int = 6
    loss: str = "mse"
    clip: float | None = None
    frozen: tuple[str, ...] = ()
    tied: bool = False
    running: bool = False
    dtype: str = "float64"

    @property
    def micro_batches(self) -> int:
        return -(-self.samples // self.size)

    @property
    def config(self) -> dist.TrainerConfig:
        weights = (0.5, 3.0, 0.0, 1.25) if self.loss == "weighted_cross_entropy" else None
        optimizer = dist.OptimizerKind.adamw(0.02, 0.8, 0.95, 1e-6, 0.1)
        return dist.TrainerConfig(self.size, self.clip, optimizer, dist.LossKind(self.loss, weights))

    def batches(self):
        classes = None if self.loss == "mse" else 4
        return [rows(self.samples, seed, classes, self.dtype) for seed in range(3)]

    def stages(self) -> nn.Sequential:
        """All stages, the same values wherever they are made."""
        special = self.tied or self.running

        def stage(i: int) -> nn.Module:
            if special and i == 1:
                return Twice(self.dtype, self.running)
            linear = nn.Linear(5, 4 if i == self.world - 1 else 5, dtype=self.dtype)
            return nn.Sequential(linear) if special else linear

        model = nn.Sequential(*[stage(i) for i in range(self.world)])
        rng = np.random.default_rng(1)
        for name, p in model.named_parameters():
            p.data[...] = rng.standard_normal(p.shape) * 0.7
            p.requires_grad_(name.replace(".0.", ".") not in self.frozen)
        return model

    def alone(self) -> Part:
        return trained_alone(self.stages(), self.config, self.batches())

    def train(self, comm: dist.Communicator) -> Part:
        stage = self.stages()[comm.rank].to(device=comm.device)
        trainer = dist.PipelineParallelTrainer(self.config, stage, comm)
        steps = [trainer.step(batch) for batch in self.batches()]
        weights = {f"{comm.rank}.{name}": t.cpu().numpy().copy() for name, t in stage.state_dict().items()}
        return Part([(s.loss, s.grad_norm) for s in steps], weights, trainer.most_in_flight)


VOCABULARY = 7


class Words(nn.Module):
    """Embedding, a block of two linear layers beside it, normalisation, and a head, perhaps tied to the embedding;
    split over the ranks if there is a communicator. Indices (rows, T) -> logits (rows, T, VOCABULARY)."""

    def __init__(self, comm: dist.Communicator | None = None, tied: bool = True, gather: bool = False) -> None:
        super().__init__()
        options = {"dtype": "float64"}
        rng = np.random.default_rng(4)
        whole = nn.Embedding(VOCABULARY, 5, **options), nn.Linear(5, 9, **options), nn.Linear(9, 5, **options)
        whole = (*whole, nn.Linear(5, VOCABULARY, bias=False, **options))
        for layer in whole:
            for p in layer.parameters():
                p.data[...] = rng.standard_normal(p.shape)
        self.embed, self.up, self.down, self.head = whole
        if comm is not None:
            self.embed = dist.VocabParallelEmbedding(VOCABULARY, 5, comm, **options)
            self.up = dist.ColumnParallelLinear(5, 9, comm, gather_output=False, **options)
            self.down = dist.RowParallelLinear(9, 5, comm, input_is_parallel=True, **options)
            self.head = dist.ColumnParallelLinear(5, VOCABULARY, comm, False, gather_output=gather, **options)
            for layer, values in zip((self.embed, self.up, self.down, self.head), whole):
                layer.take(values)
        self.norm = nn.LayerNorm(5, **options)
        if tied:
            self.head.weight = self.embed.weight
        self.to(device="cpu" if comm is None else comm.device)

    def forward(self, indices: Tensor) -> Tensor:
        x = self.embed(indices)
        return self.head(self.norm(x + self.down(F.gelu(self.up(x)))))


@dataclass(frozen=True)
class TensorCase:
    """How ``Words`` is trained."""

    tied: bool = True
    gather: bool = False
    weighted: bool = False
    frozen: tuple[str, ...] = ()
    clip: float | None = 0.5
    size: int = 3

    @property
    def config(self) -> dist.TrainerConfig:
        weights = (0.5, 3.0, 0.0, 1.25, 1.0, 2.0, 0.1)
        loss = dist.LossKind.weighted_cross_entropy(weights) if self.weighted else dist.LossKind.cross_entropy()
        return dist.TrainerConfig(self.size, self.clip, dist.OptimizerKind.adamw(0.02, 0.8, 0.95, 1e-6, 0.1), loss)

    def batches(self):
        rng = np.random.default_rng(5)
        batches = [tuple(rng.integers(0, VOCABULARY, (2, 5, 2))) for _ in range(3)]
        batches[1][1][0, 1] = -100
        return batches

    def freeze(self, model: nn.Module) -> nn.Module:
        for name, p in model.named_parameters():
            p.requires_grad_(name not in self.frozen)
        return model

    def alone(self) -> Part:
        return trained_alone(self.freeze(Words(None, self.tied)), self.config, self.batches())

    def train(self, comm: dist.Communicator) -> tuple[Part, Words]:
        """The model's weights, those of all ranks put together."""
        model = Words(comm, self.tied, self.gather)
        self.freeze(model)
        trainer = dist.TensorParallelTrainer(
            self.config, model, comm, split_classes=None if self.gather else VOCABULARY
        )
        steps = [trainer.step(batch) for batch in self.batches()]
        weights = {f"norm.{name}": values for name, values in host(model.norm).items()}
        for name in ("embed", "up", "down", "head"):
            whole = getattr(model, name).whole()
            weights.update(
                {f"{name}.{key}": t.cpu().numpy() for key, t in whole.items() if (name, self.tied) != ("head", True)}
            )
        return Part([(s.loss, s.grad_norm) for s in steps], weights), model
