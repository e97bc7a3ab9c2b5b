"""Training over NCCL on the simulator's devices: which bytes reach the host, and that replicas of one process use it.

NCCL and CuPy are fakes (``fake_nccl``); the kernels, and the tensors whose addresses NCCL gets, are the real ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from data_parallel import Net
from fake_nccl import FakeArray, FakeMachine

import minigrad as mg
from minigrad import Tensor, cuda_kernels, nn
from minigrad.device import Device
from minigrad.distributed import (
    BlockDistributedTrainer,
    BucketedTrainer,
    Communicator,
    Ddp,
    DistributedTrainer,
    NcclCommunicator,
    NonFiniteBlockGradientError,
    Trainer,
    TrainingConfig,
    nccl,
    replica_communicators,
    replica_group,
    run_threads,
)
from minigrad.optim import SGD

if not cuda_kernels.simulated():
    pytest.skip("NUMBA_ENABLE_CUDASIM=1 selects the simulator", allow_module_level=True)

DEVICES = [Device("cuda:0"), Device("cuda:1")]
RECORD = 1024  # bytes: losses, weights and flags of all ranks, norms; what NCCL's headers say of a call


class Host:
    """What the host is given from a device: by ``to_host``, and of the headers of NCCL's operations."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.headers: list[int] = []


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    seen = Host()
    copy_out, get = cuda_kernels.memory.copy_out, FakeArray.get

    def counted(target: np.ndarray, *rest: Any, **options: Any) -> None:
        seen.sizes.append(target.nbytes)
        copy_out(target, *rest, **options)

    def counted_header(array: FakeArray, stream: Any = None) -> Any:
        seen.headers.append(array.nbytes)
        return get(array, stream)

    monkeypatch.setattr(cuda_kernels.memory, "copy_out", counted)
    monkeypatch.setattr(FakeArray, "get", counted_header)
    return seen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    machine = FakeMachine()
    monkeypatch.setattr(nccl, "_load", lambda: (machine.cupy, machine.nccl))
    monkeypatch.setattr(nccl, "END_SECONDS", 0.3)
    monkeypatch.setattr(replica_group, "_no_nccl", lambda devices: None)
    yield machine
    machine.shut()


def on_both(fn: Callable[[Communicator], Any]) -> list[Any]:
    """What ``fn`` returns on each of two devices, in threads."""
    comms = replica_communicators(DEVICES, timeout=60)
    assert all(type(comm) is NcclCommunicator for comm in comms)
    out: list[Any] = [None, None]

    def rank(number: int) -> None:
        try:
            with comms[number] as comm:
                comm.device.activate()
                out[number] = fn(comm)
        except BaseException as error:
            out[number] = error

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    for value in out:
        if isinstance(value, BaseException):
            raise value
    return out


class Blocks(nn.Module):
    """An embedding, blocks with a buffer each, a head; every parameter is larger than any record."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(Tensor(rng.standard_normal(shape) / 4))

        self.embed = parameter(2, 80)
        self.blocks = nn.ModuleList([nn.BatchNorm1d(80, affine=False).double() for _ in range(2)])
        for block in self.blocks:
            block.shift = parameter(2, 80)
        self.head = parameter(2, 80)

    def loss(self, x: Tensor) -> Tensor:
        h = x @ self.embed
        for block in self.blocks:
            h = block(h) + block.shift.sum(0)
        return (h * self.head.sum(0)).square().mean()


ROWS = np.random.default_rng(1).standard_normal((5, 2))
PARTS = (slice(0, 3), slice(3, 5))


def sgd(params: Any) -> SGD:
    return SGD(params, lr=0.05, momentum=0.9)


def train(kind: str, comm: Communicator, steps: int) -> dict[str, np.ndarray]:
    model = Blocks().to(device=comm.device)
    config = TrainingConfig(learning_rate=0.01, max_grad_norm=0.5)
    params = [*model.named_parameters()]
    x = Tensor(ROWS[PARTS[comm.rank]], device=comm.device)
    if kind == "block":
        blocks = BlockDistributedTrainer(model, comm, config, optimizer=sgd(params))
    else:
        trainer = {"distributed": DistributedTrainer, "bucketed": BucketedTrainer}[kind](config, comm, sgd(params))
    for _ in range(steps):
        if kind == "block":
            metrics = blocks.train_batch(x)
        elif kind == "bucketed":
            metrics = trainer.backward_and_step(model.loss(x), params, len(x))
        else:
            loss = model.loss(x)
            metrics = trainer.step(params, loss.backward(), loss.item(), len(x))
        assert metrics is not None
    return {name: p.detach().cpu().numpy() for name, p in params}


@pytest.mark.parametrize("kind", ["distributed", "bucketed", "block"])
def test_must_no_cpu_staging_over_nccl_on_cuda(machine: FakeMachine, host: Host, kind: str) -> None:
    """After the first step, in which ranks compare hashes of all weights, only records reach the host."""

    on_both(lambda comm: train(kind, comm, 1))
    one, host.sizes = host.sizes, []
    cuda = on_both(lambda comm: train(kind, comm, 3))
    weights = sorted(size for size in one if size > RECORD)
    assert weights, "the hashes of the first step, and the result, are seen"
    assert sorted(size for size in host.sizes if size > RECORD) == weights, "later steps bring nothing large"
    assert sum(host.sizes) - sum(one) < 2 * 2 * 8 * RECORD
    assert max(host.headers) <= RECORD
    reduced = [count for name, _, _, _, count, *_ in machine.calls("allReduce")]
    assert max(reduced) >= 2 * 80, "the gradients themselves went by NCCL"
    cpu = run_threads(2, lambda comm: train(kind, comm, 3))
    for got in cuda:
        for name, values in cpu[0].items():
            np.testing.assert_allclose(got[name], values, rtol=1e-9, atol=1e-12, err_msg=name)


def test_must_non_finite_block_on_cuda_changes_nothing(machine: FakeMachine) -> None:
    def fn(comm: Communicator) -> None:
        model = Blocks().to(device=comm.device)
        trainer = BlockDistributedTrainer(model, comm, TrainingConfig(learning_rate=0.01))
        before = [t.detach().cpu().numpy() for t in (*model.parameters(), *model.buffers())]
        x = ROWS[PARTS[comm.rank]].copy()
        x[0, 0] = np.inf if comm.rank else 0.0
        with pytest.raises(NonFiniteBlockGradientError, match="rank 1"):
            trainer.train_batch(x)
        for t, values in zip((*model.parameters(), *model.buffers()), before, strict=True):
            assert t.detach().cpu().numpy().tobytes() == values.tobytes()

    on_both(fn)


def net(device: Device | str) -> Net:
    return Net(np.float64).to(device=device)


def test_cuda_replicas_of_one_process_use_nccl(machine: FakeMachine, host: Host) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 7, 5))

    found = []
    for devices in (DEVICES, ["cpu"]):
        with Trainer.setup(net(devices[0]), net, sgd, devices=devices) as trainer:
            for _ in range(2):
                host.sizes.clear()
                trainer.step(lambda model, x, y: model.loss(x, y), Tensor(x), Tensor(y))
            if devices is DEVICES:
                assert 0 < max(host.sizes) < 240, "losses, norms and records; the weights have 240 bytes and more"
            found += [[p.detach().cpu().numpy() for p in model.parameters()] for model in trainer.models]
    assert len(machine.calls("NcclCommunicator")) == 2 and len(machine.calls("destroy")) == 2
    for values in found[:2]:
        for got, wanted in zip(values, found[2], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


def test_cuda_wrap_over_nccl_from_one_thread(machine: FakeMachine) -> None:
    models = [Net(np.float64, seed).to(device=device) for seed, device in enumerate(DEVICES)]
    with Ddp.wrap(models, DEVICES) as ddp:
        ddp.sync_params()
        x = np.random.default_rng(0).standard_normal((2, 3, 5))
        grads = []
        for rank, (model, device) in enumerate(zip(models, DEVICES, strict=True)):
            rows = Tensor(x[rank], device=device)
            grads.append(model.loss(rows, rows).backward())
        own = [g[m.head].cpu().numpy() for g, m in zip(grads, models, strict=True)]
        ddp.all_reduce_gradients(grads)
        for g, m in zip(grads, models, strict=True):
            np.testing.assert_allclose(g[m.head].cpu().numpy(), (own[0] + own[1]) / 2, rtol=1e-12)


def test_cuda_group_of_nccl_that_fails_says_so(machine: FakeMachine) -> None:
    made = machine.nccl.NcclCommunicator

    def failing(n: int, identifier: bytes, rank: int) -> Any:
        if rank == 1:
            raise RuntimeError("no such GPU")
        return made(n, identifier, rank)

    machine.nccl.NcclCommunicator = failing
    with pytest.raises(mg.distributed.RendezvousError, match="no such GPU|not all of the 2 ranks"):
        NcclCommunicator.group(DEVICES, rendezvous_timeout=0.2)
