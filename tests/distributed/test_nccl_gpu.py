"""NcclCommunicator on a GPU: what every communicator must do, with one rank, and with two that share the GPU.

Two ranks on one GPU need NCCL 2.30 or later and its experimental NCCL_MULTI_RANK_GPU_ENABLE.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from communicator_suite import CHECKS, Check

from minigrad.cuda_kernels import MissingKernelError
from minigrad.device import Device
from minigrad.distributed import NcclCommunicator, nccl

pytestmark = pytest.mark.gpu
CUDA = Device("cuda:0")

# As NCCL's arithmetic goes: its minimum and maximum lose a NaN, and it adds halves as halves.
NOT_NCCL = ("check_special_values",)


def name_of(check: Check) -> str:
    return check.__name__


@pytest.mark.parametrize("check", [c for c in CHECKS if c.__name__ not in NOT_NCCL], ids=name_of)
def test_one_rank_is_a_communicator(check):
    try:
        _ = (CUDA.kernels.from_host, CUDA.kernels.may_share_memory)
    except MissingKernelError as error:
        pytest.skip(f"tensors cannot be made on the GPU: {error}")
    with NcclCommunicator(1, 0, CUDA, timeout=60.0) as comm:
        check(comm)


PROGRAM = """
import os, sys
import cupy, numpy as np
from minigrad import Tensor, cuda_kernels
from minigrad.device import Device
from minigrad.distributed import CollectiveMismatchError, ReduceOp, init_process_group

try:
    cuda_kernels.may_share_memory
except cuda_kernels.MissingKernelError:  # NCCL needs nothing else of the kernels
    cuda_kernels.may_share_memory = cupy.may_share_memory

with init_process_group("nccl", device=Device("cuda:0"), timeout=30.0, rendezvous_timeout=60.0) as comm:
    def tensor(values, dtype=np.float32):
        return Tensor.wrap(cupy.asarray(np.asarray(values, dtype)), Device("cuda:0"))

    def numbers(t):
        return t.data.get().tolist()

    r = comm.rank
    t = tensor([r + 1.0] * 100_000)
    works = [comm.all_reduce(t, async_op=True), comm.all_reduce(t, ReduceOp.AVG, async_op=True)]
    for work in works:
        work.wait()
    assert set(numbers(t)) == {3.0}
    t = tensor([r])
    comm.broadcast(t, 1)
    assert numbers(t) == [1.0]
    got = tensor([0, 0], np.int64)
    comm.all_gather(tensor([r + 5], np.int64), got)
    assert numbers(got) == [5, 6]
    comm.all_to_all(tensor([10 * r, 10 * r + 1], np.int64), got)
    assert numbers(got) == [r, 10 + r]
    part = tensor([0])
    comm.reduce_scatter(tensor([1, 2]), part)
    assert numbers(part) == [2.0 * (r + 1)]
    sent, received = tensor([r] * 1_000_000), tensor([9] * 1_000_000)
    works = [comm.send(sent, 1 - r, async_op=True), comm.recv(received, 1 - r, async_op=True)]
    for work in works:
        work.wait()
    assert set(numbers(received)) == {1.0 - r}
    half = comm.split(0, key=-r)
    assert half.rank == 1 - r
    half.barrier()
    half.close()
    try:
        comm.all_reduce(tensor([1.0] * (3 + r)))
    except CollectiveMismatchError as error:
        assert "rank 0 called" in str(error) and "rank 1 called" in str(error)
        print("good", flush=True)
"""


def test_two_ranks_on_one_gpu(tmp_path):
    version = nccl._load()[1].get_version()
    if version < 23000:
        pytest.skip(f"NCCL {version} does not let two ranks share a GPU, 2.30 (23000) does")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=Path(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=150)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(texts)
    assert all("good" in text for text in texts)
