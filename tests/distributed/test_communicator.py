"""The interface that all engines share, and the world of one rank."""

import functools
import math
import pickle

import numpy as np
import pytest
from communicator_suite import CHECKS, name_of
from refusals import raises

from minigrad import Tensor, cuda, distributed as dist
from minigrad.distributed.comm import call_header
from minigrad.distributed.comm.calls import Call, CallKind, check_seconds


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_a_world_of_one_is_a_communicator(check, device):
    if device == "cuda" and not cuda.is_available():
        pytest.skip("no CUDA device, and NUMBA_ENABLE_CUDASIM=1 is not set")
    check(dist.NoOpCommunicator(30, device))


def test_an_exception_in_the_block_breaks_and_closes():
    comm = dist.NoOpCommunicator()
    with pytest.raises(ZeroDivisionError), comm:
        raise ZeroDivisionError
    raises(dist.CommunicatorBrokenError, "", comm.barrier)


@pytest.mark.parametrize(
    "kind", [dist.CollectiveMismatchError, dist.CommTimeoutError, dist.PeerLostError, dist.RendezvousError]
)
def test_errors_say_where(kind):
    error = kind("too late", op="all_reduce", sequence=7, rank=2, step=40, ranks=[1, 3])
    assert str(error) == "all_reduce (operation 7), rank 2, step 40: too late"
    assert (error.op, error.sequence, error.rank, error.step, error.ranks) == ("all_reduce", 7, 2, 40, (1, 3))
    assert isinstance(error, dist.CommError) and isinstance(error, RuntimeError)
    assert str(kind("too late")) == "too late"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_call_in_words_is_what_must_agree():
    array = np.ones((3, 4), np.float32)
    summed = Call(CallKind.ALL_REDUCE, 1, None, array, array, dist.ReduceOp.SUM)
    assert str(summed) == "all_reduce(sum) of (3, 4) float32"
    assert str(Call(CallKind.BROADCAST, 9, 4, None, array, peer=2)) == "broadcast of (3, 4) float32 from rank 2"
    assert str(Call(CallKind.BARRIER, 3, None)) == "barrier"


def test_headers_agree_where_calls_do():
    array, other = np.ones((3, 4), np.float32), np.ones((4, 3), np.float32)
    call = Call(CallKind.ALL_REDUCE, 7, 5, array, array, dist.ReduceOp.SUM)
    mine = call_header.pack(call, 3, 5)
    assert mine.nbytes == call_header.SIZE == 128 and call_header.whole(mine)
    assert call_header.read(mine) == ("all_reduce", "all_reduce(sum) of (3, 4) float32 in step 5", 7)
    same = Call(CallKind.ALL_REDUCE, 9, 5, array, array, dist.ReduceOp.SUM)
    assert call_header.agree(mine, call_header.pack(same, 3, 5))
    for differs in (
        call_header.pack(call, 4, 5),
        call_header.pack(call, 3, 6),
        call_header.pack(call, 3),
        call_header.pack(Call(CallKind.ALL_REDUCE, 7, 5, array, array, dist.ReduceOp.MAX), 3, 5),
        call_header.pack(Call(CallKind.ALL_REDUCE, 7, 5, other, other, dist.ReduceOp.SUM), 3, 5),
        call_header.pack(Call(CallKind.ALL_REDUCE, 7, 5, *[array.view(np.int32)] * 2, dist.ReduceOp.SUM), 3, 5),
        call_header.pack(Call(CallKind.REDUCE_SCATTER, 7, 5, array, array, dist.ReduceOp.SUM), 3, 5),
        np.zeros(128, np.uint8),
    ):
        assert not call_header.agree(mine, differs) and not call_header.agree(differs, mine)
    root = [call_header.pack(Call(CallKind.BROADCAST, 1, None, None, array, peer=peer)) for peer in (0, 1)]
    assert not call_header.agree(*root)
    torn = mine.copy()
    torn[-9] ^= 1
    assert not call_header.whole(torn) and not call_header.whole(np.zeros(128, np.uint8))


def test_headers_of_the_two_ends_of_a_message_agree():
    array = np.ones((3, 4), np.float32)
    sent = call_header.pack(Call(CallKind.SEND, 1, None, array, None, peer=1, tag=4))
    for shape, tag, good in (((12,), 4, True), ((3, 4), 3, False), ((11,), 4, False)):
        there = call_header.pack(Call(CallKind.RECV, 8, None, None, np.ones(shape, np.float32), peer=0, tag=tag))
        assert call_header.agree(sent, there) is call_header.agree(there, sent) is good
    words = "rank 0 called send of (3, 4) float32 with tag 4 (operation 1); rank 1 called recv"
    assert call_header.differences({1: there, 0: sent}).startswith(words)
    many = Call(CallKind.SEND, 1, None, np.ones((1,) * 6 + (2,), np.float32), None, peer=1)
    assert call_header.read(call_header.pack(many)).call == "send of 2 elements float32 with tag 0"


def test_the_hidden_share_is_what_was_not_waited_for():
    assert dist.CommStats().hidden_share == 0.0
    assert dist.CommStats(busy_s=2.0, waited_s=0.5).hidden_share == 0.75
    assert dist.CommStats(busy_s=1.0, waited_s=1.001).hidden_share == 0.0


def test_seconds_are_checked():
    assert check_seconds("t", 3) == 3.0 and check_seconds("t", math.inf) == math.inf
    for value in (0, -1, math.nan, "1", None, True):
        raises(ValueError, "t is .*expected a number of seconds > 0", functools.partial(check_seconds, "t", value))
    raises(ValueError, "timeout", lambda: dist.ThreadCommunicator.group(2, timeout=0))
    raises(ValueError, "timeout", lambda: dist.NoOpCommunicator(timeout=-1))


def test_a_read_only_tensor_is_not_written():
    array = np.ones(3)
    array.setflags(write=False)
    raises(ValueError, "read-only", lambda: dist.NoOpCommunicator().all_reduce(Tensor.wrap(array)))
