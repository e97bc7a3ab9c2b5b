"""What each rank does in the tests of NCCL: on GPUs, and in a rehearsal on the simulator's devices with a fake NCCL."""

import threading
from contextlib import contextmanager

import communicator_suite as suite
import numpy as np
import pytest
from data_parallel import Net, feed, make_trainer
from replica_models import bits

from minigrad import Tensor, cuda_kernels, distributed as dist, nn, optim
from minigrad.device import CPU, Device

RECORD = 1024  # bytes: losses, weights and flags of all ranks, norms; the parameters below are larger
KINDS = ("distributed", "bucketed", "stage 1", "stage 2", "stage 3", "block")
COLLECTIVES = (
    *(suite.check_all_reduce, suite.check_broadcast, suite.check_all_gather, suite.check_reduce_scatter),
    *(suite.check_all_to_all, suite.check_asynchronous),
)
ROWS = np.random.default_rng(1).standard_normal((5, 2))
PARTS = (slice(0, 3), slice(3, 5))


class Block(nn.Module):
    """A norm and a shift."""

    def __init__(self, shift: nn.Parameter) -> None:
        super().__init__()
        self.norm, self.shift = nn.BatchNorm1d(80, affine=False).double(), shift

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(h) + self.shift.sum(0)


class Blocks(nn.Module):
    """An embedding, blocks with buffers, a head; each parameter has 1280 bytes."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(Tensor(rng.standard_normal(shape) / 4))

        self.embed = parameter(2, 80)
        self.blocks = nn.ModuleList([Block(parameter(2, 80)) for _ in range(2)])
        self.head = parameter(2, 80)

    def loss(self, x: Tensor) -> Tensor:
        return self(x)

    def forward(self, x: Tensor) -> Tensor:
        h = x @ self.embed
        for block in self.blocks:
            h = block(h)
        return (h * self.head.sum(0)).square().mean()


def sgd(params) -> optim.SGD:
    return optim.SGD(params, lr=0.05, momentum=0.9)


def train(kind: str, comm: dist.Communicator, steps: int, after_first=None):
    """The weights after so many steps with one of the trainers; ``after_first`` is called between the first two."""
    model = Blocks().to(device=comm.device)
    params = [*model.named_parameters()]
    x = Tensor(ROWS[PARTS[comm.rank]], device=comm.device)
    if kind == "block":
        config = dist.TrainingConfig(max_grad_norm=0.5)
        blocks = dist.BlockDistributedTrainer(model, comm, config, optimizer=sgd(params))
    else:
        trainer = make_trainer(kind, comm, clip=0.5, optimizer=sgd(params))
        if kind.startswith("stage"):
            trainer.shard(model)
    for step in range(steps):
        if step == 1 and after_first is not None:
            after_first()
        metrics = blocks.train_batch(x) if kind == "block" else feed(trainer, model, model.loss(x), len(x))
        assert metrics is not None
    if kind.startswith("stage"):
        trainer.gather_full_params()
    return dict(params)


_seen: list[tuple[int, int]] = []  # copies from devices to the host: (thread, bytes)


@contextmanager
def copies_to_host():
    """Within it such copies are noted."""
    memory = cuda_kernels.memory
    copy_out = memory.copy_out

    def counted(target: np.ndarray, *rest, **options) -> None:
        _seen.append((threading.get_ident(), target.nbytes))
        copy_out(target, *rest, **options)

    _seen.clear()
    memory.copy_out = counted
    try:
        yield _seen
    finally:
        memory.copy_out = copy_out


def no_staging_with(kind: str, comm: dist.Communicator):
    """Within ``copies_to_host``: after the first step, in which ranks compare hashes of all weights, only records reach
    this rank's host."""
    marks = []
    params = train(kind, comm, 3, lambda: marks.append(len(_seen)))
    sizes = [size for thread, size in _seen[marks[0] :] if thread == threading.get_ident()]
    assert sizes and max(sizes) < RECORD, (kind, sizes)
    assert sum(sizes) < 16 * RECORD and all(p.data.nbytes > RECORD for p in params.values())
    return params


def no_staging(comm: dist.Communicator) -> None:
    """The same with every trainer."""
    for kind in KINDS:
        no_staging_with(kind, comm)


def collectives(comm: dist.Communicator) -> None:
    """Each operation of two ranks: collectives as every communicator's, messages, groups."""
    for check in COLLECTIVES:
        check(comm)
    r = comm.rank
    sent, received = (suite.put(comm, np.full(10_000, value)) for value in (r, 9))
    works = [comm.send(sent, 1 - r, async_op=True), comm.recv(received, 1 - r, async_op=True)]
    for work in works:
        work.wait()
    assert set(received.cpu().tolist()) == {1.0 - r}
    half = comm.split(0, key=-r)
    assert half is not None and half.rank == 1 - r
    half.barrier()
    half.close()


class Pair(nn.Module):
    """Two matrices and a parameter without a gradient."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        for name, shape in (("a", (3, 4)), ("b", (4, 2)), ("unused", (2,))):
            setattr(self, name, nn.Parameter(Tensor(rng.standard_normal(shape).astype(np.float32))))
        self.to(device=device)

    def loss(self, x: Tensor) -> Tensor:
        return ((x @ self.a).relu() @ self.b).square().mean()


def weights(model: nn.Module) -> list[bytes]:
    return [p.detach().cpu().numpy().tobytes() for p in model.parameters()]


def rows(comm: dist.Communicator, step: int, count: int = 1) -> Tensor:
    shape = (2, 3) if count == 1 else (count, 2, 3)
    return Tensor(np.random.default_rng([comm.rank, step]).standard_normal(shape).astype(np.float32))


def trainer_of(kind: str, comm: dist.Communicator, count: int = 1) -> dist.DistributedTrainer:
    config = dist.TrainingConfig(max_grad_norm=0.5, grad_accum_steps=count)
    schedule = optim.CosineAnnealing(1e-1, 1e-2, 1, 10)
    if kind == "scaled":
        scale = optim.LossScaleStrategy.dynamic(2.0**126, growth_interval=2)
        return dist.AmpTrainer(
            config, dist.MixedPrecisionConfig(loss_scale=scale), comm, schedule=schedule, bucket_size_bytes=40
        )
    made = dist.DistributedTrainer if kind == "distributed" else dist.BucketedTrainer
    return made(config, comm, None, schedule, bucket_size_bytes=40)


def captured(comm: dist.Communicator, kind: str = "bucketed", count: int = 2):
    """Steps whose collectives are part of a graph are the eager ones, bit for bit, of which it returns metrics, weights
    and state; with a scale there are some that overflow on one rank, and are left out."""

    def train(graphs: bool):
        model = Pair(comm.device)
        trainer = trainer_of(kind, comm, count)
        named, found = [*model.named_parameters()], []
        step = trainer.capture(model.loss, named)
        for i in range(5):
            x = rows(comm, i, count)
            if kind == "scaled" and i == 2 and comm.rank:
                x = x * 1e3
            if graphs:
                found.append(step(x))
                continue
            for k in range(count):
                loss = model.loss((x[k] if count > 1 else x).to(device=comm.device))
                metrics = trainer.step(named, trainer._step.backward(loss), loss.item())
            found.append(metrics)
        metrics = [m.result() for m in found] if graphs else found
        trainer.assert_replicas_identical(named)
        assert step.graphs == graphs
        arrays, meta = trainer.state_dict(named)
        step.clear()
        return metrics, weights(model), {name: array.tobytes() for name, array in arrays.items()}, meta

    eager = train(False)
    assert eager == train(True)
    return eager


def wrapped(devices) -> list[tuple[dict[str, bytes], dict[str, np.ndarray]]]:
    """Of two replicas that one thread keeps alike: the bits of each, and the mean gradients that it has got."""
    x, y = (Tensor(values) for values in np.random.default_rng(0).standard_normal((2, 12, 5)))
    halves = [(x[:7], y[:7]), (x[7:], y[7:])]
    models = [Net(np.float64, seed).to(device=device) for seed, device in enumerate(devices)]
    with dist.Ddp.wrap(models, devices) as ddp:
        assert ddp.devices == devices
        ddp.sync_params()
        grads = [m.loss(x.to(d), y.to(d)).backward() for m, d, (x, y) in zip(models, devices, halves)]
        grads[1].remove(models[1].bias)  # counts as zeros
        ddp.weighted_all_reduce_gradients(grads, [7, 5])
    found = []
    for model, device, store in zip(models, devices, grads):
        held = {name: store[p] for name, p in model.named_parameters() if p in store}
        assert all(grad.device is device for grad in held.values())
        found.append((bits(model), {name: grad.cpu().numpy() for name, grad in held.items()}))
    return found


def wrap_does_what_it_does_on_the_cpu(devices) -> None:
    """With whatever connects the devices."""
    wanted = wrapped([CPU, CPU])
    for weights, means in wrapped(devices):
        assert weights == wanted[0][0] and means.keys() == wanted[0][1].keys()
        for name, mean in means.items():
            np.testing.assert_allclose(mean, wanted[0][1][name], rtol=1e-10, atol=1e-13, err_msg=name)


def mismatch(comm: dist.Communicator) -> None:
    """Both ranks learn what each has called; the communicator is broken then."""
    with pytest.raises(dist.CollectiveMismatchError, match=r"(?s)rank 0 called.*rank 1 called"):
        comm.all_reduce(Tensor(np.ones(3 + comm.rank, np.float32), device=comm.device))
