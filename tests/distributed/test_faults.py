"""What happens to the other ranks when one dies, stalls or leaves: an error that says so in time, and an end."""

import os
import random
import re
import subprocess
import sys
import time

import pytest
from in_threads import wait_until
from ranks import alive, requires_mpi, run_ranks

from minigrad.distributed.job import launch

pytestmark = [requires_mpi, pytest.mark.long]

# What rank VICTIM does at step AT in place of its call, the errors of the others, the launcher's exit code and words.
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
RAISE = "raise ValueError('on purpose')"
LOST, ZERO = "PeerLostError", "launch: but rank {} ended with exit code 0"  # in the middle it is a failure
ACTS = {
    "SIGKILL": (KILL, LOST, 137, "rank {} failed first: killed by SIGKILL"),
    "SIGKILL later": (  # or between two transfers
        "threading.Timer(random.uniform(0, 0.3), os.kill, (os.getpid(), signal.SIGKILL)).start()",
        *(LOST, 137, "rank {} failed first: killed by SIGKILL"),
    ),
    "SIGSTOP": ("os.kill(os.getpid(), signal.SIGSTOP)", "CommTimeoutError", 1, "launch: ended rank {}, still running"),
    "shape": ("x = minigrad.zeros(size + 1)", "CollectiveMismatchError", 1, ""),
    "dtype": ("x = minigrad.zeros(size, dtype=minigrad.float64)", "CollectiveMismatchError", 1, ""),
    "operation": ("how = 'barrier'", "CollectiveMismatchError", 1, ""),
    "skipped": ("how, comm.step = next(calls)", "CollectiveMismatchError", 1, ""),
    "exit 0": ("os._exit(0)", LOST, 1, ZERO),
    "sys.exit 0": ("sys.exit(0)", LOST, 1, ZERO),
    "exit 3": ("sys.exit(3)", LOST, 3, "rank {} failed first: exit code 3"),
    "raise": (RAISE, LOST, 1, "rank {} failed first: exit code 1"),
    "raise within": (f"with comm:\n    {RAISE}", LOST, 1, "rank {} failed first: exit code 1"),
}

# Calls without end, the same on all ranks. The others report what they get.
PROGRAM = """
import itertools, os, random, signal, sys, threading, time
import minigrad
from minigrad.distributed import CommError, CommunicatorBrokenError, MpiCommunicator

act, victim, at, size, hows = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5].split(",")
print(os.environ.get("OMPI_MCA_btl_sm_backing_directory"))
comm = MpiCommunicator(timeout=3)
others = [rank for rank in range(comm.world_size) if rank != victim]
x = minigrad.zeros(size)
calls = zip(itertools.cycle(hows), itertools.count())
for how, comm.step in calls:
    if (comm.rank, comm.step) == (victim, at):
        exec(act)
    began = time.monotonic()
    try:
        if how == "all_reduce":
            comm.all_reduce(x)
        elif how == "async":
            comm.all_reduce(x, async_op=True).wait()
        elif how == "broadcast":
            comm.broadcast(x, 1)
        elif how == "all_gather":
            comm.all_gather(x, minigrad.zeros(comm.world_size * x.numel(), dtype=x.dtype))
        elif how == "barrier":
            comm.barrier()
        elif comm.rank == victim:
            for rank in others:
                comm.send(x, rank)
        else:
            comm.recv(x, victim)
    except CommError as error:
        seconds = time.monotonic() - began
        try:
            comm.all_reduce(x)
        except CommunicatorBrokenError:
            print(type(error).__name__, error.rank, error.step, error.ranks, f"{seconds:.2f}")
        raise
"""


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ACTS)
def test_a_rank_that_goes_wrong_is_named_by_the_others_in_time(name, seeds):
    """Whoever it is, whatever they call, however large; and nothing is left of the job."""
    act, kind, code, words = ACTS[name]
    for seed in seeds(1):
        rng = random.Random(f"{name} {seed}")
        victim, at, size = rng.randrange(3), rng.randrange(8), rng.choice([1, 1000, 1_000_000])
        hows = rng.choices(["all_reduce", "async", "broadcast", "all_gather", *["message"] * (kind == LOST)], k=8)
        mark, grace = f"{name}-{seed}-{os.getpid()}", "1" if name == "SIGSTOP" else "10"
        result = run_ranks(3, PROGRAM, act, victim, at, size, ",".join(hows), mark, options=("--grace", grace))
        text = f"seed {seed}: rank {victim}, step {at}, {hows}, {size}\n{result.text}"
        assert result.returncode == code and words.format(victim) in result.stderr, text
        for rank in {0, 1, 2} - {victim}:
            scratch, *lines = result.lines(rank)
            got = re.fullmatch(r"(\w+) (\d) (\d+) \((.*)\) ([\d.]+)", "".join(lines))
            assert got is not None and (got[1], int(got[2]), got[4]) == (kind, rank, f"{victim},"), text
            assert int(got[3]) == at or name == "SIGKILL later", text
            assert float(got[5]) < 5.0 + 3.0 * (name == "SIGSTOP"), text
            assert kind in result.errors(rank).splitlines()[-1], text
            assert name[:5] != "raise" or "ValueError: on purpose" in result.errors(rank)  # they know why
            assert not os.path.exists(scratch), text
        wait_until(lambda mark=mark: not alive(mark))


def test_a_thread_of_its_own_may_die():
    """The training loop is not in that thread: nobody waits for it."""
    program = """
import threading
import minigrad
from minigrad.distributed import MpiCommunicator
comm = MpiCommunicator(timeout=3)
if comm.rank == 1:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
comm.all_reduce(minigrad.ones(3))
print("no error")
"""
    result = run_ranks(2, program, returncode=0)
    assert result.lines(0) == result.lines(1) == ["no error"]
    assert "ZeroDivisionError" in result.errors(1)


def test_a_rank_may_end_long_before_another():
    """Rank 1 has nothing more to do while rank 0 writes a file: that is no failure."""
    program = """
import time
import minigrad
from minigrad.distributed import MpiCommunicator
from minigrad.distributed.comm.mpi import mpi
mpi.FAREWELL = 0.5
comm = MpiCommunicator(timeout=30)
comm.all_reduce(minigrad.ones(3))
if comm.rank == 0:
    time.sleep(2)
print("done")
"""
    result = run_ranks(2, program, returncode=0)
    assert result.lines(0) == result.lines(1) == ["done"]


def test_a_failure_is_told_at_once():
    """Rank 1 waits with a long deadline for rank 0, which gives up after a short one and lives on."""
    program = """
import time
import minigrad
from minigrad.distributed import CommError, MpiCommunicator
comm = MpiCommunicator(timeout=40)
comm.barrier()
comm.timeout = 40 if comm.rank else 0.5
began = time.monotonic()
try:
    comm.recv(minigrad.ones(3), 1) if comm.rank == 0 else comm.barrier()
except CommError as error:
    print(type(error).__name__, time.monotonic() - began < 30)
    time.sleep(4)
"""
    result = run_ranks(2, program)
    assert result.lines(0) == result.lines(1) == ["CommTimeoutError True"], result.text


def test_a_rank_that_never_comes():
    program = """
import os, time
from minigrad.distributed import MpiCommunicator, RendezvousError
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    time.sleep(60)
began = time.monotonic()
try:
    MpiCommunicator(rendezvous_timeout=2)
except RendezvousError:
    print(time.monotonic() - began < 30)
    raise
"""
    result = run_ranks(2, program, options=("--grace", "0.5"), returncode=1)
    assert result.lines(0) == ["True"]
    assert result.seconds < 50


@pytest.mark.parametrize("name", ["SIGSTOP", "exit 0", "raise"])
def test_under_a_plain_mpirun(name, tmp_path):
    """It ends the job itself, or the survivors do: no hang, an exit code that is not 0."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [str(launch.find_mpirun()), "-n", "3", "--oversubscribe", "--allow-run-as-root", sys.executable]
    began = time.monotonic()
    out = subprocess.run(
        [*command, str(program), ACTS[name][0], "1", "3", "1000", "async"], capture_output=True, text=True, timeout=40,
        env={**os.environ, "OMPI_MCA_btl": "self,sm"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert out.returncode != 0
    assert "rank 1" in out.stdout + out.stderr or "@1,1]" in out.stderr
    assert time.monotonic() - began < 30
