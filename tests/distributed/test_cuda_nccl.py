"""Training over NCCL on the simulator's devices: which bytes reach the host, and that replicas of one process use it.

NCCL and CuPy are fakes (``fake_nccl``); the kernels, and the tensors whose addresses NCCL gets, are the real ones.
"""

import nccl_programs
import numpy as np
import pytest
from data_parallel import Net
from fake_nccl import FakeArray, FakeMachine, on_ranks
from in_threads import good
from refusals import raises
from replica_models import bits

import minigrad as mg
from minigrad import Tensor, cuda_kernels, distributed as dist
from minigrad.distributed.mirrors.flodl import replica_group

if not cuda_kernels.simulated():
    pytest.skip("NUMBA_ENABLE_CUDASIM=1 selects the simulator", allow_module_level=True)

DEVICES = [mg.Device("cuda:0"), mg.Device("cuda:1")]


@pytest.fixture
def host():
    with nccl_programs.copies_to_host() as seen:
        yield seen


@pytest.fixture
def machine(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    monkeypatch.setattr(replica_group, "_no_nccl", lambda devices: None)
    return machine


def on_both(fn):
    """What ``fn`` returns on each of two devices, in threads."""
    comms = dist.replica_communicators(DEVICES, timeout=300)
    assert all(type(comm) is dist.NcclCommunicator for comm in comms)
    return good(on_ranks(comms, fn))


@pytest.mark.parametrize("kind", nccl_programs.KINDS)
def test_must_no_cpu_staging_over_nccl_on_cuda(machine, host, monkeypatch, kind) -> None:
    headers, get = [], FakeArray.get

    def counted(array: FakeArray, stream=None):
        headers.append(array.nbytes)
        return get(array, stream)

    monkeypatch.setattr(FakeArray, "get", counted)
    cuda = on_both(lambda comm: nccl_programs.no_staging_with(kind, comm))
    assert any(size > nccl_programs.RECORD for _, size in host), "the hashes of the first step are seen"
    assert max(headers) <= nccl_programs.RECORD, "what NCCL's headers say of a call"
    name, ranks = ("reduceScatter", 2) if kind.startswith("stage") else ("allReduce", 1)
    reduced = [count * ranks for _, _, _, _, count, *_ in machine.calls(name)]
    assert sum(reduced) >= 2 * 3 * 4 * 160, "the gradients themselves went by NCCL"
    cpu = dist.run_threads(2, lambda comm: nccl_programs.train(kind, comm, 3))
    for got in cuda:
        for name, p in cpu[0].items():
            found, wanted = (t.detach().cpu().numpy() for t in (got[name], p))
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", ["captured", "collectives", "mismatch"])
def test_cuda_rehearsal_of_what_runs_on_gpus(machine: FakeMachine, name: str) -> None:
    on_both(getattr(nccl_programs, name))


def test_must_non_finite_block_on_cuda_changes_nothing(machine: FakeMachine) -> None:
    def fn(comm: dist.Communicator) -> None:
        model = nccl_programs.Blocks().to(device=comm.device)
        trainer = dist.BlockDistributedTrainer(model, comm, dist.TrainingConfig(learning_rate=0.01))
        before = bits(model)
        x = nccl_programs.ROWS[nccl_programs.PARTS[comm.rank]].copy()
        x[0, 0] = np.inf if comm.rank else 0.0
        raises(dist.NonFiniteBlockGradientError, "rank 1", trainer.train_batch, x)
        assert bits(model) == before

    on_both(fn)


def net(device: mg.Device | str) -> Net:
    return Net(np.float64).to(device=device)


def test_cuda_replicas_of_one_process_use_nccl(machine: FakeMachine, host: list[tuple[int, int]]) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 7, 5))

    found = []
    for devices in (DEVICES, ["cpu"]):
        with dist.Trainer.setup(net(devices[0]), net, nccl_programs.sgd, devices=devices) as trainer:
            for _ in range(2):
                host.clear()
                trainer.step(lambda model, x, y: model.loss(x, y), Tensor(x), Tensor(y))
            if devices is DEVICES:
                assert 0 < max(size for _, size in host) < 240, "only records; weights have 240 bytes and more"
            found += [[p.detach().cpu().numpy() for p in model.parameters()] for model in trainer.models]
    assert len(machine.calls("NcclCommunicator")) == 2 and len(machine.calls("destroy")) == 2
    for values in found[:2]:
        for got, wanted in zip(values, found[2], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


def test_cuda_wrap_over_nccl_from_one_thread(machine: FakeMachine) -> None:
    nccl_programs.wrap_does_what_it_does_on_the_cpu(DEVICES)
    assert machine.calls("allReduce")


def test_cuda_group_of_nccl_that_fails_says_so(machine: FakeMachine) -> None:
    made = machine.nccl.NcclCommunicator

    def failing(n: int, identifier: bytes, rank: int):
        if rank == 1:
            raise RuntimeError("no such GPU")
        return made(n, identifier, rank)

    machine.nccl.NcclCommunicator = failing
    with pytest.raises(mg.distributed.RendezvousError, match="no such GPU|not all of the 2 ranks"):
        dist.NcclCommunicator.group(DEVICES, rendezvous_timeout=0.2)
    raises(TypeError, "unexpected keyword argument 'checks'", lambda: dist.NcclCommunicator.group(DEVICES, checks=True))
    raises(ValueError, "the number of devices is 0", lambda: dist.NcclCommunicator.group([]))
