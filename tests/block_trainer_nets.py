"""Models, batches and runs for the tests of the block trainer; processes import them, so they need no pytest."""

import math

import numpy as np
from data_parallel import assert_close

import minigrad
from minigrad import Tensor, distributed as dist, nn

C, ROWS = 6, 12


class Statistic(nn.Module):
    """Adds the mean of what it has seen, which it goes on to learn, as a running statistic; BatchNorm-like."""

    def __init__(self, dtype) -> None:
        super().__init__()
        self.register_buffer("mean", Tensor(np.zeros(C, dtype)))
        self.register_buffer("seen", Tensor(np.zeros((), np.int64)))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.mean.clone()
        with minigrad.no_grad():
            self.mean.mul_(0.9).add_(x.detach().mean(0) * 0.1)
            self.seen.add_(1)
        return y


class Tap(minigrad.Function):
    """y = x; tells when backward comes by."""

    def forward(self, x: np.ndarray, told=None) -> np.ndarray:
        self.told = told
        return x.copy()

    def backward(self, dy: np.ndarray) -> np.ndarray:
        self.told()
        return dy


class Block(nn.Module):
    def __init__(self, parameter, dtype) -> None:
        super().__init__()
        self.weight = parameter(C, C)
        self.gain = parameter()
        self.statistic = Statistic(dtype)
        self.told = None

    def forward(self, x: Tensor) -> Tensor:
        if self.told is not None:
            x = Tap.apply(x, told=self.told)
        return x + self.statistic((x @ self.weight).tanh()) * self.gain


class Leaf(nn.Module):
    """One weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


class Net(nn.Module):
    """embedding, three blocks, norm, head (or the embedding again), and a parameter that nothing uses."""

    def __init__(self, seed: int = 0, dtype=np.float64, tied: bool = False) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(Tensor(np.asarray(0.5 * rng.standard_normal(shape), dtype)))

        self.embedding = Leaf(parameter(5, C))
        self.blocks = nn.ModuleList(Block(parameter, dtype) for _ in range(3))
        self.norm = Leaf(parameter(C))
        self.head = Leaf(self.embedding.weight if tied else parameter(C, 5))
        self.tied = tied
        self.unused = Leaf(parameter(2))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        h = x @ self.embedding.weight
        for block in self.blocks:
            h = block(h)
        head = self.head.weight.T if self.tied else self.head.weight
        return ((h * self.norm.weight @ head - y) ** 2).mean()


class Plain(Net):
    """Without the statistic, which k micro-batches change in another way than one batch does."""

    def __init__(self, seed: int = 0, dtype=np.float64) -> None:
        super().__init__(seed, dtype)
        for block in self.blocks:
            block.statistic = nn.Sequential()


class One(nn.Module):
    """A weight in a block, whose gradient is the mean of the samples; and one that is frozen."""

    def __init__(self, dtype=np.float64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Module()])
        self.blocks[0].weight = nn.Parameter(Tensor(np.zeros((), dtype)))
        self.frozen = nn.Parameter(Tensor(np.ones(2, dtype)))
        self.frozen.requires_grad_(False)

    def loss(self, x: Tensor) -> Tensor:
        return (self.blocks[0].weight * x).mean()


class Spoil(minigrad.Function):
    """y = 0 times x's sum; its gradient is whatever ``value`` says, at one place."""

    def forward(self, x: np.ndarray, value: float = 0.0) -> np.ndarray:
        self.like, self.value = x, value
        return np.zeros((), x.dtype)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        dx = np.zeros_like(self.like)
        dx.flat[-1] = self.value
        return dx


def batch(step: int, rows=slice(None), dtype=np.float64) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.random.default_rng([3, step]).standard_normal((2, ROWS, 5)).astype(dtype)
    return x[rows], y[rows]


def parts(sizes: tuple[int, ...], rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def contents(net: nn.Module) -> dict[str, np.ndarray]:
    return {name: t.data.copy() for name, t in net.state_dict().items()}


def held(net: nn.Module) -> dict[str, bytes]:
    """The bits of all that it holds."""
    return {name: array.tobytes() for name, array in contents(net).items()}


def noting(sent: list[int]) -> dist.CommHook:
    """The plain all-reduce, which notes the size of each bucket."""

    def hook(communicator: dist.Communicator, bucket: Tensor) -> dist.Work:
        sent.append(bucket.numel())
        return dist.all_reduce_hook(communicator, bucket)

    return hook


CONFIG = dist.TrainingConfig(0.02, max_grad_norm=0.5)


def alone(net: Net, steps: int = 4, config: dist.TrainingConfig = CONFIG, schedule=None):
    """One process with the whole batch; metrics, and what the model holds."""
    trainer = dist.SimpleTrainer(config, schedule=schedule)
    metrics = []
    for step in range(steps):
        metrics.append(trainer.backward_and_step(net.loss(*map(Tensor, batch(step))), net.named_parameters()))
    return metrics, contents(net)


def assert_like_one_process(got, want) -> None:
    for a, b in zip(got[0], want[0]):
        assert (a.step, a.lr) == (b.step, b.lr)
        assert math.isclose(a.loss, b.loss, rel_tol=1e-12) and math.isclose(a.grad_norm, b.grad_norm, rel_tol=1e-11)
    assert len(got[0]) == len(want[0]) and got[1].keys() == want[1].keys()
    for name, array in want[1].items():
        assert_close(got[1][name], array, 1e-11, name)


def train(comm: dist.Communicator, net: Net, sizes: tuple[int, ...], steps: int = 4, accum: int = 1, **options):
    config = dist.TrainingConfig(0.02, max_grad_norm=0.5, grad_accum_steps=accum)
    trainer = dist.BlockDistributedTrainer(net, comm, config, **options)
    metrics = []
    for step in range(steps):
        x, y = batch(step, parts(sizes, comm.rank))
        for i, (a, b) in enumerate(zip(np.array_split(x, accum), np.array_split(y, accum))):
            made = trainer.train_batch(a, b)
            assert (made is None) == (i + 1 < accum)
        metrics.append(made)
        trainer.verify_replicas()
    return metrics, contents(net)
