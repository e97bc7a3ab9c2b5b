"""A small model and a DdpBuilder that trains it on two replicas, for the tests of what it does."""

import threading

import numpy as np

import minigrad
from minigrad import Tensor, nn, optim
from minigrad.distributed.mirrors.flodl.builder import DdpBuilder
from minigrad.distributed.mirrors.flodl.trained_state import TrainedState

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


def adamw(params) -> optim.AdamW:
    return optim.AdamW(params, lr=0.02, weight_decay=0.1)


def builder(**options) -> DdpBuilder:
    parts = {"model_factory": Net, "optim_factory": adamw, "train_fn": loss_of, "dataset": (X, Y), "batch_size": BATCH}
    sizes = {"num_epochs": 2, "replicas": 2, "lr_scale_ratio": 0.0, "batch_timeout": 20.0}
    return DdpBuilder(**{**parts, **sizes, **options})


def arrays(state: TrainedState) -> dict[str, np.ndarray]:
    return {**state.params, **state.buffers}


def is_replica(rank: int) -> bool:
    return threading.current_thread().name == f"replica-{rank}"
