"""discover_place and init_process_group: who this process is, and which communicator it gets."""

import functools
import os
import re
import shlex
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from in_threads import free_port, outcomes
from processes import python
from ranks import requires_mpi
from refusals import raises

import minigrad.cuda_kernels
from minigrad import Tensor, cuda, distributed as dist
from minigrad.device import CPU, Device, DeviceError
from minigrad.distributed import Place, RendezvousError, all_gather_bytes, discover_place, init_process_group
from minigrad.distributed.comm.nccl import nccl, nccl_launch
from minigrad.distributed.job import rendezvous

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29400"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
PMI = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2"}
SLURM = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1"}
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI", "MPI_", "SLURM_", "TORCH", "MINIGRAD_R")


@pytest.fixture(autouse=True)
def _nobody_launched_this(monkeypatch):
    for name in list(os.environ):
        if name.startswith(LAUNCHED):
            monkeypatch.delenv(name)


# ---------------------------------------------------------------------- who this process is


def test_the_nearest_launcher_tells():
    for environ, place in [
        ({}, Place(0, 1, 0, "single")),
        (TORCHRUN, Place(3, 8, 1, "torchrun", False, "node0", 29400)),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}, Place(3, 8, 1, "torchrun", False, "node0", 29401)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Place(0, 1, None, "torchrun")),
        (OPEN_MPI, Place(1, 4, 0, "Open MPI", True)),
        ({**OPEN_MPI, "PMIX_RANK": "1"}, Place(1, 4, 0, "Open MPI", True)),
        (PMI, Place(2, 3, 2, "PMI", True)),
        (SLURM, Place(5, 6, 1, "Slurm", True)),
        ({**SLURM, "PMIX_RANK": "5"}, Place(5, 6, 1, "PMIx", True)),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "9"}, Place(5, 6, 1, "Slurm", True)),
        ({**SLURM, "SLURM_STEP_ID": "4294967291"}, Place(0, 1, 0, "single")),  # the batch script
        ({k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}, Place(0, 1, 0, "single")),  # salloc's shell
        ({"SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, Place(0, 1, 0, "single")),
        ({**SLURM, **TORCHRUN}, Place(3, 8, 1, "torchrun", False, "node0", 29400)),  # srun torchrun
        ({**OPEN_MPI, "RANK": "1", "WORLD_SIZE": "4"}, Place(1, 4, None, "torchrun", True)),
        ({"MASTER_ADDR": "", "MASTER_PORT": "29400"}, Place(0, 1, 0, "single", False, None, 29400)),
    ]:
        assert discover_place(environ=environ) == place


def test_arguments_come_first():
    place = discover_place(1, 2, 0, "other", 77, environ=TORCHRUN)
    assert place == Place(1, 2, 0, "arguments", False, "other", 77)
    assert discover_place(1, 4, environ=OPEN_MPI).mpi
    assert not discover_place(0, 4, environ=OPEN_MPI).mpi


# ---------------------------------------------------------------------- which communicator it gets


def set_environ(monkeypatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def mpi(monkeypatch):
    """In place of MPI: what was asked for, and the rank and world that it finds."""
    found = SimpleNamespace(rank=1, world_size=4, timeouts=[], closed=False)
    found.close = lambda: setattr(found, "closed", True)

    def make(timeout, rendezvous_timeout):
        found.timeouts.append((timeout, rendezvous_timeout))
        return found

    monkeypatch.setattr("minigrad.distributed.comm.mpi.mpi.MpiCommunicator", make)
    return found


def test_alone_it_is_no_operation(mpi):
    for backend in (None, "noop"):
        comm = init_process_group(backend, timeout=5.0)
        assert type(comm) is dist.NoOpCommunicator and comm.timeout == 5.0
    if cuda.is_available():
        assert init_process_group(device="cuda").device == "cuda"
    else:
        raises(DeviceError, "device cuda:0 cannot be used", lambda: init_process_group(device="cuda"))
    assert mpi.timeouts == []


def test_an_mpi_launcher_leads_to_mpi(mpi, monkeypatch):
    set_environ(monkeypatch, OPEN_MPI)
    assert init_process_group(timeout=5.0, rendezvous_timeout=3.0) is mpi
    ((timeout, rendezvous_timeout),) = mpi.timeouts
    assert timeout == 5.0 and 2.5 < rendezvous_timeout <= 3.0


@pytest.mark.parametrize("environ", [TORCHRUN, OPEN_MPI, PMI, SLURM])
@pytest.mark.parametrize("arguments", [{"backend": "noop"}, {"rank": 0, "world_size": 1}])
def test_several_ranks_never_become_one(mpi, monkeypatch, environ, arguments):
    set_environ(monkeypatch, environ)
    raises(RendezvousError, "speaks of|started", lambda: init_process_group(**arguments))


SAYINGS = [
    ({"RANK": "0", "WORLD_SIZE": "1"}, OPEN_MPI, r"torchrun speaks of one rank, but Open MPI started 4 ranks"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, PMI, r"but PMI started 3 ranks \(PMI_SIZE\)"),
    ({"PMI_RANK": "0", "PMI_SIZE": "1"}, SLURM, r"PMI speaks of one rank, but Slurm started 6 ranks"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, {**SLURM, "PMIX_RANK": "5"}, r"but PMIx started 6 ranks"),
]


@pytest.mark.parametrize(("one", "several", "words"), SAYINGS)
def test_one_launcher_cannot_deny_what_another_says(mpi, monkeypatch, one, several, words):
    """WORLD_SIZE=1 of an image or a shell, below mpirun or srun: each rank would train alone."""
    set_environ(monkeypatch, {**one, **several})
    for backend in (None, "noop", "mpi"):
        raises(RendezvousError, words, functools.partial(init_process_group, backend))


@pytest.mark.parametrize("found", [(0, 1), (1, 8), (0, 4)])
def test_mpi_must_see_the_world_that_the_launcher_made(mpi, monkeypatch, found):
    set_environ(monkeypatch, OPEN_MPI)
    mpi.rank, mpi.world_size = found
    raises(RendezvousError, r"Open MPI says rank 1 of 4, MPI says rank . of .*distributed\.launch", init_process_group)
    assert mpi.closed


@pytest.mark.parametrize("backend", [None, "mpi"])
def test_torchrun_on_the_cpu_is_told_how_to_start_mpi(mpi, monkeypatch, backend):
    set_environ(monkeypatch, TORCHRUN)
    monkeypatch.setattr("sys.argv", ["train.py", "--out", "a b"])
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=None))
    words = "torchrun speaks of 8 ranks .*python -m minigrad.distributed.launch -n 8 train.py --out 'a b'"
    raises(RendezvousError, words, init_process_group, backend)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name="train.__main__")))
    raises(RendezvousError, "launch -n 8 -m train --out", init_process_group, backend)


@requires_mpi
@pytest.mark.long
@pytest.mark.parametrize("environ", [{**TORCHRUN, "WORLD_SIZE": "2", "RANK": "1"}, {**SLURM, "SLURM_PROCID": "1"}])
def test_the_command_that_a_refusal_names_works(tmp_path, environ):
    """Processes that torchrun or Slurm has started apart are no ranks of MPI; the launcher's are."""
    (tmp_path / "train.py").write_text(
        "import sys\nfrom minigrad.distributed import init_process_group\n"
        "with init_process_group() as comm:\n    print(comm.world_size, sys.argv[1:])\n"
    )
    environ = {**environ, "SLURM_STEP_NUM_TASKS": "2"} if "SLURM_PROCID" in environ else environ
    refused = python("train.py", "--out", "a b", cwd=tmp_path, env=environ, returncode=1).stderr.splitlines()[-1]
    command = re.fullmatch(r".*RendezvousError: rank 1: .* [Ss]tart the job with (.*)", refused)
    assert command is not None, refused
    done = python(*shlex.split(command[1])[1:], cwd=tmp_path, returncode=0)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 2 ['--out', 'a b']" for rank in range(2)]


@pytest.mark.parametrize(
    ("backend", "device", "words"),
    [("mpi", "cuda", "serves the CPU"), ("nccl", "cpu", "serves CUDA"), ("nccl", CPU, "serves CUDA")],
)
def test_backend_and_device_must_fit(monkeypatch, backend, device, words):
    set_environ(monkeypatch, OPEN_MPI)
    raises(RendezvousError, words, lambda: init_process_group(backend, device=device))


# ---------------------------------------------------------------------- NCCL


@pytest.fixture
def gpus(machine, monkeypatch):
    """Four GPUs, and NCCL, that are not there."""
    monkeypatch.setattr(nccl_launch, "_pointer", lambda array: array.ctypes.data)
    monkeypatch.setattr(minigrad.cuda_kernels, "driver", lambda: minigrad.cuda_kernels.Driver((13, 0), 4))


def ranks(n: int, devices: dict[int, str] | None = None, **options):
    """What each rank of a world had, or its error; ``devices``: of the ranks that ask for one of their own."""
    asked = devices or {}

    def one(rank: int):
        more = {"device": asked[rank], **options} if rank in asked else options
        with init_process_group("nccl", rank=rank, world_size=n, local_rank=rank, timeout=10.0, **more) as comm:
            device, comm.device = comm.device, CPU
            tensor = Tensor(np.array([rank]))
            comm.all_reduce(tensor)
            return (type(comm), str(device), comm.rank, tensor.tolist())

    return [*outcomes(range(n), one, 30).values()]


@pytest.mark.parametrize("device", [None, "cuda"])
def test_nccl_ranks_meet_at_the_masters_address(gpus, monkeypatch, device):
    monkeypatch.setenv("MINIGRAD_RENDEZVOUS_SECRET", "sixteen bytes or more")
    out = ranks(3, master_addr="127.0.0.1", master_port=free_port(), device=device, rendezvous_timeout=10.0)
    assert out == [(dist.NcclCommunicator, f"cuda:{rank}", rank, [3]) for rank in range(3)]


def test_a_rank_without_a_gpu_strands_nobody(gpus):
    out = ranks(3, {1: "cuda:4"}, master_addr="127.0.0.1", master_port=free_port(), rendezvous_timeout=10.0)
    for error in out:
        assert isinstance(error, RendezvousError) and error.ranks == (1,)
        assert "rank 1 on cuda:4: DeviceError: device cuda:4 cannot be used: the NVIDIA driver shows 4" in str(error)


def test_a_gpu_that_nccl_cannot_use_is_an_error(gpus, monkeypatch):
    for index in range(4):
        nccl.check_device(Device(f"cuda:{index}"))

    def no_driver():
        raise OSError("no NVIDIA driver (libcuda.so.1)")

    monkeypatch.setattr(minigrad.cuda_kernels, "driver", no_driver)
    raises(DeviceError, r"cuda:0 cannot be used: no NVIDIA driver \(libcuda", nccl.check_device, Device("cuda:0"))
    raises(RendezvousError, "needs an NVIDIA GPU: no NVIDIA driver", lambda: init_process_group("nccl"))


def test_missing_ranks_are_named_within_the_deadline(gpus):
    with pytest.raises(RendezvousError, match="rank 1 of 2 did not come to 127.0.0.1") as caught:
        init_process_group(
            "nccl", rank=0, world_size=2, local_rank=0, master_addr="127.0.0.1", master_port=free_port(),
            rendezvous_timeout=0.3,
        )  # fmt: skip
    assert caught.value.ranks == (1,)


def test_nccl_ranks_may_meet_through_mpi(gpus):
    def fn(comm):
        values = all_gather_bytes(comm, b"+" + bytes(128) if comm.rank == 0 else b"+")
        place = Place(comm.rank, 2, comm.rank, "Open MPI", True)
        with rendezvous._nccl(lambda value: all_gather_bytes(comm, value), place, Device("cuda:0"), 1e12, 10.0) as made:
            return len(values[0]), made.rank, made.world_size

    assert dist.run_threads(2, fn, timeout=10) == [(129, 0, 2), (129, 1, 2)]


def test_nccl_without_a_place_to_meet(gpus):
    raises(RendezvousError, "set MASTER_ADDR", lambda: init_process_group("nccl", rank=0, world_size=2, local_rank=0))


GPU_COUNTS = [
    (4, 2, None, "cuda:2"),
    (4, 2, "cuda", "cuda:2"),
    (4, 2, "cuda:1", "cuda:1"),
    (4, 2, Device("cuda:0"), "cuda:0"),
    (1, 2, "cuda", "cuda:0"),  # the launcher shows each process its own
    (4, None, "cuda:3", "cuda:3"),
    (4, None, None, "Set LOCAL_RANK"),
    (2, 2, None, "shows 2 GPUs"),
]


@pytest.mark.parametrize(("gpu_count", "local_rank", "device", "want"), GPU_COUNTS)
def test_which_gpu(gpus, monkeypatch, gpu_count, local_rank, device, want):
    monkeypatch.setattr(minigrad.cuda_kernels, "driver", lambda: minigrad.cuda_kernels.Driver((13, 0), gpu_count))
    place = Place(2, 8, local_rank, "torchrun")
    if want.startswith("cuda"):
        assert str(rendezvous._gpu(device, place)) == want
    else:
        raises(RendezvousError, want, lambda: rendezvous._gpu(device, place))
