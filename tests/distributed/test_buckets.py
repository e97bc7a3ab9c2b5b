"""Gradients in flat buckets: who is where, what overlaps with what, what memory is held, what compression costs.

Overlap is told by the order of events, never by a clock: a reduction that ends only when something else has begun would
wait in vain, and fail, if nothing overlapped.
"""

import gc
import math
import threading
import weakref

import data_parallel as dp
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from in_threads import in_threads
from refusals import raises

import minigrad
from minigrad import Function, GradStore, Tensor, distributed as dist
from minigrad.dtypes import bfloat16


def filled(p: Tensor, value: float = 1.0) -> Tensor:
    return Tensor(np.full(p.shape, value), dtype=p.dtype)


# ---------------------------------------------------------------------- who is where


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [(1, [1, 10, 3, 2, 4]), (12, [1, 10, 3, 2, 4]), (20, [1, 10, 5, 4]), (44, [11, 9]), (79, [16, 4]), (80, [20])],
)
def test_buckets_are_filled_from_the_last_parameter_up_to_the_limit(limit, sizes):
    params = dp.parameters((4,), (2,), (3, 1), (10,), ())
    manager = dist.GradientBucketManager(params, dist.NoOpCommunicator(), limit)
    assert [bucket.flat.numel() for bucket in manager.buckets] == sizes
    assert manager.num_buckets == len(sizes)
    order = [id for bucket in manager.buckets for id in bucket.views]
    assert order == [p.id for p in reversed(params)]


def test_each_dtype_has_buckets_of_its_own():
    params = [p for dtype in (np.float32, np.float64, bfloat16) * 2 for p in dp.parameters((3,), dtype=dtype)]
    manager = dist.GradientBucketManager(params, dist.NoOpCommunicator(), 1000)
    found = [(str(flat.dtype), flat.numel()) for flat in [bucket.flat for bucket in manager.buckets]]
    assert found == [("bfloat16", 6), ("float64", 6), ("float32", 6)]


def test_groups_of_buckets_are_checked():
    comm, (a, b) = dist.NoOpCommunicator(), dp.parameters((2,), (2,), dtype=np.float64)
    for groups in ([[a]], [[a], [a, b]], [[a, a]]):
        raises(ValueError, "must be in exactly one group", dist.GradientBucketManager, [a, b], comm, groups=groups)
    assert dist.GradientBucketManager([a, b], comm, groups=[[b], [], [a]]).num_buckets == 2
    assert dist.GradientBucketManager([a, b], comm, 8, groups=[[a, b]]).num_buckets == 2


def test_misuse_is_refused_and_leaves_the_window_as_it_was():
    a, b = dp.parameters((2,), (3,))
    raises(ValueError, "given twice", lambda: dist.GradientBucketManager([a, b, a], dist.NoOpCommunicator()))
    manager = dist.GradientBucketManager([a, b], dist.NoOpCommunicator(), 4)
    (other,) = dp.parameters((2,))
    with pytest.raises(ValueError, match=f"tensor {int(other.id)} is not one of the 2 parameters in the buckets"):
        manager.mark_grad_ready(other.id, filled(other))
    assert other.id not in manager and a.id in manager
    manager.mark_grad_ready(b.id, filled(b, 2.0))
    raises(ValueError, f"tensor {int(b.id)} was marked ready twice in one", manager.mark_grad_ready, b.id, filled(b))
    for wrong in (np.ones((2, 1), np.float32), np.ones(2), np.float32(1)):
        raises(ValueError, "has shape .* the parameter has", manager.mark_grad_ready, a.id, Tensor(wrong))
    assert manager.is_ready(b.id) and not manager.is_ready(a.id)
    grads = manager.wait_and_unflatten()
    assert grads[b].tolist() == [2.0] * 3 and grads[a].tolist() == [0.0] * 2
    manager.mark_grad_ready(b.id, filled(b, 3.0))  # a new window has begun
    manager.reset()
    assert not manager.is_ready(b.id)
    assert manager.wait_and_unflatten()[b].tolist() == [0.0] * 3


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    st.integers(1, 4),
    st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=3), st.booleans()), max_size=6),
    st.integers(1, 200),
    st.integers(0, 2**32 - 1),
)
def test_any_shapes_sizes_presence_and_order_give_the_mean(world, kinds, limit, seed):
    rng = np.random.default_rng(seed)
    shapes, dtypes = [tuple(shape) for shape, _ in kinds], [np.float64 if wide else np.float32 for _, wide in kinds]
    values = [[rng.standard_normal(shape) for shape in shapes] for _ in range(world)]
    present = rng.random((world, len(shapes))) < 0.7
    orders = [rng.permutation(len(shapes)) for _ in range(world)]

    def body(comm: dist.ThreadCommunicator) -> list[np.ndarray]:
        params = [p for shape, dtype in zip(shapes, dtypes) for p in dp.parameters(shape, dtype=dtype)]
        manager = dist.GradientBucketManager(params, comm, limit)
        for factor in (-3.0, 1.0):  # the second window is not disturbed by the first
            for i in orders[comm.rank]:
                if present[comm.rank, i]:
                    grad = Tensor(np.asarray(factor * values[comm.rank][i], dtypes[i]))
                    manager.mark_grad_ready(params[i].id, grad)
            grads = manager.wait_and_unflatten()
        return [grads[p].data.copy() for p in params]

    results = dist.run_threads(world, body, timeout=30)
    for i, dtype in enumerate(dtypes):
        want = np.asarray(sum(present[r, i] * values[r][i] for r in range(world)) / world)
        scale = np.asarray(sum(np.abs(values[r][i]) for r in range(world)))
        for result in results:
            assert result[i].tobytes() == results[0][i].tobytes()
            assert result[i].shape == shapes[i] and result[i].dtype == dtype
            # Each of ``world`` values is rounded once on entry, and once in each of ``world`` additions.
            assert np.all(np.abs(result[i] - want) <= (world + 1) * np.finfo(dtype).eps * scale)


# ---------------------------------------------------------------------- what overlaps


@in_threads(2)
def test_the_fused_optimizer_updates_a_bucket_while_the_next_is_reduced(comm: dist.ThreadCommunicator):
    params = dp.parameters((4,), (4,), (4,))
    updated = [threading.Event() for _ in params]
    watched = dp.Watched(3)
    # Bucket 0 arrives after bucket 1 has been sent; bucket i + 1 only after bucket i's update has been made.
    watched.gates = {0: watched.launched[1], 1: updated[0], 2: updated[1]}
    trainer = dp.make_trainer("fused", comm, bucket=16, hook=watched)
    update = trainer.optimizer.update

    def noted(grads: GradStore) -> None:
        (which,) = [2 - i for i, p in enumerate(params) if p in grads]
        update(grads)
        watched.events.append(("updated", which))
        updated[which].set()

    trainer.optimizer.update = noted  # type: ignore[method-assign]
    for step in range(2):
        trainer.step(params, dp.store(params, [1.0] * 3), 1.0)
        launches = [("launch", i) for i in range(3)]
        turns = [(what, i) for i in range(3) for what in ("arrived", "updated")]
        assert watched.events == launches + turns
        assert all(state.step == step + 1 for state in trainer.optimizer.state.values())
        watched.events.clear()
    assert trainer.optimizer.timestep == 2


@in_threads(2)
def test_with_clipping_the_fused_optimizer_updates_only_when_all_have_arrived(comm: dist.ThreadCommunicator):
    params = dp.parameters((4,), (4,), (4,))
    watched = dp.Watched(3)
    trainer = dp.make_trainer("fused", comm, clip=1.0, bucket=16, hook=watched)
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda grads: (watched.events.append(len(grads)), step(grads))  # type: ignore
    trainer.step(params, dp.store(params, [1.0] * 3), 1.0)
    assert watched.events == [("launch", i) for i in range(3)] + [("arrived", i) for i in range(3)] + [3]


class Probe(Function):
    """Hands its input on; says so when its gradient passes."""

    def forward(self, x, tell):
        self.saved = (tell,)
        return x.copy()

    def backward(self, dy):
        self.saved[0]()
        return dy, None


@pytest.mark.parametrize("accum", [1, 2])
@in_threads(2)
def test_the_bucketed_trainer_sends_a_bucket_while_backward_still_runs(comm: dist.ThreadCommunicator, accum):
    params = dp.parameters((4,), (4,), (4,))
    watched = dp.Watched(3)
    trainer = dp.make_trainer("bucketed", comm, bucket=16, accum=accum, hook=watched)

    def tell(i: int) -> None:
        watched.events.append(("backward", i))
        if last and i < 2:  # a reduction may even end before backward goes on
            assert watched.launched[1 - i].is_set()

    for _ in range(2):
        for micro in range(accum):
            last = micro == accum - 1
            watched.events.clear()
            x = params[0] * 1.0
            for i, p in enumerate(params):
                x = Probe.apply(x, lambda i=i: tell(i)) * (p + 1.0)
            metrics = dp.feed(trainer, minigrad.nn.Module(), x.sum(), 1.0, params)
            assert (metrics is not None) == last
            if not last:
                assert watched.events == [("backward", 2), ("backward", 1), ("backward", 0)]
        # Parameter 2, the last, is ready before the gradient passes the probe in front of it; 0 at the very end.
        assert watched.events == [
            *[("launch", 0), ("backward", 2), ("launch", 1), ("backward", 1)],
            *[("backward", 0), ("launch", 2), ("arrived", 0), ("arrived", 1), ("arrived", 2)],
        ]
        for event in watched.launched:
            event.clear()


@in_threads(3)
def test_a_bucket_waits_for_those_before_it_so_that_all_ranks_send_in_one_order(comm: dist.ThreadCommunicator):
    params = dp.parameters((1,), (1,), (1,))
    watched = dp.Watched(3)
    manager = dist.GradientBucketManager(params, comm, 4, watched)
    order = [(0, 1, 2), (2, 0, 1), (1, 0, 2)][comm.rank]
    for turn, i in enumerate(order):
        ready = {2 - j for j in order[: turn + 1]}
        manager.mark_grad_ready(params[i].id, filled(params[i], 10.0 * i + comm.rank))
        sent = next(n for n in range(4) if n == 3 or n not in ready)
        assert watched.events == [("launch", n) for n in range(sent)]
    assert [manager.wait_and_unflatten()[p].item() for p in params[:1]] == [1.0]


@pytest.mark.parametrize("kind", dp.HOOKED)
@in_threads(2)
def test_a_window_that_is_dropped_is_waited_for_because_the_next_uses_the_same_memory(comm, kind):
    params = dp.parameters((4,), (4,))
    watched = dp.Watched(2)
    trainer = dp.make_trainer(kind, comm, bucket=16, hook=watched)
    bad = math.nan if comm.rank == 1 else 1.0
    with pytest.raises(dist.NonFiniteLossError):
        dp.feed(trainer, minigrad.nn.Module(), (params[0] * params[1]).sum() + bad, 1.0, params)
    assert watched.events == [("launch", 0), ("launch", 1), ("arrived", 0), ("arrived", 1)]


# ---------------------------------------------------------------------- what memory is held


@pytest.mark.parametrize("kind", ["distributed", "bucketed", "fused"])
@in_threads(2)
def test_between_steps_a_trainer_holds_nothing_but_its_flat_buffers(comm: dist.ThreadCommunicator, kind):
    scenario = dp.Scenario(dp.shares(2))
    net = scenario.net()
    trainer = dp.make_trainer(kind, comm)
    for step in range(3):
        loss = net.loss(*scenario.batch(step, scenario.steps[step][comm.rank][0].rows))
        if kind == "bucketed":
            dp.feed(trainer, net, loss)
            continue
        grads = loss.backward()
        own = [weakref.ref(grad.data) for grad in grads.values()]
        trainer.step(net.named_parameters(), grads, loss.item())
        assert len(own) == 5 and not len(grads)
        assert [ref() for ref in own] == [None] * 5
    manager = trainer._step.reducer.manager
    assert manager is not None
    gc.collect()
    flats = [bucket.flat for bucket in manager.buckets]
    assert sum(flat.data.nbytes for flat in flats) == sum(p.data.nbytes for p in net.parameters())
    for bucket in manager.buckets:
        assert bucket.work is None and not bucket.ready
        assert all(np.shares_memory(view, bucket.flat.data) for view in bucket.views.values() if view.size)
    assert trainer._step.accumulator._sums == {}


# ---------------------------------------------------------------------- compression


def hook_results(world: int, hook, size: int = 4096) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    """What each rank had, what each got, and how many bytes rank 0 sent."""
    scales = 10.0 ** np.random.default_rng(9).uniform(-20, 20, size)
    had = [(np.random.default_rng(r).standard_normal(size) * scales).astype(np.float32) for r in range(world)]

    def body(comm: dist.ThreadCommunicator) -> tuple[np.ndarray, int]:
        bucket = Tensor(had[comm.rank].copy())
        work = hook(comm, bucket)
        work.wait()
        assert work.is_completed()
        return bucket.data, comm.stats.bytes_sent

    results = dist.run_threads(world, body, timeout=30)
    return had, [array for array, _ in results], results[0][1]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_bfloat16_compression_halves_the_bytes_within_its_bound(world):
    had, got, sent = hook_results(world, dist.BFloat16Compression())
    _, _, plain = hook_results(world, dist.all_reduce_hook)
    assert 2 * sent == plain == 4 * 4096
    assert all(array.tobytes() == got[0].tobytes() for array in got)
    assert got[0].dtype == np.float32
    wide = [array.astype(np.float64) for array in had]
    error = np.abs(got[0] - sum(wide) / world)
    scale = sum(np.abs(array) for array in wide) / world
    u = 2.0**-8  # half of the distance of 1 and the next bfloat16
    # Each rank's value is off by u at most, their mean, which is that much larger at most, again; and float32 adds up.
    bound = (u + u * (1 + u) + 2.0**-22) * scale
    assert np.all(error <= bound)
    assert np.max(error / scale) > 2.0**-9  # so precision was given up
