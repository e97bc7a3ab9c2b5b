"""N ranks are one process: the trainers for several ranks against a SimpleTrainer that has the whole batch."""

import math
from dataclasses import replace
from functools import partial

import data_parallel as dp
import numpy as np
import pytest
from in_threads import in_threads

from minigrad import GradStore, Tensor, distributed as dist, dtypes, nn, optim

RUN_KINDS = pytest.mark.parametrize("kind", [*dp.KINDS, "stage 3"])


@RUN_KINDS
@pytest.mark.parametrize(
    ("world", "bucket", "accum", "clip"),
    [(1, 200, 4, 0.3), (2, 16, 1, None), (3, 200, 4, None), (3, 16, 1, 0.3), (4, 16, 4, 0.3), (4, 25 * 2**20, 1, None)],
)
def test_ranks_are_one_process(kind, world, accum, clip, bucket):
    scenario = dp.Scenario(dp.shares(world, accum=accum), clip=clip, accum=accum)
    dp.assert_same_run(dp.run(kind, scenario, bucket), dp.alone(scenario))


@RUN_KINDS
@pytest.mark.parametrize("accum", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("sizes", dp.SIZES, ids=str)
def test_unequal_shards_count_by_their_samples(kind, sizes, accum):
    scenario = dp.Scenario(dp.shares(len(sizes), accum=accum, sizes=sizes), clip=0.3, accum=accum)
    dp.assert_same_run(dp.run(kind, scenario), dp.alone(scenario))


def assert_as_exact_as_one_process(got: list[dp.Record], scenario: dp.Scenario) -> float:
    """No fixed multiple of epsilon bounds AdamW: it divides gradients by their size, so a rounded tiny one may turn an
    update round. What can be asked is that ranks are as near to exact numbers as one process is. Returns the bound.
    """
    exact = dp.alone(replace(scenario, dtype=np.float64, mixed=False))
    bound = 4 * dp.distance(dp.alone(scenario), exact) + 8 * dp.epsilon(scenario)
    assert dp.distance(got, exact) <= bound
    return bound


@RUN_KINDS
@pytest.mark.parametrize("sizes", [(6, 6), (5, 0, 7)], ids=str)
def test_float32_ranks_round_no_worse_than_one_process(kind, sizes):
    scenario = dp.Scenario(dp.shares(len(sizes), steps=8, sizes=sizes), dtype=np.float32, clip=1.0)
    assert assert_as_exact_as_one_process(dp.run(kind, scenario), scenario) < 1e-4


@RUN_KINDS
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_half_width_parameters_stay_equal_on_all_ranks(kind, dtype):
    scenario = dp.Scenario(dp.shares(3, steps=4), dtype=dtype, clip=1.0)
    assert_as_exact_as_one_process(dp.run(kind, scenario), scenario)  # run compares the ranks


# ---------------------------------------------------------------------- parameters


@RUN_KINDS
@pytest.mark.parametrize("clip", [pytest.param(None, marks=pytest.mark.long), 0.3])
@pytest.mark.parametrize("pattern", dp.PRESENCE)
def test_parameters_that_are_not_always_used(kind, pattern, clip):
    # assert_same_run compares moments and counts too: a parameter that no rank used is not even decayed.
    scenario = dp.Scenario(dp.PRESENCE[pattern], clip=clip, accum=len(dp.PRESENCE[pattern][0][0]))
    records = dp.run(kind, scenario)
    dp.assert_same_run(records, dp.alone(scenario))
    assert "unused" not in records[-1].moments
    if pattern == "on no rank at times":
        assert records[1].weights["side"].tobytes() == records[0].weights["side"].tobytes()
        assert records[1].weights["gain"].tobytes() != records[0].weights["gain"].tobytes()
        assert [r.moments["side"][0] for r in records] == [1, 1, 1, 2]


@RUN_KINDS
@pytest.mark.parametrize("bucket", [16, pytest.param(10**6, marks=pytest.mark.long)])
@pytest.mark.parametrize("change", [{"tied": True}, {"frozen": ("side", "bias")}, {"dtype": np.float32, "mixed": True}])
def test_tied_frozen_and_mixed_parameters(kind, bucket, change):
    scenario = replace(dp.Scenario(dp.shares(3, accum=2, sizes=(5, 4, 3)), accum=2, clip=0.3), **change)
    records = dp.run(kind, scenario, bucket)
    if scenario.mixed:
        assert {array.dtype.name for array in records[0].weights.values()} == {"float32", "float64"}
        assert_as_exact_as_one_process(records, scenario)
    else:
        dp.assert_same_run(records, dp.alone(scenario))
    for name in scenario.frozen:
        assert name not in records[-1].moments
        assert np.array_equal(records[-1].weights[name], dict(scenario.net().named_parameters())[name].data)


@pytest.mark.parametrize("kind", ["distributed", "bucketed"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_float16_gradients_do_not_overflow_with_numbers_of_tokens_as_weights(kind, world):
    rng = np.random.default_rng(5)
    slopes = rng.uniform(20, 60, (3, 3, 2, 4)).astype(np.float16)  # step, rank, micro-batch; times 4096 they overflow
    counts = rng.integers(4096, 30000, (3, 3, 2))
    counts[0, 0, 0] = 0  # a micro-batch of padding alone

    def body(comm: dist.ThreadCommunicator) -> list[np.ndarray]:
        p = nn.Parameter(Tensor(np.zeros(4, np.float16)))
        named = [("p", p)]
        trainer = dp.make_trainer(kind, comm, accum=2, optimizer=optim.SGD(named, lr=1.0))
        found = []
        for step in range(3):
            before = p.data.astype(np.float64)
            for c, count in zip(slopes[step, comm.rank], counts[step, comm.rank]):
                metrics = dp.feed(trainer, nn.Module(), (p * Tensor(c)).sum(), float(count), named)
            assert metrics is not None
            found.append(before - p.data)
        return found

    for found in dist.run_threads(world, body, timeout=30):
        for step, moved in enumerate(found):
            w = counts[step, :world].reshape(-1, 1)
            mean = (w * slopes[step, :world].reshape(-1, 4).astype(np.float64)).sum(0) / w.sum()
            assert np.abs(moved - mean).max() < 0.25  # 3 ulp of the parameters, which go to 128


@pytest.mark.parametrize("kind", dp.KINDS)
def test_parameters_may_be_frozen_and_join_between_steps(kind):
    def body(comm: dist.ThreadCommunicator) -> list[dp.Record]:
        net = dp.Scenario(dp.shares(2)).net()
        plain = dist.SimpleTrainer(dist.TrainingConfig(dp.LR, 0.01, None))
        trainer = dp.make_trainer(kind, comm) if comm.world_size > 1 else plain
        records = []
        for step in range(4):
            net.side.requires_grad_(step != 1)
            net.bias.requires_grad_(step >= 2)
            cut = np.array_split(np.arange(dp.ROWS), comm.world_size)[comm.rank]
            loss = net.loss(*dp.Scenario(dp.shares(2)).batch(step, cut))
            records.append(dp.record(trainer, net, dp.feed(trainer, net, loss)))
        return records

    (want,) = dist.run_threads(1, body, timeout=30)
    for got in dist.run_threads(2, body, timeout=30):
        dp.assert_same_run([replace(r, metrics=replace(r.metrics, grad_norm=None)) for r in got], want)


# ---------------------------------------------------------------------- windows and schedules


@RUN_KINDS
def test_the_schedule_is_followed(kind):
    schedule = optim.CosineAnnealing(0.05, 0.001, warmup_steps=2, total_steps=5)
    scenario = dp.Scenario(dp.shares(2, steps=6), schedule=schedule)
    records = dp.run(kind, scenario)
    dp.assert_same_run(records, dp.alone(scenario))
    assert [r.metrics.lr for r in records] == [schedule.get_lr(i) for i in range(6)]


@RUN_KINDS
def test_no_sync_makes_windows_longer_and_sends_nothing(kind):
    scenario = dp.Scenario(dp.shares(2, accum=3), ends="no_sync", clip=0.3)
    dp.assert_same_run(dp.run(kind, scenario), dp.alone(scenario))
    if kind.startswith("stage"):
        return  # test_sharded_trainer.py counts what these send

    def body(comm: dist.ThreadCommunicator) -> None:
        net = scenario.net()
        trainer = dp.make_trainer(kind, comm, accum=2)

        def micro_batch(i: int) -> dist.TrainingMetrics | None:
            return dp.feed(trainer, net, net.loss(*scenario.batch(i, (1, 2))))

        micro_batch(0)  # in the first step the ranks also compare what they have
        micro_batch(1)
        for step in range(2):
            operations, sent = comm.stats.operations, comm.stats.bytes_sent
            assert micro_batch(0) is None
            with trainer.no_sync():
                with trainer.no_sync():
                    assert micro_batch(1) is None
                assert micro_batch(2) is None  # nested ones end one by one
            assert (comm.stats.operations, comm.stats.bytes_sent) == (operations, sent)
            metrics = micro_batch(3)
            assert metrics is not None and metrics.step == step + 2
            assert comm.stats.operations == operations + trainer.num_buckets + 1  # all gradients, and a record
            assert comm.stats.bytes_sent == sent + sum(p.data.nbytes for p in net.parameters()) + 58

    dist.run_threads(2, body, timeout=30)


@RUN_KINDS
def test_flush_ends_windows_of_unequal_length(kind):
    window = (
        (dp.Share((0, 1)),),
        (dp.Share((2, 3, 4)), dp.Share((5,)), dp.Share((6, 7))),
        (),
        (dp.Share((8, 9, 10, 11)), dp.Share(())),
    )
    scenario = dp.Scenario((window,) * 3, accum=5, ends="flush", clip=0.3)
    dp.assert_same_run(dp.run(kind, scenario), dp.alone(scenario))


@RUN_KINDS
@pytest.mark.parametrize("world", [1, 3])
@in_threads("world")
def test_flush_without_any_window_is_no_step(comm: dist.ThreadCommunicator, kind, world):
    net = dp.Scenario(dp.shares(1)).net()
    trainer = dp.make_trainer(kind, comm, net=net)
    before = dp.state_bits(trainer, net)
    assert trainer.flush(net.named_parameters()) is None
    assert dp.feed(trainer, net, net.loss(*dp.Scenario(dp.shares(1)).batch(0, (1, 2)))) is not None
    assert dp.state_bits(trainer, net) != before
    assert trainer.flush(net.named_parameters()) is None
    assert trainer.global_step == 1


@RUN_KINDS
@pytest.mark.parametrize("communicator", [dist.NoOpCommunicator, lambda: dist.ThreadCommunicator.group(1)[0]])
@pytest.mark.parametrize(("accum", "clip"), [(1, None), (2, 0.3)])
def test_a_world_of_one_is_a_simple_trainer_bit_for_bit(kind, accum, clip, communicator):
    scenario = dp.Scenario(dp.shares(1, steps=4, accum=accum), dtype=np.float32, clip=clip, accum=accum)
    net, other = scenario.net(), scenario.net()
    trainer = dp.make_trainer(kind, communicator(), clip, accum)
    simple = dist.SimpleTrainer(dist.TrainingConfig(dp.LR, 0.01, clip, accum))
    trainer.broadcast_params(net.named_parameters())
    for step, window in enumerate(scenario.steps):
        for share in window[0]:
            x, y = scenario.batch(step, share.rows)
            got, want = dp.feed(trainer, net, net.loss(x, y)), dp.feed(simple, other, other.loss(x, y))
            assert got == want
    assert dp.state_bits(trainer, net) == dp.state_bits(simple, other)
    assert (trainer.global_step, trainer.num_buckets, trainer.communicator.stats.operations) == (4, 0, 0)


@RUN_KINDS
@pytest.mark.parametrize("world", [1, 2])
def test_only_ratios_of_weights_matter_and_weight_0_counts_nothing(kind, world):
    scenario = dp.Scenario(dp.shares(2))

    def body(comm: dist.ThreadCommunicator, factor: float, empty: bool) -> dict[str, np.ndarray]:
        net = scenario.net()
        trainer = dp.make_trainer(kind, comm, accum=3 if empty else 2, clip=0.3, net=net)
        for step in range(2):
            batches = [((0, 1, comm.rank + 2), 3.0 * factor, 1.0), ((4 + comm.rank,), factor, 1.0)]
            if empty:  # the mean over no rows: NaN, with gradients that are NaN; on rank 1 at the end of the window
                batches.insert(1 + comm.rank, ((0,), 0.0, math.nan))
            for rows, weight, times in batches:
                metrics = dp.feed(trainer, net, net.loss(*scenario.batch(step, rows)) * times, weight)
            assert metrics is not None
        with dp.gathered(trainer):
            return dp.weights_of(net)

    first = dist.run_threads(world, partial(body, factor=1.0, empty=False), timeout=30)[0]
    for factor, empty in [(0.001, False), (1.0, True), (1e9, True)]:
        again = dist.run_threads(world, partial(body, factor=factor, empty=empty), timeout=30)[0]
        for name, array in first.items():
            dp.assert_close(again[name], array, 1e-12, name)


# ---------------------------------------------------------------------- starting, stopping, stalling


def test_without_a_loss_the_metrics_have_none():
    def body(comm: dist.ThreadCommunicator) -> list[float]:
        net = dp.Scenario(dp.shares(2)).net()
        trainer = dp.make_trainer("fused", comm, accum=2)
        losses = []
        for given in [(None, None), (1.0, 2.0), (None, 2.0), (1.0, None)]:
            for loss in given:
                metrics = trainer.step(net.named_parameters(), GradStore(), loss)  # type: ignore[arg-type]
            losses.append(metrics.loss)
        trainer.step(net.named_parameters(), GradStore(), None)  # type: ignore[arg-type]
        losses.append(trainer.flush(net.named_parameters()).loss)
        trainer.step(net.named_parameters(), GradStore(), None)  # type: ignore[arg-type]
        feed = partial(trainer.backward_and_step, lambda: (net.head * 0.0).sum() + 2.0, [*net.named_parameters()])
        losses += [feed().loss, (feed() or trainer.flush(net.named_parameters())).loss]
        return losses

    for world in (1, 2):
        for losses in dist.run_threads(world, body, timeout=30):
            np.testing.assert_array_equal(losses, [math.nan, 1.5, *[math.nan] * 4, 2.0])


@pytest.mark.parametrize(
    "kind", [dist.SimpleTrainer, dist.BucketedTrainer, dist.FusedDistributedOptimizer], ids=lambda kind: kind.__name__
)
def test_what_these_errors_offer_works(kind) -> None:
    imports = "from minigrad.distributed import *\nfrom minigrad.optim import AdamWConfig\n"
    exec(f"{imports}{kind.__name__}({kind._example})", {})
