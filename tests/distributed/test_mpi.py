"""MpiCommunicator with real processes: what all engines must do, and what is special to this one."""

from pathlib import Path

import pytest
from processes import python
from ranks import requires_mpi, run_ranks

pytestmark = requires_mpi

# What programs begin with, of which one launch runs several; the first argument is the folder of the tests.
BEGIN = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import communicator_suite as suite
import minigrad
import numpy as np
from minigrad.distributed import MpiCommunicator, ReduceOp
"""

# Everything that 2, 3 and 4 ranks must do, in one launch each. SLOW and BREAKING: as the suite has them.
SUITE = """
comm = MpiCommunicator(timeout=30)
for check in suite.CHECKS + (suite.SLOW_CHECKS if sys.argv[2] == "slow" else []):
    check(comm)
for check in suite.BREAKING:
    check(suite.in_a_group_of_its_own(comm))
comm.close()
print("passed")
"""

# Bits: one rank's result is everybody's, and that of adding in order of rank, whatever the size and the path it takes.
BITS = """
from minigrad.dtypes import SUPPORTED, is_floating
from minigrad.distributed.comm.combine import combine
from minigrad.distributed.comm.mpi.exchange import BLOCK_BYTES

comm = MpiCommunicator(timeout=30)
W, rank = comm.world_size, comm.rank

def part(r, n, dtype):
    x = suite.of_rank(r, (n,), dtype, seed=n)
    if is_floating(dtype):
        x = (x * 10.0 ** np.random.default_rng([n, r]).integers(-3, 4, n)).astype(dtype)
        x[:: max(1, n // 7)] = [np.nan, np.inf, -np.inf, 0.0, -0.0][n % 5]
    return x

edge = W * BLOCK_BYTES
for dtype in SUPPORTED:
    ops = suite.ops_of(dtype)
    few = 4096 // dtype.itemsize
    blocks = [edge // dtype.itemsize + 5] if dtype in (minigrad.float32, minigrad.bfloat16) else []
    for n in (3, 1023, few, few + 1, *blocks):
        for op in ops if n < few else ops[:1]:
            parts = [part(r, n, dtype) for r in range(W)]
            want = np.empty(n, dtype)
            combine(op, [p.copy() for p in parts], [want])
            x = minigrad.Tensor.wrap(parts[rank].copy())
            comm.all_reduce(x, op)
            assert x.data.tobytes() == want.tobytes(), (dtype, op, n)
            if n * W < 10**5:
                whole = [np.concatenate([part(100 * r + j, n, dtype) for j in range(W)]) for r in range(W)]
                combine(op, [w[rank * n : (rank + 1) * n] for w in whole], [want])
                y = minigrad.Tensor.wrap(np.zeros(n, dtype))
                comm.reduce_scatter(minigrad.Tensor.wrap(whole[rank]), y, op)
                assert y.data.tobytes() == want.tobytes(), (dtype, op, n)
comm.close()
print("passed")
"""

# What runs beside what.
BESIDE = """
from minigrad.distributed.comm.mpi import exchange

exchange.MESSAGE_BYTES = 1 << 16  # several messages for each call
comm = MpiCommunicator(timeout=20)
W, rank = comm.world_size, comm.rank
right, left = (rank + 1) % W, (rank - 1) % W

# Messages to both sides and collectives at once, received in another order than they were sent.
out = [minigrad.tensor(np.full(50_000 + t, 10.0 * rank + t)) for t in range(4)]
got = [minigrad.zeros(50_000 + t, dtype=minigrad.float64) for t in range(4)]
total = minigrad.ones(300_000)
works = [comm.send(out[t], right, tag=t, async_op=True) for t in range(4)]
works.append(comm.all_reduce(total, async_op=True))
works += [comm.recv(got[t], left, tag=t, async_op=True) for t in (2, 0, 3, 1)]
comm.sync()
assert all(work.is_completed() for work in works)
for t in range(4):
    assert (got[t].numpy() == 10.0 * left + t).all()
assert (total.numpy() == W).all()

# Large parts in several messages.
n = 40_000
whole = minigrad.zeros(W * n, dtype=minigrad.float64)
comm.all_gather(minigrad.tensor(np.full(n, float(rank))), whole)
assert (whole.numpy().reshape(W, n) == np.arange(W)[:, None]).all()
swapped = minigrad.zeros(W, n, dtype=minigrad.float64)
comm.all_to_all(minigrad.tensor(np.arange(W * n).reshape(W, n) + 0.5 * rank), swapped)
assert (swapped.numpy() == np.arange(n) + n * rank + 0.5 * np.arange(W)[:, None]).all()

# Groups of groups, and two communicators, side by side.
other = MpiCommunicator(timeout=20)
half = comm.split(rank % 2, key=-rank)
again = half.split(0)
tensors = [minigrad.full((70_000,), 1.0 + rank) for _ in range(4)]
works = [c.all_reduce(t, async_op=True) for c, t in zip((comm, other, half, again), tensors)]
for work in works:
    work.wait()
everybody, mine = sum(range(1, W + 1)), sum(r + 1 for r in range(W) if r % 2 == rank % 2)
assert [float(t.numpy()[-1]) for t in tensors] == [everybody, everybody, mine, mine]
assert again.rank == half.rank == [r for r in range(W - 1, -1, -1) if r % 2 == rank % 2].index(rank)
assert comm.split(None if rank else 0) is None or rank == 0
for c in (again, half, other, comm):
    c.close()
print("passed")
"""

# Two threads with a communicator each: on rank 0 one waits for what rank 1 does only after the other's operation.
THREADS = """
a, b = MpiCommunicator(timeout=10), MpiCommunicator(timeout=10)
begun = threading.Event()

def other():
    begun.wait()
    time.sleep(0.2)
    b.all_reduce(minigrad.ones(3))
    print("passed")

thread = threading.Thread(target=other)
thread.start()
begun.set()
if a.rank == 1:
    thread.join()
a.barrier()
thread.join()

# The same, where the other thread makes a communicator.
thread = threading.Thread(target=lambda: MpiCommunicator(rendezvous_timeout=8).close())
if a.rank == 0:
    thread.start()
    time.sleep(0.2)
a.barrier()
if a.rank == 1:
    thread.start()
thread.join()
b.close()
a.close()
"""


def passes(ranks: int, *programs: str, timeout: float) -> None:
    source, tests = "".join((BEGIN, *programs)), Path(__file__).parents[1]
    result = run_ranks(ranks, source, tests, "slow" if ranks == 2 else "quick", timeout=timeout, returncode=0)
    assert all(result.lines(rank) == ["passed"] * len(programs) for rank in range(ranks)), result.text


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3])
def test_it_is_a_communicator(ranks):
    passes(ranks, SUITE, BITS, BESIDE, *[THREADS] * (ranks == 2), timeout=240)


def test_an_mpirun_of_another_mpi_is_refused():
    """MPICH's mpirun starts processes that Open MPI takes for worlds of one."""
    source = (
        "from minigrad.distributed import MpiCommunicator, RendezvousError\n"
        "try:\n    MpiCommunicator()\nexcept RendezvousError as error:\n    print(error)\n"
    )
    out = python("-W", "error", "-c", source, env={"PMI_RANK": "1", "PMI_SIZE": "2", "OMPI_MCA_btl": "self"})
    if "mpi4py finds no MPI library" in out.stderr:
        pytest.skip("mpi4py finds libmpi only where mpirun says where it is")
    assert out.returncode == 0, out.stderr
    assert "PMI started 2 ranks" in out.stdout and "sees only this one" in out.stdout


@pytest.mark.parametrize(
    ("hide", "error", "words"),
    [("mpi4py", "ModuleNotFoundError", "minigrad-cuda[mpi]"), ("mpi4py.MPI", "RuntimeError", "no MPI library")],
)
def test_what_is_missing_is_said(hide, error, words):
    hidden = f"import sys\nsys.modules[{hide!r}] = None\nfrom minigrad.distributed import MpiCommunicator\n"
    out = python("-c", f"{hidden}MpiCommunicator()", returncode=1)
    assert out.stderr.splitlines()[-1].startswith(error) and words in out.stderr.splitlines()[-1]
