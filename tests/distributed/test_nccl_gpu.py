"""NcclCommunicator on GPUs: what every communicator must do, with one rank, with two that share a GPU, with two GPUs.

Two ranks on one GPU need NCCL 2.30 or later and its experimental NCCL_MULTI_RANK_GPU_ENABLE. What the ranks do is in
``nccl_programs``; ``test_cuda_nccl.py`` rehearses it without a GPU.
"""

import os
import sys
from pathlib import Path

import pytest
from communicator_suite import CHECKS, name_of
from fake_nccl import on_ranks
from in_threads import free_port, good, outcomes
from nccl_programs import collectives, copies_to_host, no_staging
from processes import python

import minigrad as mg
from minigrad.distributed import NcclCommunicator, replica_communicators
from minigrad.distributed.comm.nccl import nccl

pytestmark = pytest.mark.gpu
CUDA = mg.Device("cuda:0")

# As NCCL's arithmetic goes: its minimum and maximum lose a NaN, and it adds halves as halves.
NOT_NCCL = ("check_special_values",)


@pytest.mark.parametrize("check", [c for c in CHECKS if c.__name__ not in NOT_NCCL], ids=name_of)
def test_one_rank_is_a_communicator(check):
    with NcclCommunicator(1, 0, CUDA, timeout=60.0) as comm:
        check(comm)


PROGRAM = """
import nccl_programs
from minigrad.device import Device
from minigrad.distributed import init_process_group

with init_process_group("nccl", device=Device("cuda:0"), timeout=30.0, rendezvous_timeout=60.0) as comm:
    with nccl_programs.copies_to_host():
        nccl_programs.{}(comm)
    print("good", flush=True)
"""


def in_two_processes(name: str) -> None:
    """Run a function of ``nccl_programs`` in two ranks that share the first GPU."""
    version = nccl._load()[1].get_version()
    if version < 23000:
        pytest.skip(f"NCCL {version} does not let two ranks share a GPU, 2.30 (23000) does")
    program = PROGRAM.format(name)
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    }

    def rank(number: int):
        return python("-c", program, env={**common, "RANK": str(number), "LOCAL_RANK": str(number)})

    for run in good([*outcomes(range(2), rank, 200).values()]):
        assert run.returncode == 0 and "good" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("name", ["collectives", "no_staging", "captured", "mismatch"])
def test_must_two_ranks_on_one_gpu(name):
    in_two_processes(name)


@pytest.mark.parametrize("program", [collectives, no_staging], ids=lambda program: program.__name__)
def test_must_two_gpus_of_one_process(program):
    if mg.cuda.device_count() < 2:
        pytest.skip(f"two GPUs are needed, there is {mg.cuda.device_count()}")
    comms = replica_communicators([CUDA, mg.Device("cuda:1")], timeout=60.0)
    assert all(isinstance(comm, NcclCommunicator) for comm in comms)
    with copies_to_host():
        good(on_ranks(comms, program))
