"""What happens to the other ranks when one dies, stalls or leaves: an error that says so in time, and an end."""

import os
import re
import subprocess
import sys
import time

import pytest
from ranks import RanksResult, requires_mpi, run_ranks

from minigrad.distributed.job import launch

pytestmark = [requires_mpi, pytest.mark.long]

KILL, STOP = "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGSTOP)"
RAISE = "raise ValueError('on purpose')"
IN_THE_MIDST = "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()"  # or between two transfers
IN_A_THREAD = "thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()"

# Three good steps, then rank 1 does what its argument says, and the others report what they get for their call.
PROGRAM = """
import os, signal, sys, threading, time
import minigrad
from minigrad.distributed import CommError, CommunicatorBrokenError, MpiCommunicator

act, size, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
comm = MpiCommunicator(timeout=3)
x = minigrad.zeros(size)
for comm.step in range(3):
    comm.all_reduce(x)
comm.step = 3
calls = {
    "now": lambda: comm.all_reduce(x),
    "async": lambda: comm.all_reduce(x, async_op=True).wait(),
    "recv": lambda: comm.recv(x, 1),
}
if comm.rank == 1:
    exec(act)
began = time.monotonic()
try:
    while how == "loop":
        began = time.monotonic()
        comm.all_reduce(x)
    calls[how]()
    print("no error")
    comm.close()
except CommError as error:
    seconds = time.monotonic() - began
    try:
        comm.all_reduce(x)
    except CommunicatorBrokenError:
        print(type(error).__name__, error.op, error.sequence, error.rank, error.step, error.ranks, f"{seconds:.2f}")
    raise
"""


def run(act: str, size: int = 1000, how: str = "now", grace: float = 10) -> RanksResult:
    return run_ranks(3, PROGRAM, act, size, how, timeout=60, options=("--grace", str(grace)))


def assert_survivors_raised(result: RanksResult, kind: str, op: str = "all_reduce", within: float = 5.0) -> None:
    """Ranks 0 and 2 raised an error that names the call, themselves, the step and rank 1, in time."""
    for rank in (0, 2):
        (line,) = result.lines(rank)
        got = re.fullmatch(r"(\w+) (\w+) (\d+) (\d) 3 \((.*)\) ([\d.]+)", line)
        assert got is not None, result.text
        assert (got[1], got[2], got[4], got[5]) == (kind, op, str(rank), "1,"), result.text
        assert int(got[3]) >= 4
        assert float(got[6]) < within
        assert kind in result.errors(rank).splitlines()[-1]
    assert result.seconds < 30


ACTS = [
    (KILL, "now", 137, "rank 1 failed first: killed by SIGKILL"),
    (KILL, "async", 137, "rank 1 failed first: killed by SIGKILL"),
    (KILL, "recv", 137, "rank 1 failed first: killed by SIGKILL"),
    (RAISE, "now", 1, "rank 1 failed first: exit code 1"),
    (f"with comm:\n    {RAISE}", "now", 1, "rank 1 failed first: exit code 1"),
    ("sys.exit(3)", "now", 3, "rank 1 failed first: exit code 3"),
    ("os._exit(0)", "now", 1, "launch: but rank 1 ended with exit code 0"),  # in the middle it is a failure
    ("sys.exit(0)", "now", 1, "launch: but rank 1 ended with exit code 0"),
]


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("act", "how", "code", "words"), ACTS)
def test_a_rank_that_goes_is_missed(act, how, code, words):
    result = run(act, how=how)
    assert_survivors_raised(result, "PeerLostError", op="recv" if how == "recv" else "all_reduce")
    assert result.returncode == code
    assert words in result.stderr
    if act == RAISE:
        assert "ValueError: on purpose" in result.errors(0)  # they know why


@pytest.mark.parametrize("size", [100, 5_000_000])
def test_killed_at_any_moment(size):
    result = run(IN_THE_MIDST, size, "loop")
    assert_survivors_raised(result, "PeerLostError")
    assert result.returncode == 137


def test_stopped():
    """A process that stands still is no lost peer: only the deadline tells."""
    result = run(STOP, how="async", grace=1)
    assert_survivors_raised(result, "CommTimeoutError")
    assert result.returncode == 1
    assert "launch: ended rank 1, still running" in result.stderr


def test_a_thread_of_its_own_may_die():
    """The training loop is not in that thread: nobody waits for it."""
    result = run(IN_A_THREAD)
    assert result.returncode == 0, result.text
    assert [result.lines(rank) for rank in range(3)] == [["no error"]] * 3
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
    result = run_ranks(2, program)
    assert result.returncode == 0, result.text
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
    result = run_ranks(2, program, options=("--grace", "0.5"))
    assert result.returncode == 1, result.text
    assert result.lines(0) == ["True"]
    assert result.seconds < 50


@pytest.mark.parametrize("act", [STOP, "os._exit(0)", RAISE])
def test_under_a_plain_mpirun(act, tmp_path):
    """It ends the job itself, or the survivors do: no hang, an exit code that is not 0."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [str(launch.find_mpirun()), "-n", "3", "--oversubscribe", "--allow-run-as-root", sys.executable]
    began = time.monotonic()
    out = subprocess.run(
        [*command, str(program), act, "1000", "now"], capture_output=True, text=True, timeout=40,
        env={**os.environ, "OMPI_MCA_btl": "self,sm"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert out.returncode != 0
    assert "rank 1" in out.stdout + out.stderr or "@1,1]" in out.stderr
    assert time.monotonic() - began < 30
