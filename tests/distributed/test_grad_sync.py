"""What the ranks exchange beside gradients: lists of parameters, bytes, means, values; and whether they are equal."""

import math

import numpy as np
import pytest
from data_parallel import parameters, store
from in_threads import in_threads
from refusals import raises

from minigrad import Tensor, distributed as dist, dtypes
from minigrad.distributed.comm.communicator import all_gather_json, recv_bytes, send_bytes
from minigrad.distributed.train.grad_sync import Window, agree_on_params, agree_on_settings, exchange_window

WORLDS = pytest.mark.parametrize("world", [1, 2, 3, 4])


def tensor(*shape: int, fill: float = 0.0, dtype=np.float32) -> Tensor:
    return Tensor(np.full(shape, fill).astype(dtype), requires_grad=np.dtype(dtype).kind in "fV")


# ---------------------------------------------------------------------- bytes and numbers


@WORLDS
@pytest.mark.parametrize("lengths", [(0, 0, 0, 0), (1, 0, 5, 300), (0, 0, 0, 7), (4, 4, 4, 4)])
def test_all_gather_bytes(world, lengths):
    want = [bytes((31 * r + i) % 256 for i in range(lengths[r])) for r in range(world)]
    for got in dist.run_threads(world, lambda comm: dist.all_gather_bytes(comm, want[comm.rank]), timeout=20):
        assert got == want


@WORLDS
def test_mean_over_ranks_is_weighted_and_the_same_bits_everywhere(world):
    rng = np.random.default_rng(world)
    values, weights = rng.standard_normal((world, 2)) * 1e3, rng.integers(0, 5, world) + 1.0
    weights[-1] = 0.0 if world > 2 else 2.0
    if world > 2:
        values[-1, 0] = math.nan  # of weight 0: not looked at

    def body(comm: dist.ThreadCommunicator) -> dict[str, float]:
        loss, accuracy = values[comm.rank]
        return dist.mean_over_ranks(comm, {"loss": loss, "accuracy": accuracy}, float(weights[comm.rank]))

    results = dist.run_threads(world, body, timeout=20)
    assert all(result == results[0] for result in results)
    used = weights > 0
    want = (weights[used, None] * values[used]).sum(0) / weights.sum()
    np.testing.assert_allclose([results[0]["loss"], results[0]["accuracy"]], want, rtol=1e-14)


@in_threads(2, timeout=20)
def test_mean_over_ranks_refuses_other_keys_and_weights_that_are_all_0(comm: dist.ThreadCommunicator):
    words = r"rank 1 passes the values \['b'\], rank 0 \['a'\]"
    raises(ValueError, words, lambda: dist.mean_over_ranks(comm, {"ab"[comm.rank]: 1.0}))
    raises(ValueError, "the weights of all ranks are 0", lambda: dist.mean_over_ranks(comm, {"a": 1.0}, 0.0))
    raises(ValueError, "weight is -1", lambda: dist.mean_over_ranks(comm, {"a": 1.0}, -1))
    assert dist.mean_over_ranks(comm, {"a": float(comm.rank)}) == {"a": 0.5}
    assert math.isnan(dist.mean_over_ranks(comm, {"a": math.nan})["a"])


@WORLDS
@pytest.mark.parametrize("params", [0, 1, 8, 9, 70])
def test_windows_arrive_as_they_were_sent(world, params):
    rng = np.random.default_rng(params)
    sent = []
    for r in range(world):
        present = [bool(b) for b in rng.integers(0, 2, params)]
        sent.append(Window(rng.standard_normal(), float(r), r, math.inf if r == 1 else 0.1 * r, 10.0**-r, present))
    for got in dist.run_threads(world, lambda comm: exchange_window(comm, sent[comm.rank]), timeout=20):
        assert got == sent


# ---------------------------------------------------------------------- agreeing


@in_threads(3, timeout=20)
def test_agree_on_settings_names_the_first_rank_that_differs(comm: dist.ThreadCommunicator):
    agree_on_settings(comm, {"size": 1, "name": "x"})
    with pytest.raises(dist.CollectiveMismatchError, match="size is 3 on rank 2, 1 on rank 0") as e:
        agree_on_settings(comm, {"size": 3 if comm.rank == 2 else 1, "name": "x"})
    assert (e.value.rank, e.value.ranks) == (comm.rank, (2,))
    with pytest.raises(dist.CollectiveMismatchError, match="more is 1 on rank 1, not set on rank 0"):
        agree_on_settings(comm, {"size": 1, **({"more": 1} if comm.rank == 1 else {})})


@WORLDS
def test_agree_on_params_takes_the_order_of_rank_0(world):
    names = ["d", "a", "c", "b"]

    def body(comm: dist.ThreadCommunicator):
        tensors = {name: tensor(i + 1) for i, name in enumerate(names)}
        mine = names[comm.rank :] + names[: comm.rank]
        agreed = agree_on_params(comm, ((name, tensors[name]) for name in mine))
        assert all(tensors[name] is p for name, p in agreed)
        operations = comm.stats.operations
        assert agree_on_params(comm, []) == []
        assert comm.stats.operations == operations + 2  # hashes only: the lengths, and the hashes themselves
        return [name for name, _ in agreed]

    assert dist.run_threads(world, body, timeout=20) == [names] * world


DIFFERENCES = [
    ([("a", tensor(2)), ("c", tensor(3))], "b is missing on rank 1, .* float32 trained on rank 0"),
    ([("a", tensor(2))], "b is missing on rank 1, .* float32 trained on rank 0"),
    ([], "a is missing on rank 1, .* float32 trained on rank 0"),
    ([("a", tensor(2)), ("b", tensor(3)), ("z", tensor())], "z is .* float32 trained on rank 1, missing on rank 0"),
    ([("a", tensor(2)), ("b", tensor(3, 1))], r"b is \(3, 1\) float32 trained on rank 1, \(3,\) float32"),
    ([("a", tensor(2)), ("b", tensor(3, dtype=np.float64))], r"b is .*float64.* rank 1, .*float32.* rank 0"),
    ([("a", tensor(2)), ("b", tensor(3).detach())], r"b is .*frozen.* rank 1, .*trained.* rank 0"),
]


@pytest.mark.parametrize(("odd", "words"), DIFFERENCES)
@in_threads(3, timeout=20)
def test_agree_on_params_names_the_first_difference_on_all_ranks(comm: dist.ThreadCommunicator, odd, words):
    params = odd if comm.rank == 1 else [("a", tensor(2)), ("b", tensor(3))]
    for function in (agree_on_params, dist.broadcast_params, dist.assert_replicas_identical):
        assert raises(dist.CollectiveMismatchError, words, function, comm, params).ranks == (1,)


# ---------------------------------------------------------------------- equal values


@WORLDS
@in_threads("world", timeout=20)
def test_broadcast_gives_all_ranks_the_roots_bits(comm: dist.ThreadCommunicator, world):
    for root in range(world):
        backing = Tensor(np.full((4, 3), comm.rank, np.float32))
        view = backing[1:3]  # written through to what it is a view of
        params = [("view", view), ("empty", tensor(0)), ("scalar", tensor(fill=comm.rank))]
        params += [(str(dtype), tensor(2, fill=comm.rank % 2, dtype=dtype)) for dtype in dtypes.SUPPORTED]
        versions = [p._version.count for _, p in params]
        dist.broadcast_params(comm, params[comm.rank :] + params[: comm.rank], root)
        for _, p in params[2:]:
            np.testing.assert_array_equal(p.data.astype(np.float64), root % 2 if p.shape else root)
        np.testing.assert_array_equal(backing.data[1:3], root)
        np.testing.assert_array_equal(backing.data[[0, 3]], comm.rank)
        if world > 1:  # an in-place change, of which autograd must know
            assert all(p._version.count > old for (_, p), old in zip(params, versions))
        dist.assert_replicas_identical(comm, params)


@in_threads(2, timeout=20)
def test_broadcast_refuses_a_root_that_there_is_not_and_memory_it_cannot_write_to(comm: dist.ThreadCommunicator):
    raises(ValueError, "root is 2, expected an integer from 0", dist.broadcast_params, comm, [tensor(2)], root=2)
    raises(ValueError, "not contiguous", lambda: dist.broadcast_params(comm, [tensor(2, 3).detach().T]))


@pytest.mark.parametrize("world", [2, 3, 4])
@in_threads("world", timeout=20)
def test_replicas_that_differ_are_named_with_the_minority(comm: dist.ThreadCommunicator, world):
    same = [("first", tensor(3)), ("second", tensor(2, 2, fill=1.0)), ("third", tensor(fill=-1.0))]
    dist.assert_replicas_identical(comm, same)
    comm.step = 12
    odd = world - 1
    told = rf"rank {odd} against" if world > 2 else "ranks 0 and 1 differ; which is wrong is not known"
    if comm.rank == odd:
        same[1][1].data.view(np.uint32)[1, 0] ^= 1  # one bit
        same[2][1].data[...] = 5.0
    with pytest.raises(dist.ReplicaMismatchError, match=rf"'second' \(2, 2\) float32 differ: {told} .*step 12") as e:
        dist.assert_replicas_identical(comm, reversed(same) if comm.rank == 1 and world > 2 else same)
    assert (e.value.name, e.value.ranks) == ("second", (odd,) if world > 2 else (0, 1))


@in_threads(2, timeout=20)
def test_values_that_only_look_equal_differ(comm: dist.ThreadCommunicator):
    raises(dist.ReplicaMismatchError, "", dist.assert_replicas_identical, comm, [tensor(3, fill=(0, -0.0)[comm.rank])])
    dist.assert_replicas_identical(comm, [tensor(3, fill=math.nan)])  # the same NaN
    dist.assert_replicas_identical(comm, [tensor(0), tensor(2, 0)])


@pytest.mark.parametrize("bit", [0, 31, 32 * 6 - 1])
def test_one_bit_that_flips_on_the_way_is_found(bit):
    # The broadcast is the third operation (after two that compare hashes); what arrives from rank 0 is not what it has.
    def body(comm: dist.ThreadCommunicator) -> None:
        params = [("w", tensor(2, 3, fill=comm.rank + 1.0)), ("b", tensor(2, fill=comm.rank + 1.0))]
        dist.broadcast_params(comm, params)
        e = raises(dist.ReplicaMismatchError, "", dist.assert_replicas_identical, comm, params)
        assert (e.name, e.ranks) == ("w", (0,))  # the others have the same wrong copy

    dist.run_threads(3, body, timeout=20, fault=dist.FaultPlan([dist.Fault("flip", rank=0, call=3, bit=bit)]))


@pytest.mark.parametrize(("op", "call", "bits"), [("all_gather", 1, 96), ("all_gather", 2, 72), ("recv", 3, 2080)])
def test_a_bit_that_flips_on_the_way_of_bytes_is_an_error_that_names_operation_and_rank(op, call, bits):
    def body(comm: dist.ThreadCommunicator) -> None:
        all_gather_json(comm, "ab 12")
        send_bytes(comm, b"ab", 0) if comm.rank else recv_bytes(comm, 1)

    for bit in range(0, bits, -(-bits // 96)):
        plan = dist.FaultPlan([dist.Fault("flip", rank=1, call=call, bit=bit)])
        found = raises(dist.CommError, rf"{op} \(operation {call}\), rank .: what", dist.run_threads, 2, body, 20, plan)
        assert found.ranks == (1,)


# ---------------------------------------------------------------------- gradients


@WORLDS
@pytest.mark.parametrize("bucket", [1, 16, 10**6])
@in_threads("world", timeout=20)
def test_all_reduce_grads_is_the_mean_over_ranks(comm: dist.ThreadCommunicator, world, bucket):
    shapes, last = ((3,), (2, 2), (), (2,), (4,), (1,)), comm.rank == world - 1
    params = parameters(*shapes, dtype=np.float64)
    params[4].requires_grad_(False)
    values = [comm.rank + 1.0, None if comm.rank % 2 else 1.0, 5.0 if last else None, None, 6.0, 7.0]
    grads, named = store(params, values), [(f"{i}", p) for i, p in enumerate(params[:5])]
    reduced = dist.all_reduce_grads(comm, grads, named[comm.rank :] + named[: comm.rank], bucket)
    assert (reduced is grads) == (world == 1)
    for p, mean in zip(params, ((world + 1) / 2, -(-world // 2) / world, 5.0 / world)):
        np.testing.assert_allclose(reduced[p].data, np.full(p.shape, mean), rtol=1e-14)
    assert [p in reduced for p in params[3:]] == [False, world == 1, world == 1]  # none, frozen, none of the parameters


@in_threads(2, timeout=20)
def test_all_reduce_grads_of_bfloat16(comm: dist.ThreadCommunicator):
    (p,) = parameters((2,), dtype=dtypes.bfloat16)
    assert dist.all_reduce_grads(comm, store([p], [1.0 + comm.rank]), [p])[p].tolist() == [1.5, 1.5]
