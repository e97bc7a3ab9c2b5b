"""One small model, and one way to train it in one process and on several ranks, for the tests of the trainers.

A ``Scenario`` says which rows of the batch each rank has in each micro-batch, and which parts of the model it uses.
``alone`` trains on the whole batch with a SimpleTrainer; ``train`` is what each rank runs; ``assert_same_run``
compares. Everything follows from seeds, so ranks that are processes can do all of it by themselves.
"""

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minigrad import GradStore, Tensor, distributed as dist, dtypes, nn, optim

HOOKED = ("distributed", "bucketed", "fused")  # those that take a hook
KINDS = (*HOOKED, "stage 1", "stage 2")
ROWS = 12
LR = 0.02
WAIT = 10.0  # seconds after which an event that should have come is missing
EVERYTHING = frozenset({"side", "gain"})


def parameters(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Tensor]:
    return [Tensor(np.zeros(shape, dtype), requires_grad=True) for shape in shapes]


def store(params, values, order=None) -> GradStore:
    """A gradient for each parameter that has a value, in this order; the value is broadcast."""
    pairs = [(params[i], values[i]) for i in (range(len(params)) if order is None else order)]
    return GradStore({p._id: Tensor(np.broadcast_to(v, p.shape), dtype=p.dtype) for p, v in pairs if v is not None})


class Net(nn.Module):
    """tanh(x W + b), plus optional parts, times a head; ``unused`` never has a gradient. x and y are (rows, 5)."""

    def __init__(self, dtype: Any = np.float64, seed: int = 0, tied: bool = False, mixed: bool = False) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)

        def parameter(*shape: int, dtype: Any = dtype) -> nn.Parameter:
            return nn.Parameter(Tensor(np.asarray(rng.standard_normal(shape), dtype)))

        other = np.float64 if mixed else dtype
        self.embed = parameter(5, 6)
        self.bias = parameter(6, dtype=other)
        self.unused = parameter(3)
        self.side = parameter(6, 6)
        self.gain = parameter(dtype=other)
        self.head: nn.Parameter | None = None if tied else parameter(6, 5)

    def forward(self, x: Tensor, parts: frozenset[str] = EVERYTHING) -> Tensor:
        h = (x @ self.embed + self.bias).tanh()
        if "side" in parts:
            h = h + h @ self.side
        if "gain" in parts:
            h = h * self.gain
        return h @ (self.embed.T if self.head is None else self.head)

    def loss(self, x: Tensor, y: Tensor, parts: frozenset[str] = EVERYTHING) -> Tensor:
        return ((self(x, parts) - y) ** 2).mean()


class Chain(nn.Module):
    """Nets one after the other."""

    def __init__(self, nets: list[Net]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nets)

    def loss(self, x: Tensor, y: Tensor, parts: frozenset[str] = EVERYTHING) -> Tensor:
        for block in self.blocks:
            x = block(x, parts)
        return ((x - y) ** 2).mean()


@dataclass(frozen=True)
class Share:
    """What one rank has in one micro-batch."""

    rows: tuple[int, ...]
    parts: frozenset[str] = EVERYTHING


@dataclass(frozen=True)
class Scenario:
    """``steps[step][rank]`` are the rank's micro-batches in the window that makes that step."""

    steps: tuple[tuple[tuple[Share, ...], ...], ...]
    dtype: Any = np.float64
    tied: bool = False
    mixed: bool = False
    frozen: tuple[str, ...] = ()
    clip: float | None = None
    accum: int = 1
    schedule: optim.LrSchedule | None = None
    ends: str = "full"  # or "no_sync", or "flush": how a window comes to its end
    blocks: int = 0  # so many Nets, one after the other, which stage 3 gathers one by one

    @property
    def world(self) -> int:
        return len(self.steps[0])

    def net(self, seed: int = 0) -> Any:
        nets = [Net(self.dtype, seed + 100 * i, self.tied, self.mixed) for i in range(max(self.blocks, 1))]
        net = Chain(nets) if self.blocks else nets[0]
        for name, p in net.named_parameters():
            p.requires_grad_(name.rpartition(".")[2] not in self.frozen)
        return net

    def batch(self, step: int, rows) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng([7, step])
        x, y = rng.standard_normal((2, ROWS, 5)).astype(self.dtype)
        return Tensor(x[list(rows)]), Tensor(y[list(rows)])


def shares(world: int, steps: int = 3, accum: int = 1, sizes=None) -> Any:
    """Windows that deal the rows out: ``sizes[rank]`` each (default: equally many), in ``accum`` micro-batches."""
    cuts = np.cumsum([ROWS // world] * world if sizes is None else sizes)
    ranks = [np.arange(begin, end) for begin, end in zip([0, *cuts[:-1]], cuts)]
    window = tuple(tuple(Share(tuple(int(i) for i in part)) for part in np.array_split(rows, accum)) for rows in ranks)
    return (window,) * steps


SIZES = [(5, 7), (12, 0), (0, 1, 11), (3, 0, 8, 1)]  # 0: the rank has no samples


def using(*letters: str, accum: int = 1) -> tuple[tuple[Share, ...], ...]:
    """A window of as many micro-batches, ``accum`` for each rank, which use the named parts: side and gain, by first
    letters."""
    cuts = np.array_split(np.arange(ROWS), len(letters))
    parts = [frozenset(part for part in EVERYTHING if part[0] in used) for used in letters]
    every = [Share(tuple(map(int, rows)), used) for rows, used in zip(cuts, parts)]
    return tuple(tuple(every[i : i + accum]) for i in range(0, len(every), accum))


PRESENCE = {
    "on one rank": (using("sg", "g"), using("sg", "g")),
    "on another rank each step": (using("s", "g", ""), using("", "s", "g"), using("g", "", "s")),
    "on no rank at times": (using("sg", "sg"), using("g", "g"), using("", ""), using("sg", "s")),
    "on no rank at first": (using("", "", "", ""), using("", "", "s", ""), using("g", "", "", "")),
    "on no rank ever": (using("s", "s"), using("s", "s"), using("s", "s")),
    "in one micro-batch of one rank": (using("sg", "g", "g", "g", accum=2),) * 3,
}


def configurations(world: int) -> list[Scenario]:
    """Clipping, accumulation, uneven sizes, absent, tied and frozen parameters on so many ranks."""
    found = [Scenario(shares(world, accum=n), clip=clip, accum=n) for clip in (None, 0.3) for n in (1, 4)]
    sizes = [(n, size) for n in (1, 3) for size in SIZES if len(size) == world]
    found += [Scenario(shares(world, accum=n, sizes=size), clip=0.3, accum=n) for n, size in sizes]
    present = [p for p in PRESENCE.values() if len(p[0]) == world]
    found += [Scenario(p, clip=clip, accum=len(p[0][0])) for p in present for clip in (None, 0.3)]
    return [*found, replace(found[3], tied=True), replace(found[3], frozen=("side", "bias"))]


@dataclass(frozen=True)
class Record:
    """How things are after a step: arrays by the parameter's name; moments with the count of updates."""

    metrics: dist.TrainingMetrics
    weights: dict[str, np.ndarray]
    moments: dict[str, tuple[int, np.ndarray, np.ndarray]]

    def bits(self) -> Any:
        return (
            repr(self.metrics),
            {name: array.tobytes() for name, array in self.weights.items()},
            {name: (t, m.tobytes(), v.tobytes()) for name, (t, m, v) in self.moments.items()},
        )


def record(trainer: dist.SimpleTrainer, net: nn.Module, metrics: dist.TrainingMetrics | None) -> Record:
    assert metrics is not None
    arrays, meta = trainer.state_dict(list(net.named_parameters()))
    kinds = "exp_avg", "exp_avg_sq"
    moments = {
        name: (count, *(arrays[f"optimizer.{kind}.{name}"] for kind in kinds))
        for name, count in meta["optimizer"]["steps"].items()
    }
    with gathered(trainer):
        return Record(metrics, weights_of(net), moments)


@contextlib.contextmanager
def gathered(trainer: dist.SimpleTrainer) -> Iterator[None]:
    """Within it all ranks have whole weights."""
    sharded = [trainer] if isinstance(trainer, dist.ShardedTrainer) else []
    for one in sharded:
        one.gather_full_params()
    yield
    for one in sharded:
        one.release_params()


def weights_of(net: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.data.copy() for name, p in net.named_parameters()}


def state_bits(trainer: dist.SimpleTrainer, net: nn.Module) -> Any:
    """All that a step may change, to the last bit."""
    arrays, meta = trainer.state_dict(net.named_parameters())
    with gathered(trainer):
        weights = {name: p.data.tobytes() for name, p in net.named_parameters()}
    return weights, {name: array.tobytes() for name, array in arrays.items()}, meta


def alone(scenario: Scenario) -> list[Record]:
    """One process, which has the whole batch at once."""
    net = scenario.net()
    trainer = dist.SimpleTrainer(dist.TrainingConfig(LR, max_grad_norm=scenario.clip), schedule=scenario.schedule)
    records = []
    for step, window in enumerate(scenario.steps):
        everyone = [share for rank in window for share in rank if share.rows]
        total = sum(len(share.rows) for share in everyone)
        parts = [net.loss(*scenario.batch(step, s.rows), s.parts) * (len(s.rows) / total) for s in everyone]
        loss = parts[0]
        for part in parts[1:]:
            loss = loss + part
        records.append(record(trainer, net, trainer.step(net.named_parameters(), loss.backward(), loss.item())))
    return records


def make_trainer(
    kind: str,
    comm: dist.Communicator,
    clip: float | None = None,
    accum: int = 1,
    bucket: int = 200,
    schedule: optim.LrSchedule | None = None,
    hook: dist.CommHook = dist.all_reduce_hook,
    lr: float = LR,
    optimizer: optim.Optimizer | None = None,
    net: nn.Module | None = None,  # which stage 3 is told of
    config: dist.TrainingConfig | None = None,
) -> dist.DistributedTrainer:
    if kind == "fused":
        assert optimizer is None
        fused = dist.FusedOptimizerConfig(optim.AdamWConfig(lr=lr), bucket, clip, accum)
        return dist.FusedDistributedOptimizer(fused, comm, schedule, hook=hook)
    config = config or dist.TrainingConfig(lr, max_grad_norm=clip, grad_accum_steps=accum)
    if kind.startswith("stage"):
        sharded = dist.ShardedTrainer(config, comm, optimizer, schedule, stage=int(kind[-1]), bucket_size_bytes=bucket)
        if net is not None:
            sharded.shard(net, [net])
        return sharded
    cls = {"distributed": dist.DistributedTrainer, "bucketed": dist.BucketedTrainer}[kind]
    return cls(config, comm, optimizer, schedule, bucket_size_bytes=bucket, hook=hook)


def feed(trainer, net, loss, weight=1.0, named=None) -> dist.TrainingMetrics | None:
    """One micro-batch, in the way that is the trainer's own; none at all if ``loss`` is None."""
    params = list(net.named_parameters()) if named is None else named
    if loss is None:
        assert isinstance(trainer, dist.DistributedTrainer)
        return trainer.step(params, GradStore(), 0.0, weight=0.0)
    if isinstance(trainer, dist.BucketedTrainer) or callable(loss):
        return trainer.backward_and_step(loss, params, weight)
    return trainer.step(params, loss.backward(), loss.item(), weight)


def train(comm, kind, scenario, bucket=200, hook=dist.all_reduce_hook, on_trainer=lambda trainer: None) -> list[Record]:
    """One rank's part. The ranks start with different weights, and pass their parameters in different orders."""
    root = comm.world_size - 1  # which begins with the weights of seed 0
    net = scenario.net(seed=root - comm.rank)
    trainer = make_trainer(kind, comm, scenario.clip, scenario.accum, bucket, scenario.schedule, hook)
    trainer.broadcast_params(net.named_parameters(), root)
    if kind == "stage 3":
        trainer.shard(net, None if scenario.blocks else [net])
    on_trainer(trainer)
    records = []
    for step, window in enumerate(scenario.steps):
        mine = window[comm.rank]
        if kind == "stage 3":  # whose ranks make equally many forward passes
            mine += (Share(()),) * (max(map(len, window)) - len(mine))
        metrics = None
        for i, share in enumerate(mine):
            assert metrics is None
            named = list(net.named_parameters())
            turn = (comm.rank + step) % len(named)
            named = named[turn:] + named[:turn]
            rows = share.rows or (0,) * (kind == "stage 3")
            loss = net.loss(*scenario.batch(step, rows), share.parts) if rows else None
            unequal = scenario.ends == "flush" and kind == "stage 2"  # which sends each micro-batch, if it may
            if (scenario.ends == "no_sync" and i + 1 < len(mine)) or unequal:
                with trainer.no_sync():
                    metrics = feed(trainer, net, loss, len(share.rows), named)
            else:
                metrics = feed(trainer, net, loss, len(share.rows), named)
        if scenario.ends == "flush":
            assert metrics is None
            metrics = trainer.flush(net.named_parameters())
        trainer.assert_replicas_identical(net.named_parameters())
        records.append(record(trainer, net, metrics))
    return records


def run(kind: str, scenario: Scenario, bucket: int = 200, **options: Any) -> list[Record]:
    """All ranks as threads; checks that they agree to the last bit after every step, and returns what rank 0 has."""
    results = dist.run_threads(scenario.world, lambda comm: train(comm, kind, scenario, bucket, **options), timeout=30)
    for rank, records in enumerate(results):
        for step, (mine, first) in enumerate(zip(records, results[0])):
            assert mine.bits() == first.bits(), f"rank {rank} differs from rank 0 after step {step + 1}"
    return results[0]


def assert_same_run(got: list[Record], want: list[Record], tolerance: float = 1e-12) -> None:
    """The same numbers, but for ``tolerance`` times the array's scale (or 1, if that is more)."""
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert (a.metrics.step, a.metrics.lr) == (b.metrics.step, b.metrics.lr)
        assert math.isclose(a.metrics.loss, b.metrics.loss, rel_tol=tolerance)
        assert (a.metrics.grad_norm is None) == (b.metrics.grad_norm is None)
        if a.metrics.grad_norm is not None and b.metrics.grad_norm is not None:
            assert math.isclose(a.metrics.grad_norm, b.metrics.grad_norm, rel_tol=tolerance)
        assert a.weights.keys() == b.weights.keys() and a.moments.keys() == b.moments.keys()
        for name, array in b.weights.items():
            assert_close(a.weights[name], array, tolerance, f"{name} after step {a.metrics.step}")
        for name, (count, *moments) in b.moments.items():
            assert a.moments[name][0] == count, name
            for mine, array in zip(a.moments[name][1:], moments):
                assert_close(mine, array, tolerance, f"a moment of {name} after step {a.metrics.step}")


def assert_close(got: np.ndarray, want: np.ndarray, tolerance: float, what: str) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    worst = float(np.abs(got - want).max(initial=0.0))
    assert worst <= tolerance * scale, f"{what}: differs by {worst}, at a scale of {scale}"


def distance(got: list[Record], want: list[Record]) -> float:
    """The largest difference of a weight, in units of the weights' scale."""
    last, exact = got[-1].weights, want[-1].weights
    return max(
        float(np.abs(last[name].astype(np.float64) - array).max()) / max(1.0, float(np.abs(array).max()))
        for name, array in exact.items()
    )


def epsilon(scenario: Scenario) -> float:
    return float(dtypes.finfo(np.dtype(scenario.dtype)).eps)


class Watched:
    """A CommHook that notes ``("launch", i)`` and ``("arrived", i)``, and lets bucket i arrive only when ``gates[i]``
    is open."""

    def __init__(self, buckets: int, gates: dict[int, threading.Event] | None = None) -> None:
        self.events: list[Any] = []
        self.launched = [threading.Event() for _ in range(buckets)]
        self.gates = gates or {}
        self.count = 0

    def __call__(self, communicator: dist.Communicator, bucket: Tensor) -> dist.Work:
        number = self.count % len(self.launched)
        self.count += 1
        self.events.append(("launch", number))
        self.launched[number].set()
        return WatchedWork(self, number, dist.all_reduce_hook(communicator, bucket))


class WatchedWork(dist.Work):
    def __init__(self, owner: Watched, number: int, work: dist.Work) -> None:
        self.owner, self.number, self.work = owner, number, work

    def is_completed(self) -> bool:
        return self.work.is_completed()

    def wait(self, timeout: float | None = None) -> None:
        gate = self.owner.gates.get(self.number)
        assert gate is None or gate.wait(WAIT), f"bucket {self.number} waits for something that never comes"
        self.work.wait(timeout)
        self.owner.events.append(("arrived", self.number))
