"""What every communicator must do, whichever engine carries it: one function for each property.

Each takes a communicator and is called by all of its ranks, be they threads (tests/distributed/test_thread.py) or
processes. ``CHECKS`` leave the communicator usable; those of ``BREAKING`` end with an error on every rank, after which
it is good for nothing, so give each a communicator of its own (``in_a_group_of_its_own``).

What all ranks contribute follows from a seed, so each rank computes what must come out by itself, in NumPy.
"""

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from in_threads import wait_until
from refusals import raises

from minigrad import Tensor, distributed as dist
from minigrad.distributed import Communicator, ReduceOp
from minigrad.dtypes import SUPPORTED, bool_, float16, float32, float64, int64, is_floating

Check = Callable[[Communicator], None]

SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1,), (7,), (2, 3, 5), (1031,)]
INTEGER_OPS = [ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MIN, ReduceOp.MAX]


def ops_of(dtype) -> list[ReduceOp]:
    if dtype == bool_:
        return [ReduceOp.MIN, ReduceOp.MAX]
    return list(ReduceOp) if is_floating(dtype) else INTEGER_OPS


def of_rank(rank: int, shape: tuple[int, ...], dtype, seed: int = 0) -> np.ndarray:
    """What this rank contributes: integers over the whole range, floats of either sign around 1."""
    rng = np.random.default_rng([seed, rank])
    if dtype == bool_:
        return rng.random(shape) < 0.5
    if not is_floating(dtype):
        info = np.iinfo(dtype)
        return np.asarray(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
    return np.asarray(rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)).astype(dtype)


def of_all(comm: Communicator, shape: tuple[int, ...], dtype, seed: int = 0) -> list[np.ndarray]:
    return [of_rank(rank, shape, dtype, seed) for rank in range(comm.world_size)]


def put(comm: Communicator, array, dtype=None) -> Tensor:
    return Tensor(array, dtype=dtype, device=comm.device)


def empty(comm: Communicator, shape: tuple[int, ...], dtype) -> Tensor:
    """Memory to receive into, filled with what is nobody's value."""
    return put(comm, np.frombuffer(b"\xa5" * math.prod(shape) * dtype.itemsize, np.uint8).view(dtype).reshape(shape))


def host(tensor: Tensor) -> np.ndarray:
    return np.array(tensor.detach().to("cpu").numpy())


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def assert_same(got: Tensor, want: np.ndarray) -> None:
    array = host(got)
    assert (array.shape, array.dtype) == (want.shape, want.dtype)
    assert bits(array) == bits(want)


def assert_equal_on_all_ranks(comm: Communicator, tensor: Tensor) -> None:
    mine = np.frombuffer(bits(host(tensor)), np.uint8)
    everyone = put(comm, np.zeros((comm.world_size, mine.size), np.uint8))
    comm.all_gather(put(comm, mine), everyone)
    assert all(bits(row) == bits(mine) for row in host(everyone))


def assert_reduced(got: np.ndarray, parts: list[np.ndarray], op: ReduceOp) -> None:
    """``got`` is the combination of ``parts``, in whatever order the engine took them."""
    dtype = parts[0].dtype
    assert (got.shape, got.dtype) == (parts[0].shape, dtype)
    if op in (ReduceOp.MIN, ReduceOp.MAX) or not is_floating(dtype):
        exact = {ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum, ReduceOp.SUM: np.add, ReduceOp.PROD: np.multiply}
        want = exact[op].reduce(np.stack(parts), dtype=dtype)
        np.testing.assert_array_equal(got, want)  # integers modulo 2**bits, so the order does not matter
    else:
        # Error of n-1 roundings of the dtype, or for the halves of float32 and then one, half a unit in the last place.
        wide = np.stack([part.astype(np.longdouble) for part in parts])
        half = dtype.itemsize == 2
        unit = float(np.finfo(np.float32 if half else dtype).eps)
        if op is ReduceOp.PROD:
            want, size = wide.prod(0), np.abs(wide.prod(0))
        else:
            divisor = len(parts) if op is ReduceOp.AVG else 1
            want, size = wide.sum(0) / divisor, np.abs(wide).sum(0) / divisor
        allowed = (len(parts) + 1) * unit * size
        if half:
            allowed = allowed + 0.5 * np.abs(np.nextafter(got, got + got).astype(np.longdouble) - got)
        assert np.all(np.abs(got.astype(np.longdouble) - want) <= allowed)


# ---------------------------------------------------------------------- one operation each


def check_identity(comm: Communicator) -> None:
    """Every rank has a number of its own, and they know how many they are."""
    numbers = put(comm, np.full(comm.world_size, -1))
    comm.all_gather(put(comm, np.array([comm.rank])), numbers)
    assert host(numbers).tolist() == list(range(comm.world_size))
    assert f"rank {comm.rank} of {comm.world_size}" in repr(comm)
    assert str(comm.device) in repr(comm)


def check_all_reduce(comm: Communicator) -> None:
    """All operators, dtypes and shapes: the right value, in place, the same bits on every rank."""
    for dtype in SUPPORTED:
        for op in ops_of(dtype):
            for seed, shape in enumerate(SHAPES):
                tensor = put(comm, of_rank(comm.rank, shape, dtype, seed))
                assert comm.all_reduce(tensor, op).is_completed()
                assert_reduced(host(tensor), of_all(comm, shape, dtype, seed), op)
                assert_equal_on_all_ranks(comm, tensor)


def check_large_all_reduce(comm: Communicator) -> None:
    """An odd number of elements, too many to be handled as one piece; sum by default. It ends by itself: no rank waits,
    or calls anything else, until it has."""
    for dtype in (float32, float16, int64):
        shape = (300_001,)
        tensor = put(comm, of_rank(comm.rank, shape, dtype))
        work = comm.all_reduce(tensor, async_op=True)
        wait_until(work.is_completed, comm.timeout)
        work.wait()
        assert_reduced(host(tensor), of_all(comm, shape, dtype), ReduceOp.SUM)
        assert_equal_on_all_ranks(comm, tensor)


def check_averages(comm: Communicator) -> None:
    """AVG is the sum, divided; where all ranks hold the same small integers it is exact."""
    for dtype in SUPPORTED:
        if is_floating(dtype):
            tensor = put(comm, np.arange(-8, 9).astype(dtype))
            comm.all_reduce(tensor, ReduceOp.AVG)
            assert_same(tensor, np.arange(-8, 9).astype(dtype))


def check_special_values(comm: Communicator) -> None:
    """NaN on any rank reaches the result of every operator; infinities stay; an overflow is infinite, no error."""
    for dtype in SUPPORTED:
        if not is_floating(dtype):
            continue
        for op in ReduceOp:
            for culprit in range(comm.world_size):
                tensor = put(comm, np.array([np.nan if comm.rank == culprit else 1.0, np.inf, 2.0]).astype(dtype))
                comm.all_reduce(tensor, op)
                got = host(tensor).astype(np.float64)
                assert np.isnan(got[0]) and got[1] == np.inf and np.isfinite(got[2])
                assert_equal_on_all_ranks(comm, tensor)
    top = put(comm, np.full(3, np.finfo(np.float16).max, np.float16))
    comm.all_reduce(top)
    assert np.all(host(top) == (np.inf if comm.world_size > 1 else np.finfo(np.float16).max))
    top = put(comm, np.full(3, np.finfo(np.float16).max, np.float16))
    comm.all_reduce(top, ReduceOp.AVG)  # the sum of the halves does not fit, their average does
    assert np.all(host(top) == np.finfo(np.float16).max)


def check_broadcast(comm: Communicator) -> None:
    """From every root, all dtypes and shapes; the root keeps its own."""
    for root in range(comm.world_size):
        for dtype in SUPPORTED:
            for shape in SHAPES:
                want = of_rank(root, shape, dtype, seed=root)
                tensor = put(comm, want) if comm.rank == root else empty(comm, shape, dtype)
                comm.broadcast(tensor, root)
                assert_same(tensor, want)
    tensor = put(comm, np.array([comm.rank]))
    comm.broadcast(tensor)
    assert host(tensor).tolist() == [0]


def check_all_gather(comm: Communicator) -> None:
    """In order of rank; what was sent stays; only the number of elements of ``recv`` counts."""
    n = comm.world_size
    for dtype in SUPPORTED:
        for shape in SHAPES:
            mine, want = of_rank(comm.rank, shape, dtype), np.stack(of_all(comm, shape, dtype))
            for recv_shape in ((n, *shape), (n * math.prod(shape),)):
                send, recv = put(comm, mine), empty(comm, recv_shape, dtype)
                comm.all_gather(send, recv)
                assert_same(recv, want.reshape(recv_shape))
                assert_same(send, mine)


def check_reduce_scatter(comm: Communicator) -> None:
    """Part ``rank`` of the combination; what was sent stays."""
    n = comm.world_size
    for dtype in SUPPORTED:
        for op in ops_of(dtype):
            for shape in SHAPES:
                mine = of_rank(comm.rank, (n, *shape), dtype)
                send, recv = put(comm, mine), empty(comm, shape, dtype)
                comm.reduce_scatter(send, recv, op)
                assert_reduced(host(recv), [part[comm.rank] for part in of_all(comm, (n, *shape), dtype)], op)
                assert_same(send, mine)


def check_all_to_all(comm: Communicator) -> None:
    """Part i of what arrives is part ``rank`` of what rank i sent."""
    n = comm.world_size
    for dtype in SUPPORTED:
        for shape in SHAPES:
            mine = of_rank(comm.rank, (n, *shape), dtype)
            send, recv = put(comm, mine), empty(comm, (n, *shape), dtype)
            comm.all_to_all(send, recv)
            assert_same(recv, np.stack([part[comm.rank] for part in of_all(comm, (n, *shape), dtype)]))
            assert_same(send, mine)


def check_barrier(comm: Communicator) -> None:
    """Nobody leaves before the last has come, three times with another one late."""
    for late in range(min(3, comm.world_size)):
        if comm.rank == late:
            time.sleep(0.05)
        came = time.monotonic()  # one clock for all processes of a host
        comm.barrier()
        left = time.monotonic()
        times = put(comm, np.zeros((comm.world_size, 2)))
        comm.all_gather(put(comm, np.array([came, left])), times)
        assert host(times)[:, 0].max() <= host(times)[:, 1].min()


# ---------------------------------------------------------------------- asynchronous, ordered, between two


def check_asynchronous(comm: Communicator) -> None:
    """Two operations under way at once, waited for in the other order; each wait may be repeated."""
    shapes = [(300_001,), (40_003,)]
    tensors = [put(comm, of_rank(comm.rank, shape, float32, seed)) for seed, shape in enumerate(shapes)]
    works = [comm.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
        work.wait(1.0)
        assert work.is_completed()
    for seed, (tensor, shape) in enumerate(zip(tensors, shapes)):
        assert_reduced(host(tensor), of_all(comm, shape, float32, seed), ReduceOp.SUM)


def check_order(comm: Communicator) -> None:
    """Operations on the same memory, none waited for in between, act one after the other, large before small too."""
    n = comm.world_size
    large = put(comm, np.ones(200_000, np.int64))
    view = large[:5]
    comm.all_reduce(large, async_op=True)
    comm.all_reduce(view, async_op=True)
    comm.all_reduce(large, async_op=True)
    comm.sync()
    assert host(large)[:5].tolist() == [n**3] * 5
    assert set(host(large)[5:].tolist()) == {n**2}


def check_send_and_recv(comm: Communicator) -> None:
    """Around the ring, all dtypes and shapes; large ones; tags pick the message, equal tags keep their order."""
    n, rank = comm.world_size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    if n == 1:
        return
    for dtype in SUPPORTED:
        for shape in [*SHAPES, (100_001,)]:
            sent, got = put(comm, of_rank(rank, shape, dtype)), empty(comm, shape, dtype)
            work = comm.send(sent, right, async_op=True)
            comm.recv(got, left)
            work.wait()
            assert_same(got, of_rank(left, shape, dtype))
            assert_same(sent, of_rank(rank, shape, dtype))
    messages = [(tag, put(comm, np.array([100 * rank + 10 * tag + i]))) for tag in (3, 4) for i in range(2)]
    sends = [comm.send(message, right, tag, async_op=True) for tag, message in messages]
    received = {}
    for tag in (4, 3):
        for i in range(2):
            received[tag, i] = put(comm, np.array([-1]))
            comm.recv(received[tag, i], left, tag)
    for work in sends:
        work.wait()
    for (tag, i), tensor in received.items():
        assert host(tensor).tolist() == [100 * left + 10 * tag + i]


def check_split(comm: Communicator) -> None:
    """Groups by colour, ordered by key, work beside each other and beside the whole; None stays outside."""
    n, rank = comm.world_size, comm.rank
    half = comm.split(rank % 2, key=-rank)
    assert half is not None
    members = [r for r in range(n - 1, -1, -1) if r % 2 == rank % 2]
    assert (half.world_size, half.rank) == (len(members), members.index(rank))
    for _ in range(1 + rank % 2):  # the groups need not do equally much
        total = put(comm, np.array([rank]))
        half.all_reduce(total)
        assert host(total).tolist() == [sum(members)]
    order = put(comm, np.zeros(half.world_size, np.int64))
    half.all_gather(put(comm, np.array([rank])), order)
    assert host(order).tolist() == members
    inner = half.split(0)
    assert inner is not None
    inner.barrier()
    inner.close()
    half.close()
    raises(dist.CommunicatorBrokenError, "", half.barrier)
    first = comm.split(0 if rank == 0 else None)
    assert (first is None) == (rank > 0)
    if first is not None:
        assert (first.world_size, first.rank) == (1, 0)
        first.close()
    same_key = comm.split(5, key=1)
    assert same_key is not None and (same_key.world_size, same_key.rank) == (n, rank)
    same_key.close()
    total = put(comm, np.array([1]))
    comm.all_reduce(total)
    assert host(total).tolist() == [n]


# ---------------------------------------------------------------------- arguments and bookkeeping


def check_wrong_arguments(comm: Communicator) -> None:
    """Refused before anything is sent, with words that help; the communicator stays good."""
    n, t = comm.world_size, put(comm, np.ones((4, 2), np.float32))
    cases = [
        (TypeError, "ndarray, expected a minigrad Tensor", lambda: comm.all_reduce(np.ones(3))),  # type: ignore[arg-type]
        (TypeError, "expected one of ReduceOp", lambda: comm.all_reduce(t, "sum")),  # type: ignore[arg-type]
        (TypeError, "average of int64", lambda: comm.all_reduce(put(comm, [1]), ReduceOp.AVG)),
        (TypeError, "sum of bool", lambda: comm.all_reduce(put(comm, [True]))),
        (ValueError, r"not contiguous.*\.contiguous\(\)", lambda: comm.all_reduce(t.T)),
        (ValueError, f"root is {n}", lambda: comm.broadcast(t, n)),
        (ValueError, "root is -1", lambda: comm.broadcast(t, -1)),
        (ValueError, "root is True", lambda: comm.broadcast(t, True)),
        (TypeError, "send has dtype float32, recv float64", lambda: comm.all_gather(t, empty(comm, (n * 8,), float64))),
        (ValueError, f"needs {8 * n} elements", lambda: comm.all_gather(t, empty(comm, (n * 8 + 1,), float32))),
        (ValueError, "send has shape", lambda: comm.reduce_scatter(t, empty(comm, (9,), float32))),
        (ValueError, "needs 8 elements", lambda: comm.all_to_all(t, empty(comm, (8 + n,), float32))),
        (ValueError, "nobody to exchange with", lambda: comm.send(t, comm.rank)),
        (ValueError, "nobody to exchange with", lambda: comm.recv(t, comm.rank)),
        (ValueError, "dest is", lambda: comm.send(t, n)),
        (ValueError, "color is -1", lambda: comm.split(-1)),
        (ValueError, "color is 2147483648", lambda: comm.split(2**31)),
        (ValueError, "key is 2147483648", lambda: comm.split(0, 2**31)),
        (ValueError, "key is 0.5", lambda: comm.split(0, 0.5)),  # type: ignore[arg-type]
    ]
    if n > 1:
        other, both = (comm.rank + 1) % n, put(comm, np.ones(n))
        uneven = put(comm, np.ones(n + 1)), put(comm, np.ones(n + 1))
        cases += [
            (ValueError, "tag is -1", lambda: comm.send(t, other, tag=-1)),
            (ValueError, "share memory", lambda: comm.all_to_all(both, both)),
            (ValueError, f"no multiple of the {n} ranks", lambda: comm.all_to_all(*uneven)),
        ]
    for kind, words, call in cases:
        raises(kind, words, call)
    comm.barrier()
    assert_same(t, np.ones((4, 2), np.float32))


def check_counts_as_change(comm: Communicator) -> None:
    """A tensor that the graph needs and a collective overwrites makes ``backward`` raise."""
    w = put(comm, np.ones(3, np.float32)).requires_grad_()
    x = put(comm, np.ones(3, np.float32))
    loss = (w * x).sum()
    comm.all_reduce(x)
    raises(RuntimeError, "in place|in-place|changed|modified", loss.backward)


def check_statistics(comm: Communicator) -> None:
    """Operations and bytes are counted; waiting is part of being busy, and work beside communication shows."""
    before = (comm.stats.operations, comm.stats.bytes_sent)
    tensor = put(comm, np.ones(1000, np.float32))
    comm.all_reduce(tensor)
    comm.barrier()
    assert (comm.stats.operations, comm.stats.bytes_sent) == (before[0] + 2, before[1] + 4000)
    assert 0.0 <= comm.stats.hidden_share <= 1.0
    if comm.world_size > 1:
        comm.barrier()
        busy, waited = comm.stats.busy_s, comm.stats.waited_s
        if comm.rank == comm.world_size - 1:
            time.sleep(0.1)
        work = comm.all_reduce(tensor, async_op=True)
        if comm.rank != comm.world_size - 1:  # beside what it waits for, it does something else
            time.sleep(0.05)
        work.wait()
        busy, waited = comm.stats.busy_s - busy, comm.stats.waited_s - waited
        assert waited <= busy + 1e-3
        if comm.rank != comm.world_size - 1:
            assert busy >= 0.05 and busy - waited >= 0.03 and waited >= 0.01


def check_many_small(comm: Communicator, count: int = 10_000) -> None:
    """Ten thousand operations in a row, of all kinds, none lost and none mixed up."""
    n, rank = comm.world_size, comm.rank
    t = put(comm, np.array([0], np.int64))
    everyone = put(comm, np.zeros(n, np.int64))
    for i in range(count):
        kind = i % 4
        if kind == 0:
            comm.all_reduce(t, ReduceOp.MAX)
        elif kind == 1:
            t = put(comm, np.array([i * n + rank]))
            comm.broadcast(t, i % n)
            assert host(t)[0] == i * n + i % n
        elif kind == 2:
            comm.all_gather(put(comm, np.array([i + rank])), everyone)
            assert host(everyone)[-1] == i + n - 1
        else:
            comm.barrier()


def check_huge(comm: Communicator) -> None:
    """134 MB: more elements than one message should have to carry, and nothing lost at the seams."""
    size = 33_500_003
    array = np.zeros(size, np.float32)
    marks = np.linspace(0, size - 1, 1009).astype(np.int64)
    array[marks] = comm.rank + 1
    tensor = Tensor.wrap(array) if comm.device.type == "cpu" else put(comm, array)
    comm.all_reduce(tensor)
    got = tensor.data if comm.device.type == "cpu" else host(tensor)
    n = comm.world_size
    assert np.all(got[marks] == n * (n + 1) / 2) and np.count_nonzero(got) == marks.size


# ---------------------------------------------------------------------- life and death


def check_close(comm: Communicator) -> None:
    """Closing twice is fine; a closed communicator refuses everything; a context manager closes."""
    with in_a_group_of_its_own(comm) as own:
        total = put(comm, np.array([1]))
        own.all_reduce(total, async_op=True)  # nobody waits for it but the end of the block
    assert host(total).tolist() == [comm.world_size]
    own.close()
    own.close()
    assert "closed" in repr(own)
    t = put(comm, np.ones(1))
    for call in (lambda: own.all_reduce(t), lambda: own.broadcast(t), lambda: own.split(0), own.barrier, own.sync):
        raises(dist.CommunicatorBrokenError, "closed", call)


def in_a_group_of_its_own(comm: Communicator) -> Communicator:
    """A communicator of the same ranks."""
    own = comm.split(0)
    assert own is not None
    return own


def expect_failure(
    comm: Communicator, kinds: type[dist.CommError] | tuple[type[dist.CommError], ...], call
) -> dist.CommError:
    """``call`` raises an error of this kind that says where, and from then on the communicator refuses work."""
    caught = raises(kinds, "", call)
    error = caught
    assert error.rank == comm.rank and error.step == comm.step and error.op is not None
    assert f"rank {comm.rank}" in str(error) and error.op in str(error)
    for again in (comm.barrier, comm.sync, lambda: comm.all_reduce(put(comm, np.ones(3)))):
        assert raises(dist.CommunicatorBrokenError, "", again).__cause__ is not None
    assert "broken" in repr(comm)
    comm.close()
    comm.close()
    return error


def _mismatch(name: str, ours, theirs) -> Check:
    """The last rank calls something else than the others."""

    def check(comm: Communicator) -> None:
        comm.barrier()
        comm.step = 17
        odd = comm.rank == comm.world_size - 1
        error = expect_failure(comm, dist.CollectiveMismatchError, lambda: (theirs if odd else ours)(comm))
        for rank in range(comm.world_size):
            assert f"rank {rank} called" in str(error)
        assert "step 17" in str(error)

    check.__name__ = f"break_by_other_{name}"
    return check


def _ones(comm: Communicator, *shape: int, dtype=float32) -> Tensor:
    return put(comm, np.ones(shape, dtype))


MISMATCHES = [
    _mismatch("names", lambda c: c.all_reduce(_ones(c, 3)), lambda c: c.broadcast(_ones(c, 3))),
    _mismatch("call_than_barrier", lambda c: c.barrier(), lambda c: c.all_reduce(_ones(c, 3))),
    _mismatch("shape", lambda c: c.all_reduce(_ones(c, 3)), lambda c: c.all_reduce(_ones(c, 4))),
    _mismatch("shape_of_as_many", lambda c: c.all_reduce(_ones(c, 2, 3)), lambda c: c.all_reduce(_ones(c, 3, 2))),
    _mismatch("dtype", lambda c: c.all_reduce(_ones(c, 3)), lambda c: c.all_reduce(_ones(c, 3, dtype=float64))),
    _mismatch("op", lambda c: c.all_reduce(_ones(c, 3)), lambda c: c.all_reduce(_ones(c, 3), ReduceOp.MAX)),
    _mismatch("root", lambda c: c.broadcast(_ones(c, 3), 0), lambda c: c.broadcast(_ones(c, 3), 1)),
    _mismatch("large_shape", lambda c: c.all_reduce(_ones(c, 99_999)), lambda c: c.all_reduce(_ones(c, 99_998))),
]


def break_by_other_order(comm: Communicator) -> None:
    """Two operations, started in another order on one rank."""
    a, b = _ones(comm, 3), _ones(comm, 2, 2)
    odd = comm.rank == 0

    def call() -> None:
        works = [comm.all_reduce(t, async_op=True) for t in ((b, a) if odd else (a, b))]
        for work in works:
            work.wait()

    expect_failure(comm, (dist.CollectiveMismatchError, dist.CommunicatorBrokenError), call)


def break_by_other_message(comm: Communicator) -> None:
    """A message of another size than is expected: an error that names both sizes for both ranks, some error for the
    others."""
    if comm.rank == 0:
        error = expect_failure(comm, dist.CollectiveMismatchError, lambda: comm.send(_ones(comm, 3), 1))
    elif comm.rank == 1:
        error = expect_failure(comm, dist.CollectiveMismatchError, lambda: comm.recv(_ones(comm, 4), 0))
    else:
        expect_failure(comm, (dist.CollectiveMismatchError, dist.PeerLostError, dist.CommTimeoutError), comm.barrier)
        return
    assert "(3,)" in str(error) and "(4,)" in str(error)


def break_by_silence(comm: Communicator) -> None:
    """A rank that does not come in time is named to all who wait, and hears of it when it comes."""
    comm.barrier()
    comm.timeout = 0.3
    silent = comm.world_size - 1
    if comm.rank == silent:
        time.sleep(0.9)
        expect_failure(comm, (dist.CommTimeoutError, dist.PeerLostError), lambda: comm.all_reduce(_ones(comm, 3)))
        return
    began = time.monotonic()
    error = expect_failure(comm, dist.CommTimeoutError, lambda: comm.all_reduce(_ones(comm, 3)))
    assert isinstance(error, TimeoutError)
    assert error.ranks == (silent,)
    assert time.monotonic() - began < 10


def break_by_silence_in_a_message(comm: Communicator) -> None:
    """Nobody sends what rank 0 waits for."""
    comm.timeout = 0.3
    if comm.rank == 0:
        error = expect_failure(comm, dist.CommTimeoutError, lambda: comm.recv(_ones(comm, 3), 1))
        assert error.ranks == (1,)
    else:
        comm.timeout = 5.0
        expect_failure(comm, (dist.CommTimeoutError, dist.PeerLostError), comm.barrier)


def break_by_short_wait(comm: Communicator) -> None:
    """``wait(timeout)`` does not wait longer than that."""
    comm.barrier()
    if comm.rank == comm.world_size - 1:
        time.sleep(0.6)
        expect_failure(comm, (dist.CommTimeoutError, dist.PeerLostError), comm.barrier)
        return
    work = comm.all_reduce(_ones(comm, 3), async_op=True)
    assert not work.is_completed()
    expect_failure(comm, dist.CommTimeoutError, lambda: work.wait(0.1))  # else the others' mismatch would end it
    assert work.is_completed()


def break_by_close(comm: Communicator) -> None:
    """A rank that has closed is missed by the others, at once and by its number."""
    comm.barrier()
    gone = comm.world_size - 1
    if comm.rank == gone:
        time.sleep(0.1)  # the first of the others is waiting already
        comm.close()
        return
    if comm.rank == 1:
        time.sleep(0.2)
    began = time.monotonic()
    error = expect_failure(comm, dist.PeerLostError, lambda: comm.all_reduce(_ones(comm, 3)))
    assert isinstance(error, ConnectionError)
    assert error.ranks == (gone,)
    assert time.monotonic() - began < 15


def break_by_exception(comm: Communicator) -> None:
    """A rank that leaves its block with an exception wakes those who wait for it, and does not wait for them."""
    comm.barrier()
    gone = 0
    if comm.rank == gone:
        with pytest.raises(ZeroDivisionError), comm:
            comm.recv(_ones(comm, 3), 1, async_op=True)
            raise ZeroDivisionError("planned")
        return
    assert expect_failure(comm, dist.PeerLostError, comm.barrier).ranks == (gone,)


def _all(prefix: str) -> list[Check]:
    return [function for name, function in globals().items() if name.startswith(prefix)]


SLOW_CHECKS: list[Check] = [check_many_small, check_huge]
CHECKS: list[Check] = [check for check in _all("check_") if check not in SLOW_CHECKS]
BREAKING: list[Check] = [*MISMATCHES, *_all("break_by_")]  # need at least two ranks


def name_of(check: Check) -> str:
    """Its name in the names of tests."""
    return check.__name__
