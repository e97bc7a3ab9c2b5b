"""ThreadCommunicator: what every communicator must do, what threads add, and faults on purpose."""

import gc
import os
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from communicator_suite import BREAKING, CHECKS, SLOW_CHECKS, name_of
from in_threads import in_threads, wait_until
from processes import python
from refusals import raises

import minigrad
from minigrad import Tensor, distributed as dist
from minigrad.distributed.comm.call_thread import CallThread
from minigrad.distributed.comm.threads.faults import KINDS, with_flipped_bit
from minigrad.nn import functional as F


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_it_is_a_communicator(check, n):
    dist.run_threads(n, check, timeout=30)


@pytest.mark.long
@pytest.mark.parametrize("check", SLOW_CHECKS, ids=name_of)
def test_it_bears_much_work(check):
    dist.run_threads(2, check, timeout=60)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("check", BREAKING, ids=name_of)
def test_it_breaks_as_a_communicator_should(check, n):
    dist.run_threads(n, check, timeout=10)


# ---------------------------------------------------------------------- arithmetic and order


@pytest.mark.parametrize("size", [5, 200_003])  # by the thread that comes last; in blocks, by the group's own threads
def test_ranks_are_combined_in_order_of_rank(size):
    parts = [np.random.default_rng(r).standard_normal(size).astype(np.float32) for r in range(4)]

    def fn(comm: dist.ThreadCommunicator) -> bytes:
        time.sleep(0.01 * (3 - comm.rank))  # they arrive the other way round
        t = Tensor(parts[comm.rank])
        comm.all_reduce(t)
        return t.numpy().tobytes()

    assert set(dist.run_threads(4, fn, timeout=30)) == {(((parts[0] + parts[1]) + parts[2]) + parts[3]).tobytes()}


def test_a_message_may_wait_while_collectives_pass_it():
    def fn(comm: dist.ThreadCommunicator) -> int:
        got = Tensor(np.array([-1]))
        work = comm.recv(got, 1 - comm.rank, async_op=True)
        comm.all_reduce(Tensor(np.ones(3)))
        comm.send(Tensor(np.array([comm.rank])), 1 - comm.rank)
        work.wait()
        return int(got.numpy()[0])

    assert dist.run_threads(2, fn, timeout=30) == [1, 0]


@in_threads(2)
def test_a_barrier_waits_for_earlier_operations_of_its_rank(comm: dist.ThreadCommunicator):
    if comm.rank == 0:
        work = comm.send(Tensor(np.ones(3)), 1, async_op=True)
        comm.barrier()
        assert work.is_completed()
    else:
        comm.barrier()
        time.sleep(0.05)
        comm.recv(Tensor(np.ones(3)), 0)


def test_two_that_both_send_first_are_told_so():
    with pytest.raises(dist.CommTimeoutError, match=r"send of \(3,\) float64.*for rank"):
        dist.run_threads(2, lambda comm: comm.send(Tensor(np.ones(3)), 1 - comm.rank), timeout=0.2)


# ---------------------------------------------------------------------- threads


def test_the_first_failure_is_raised_and_the_others_attached():
    def fn(comm: dist.ThreadCommunicator) -> None:
        if comm.rank == 2:
            time.sleep(0.05)
            raise KeyError("lost")
        comm.barrier()

    caught = raises(KeyError, "lost", lambda: dist.run_threads(4, fn, timeout=30))
    errors = caught.rank_errors  # type: ignore[attr-defined]
    assert errors[2] is caught
    assert sorted(errors) == [0, 1, 2, 3]
    for rank in (0, 1, 3):
        assert isinstance(errors[rank], dist.PeerLostError) and errors[rank].ranks == (2,)
        assert "KeyError: 'lost'" in str(errors[rank])


def test_an_error_wakes_those_who_wait_in_a_sub_group():
    def fn(comm: dist.ThreadCommunicator) -> None:
        sub = comm.split(0)
        assert sub is not None
        if comm.rank == 1:
            raise KeyError("lost")
        sub.barrier()

    began = time.monotonic()
    caught = raises(KeyError, "", lambda: dist.run_threads(2, fn, timeout=30))
    assert isinstance(caught.rank_errors[0], dist.PeerLostError)  # type: ignore[attr-defined]
    assert time.monotonic() - began < 10


def test_a_rank_that_does_not_end_is_left_behind():
    release = threading.Event()

    def fn(comm: dist.ThreadCommunicator) -> None:
        if comm.rank == 1:
            release.wait(30)
        else:
            comm.barrier()

    began = time.monotonic()
    caught = raises(dist.CommTimeoutError, "", lambda: dist.run_threads(2, fn, timeout=0.3))
    release.set()
    assert 0.3 < time.monotonic() - began < 10
    if sys.version_info >= (3, 11):
        assert "rank 1 is still running" in "".join(caught.__notes__)


def test_the_end_of_the_block_reports_an_operation_that_nobody_waited_for():
    def fn(comm: dist.ThreadCommunicator) -> None:
        if comm.rank == 0:
            comm.recv(Tensor(np.ones(3)), 1, async_op=True)

    raises((dist.PeerLostError, dist.CommTimeoutError), "", lambda: dist.run_threads(2, fn, timeout=0.3))


def test_an_interrupt_ends_the_ranks():
    ended = []

    def fn(comm: dist.ThreadCommunicator) -> None:
        try:
            comm.barrier()
            if comm.rank == 0:
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C, which Python hands to the main thread
            comm.recv(Tensor(np.ones(1)), 1 - comm.rank)
        finally:
            ended.append(comm.rank)

    raises(KeyboardInterrupt, "", lambda: dist.run_threads(2, fn, timeout=30))
    wait_until(lambda: sorted(ended) == [0, 1])


@pytest.mark.parametrize("size", [3, 100_000])
def test_arrays_are_let_go_of_when_an_operation_has_ended(size):
    """Without the help of the garbage collector, which may come much later."""

    def fn(comm: dist.ThreadCommunicator) -> None:
        tensors = [Tensor(np.ones(size)) for _ in range(2)]
        arrays = [weakref.ref(t.data) for t in tensors]
        work = comm.all_reduce(tensors[0], async_op=True)
        comm.all_reduce(tensors[1])
        work.wait()
        comm.barrier()
        del tensors, work
        wait_until(lambda: [array() for array in arrays] == [None, None])  # its thread may be on its way out

    gc.disable()
    try:
        dist.run_threads(2, fn, timeout=30)
    finally:
        gc.enable()


KERNELS = """
import importlib, sys
import numpy as np
from minigrad import Tensor
from minigrad.cpu_kernels import threads
from minigrad.distributed import run_threads
assert threads.LAYER == {layer!r}, threads.LAYER
try:
    importlib.import_module("numba.np.ufunc.{module}")
except ImportError:
    sys.exit(77)
threads.set_num_threads(2)
x = np.random.default_rng(0).standard_normal((320, 200)).astype(np.float32)
def compute():
    w = Tensor(x, requires_grad=True)
    loss = ((w @ Tensor(x.T)).softmax(-1) * Tensor(x @ x.T)).sum()
    return loss.backward()[w].numpy().tobytes()
alone = compute()
def fn(comm):
    same = True
    for _ in range(10):
        same &= compute() == alone
        comm.all_reduce(Tensor(x), async_op=True)
    return same
assert run_threads(4, fn, timeout=60) == [True] * 4
"""


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("layer", "module"), [("tbb", "tbbpool"), ("omp", "omppool"), ("workqueue", "workqueue")])
def test_ranks_may_launch_parallel_kernels_at_the_same_time(layer, module):
    """Numba's workqueue layer ends the process when two threads launch kernels; the kernels take turns there."""
    source = KERNELS.format(layer=layer, module=module)
    done = python("-W", "error", "-c", source, env={"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"})
    if done.returncode == 77:
        pytest.skip(f"Numba has no {layer} layer here")
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------- faults on purpose

WORLD, CALLS = 3, 11  # of ``program``
FAST = 0.05  # deadline where something is lost, and no order makes time virtual


def contribution(rank: int, call: int, size: int) -> np.ndarray:
    return np.random.default_rng([rank, call]).integers(-(2**40), 2**40, size)


def program(comm: dist.ThreadCommunicator) -> list[np.ndarray]:
    """One operation of each kind: CALLS on every rank. What it returns follows from ``contribution``."""
    n, rank = comm.world_size, comm.rank
    mine = [Tensor(contribution(rank, call, 6)) for call in range(1, CALLS + 1)]
    gathered, part, exchanged = (Tensor(np.zeros(size, np.int64)) for size in (6 * n, 2, 6))
    works = [comm.all_reduce(mine[0], async_op=True), comm.broadcast(mine[1], 1, async_op=True)]
    comm.all_gather(mine[2], gathered)
    comm.reduce_scatter(mine[3], part)
    comm.all_to_all(mine[4], exchanged)
    for work in works:
        work.wait()
    comm.barrier()  # call 6
    work = comm.send(mine[6], (rank + 1) % n, async_op=True)
    received = Tensor(np.zeros(6, np.int64))
    comm.recv(received, (rank - 1) % n)  # call 8
    work.wait()
    pair = comm.split(0 if rank < 2 else 1)  # call 9
    assert pair is not None
    with pair:
        pair.all_reduce(mine[9])
    comm.barrier()  # call 11
    return [t.numpy() for t in (mine[0], mine[1], gathered, part, exchanged, received, mine[9])]


def expected(rank: int, plan: dist.FaultPlan) -> list[np.ndarray]:
    """What ``program`` returns on this rank, in NumPy."""
    n, ranks = WORLD, range(WORLD)

    def sent(r: int, call: int) -> np.ndarray:
        fault, array = plan.at(r, call), contribution(r, call, 6)
        return with_flipped_bit(array, fault.bit) if fault is not None and fault.kind == "flip" else array

    return [
        sum(sent(r, 1) for r in ranks), sent(1, 2) if rank != 1 else contribution(1, 2, 6),
        np.concatenate([sent(r, 3) for r in ranks]), sum(sent(r, 4) for r in ranks)[2 * rank : 2 * rank + 2],
        np.concatenate([sent(r, 5)[2 * rank : 2 * rank + 2] for r in ranks]), sent((rank - 1) % n, 7),
        sum(sent(r, 10) for r in range(2)) if rank < 2 else sent(2, 10),
    ]  # fmt: skip


def check_schedule(plan: dist.FaultPlan) -> dict[int, str]:
    """Run ``program`` under the plan; returns the errors' types by rank. A failed rank's communicator refuses work."""
    kinds = {fault.kind for fault in plan.faults}
    silent = kinds & {"drop", "stop"}
    lossy = bool(silent or "kill" in kinds)
    results: dict[int, list[np.ndarray]] = {}
    errors: dict[int, BaseException] = {}

    def fn(comm: dist.ThreadCommunicator) -> None:
        try:
            results[comm.rank] = program(comm)
        except BaseException:
            if "broken" in repr(comm):  # not if it was a sub-group's operation that failed
                raises(dist.CommunicatorBrokenError, "", comm.barrier)
            raise

    began = time.monotonic()
    try:
        dist.run_threads(WORLD, fn, FAST if silent and plan.order is None else 30, plan)
    except Exception as error:
        errors = error.rank_errors  # type: ignore[attr-defined]
    assert time.monotonic() - began < 10
    if lossy:
        assert sorted(errors) == list(range(WORLD)), "the last barrier needs every rank"
        for error in errors.values():
            assert isinstance(error, dist.CommTimeoutError | dist.PeerLostError | dist.RankKilledError), repr(error)
        if "kill" not in kinds:  # who has timed out first may be missed by the others
            assert any(isinstance(error, dist.CommTimeoutError) for error in errors.values())
        elif not silent:
            assert any(isinstance(error, dist.RankKilledError) for error in errors.values())
            assert not any(isinstance(error, dist.CommTimeoutError) for error in errors.values())
    else:
        assert not errors
    for rank, arrays in results.items():
        for got, want in zip(arrays, expected(rank, plan), strict=True):
            np.testing.assert_array_equal(got, want)
    assert lossy or len(results) == WORLD
    return {rank: repr(error) for rank, error in errors.items()}


def test_every_schedule_of_faults_ends_with_right_results_or_typed_errors(seeds):
    """In the seed's order, twice, and some as the operating system has it, where one that stopped would never end."""
    for seed in seeds(100):
        plan = dist.FaultPlan.random(seed, WORLD, CALLS, count=seed % 3)
        try:
            assert check_schedule(plan) == check_schedule(plan)
            if seed % 2 and "stop" not in repr(plan):
                check_schedule(dist.FaultPlan(plan.faults))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {plan}: {error}") from error


def test_every_single_fault_replays():
    for rank in range(WORLD):
        for call in range(1, CALLS + 1):
            for kind in ("kill", "stop", "drop", "flip"):
                for order in [None, 0] if kind in ("kill", "flip") else [0]:
                    plan = dist.FaultPlan([dist.Fault(kind, rank, call, bit=12345)], order)
                    errors = check_schedule(plan)
                    if kind in ("kill", "stop"):
                        assert errors.pop(rank).startswith(f"RankKilledError('rank {rank} was {kind}")
                        assert all(f"rank {rank} " in error for error in errors.values()), errors


def test_an_order_decides_who_makes_the_next_operation_in_no_time():
    def made(order: int) -> tuple[int, ...]:
        ranks = []

        def fn(comm: dist.ThreadCommunicator) -> None:
            for _ in range(4):
                ranks.append(comm.rank)
                comm.all_reduce(Tensor(np.ones(100_000)), async_op=True)
            comm.sync()

        dist.run_threads(2, fn, 30, dist.FaultPlan([dist.Fault("delay", 0, 4, seconds=29.0)], order))
        return tuple(ranks)

    orders = [made(order) for order in [*range(30), *range(30)]]
    assert orders[:30] == orders[30:] and len({*orders}) > 10


def test_who_waits_itself_is_not_blamed():
    def fn(comm: dist.ThreadCommunicator) -> None:
        comm.recv(Tensor(np.ones(1)), comm.rank + 1) if comm.rank < 2 else comm.barrier()

    stopped = dist.FaultPlan([dist.Fault("stop", rank=2, call=1)], order=0)
    caught = raises(dist.RankKilledError, "", lambda: dist.run_threads(3, fn, 30, stopped))
    assert [caught.rank_errors[rank].ranks for rank in range(2)] == [(2,), (2,)]  # type: ignore[attr-defined]


def test_a_plan_is_its_seed():
    plans = [dist.FaultPlan.random(seed, 4, 20, count=3).faults for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    many = [fault for seed in range(100) for fault in dist.FaultPlan.random(seed, 4, 20, count=3, max_delay=0.5).faults]
    assert {fault.kind for fault in many} == set(KINDS)
    assert {fault.rank for fault in many} == set(range(4)) and {fault.call for fault in many} == set(range(1, 21))
    assert 0.3 < max(fault.seconds for fault in many) <= 0.5
    assert {f.kind for f in dist.FaultPlan.random(0, 4, 20, 10, kinds=("delay",)).faults} == {"delay"}


def test_a_flip_changes_one_bit_and_not_the_senders_array():
    array = np.arange(5, dtype=np.float32)
    for bit in (0, 31, 159, 160 + 7):
        flipped = with_flipped_bit(array, bit)
        difference = np.unpackbits(flipped.view(np.uint8) ^ array.view(np.uint8), bitorder="little")
        assert np.flatnonzero(difference).tolist() == [bit % 160]
    assert array.tolist() == [0, 1, 2, 3, 4]
    assert with_flipped_bit(np.empty(0), 3).size == 0


def test_a_killed_rank_is_gone_from_all_its_groups():
    noticed = threading.Event()

    def fn(comm: dist.ThreadCommunicator) -> None:
        sub = comm.split(0)
        assert sub is not None
        if comm.rank == 0:
            raises(dist.PeerLostError, "rank 1 was killed in barrier", comm.barrier)
            noticed.set()
        else:
            raises(dist.RankKilledError, "", sub.barrier)
            assert noticed.wait(10)  # without an exception that leaves a block, and without close
            for mine in (comm, sub):
                raises(dist.CommunicatorBrokenError, "", mine.barrier)

    dist.run_threads(2, fn, 30, dist.FaultPlan([dist.Fault("kill", rank=1, call=2)]))


def test_each_rank_has_random_numbers_of_its_own() -> None:
    def program(seed: int | None = None) -> list[list[float]]:
        minigrad.manual_seed(3)

        def train(comm: dist.ThreadCommunicator) -> list[float]:
            if seed is not None:
                minigrad.manual_seed(seed)
            drawn: list[float] = []
            x = minigrad.ones(64, requires_grad=True)
            for _ in range(20):
                kept = minigrad.checkpoint(lambda x: F.dropout(x, 0.5).exp(), x)
                drawn += [*kept.sum().backward()[x].tolist(), minigrad.rand(1).item()]
            return drawn + [float(minigrad.default_generator.state_dict()["offset"])]

        return dist.run_threads(3, train, timeout=20)

    before = minigrad.default_generator.state_dict()
    try:
        first = program()
        assert first == program()
        assert len({tuple(rank) for rank in first}) == 3
        alike = program(5)
        assert alike[0] == alike[1] == alike[2] and alike[0] not in first
        minigrad.manual_seed(5)
        dist.run_threads(2, lambda comm: minigrad.manual_seed(comm.rank))
        assert minigrad.default_generator.state_dict() == {"seed": 5, "offset": 1}
        again = [dist.run_threads(2, lambda comm: minigrad.rand(2).tolist()) for _ in range(2)]
        assert again[0] != again[1]  # two calls are two events
    finally:
        minigrad.default_generator.load_state_dict(before)


def test_a_call_thread_that_stops_has_done_what_was_submitted():
    thread = CallThread("calls")
    job = thread.submit(lambda: time.sleep(0.1))
    thread.stop(30.0)
    assert job.done()
