"""NcclCommunicator on GPUs that are not there: what it asks of NCCL, in which order, and how it ends."""

import os
import sys
import threading
import time
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace

import in_threads
import numpy as np
import pytest
from communicator_suite import BREAKING, CHECKS, break_by_other_message, check_send_and_recv, name_of
from fake_nccl import FakeMachine, FakeStream
from in_threads import outcomes, wait_until
from processes import python
from refusals import raises

from minigrad import Tensor, device, distributed as dist
from minigrad.distributed import CommError, CommTimeoutError, NcclCommunicator, PeerLostError, RendezvousError
from minigrad.distributed.comm.nccl import nccl, nccl_launch

CUDA = device.Device("cuda:0")


@pytest.fixture
def machine(machine, monkeypatch):
    monkeypatch.setattr(nccl_launch, "_pointer", lambda array: array.ctypes.data)
    monkeypatch.setattr(nccl, "_PEEK_SECONDS", 0.05)
    return machine


def run(machine: FakeMachine, n: int, fn, **options):
    """What ``fn`` returns on each of n ranks, or the exception it raised."""
    identifier = machine.nccl.get_unique_id()
    options = {"timeout": 10.0, "rendezvous_timeout": 10.0, **options}

    def rank(number: int):
        with NcclCommunicator(n, number, CUDA, identifier, **options) as comm:
            comm.device = device.CPU  # where the tensors of the fake are
            return fn(comm)

    return [*outcomes(range(n), rank).values()]


def good(machine: FakeMachine, n: int, fn, **options):
    return in_threads.good(run(machine, n, fn, **options))


# ---------------------------------------------------------------------- what every communicator must do


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("check", [c for c in CHECKS if c is not check_send_and_recv], ids=name_of)
def test_it_is_a_communicator(machine, check, n):
    good(machine, n, check, timeout=30)


# NCCL cannot name who is missing, nor tell at once who has left; nor does a sender learn what the receiver expected.
# The tests below say what happens instead.
OTHER_WAYS = ("silence", "silence_in_a_message", "close", "exception", "other_message")
NOT_NCCL = [f"break_by_{how}" for how in OTHER_WAYS]


@pytest.mark.parametrize("check", [c for c in BREAKING if c.__name__ not in NOT_NCCL], ids=name_of)
def test_it_breaks_as_a_communicator_should(machine, check):
    good(machine, 2, check, timeout=0.8)


def test_a_message_of_another_size_is_an_error_of_the_receiver(machine):
    sender, receiver = run(machine, 2, break_by_other_message, timeout=0.3)
    assert receiver is None
    assert isinstance(sender, CommTimeoutError) and sender.ranks == (1,)


def test_who_did_not_send_is_named(machine):
    def fn(comm):
        if comm.rank == 1:
            return time.sleep(0.3)
        caught = raises(CommTimeoutError, "Rank 1 is stalled", lambda: comm.recv(Tensor(np.ones(3)), 1))
        assert caught.ranks == (1,)
        return None

    good(machine, 2, fn, timeout=0.15)


@pytest.mark.parametrize("how", ["silent", "closed", "exception"])
def test_without_a_peer_every_operation_ends_by_its_deadline(machine, how):
    def fn(comm):
        comm.barrier()
        if comm.rank == 1:
            if how == "exception":
                raise ZeroDivisionError
            if how == "silent":
                time.sleep(0.5)
            return None
        comm.step = 5
        with pytest.raises(CommTimeoutError, match="all_reduce.*operation 2.*rank 0, step 5.*within 0.2 s") as caught:
            comm.all_reduce(Tensor(np.ones(3)))
        assert caught.value.ranks == ()
        raises(dist.CommunicatorBrokenError, "", comm.barrier)
        return "told"

    assert run(machine, 2, fn, timeout=0.2)[0] == "told"
    assert ("abort", 0) in machine.calls("abort")


@pytest.mark.parametrize("checked", [False, True])
def test_a_header_goes_before_each_operation_that_is_checked(machine, checked):
    def fn(comm):
        comm.all_reduce(Tensor(np.ones(5)))
        if comm.rank == 0:
            comm.send(Tensor(np.ones(5)), 1, tag=3)
        else:
            comm.recv(Tensor(np.ones(5)), 0, tag=3)

    good(machine, 2, fn, check=checked)
    calls = [call for call in machine.calls("allGather", "allReduce", "send") if call[1] == 0]  # of rank 0
    found = [(name, *arguments[-4:-2]) for name, *arguments in calls]  # numbers of elements, and NCCL's dtypes
    headers = [("allGather", 128, 1), ("send", 128, 1)]
    operations = [("allReduce", 5, 8), ("send", 5, 8)]
    assert found == ([headers[0], operations[0], headers[1], operations[1]] if checked else operations)


# ---------------------------------------------------------------------- streams, events, memory


def test_it_waits_for_the_stream_that_computes_and_blocks_no_host(machine):
    def fn(comm):
        a = np.zeros(1000)
        compute, returned, seen = FakeStream(machine), threading.Event(), []
        with compute:
            compute.enqueue(lambda: (seen.append(returned.wait(20)), a.__setitem__(..., comm.rank + 1.0)))
            work = comm.all_reduce(Tensor.wrap(a), async_op=True)
            assert not work.is_completed()
            returned.set()
        work.wait()
        return a[0], seen

    assert good(machine, 2, fn) == [(3.0, [True])] * 2


def test_a_stream_can_be_made_to_wait_instead_of_the_host(machine):
    gone_on = threading.Event()

    def fn(comm):
        a, seen = np.ones(1000), []
        compute = FakeStream(machine)
        if comm.rank == 1:
            assert gone_on.wait(20)
        with compute:
            work = comm.all_reduce(Tensor.wrap(a), async_op=True)
            work.wait_on_stream()
            compute.enqueue(lambda: seen.append(a[0]))
            gone_on.set()
        work.wait()
        time.sleep(0.05)
        return seen

    assert good(machine, 2, fn) == [[2.0], [2.0]]


def test_buffers_live_until_the_operation_is_over(machine):
    def fn(comm):
        if comm.rank == 1:
            time.sleep(0.2)
        a = np.ones(1000)
        alive = weakref.ref(a)
        works = [comm.all_reduce(Tensor.wrap(a), async_op=True)] if comm.rank else []
        if comm.rank == 0:
            comm.all_reduce(Tensor.wrap(a), async_op=True)
        del a
        before = alive() is not None
        comm.sync()
        for work in works:  # kept, but waited for
            work.wait()
        time.sleep(0.05)
        return before, alive() is None

    assert good(machine, 2, fn) == [(True, True), (True, True)]


def test_what_nobody_waits_for_is_let_go_by_later_operations(machine):
    def fn(comm):
        most = 0
        for _ in range(50):
            comm.all_reduce(Tensor(np.ones(3)), async_op=True)
            time.sleep(0.002)
            most = max(most, len(comm._under_way))
        return most

    assert max(good(machine, 2, fn)) < 25


def test_messages_around_the_ring_keep_their_order(machine):
    def fn(comm):
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        got = [Tensor(np.zeros(2, np.int64)) for _ in range(4)]
        works = [comm.send(Tensor(np.array([comm.rank, i])), right, tag=i, async_op=True) for i in range(4)]
        works += [comm.recv(t, left, tag=i, async_op=True) for i, t in enumerate(got)]
        assert works[-1].is_completed() in (True, False)
        comm.all_reduce(Tensor(np.ones(1)))
        assert all(work.is_completed() for work in works)
        for work in works:
            work.wait()
        return [t.tolist() for t in got]

    assert good(machine, 3, fn) == [[[(r - 1) % 3, i] for i in range(4)] for r in range(3)]


def test_a_tag_that_does_not_match_is_seen(machine):
    def fn(comm):
        if comm.rank == 0:
            return comm.send(Tensor(np.ones(2)), 1, tag=4)
        words = "rank 0 called send .* tag 4 .*; rank 1 called recv .* tag 3"
        raises(dist.CollectiveMismatchError, words, comm.recv, Tensor(np.ones(2)), 0, tag=3)
        return None

    good(machine, 2, fn)


# ---------------------------------------------------------------------- beginning and end


def test_a_missing_rank_ends_the_constructor(machine):
    with pytest.raises(RendezvousError, match="not all of the 2 ranks .* within 0.3 s"):
        NcclCommunicator(2, 0, CUDA, machine.nccl.get_unique_id(), rendezvous_timeout=0.3)
    machine.shut()  # the missing rank comes after all
    wait_until(lambda: machine.calls("abort") == [("abort", 0)])


def test_what_nccl_says_at_the_beginning_is_told(machine, monkeypatch):
    def fails(*_):
        raise RuntimeError("unhandled cuda error")

    monkeypatch.setattr(machine.nccl, "NcclCommunicator", fails)
    raises(RendezvousError, "NCCL did not start on cuda:0: RuntimeError: unhandled cuda", NcclCommunicator, 1, 0, CUDA)


class NcclError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@pytest.mark.parametrize(
    ("error", "kind"),
    [(NcclError(6), PeerLostError), (NcclError(2), PeerLostError), (NcclError(1), CommError), (KeyError(9), CommError)],
)
def test_errors_in_the_background_end_the_wait(machine, error, kind):
    ended = threading.Event()

    def fn(comm):
        if comm.rank == 1:
            assert ended.wait(20)
            return
        comm._handles.comm.async_error = error
        caught = raises(kind, "all_reduce .*NCCL failed", lambda: comm.all_reduce(Tensor(np.ones(3))))
        assert type(caught) is kind
        ended.set()

    good(machine, 2, fn)
    assert ("abort", 0) in machine.calls("abort")


def test_a_status_without_a_name_that_means_in_progress_is_no_error(machine):
    def fn(comm):
        comm._handles.comm.async_error = KeyError(7)
        if comm.rank == 1:
            time.sleep(0.2)
        comm.barrier()

    good(machine, 2, fn)


def test_an_error_of_the_call_itself_is_raised_by_wait(machine, monkeypatch):
    def fn(comm):
        def fails(*_):
            raise NcclError(5)

        comm._handles.comm.allReduce = fails
        work = comm.all_reduce(Tensor(np.ones(3)), async_op=True)
        wait_until(work.is_completed)
        raises(CommError, "status 5", work.wait)
        raises(dist.CommunicatorBrokenError, "", work.wait)

    good(machine, 1, fn)


def test_a_call_that_never_returns_is_bounded_too(machine):
    def fn(comm):
        stuck = threading.Event()
        comm._handles.comm.allReduce = lambda *_: stuck.wait(20)
        comm._handles.comm.abort = lambda: stuck.wait(20)
        began = time.monotonic()
        raises(CommTimeoutError, "", lambda: comm.all_reduce(Tensor(np.ones(3))))
        comm.close()
        assert time.monotonic() - began < 15
        stuck.set()

    good(machine, 1, fn, timeout=0.3)


def test_the_first_operation_that_is_not_over_is_named(machine):
    def fn(comm):
        if comm.rank == 1:
            return time.sleep(0.3)
        comm.all_reduce(Tensor(np.ones(3)), async_op=True)
        work = comm.all_reduce(Tensor(np.ones(4)), async_op=True)
        raises(CommTimeoutError, r"first operation that is not over is all_reduce\(sum\) of \(3,\)", work.wait)
        return None

    good(machine, 2, fn, timeout=0.15)


def test_a_communicator_is_split_when_it_is_idle(machine):
    def fn(comm):
        if comm.rank == 1:
            time.sleep(0.1)
        work = comm.all_reduce(Tensor(np.ones(3)), async_op=True)
        comm.split(0).close()
        return work.is_completed()

    assert good(machine, 2, fn) == [True, True]


def test_close_destroys_and_an_error_aborts(machine):
    good(machine, 1, lambda comm: comm.barrier())
    assert machine.calls("destroy", "abort") == [("destroy", 0)]
    (error,) = run(machine, 1, lambda comm: 1 / 0)
    assert isinstance(error, ZeroDivisionError)
    assert machine.calls("destroy", "abort") == [("destroy", 0), ("abort", 0)]


ENDS_WITHOUT_CLOSE = """
import threading
from fake_nccl import FakeMachine
from minigrad.device import Device
from minigrad.distributed.comm.nccl import nccl, nccl_launch
machine = FakeMachine()
nccl._load = lambda: (machine.cupy, machine.nccl)
nccl_launch._pointer = lambda array: array.ctypes.data
comm = nccl.NcclCommunicator(1, 0, Device("cuda:0"))
comm._handles.comm.abort = lambda: print("aborted", flush=True)
comm.barrier()
"""


def test_a_process_that_ends_without_close_aborts():
    tests = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    run = python("-W", "error", "-c", ENDS_WITHOUT_CLOSE, env={"PYTHONPATH": path})
    assert (run.returncode, run.stdout, run.stderr) == (0, "aborted\n", "")


def test_wrong_arguments(machine):
    for arguments, words in [
        ((1, 0, device.CPU), "expected a CUDA device"),
        ((2, 0, CUDA), "unique_id is None"),
        ((2, 0, CUDA, b"short"), "expected 128 bytes"),
        ((2, 2, CUDA, bytes(128)), "rank is 2"),
    ]:
        raises(ValueError, words, lambda arguments=arguments: NcclCommunicator(*arguments))


def test_without_cupy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    raises(device.DeviceError, "called through CuPy .*pip install", nccl.unique_id)
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nccl=SimpleNamespace(available=False)))
    raises(device.DeviceError, "libnccl .*pip install", nccl.unique_id)
