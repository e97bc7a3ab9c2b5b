"""What the tests of DdpBuilder share: rows, a small model, a builder with settings, and SYNC as a plain loop."""

import threading

import numpy as np

import minigrad
from minigrad import Tensor, data, nn, optim
from minigrad.distributed.mirrors.flodl.builder import DdpBuilder
from minigrad.distributed.mirrors.flodl.policies import AverageBackend, AveragingPolicy
from minigrad.distributed.mirrors.flodl.trained_state import TrainedState
from minigrad.distributed.train.config import TrainingConfig
from minigrad.distributed.train.simple_trainer import SimpleTrainer

SYNC, CADENCE, ASYNC = AveragingPolicy.SYNC, AveragingPolicy.CADENCE, AveragingPolicy.ASYNC
COMMUNICATOR, CPU = AverageBackend.COMMUNICATOR, AverageBackend.CPU
N, BATCH = 50, 4

rng = np.random.default_rng(0)
X = rng.standard_normal((N, 5))
Y = np.tanh(X @ rng.standard_normal((5, 2)))


class Net(nn.Module):
    """Two layers with a running mean of the inputs, which evaluation subtracts; the bias is frozen."""

    def __init__(self, seed: int = 0, dtype=np.float64) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.w = nn.Parameter(Tensor(rng.standard_normal((5, 6)).astype(dtype)))
        self.v = nn.Parameter(Tensor(rng.standard_normal((6, 2)).astype(dtype)))
        self.bias = nn.Parameter(Tensor(np.array([0.1, 0.7], dtype)), requires_grad=False)
        self.register_buffer("mean", minigrad.zeros(5, dtype=dtype))
        self.register_buffer("seen", minigrad.zeros((), dtype=np.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.data[...] = 0.9 * self.mean.data + 0.1 * x.data.mean(0)
            self.seen.data[...] += 1
        return (x @ self.w).tanh() @ self.v + self.bias


def loss_of(model, batch) -> Tensor:
    x, y = batch
    return ((model(x) - y) ** 2).mean()


def trained(model: nn.Module):
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def adamw(params) -> optim.AdamW:
    return optim.AdamW(params, lr=0.02, weight_decay=0.1)


def sgd(params) -> optim.SGD:
    return optim.SGD(params, lr=0.05)


def builder(**options) -> DdpBuilder:
    parts = {"model_factory": Net, "optim_factory": adamw, "train_fn": loss_of, "dataset": (X, Y), "batch_size": BATCH}
    sizes = {"num_epochs": 2, "replicas": 2, "lr_scale_ratio": 0.0, "batch_timeout": 20.0}
    return DdpBuilder(**{**parts, **sizes, **options})


def epoch_batches(epoch: int, seed: int = 42) -> list[np.ndarray]:
    sampler = data.EpochSampler(N, BATCH, seed, drop_last=True)
    sampler.epoch = epoch
    return list(sampler)


def tensors(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: t.data for name, t in [*model.named_parameters(), *model.named_buffers()]}


def plain(batches: list[np.ndarray], optimizer) -> dict[str, np.ndarray]:
    """What one model is after a step with each of these rows."""
    model = Net()
    trainer = SimpleTrainer(TrainingConfig(max_grad_norm=None), optimizer(trained(model)))
    for rows in batches:
        loss = loss_of(model, (Tensor(X[rows]), Tensor(Y[rows])))
        trainer.step(list(model.named_parameters()), loss.backward(), loss.item())
    return tensors(model)


def by_hand(world: int, optimizer, epochs: int, clip: float | None = None) -> dict[str, np.ndarray]:
    """Per-batch averaging written down: each replica steps on its batch, then all are set to their mean."""
    models = [Net() for _ in range(world)]
    trainers = [SimpleTrainer(TrainingConfig(max_grad_norm=clip), optimizer(trained(m))) for m in models]
    for epoch in range(epochs):
        batches = epoch_batches(epoch)
        for step in range(len(batches) // world):
            for rank, (model, trainer) in enumerate(zip(models, trainers)):
                rows = batches[step * world + rank]
                loss = loss_of(model, (Tensor(X[rows]), Tensor(Y[rows])))
                trainer.step(list(model.named_parameters()), loss.backward(), loss.item())
            states = [tensors(model) for model in models]
            for name in ("w", "v", "mean"):
                mean = sum(state[name] for state in states) / world
                for state in states:
                    state[name][...] = mean
    return tensors(models[0])


def arrays(state: TrainedState) -> dict[str, np.ndarray]:
    return {**state.params, **state.buffers}


def assert_same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes(), name


def is_replica(rank: int) -> bool:
    return threading.current_thread().name == f"replica-{rank}"
