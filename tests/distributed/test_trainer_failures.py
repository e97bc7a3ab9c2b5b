"""What goes wrong on one rank is raised on all: nothing is half done, and where it can, training goes on."""

import math
from functools import partial

import numpy as np
import pytest
import short_set
from data_parallel import KINDS, LR, Net, Scenario, feed, make_trainer, parameters, shares, state_bits, store, train
from in_threads import in_threads
from refusals import raises

from minigrad import Tensor, distributed as dist, dtypes, optim

EACH = (*KINDS, "stage 3")
ALL_KINDS = pytest.mark.parametrize("kind", EACH)
SCENARIO = Scenario(shares(3, steps=9, accum=2))


def good(comm: dist.ThreadCommunicator, net: Net, step: int, micro: int) -> Tensor:
    return net.loss(*SCENARIO.batch(step, SCENARIO.steps[step][comm.rank][micro].rows))


def nan_loss(net: Net, loss: Tensor) -> Tensor:
    return loss.detach() * math.nan + net.bias.sum() * 0.0


def inf_loss(net: Net, loss: Tensor) -> Tensor:
    return loss + math.inf


def nan_grad(net: Net, loss: Tensor) -> Tensor:
    """The same loss; the root's derivative at 0 is infinite, and the square's is 0."""
    return loss + ((net.side - net.side.detach()) ** 2).sqrt().sum()


def inf_grad(net: Net, loss: Tensor) -> Tensor:
    return loss + (net.side - net.side.detach()).sqrt().sum()


SPOILS = [
    (nan_loss, dist.NonFiniteLossError, "the loss of step {} is nan on rank 1; no weight was changed", None, 0),
    (nan_grad, optim.NonFiniteGradientError, "step {}.*: the gradient norm is nan", 0.3, 1),
    (inf_loss, dist.NonFiniteLossError, "the loss of step {} is inf on rank 1; no weight was changed", 0.3, 1),
    (inf_grad, optim.NonFiniteGradientError, "step {}.*: the gradient norm is inf", None, 0),
]
SPOILS[2:] = [pytest.param(*spoiled, marks=pytest.mark.long) for spoiled in SPOILS[2:]]


@ALL_KINDS
@pytest.mark.parametrize(("spoil", "error", "words", "clip", "micro"), SPOILS)
def test_what_is_not_finite_on_one_rank_stops_all_and_training_goes_on(kind, clip, micro, spoil, error, words):
    if kind == "fused" and clip is None and error is optim.NonFiniteGradientError:
        words += " on rank 1; no weight was changed"  # it looks before it reduces

    def body(comm: dist.ThreadCommunicator, spoiled: int | None):
        net = SCENARIO.net()
        trainer = make_trainer(kind, comm, clip, accum=2, schedule=optim.Lambda(lambda step: 0.1 / (1 + step)), net=net)
        for step in range(4):
            before = state_bits(trainer, net)
            for i in range(2):
                loss = good(comm, net, step, i)
                if step == spoiled and (comm.rank, i) == (1, micro):
                    loss = spoil(net, loss)
                if step != spoiled:
                    feed(trainer, net, loss)
                elif i == 0:
                    assert feed(trainer, net, loss) is None  # also a bad one: the others cannot know yet
                else:
                    raises(error, words.format(step + 1), feed, trainer, net, loss)
            if step == spoiled:
                assert state_bits(trainer, net) == before  # no weight, moment or count; and the window is empty
                for i in range(2):  # the same window again, without the fault
                    metrics = feed(trainer, net, good(comm, net, step, i))
                assert metrics is not None and metrics.step == step + 1
        return state_bits(trainer, net)

    want = dist.run_threads(3, partial(body, spoiled=None), timeout=30)
    for spoiled in (0, 2):
        assert dist.run_threads(3, partial(body, spoiled=spoiled), timeout=30) == want


# ---------------------------------------------------------------------- sums that overflow


@pytest.mark.parametrize("hook", [dist.all_reduce_hook, dist.BFloat16Compression()])
@pytest.mark.parametrize(("dtype", "huge"), [(np.float32, 2e38), (dtypes.bfloat16, 2e38), (np.float16, 4e4)])
@in_threads(2)
def test_the_fused_optimizer_notices_that_a_sum_overflows_before_updates(comm, dtype, huge, hook):
    params = parameters((4,), (4,), dtype=dtype)
    trainer = make_trainer("fused", comm, bucket=8, hook=hook)

    def step(size: float):
        return trainer.step(params, store(params, [size, 0.5]), 1.0)

    assert step(huge / 1e3) is not None  # large, but the sum is not
    before = [p.data.tobytes() for p in params]
    raises(optim.NonFiniteGradientError, "step 2: the gradient norm is .*over all ranks", step, huge)
    assert [p.data.tobytes() for p in params] == before and trainer.timestep == 1
    assert step(1.0) is not None and trainer.timestep == 2


# ---------------------------------------------------------------------- ranks that differ


def own_hook(communicator, bucket):
    raise AssertionError("never called")


DIFFERENT = [
    ({"lr": 0.5}, "the configuration.*learning_rate=0.5"),
    ({"clip": 0.3}, "the configuration.*max_grad_norm=0.3"),
    ({"accum": 2}, "the configuration.*grad_accum_steps=2"),
    ({"bucket": 201}, "bucket_size_bytes is 201 on rank 1, 200 on rank 0"),
    ({"hook": own_hook}, "the hook is 'own_hook' on rank 1"),
    ({"kind": "bucketed"}, "the trainer is 'BucketedTrainer' on rank 1, 'DistributedTrainer' on rank 0"),
    ({"optimizer": optim.AdamW(lr=LR, betas=(0.9, 0.95))}, "the optimizer's options.*0.95"),
    ({"optimizer": optim.SGD(lr=LR)}, "the optimizer is 'SGD' on rank 1, 'AdamW' on rank 0"),
]


@pytest.mark.parametrize(("odd", "words"), DIFFERENT)
@in_threads(3)
def test_settings_that_differ_are_named_on_all_ranks(comm: dist.ThreadCommunicator, odd, words):
    net = SCENARIO.net()
    trainer = make_trainer(**{"kind": "distributed", "comm": comm, **(odd if comm.rank == 1 else {})})
    before = [p.data.tobytes() for p in net.parameters()]
    for _ in range(2):  # still so when it is tried again
        with pytest.raises(dist.CollectiveMismatchError, match=f"the ranks' settings differ: {words}") as e:
            trainer.step(net.named_parameters(), good(comm, net, 0, 0).backward(), 1.0)
        assert (e.value.ranks, e.value.rank, e.value.step) == ((1,), comm.rank, 1)
    assert [p.data.tobytes() for p in net.parameters()] == before


OTHER_STATES = [
    ("moments", dist.CollectiveMismatchError, "the optimizer's state .* on rank 2, .* on rank 0"),
    ("step", dist.CollectiveMismatchError, "the global step is 7 on rank 2, 2 on rank 0"),
    ("weights", dist.ReplicaMismatchError, "'side'.* rank 2 against"),
]


@pytest.mark.parametrize(("what", "error", "words"), OTHER_STATES)
@in_threads(3)
def test_a_rank_that_loads_another_state_is_found(comm: dist.ThreadCommunicator, what, error, words):
    net = SCENARIO.net()
    trainer = make_trainer("distributed", comm)
    for _ in range(2):
        assert feed(trainer, net, good(comm, net, 0, 0)) is not None
        arrays, meta = trainer.state_dict(net.named_parameters())
        trainer.load_state_dict(net.named_parameters(), arrays, meta)  # the same on all ranks
    if comm.rank == 2 and what == "moments":
        for array in arrays.values():
            array *= 2
    elif comm.rank == 2 and what == "step":
        meta["global_step"] = 7
    elif comm.rank == 2:
        net.side.data[0, 0] += 1.0
    trainer.load_state_dict(net.named_parameters(), arrays, meta)
    raises(error, words, lambda: feed(trainer, net, good(comm, net, 0, 0)))


@pytest.mark.parametrize("kind", KINDS)  # in stage 3 ``shard`` finds them
@in_threads(3)
def test_values_that_differ_at_the_first_step_are_named(comm: dist.ThreadCommunicator, kind):
    net = SCENARIO.net()
    if comm.rank == 2:
        net.gain.data[...] = np.nextafter(net.gain.data, np.inf)
    trainer = make_trainer(kind, comm, net=net)
    with pytest.raises(dist.ReplicaMismatchError, match=r"'gain' \(\) float64 differ: rank 2 .*broadcast_params") as e:
        feed(trainer, net, good(comm, net, 0, 0))
    assert (e.value.name, e.value.ranks) == ("gain", (2,))
    trainer.broadcast_params(net.named_parameters())
    assert feed(trainer, net, good(comm, net, 0, 0)) is not None


@ALL_KINDS
@pytest.mark.parametrize("how", ["set_lr", "schedule"])
@in_threads(3)
def test_learning_rates_that_differ_later_are_named_and_change_nothing(comm: dist.ThreadCommunicator, kind, how):
    net = SCENARIO.net()
    rate = optim.Lambda(lambda step: 0.25 if comm.rank == 1 and step == 1 else 0.125)
    trainer = make_trainer(kind, comm, schedule=rate if how == "schedule" else None, lr=0.125, net=net)
    feed(trainer, net, good(comm, net, 0, 0))
    sets_lr = trainer if kind == "fused" else trainer.optimizer
    if how == "set_lr" and comm.rank == 1:
        sets_lr.set_lr(0.25)
    before = state_bits(trainer, net)[0]
    with pytest.raises(dist.CollectiveMismatchError, match="the learning rate is 0.25 on rank 1, 0.125 on rank 0") as e:
        feed(trainer, net, good(comm, net, 1, 0))
    assert e.value.step == 2
    assert state_bits(trainer, net)[0] == before and trainer.global_step == 1
    if how == "set_lr":
        sets_lr.set_lr(0.125)
        assert feed(trainer, net, good(comm, net, 1, 0)) is not None
        trainer.assert_replicas_identical(net.named_parameters())


# ---------------------------------------------------------------------- mistakes of one rank's program


@pytest.mark.parametrize(("kind", "weight"), short_set.pairs(EACH, [-1, math.nan, math.inf, "3", True, None]))
def test_a_wrong_weight_is_refused_before_anything_is_sent(kind, weight):
    def body(comm: dist.ThreadCommunicator, odd: int | None):
        net = SCENARIO.net()
        trainer = make_trainer(kind, comm, accum=2, net=net)
        for i in range(4):
            losses = [good(comm, net, i, 0) for _ in range(2)]
            if comm.rank == odd:
                operations = comm.stats.operations
                raises(ValueError, "weight is .*expected a finite", feed, trainer, net, losses[1], weight)
                assert comm.stats.operations == operations
            feed(trainer, net, losses[0], 2.0)  # the others wait meanwhile
        return state_bits(trainer, net)

    wrong, right = (dist.run_threads(3, partial(body, odd=odd), timeout=30) for odd in (1, None))
    assert wrong == right


@ALL_KINDS
@pytest.mark.parametrize("world", [1, 3])
@in_threads("world")
def test_a_window_in_which_all_weights_are_0_is_no_step(comm: dist.ThreadCommunicator, kind, world):
    net = SCENARIO.net()
    trainer = make_trainer(kind, comm, accum=2, net=net)
    before = state_bits(trainer, net)
    assert feed(trainer, net, good(comm, net, 0, 0), 0.0) is None
    raises(ValueError, "step 1: the micro-batches of all ranks have", feed, trainer, net, good(comm, net, 0, 1), 0)
    assert state_bits(trainer, net) == before
    assert feed(trainer, net, good(comm, net, 0, 0)) is None
    assert feed(trainer, net, good(comm, net, 0, 1)) is not None


@pytest.mark.parametrize("kind", ["distributed", "fused"])
@pytest.mark.parametrize("wrong", [np.ones((6, 7)), np.ones((6, 6), np.float32)], ids=["shape", "dtype"])
@in_threads(3)
def test_a_gradient_that_does_not_fit_is_refused_before_anything_is_sent(comm: dist.ThreadCommunicator, kind, wrong):
    net = SCENARIO.net()
    trainer = make_trainer(kind, comm, net=net)
    feed(trainer, net, good(comm, net, 0, 0))
    if comm.rank == 1:
        grads = good(comm, net, 1, 0).backward()
        grads.insert(net.side, Tensor(wrong))
        raises(ValueError, "the gradient of parameter side has shape", trainer.step, net.named_parameters(), grads, 1.0)
    assert feed(trainer, net, good(comm, net, 1, 0)) is not None
    trainer.assert_replicas_identical(net.named_parameters())


@pytest.mark.parametrize("micro", [0, 1])
@in_threads(2)
def test_a_loss_that_has_no_backward_drops_the_bucketed_window_on_all_ranks(comm: dist.ThreadCommunicator, micro):
    net = SCENARIO.net()
    trainer = make_trainer("bucketed", comm, accum=2)
    if micro:
        feed(trainer, net, good(comm, net, 0, 0))
    # Not a scalar.
    raises((RuntimeError, ValueError), "", lambda: feed(trainer, net, net(SCENARIO.batch(0, (0, 1))[0])))
    assert state_bits(trainer, net)[2]["window"]["current_step"] == 0
    feed(trainer, net, good(comm, net, 0, 0))
    assert feed(trainer, net, good(comm, net, 0, 1)) is not None


@ALL_KINDS
def test_a_schedule_that_fails_leaves_a_trainer_that_works(kind):
    class Failing(optim.Constant):
        def get_lr(self, step: int) -> float:
            if broken[0]:
                raise ZeroDivisionError("the schedule's own")
            return super().get_lr(step)

    broken = [True]

    def body(comm: dist.ThreadCommunicator) -> None:
        net = SCENARIO.net()
        trainer = make_trainer(kind, comm, schedule=Failing(0.1), net=net)
        before = state_bits(trainer, net)
        for _ in range(2):
            raises(ZeroDivisionError, "", lambda: feed(trainer, net, good(comm, net, 0, 0)))
            assert state_bits(trainer, net) == before
        comm.barrier()
        broken[0] = False
        assert feed(trainer, net, good(comm, net, 0, 0)) is not None

    dist.run_threads(2, body, timeout=30)


# ---------------------------------------------------------------------- ranks that die


@pytest.mark.long(but=3)
@ALL_KINDS
def test_a_rank_that_dies_at_any_operation_is_noticed_by_all_others(kind):
    scenario = Scenario(shares(3, steps=2), blocks=3 * (kind == "stage 3"))

    def operations(comm: dist.ThreadCommunicator) -> int:
        train(comm, kind, scenario)
        return comm.stats.operations

    (calls, *_), steps = dist.run_threads(3, operations, timeout=30), set()
    for call in range(1, calls + 1):
        plan = dist.FaultPlan([dist.Fault("kill", rank=1, call=call)])
        with pytest.raises(dist.RankKilledError) as e:
            dist.run_threads(3, lambda comm: train(comm, kind, scenario), timeout=30, fault=plan)
        errors = e.value.rank_errors  # type: ignore[attr-defined]
        assert sorted(errors) == [0, 1, 2]
        for rank in (0, 2):
            error = errors[rank]
            assert isinstance(error, dist.PeerLostError), error
            assert (error.rank, error.ranks) == (rank, (1,))
            assert f"{error.op} (operation {error.sequence}), rank {rank}" in str(error)
            steps.add(error.step)
    assert steps == {None, 1, 2}  # None: in broadcast_params, before the first step
