"""Bits that flip in the weights or moments of one rank are noticed, with rank and tensor, and nothing else is."""

import re
import warnings
from collections import Counter
from functools import partial

import block_trainer_nets as nets
import data_parallel as dp
import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad import distributed as dist
from minigrad.distributed import ReplicaMismatchError, TrainingConfig
from minigrad.distributed.comm.threads.faults import with_flipped_bit
from minigrad.distributed.train.grad_sync import _digest, moments
from minigrad.distributed.train.step import merged
from minigrad.optim import GradScaler

RANKS, EVERY = 3, 4


class Run:
    """Small steps on one of the ranks."""

    def __init__(self, comm):
        mg.manual_seed(0)
        self.comm = comm
        self.model = mg.nn.Sequential(mg.nn.Linear(4, 6), mg.nn.Tanh(), mg.nn.Linear(6, 2))
        self.params = list(self.model.named_parameters())
        self.trainer = dist.DistributedTrainer(TrainingConfig(learning_rate=1e-2, compare_every=EVERY), comm)

    def held(self):
        return [*self.params, *moments(self.trainer.optimizer, self.params)]

    def steps(self, n: int) -> None:
        for _ in range(n):
            rng = np.random.default_rng([self.trainer.global_step, self.comm.rank])
            x = mg.from_numpy(rng.standard_normal((3, 4)).astype(np.float32))
            self.trainer.backward_and_step((self.model(x) ** 2).mean(), self.params)


def flips(seeds) -> Counter[str]:
    """What the flips ended in: an error that names rank and tensor, or the bits of a run without it, or almost.

    They come at the calls from one comparison to the next, each in a run of its own.
    """

    def body(comm):
        run, calls = Run(comm), []
        for _ in range(2):
            run.steps(EVERY)
            calls.append(comm.stats.operations - 1)  # the last two send hashes that are made already
        return calls, run.held()

    def contents(held):
        return b"".join(t.data.tobytes() for _, t in held)

    (first, last), held = dist.run_threads(RANKS, body, timeout=60)[0]
    names = [name.rpartition(" ")[2] for name, _ in held]
    ends: Counter[str] = Counter()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rank, call, bit = (int(rng.integers(*bounds)) for bounds in ([RANKS], [first, last], [2**31]))
        try:
            plan = dist.FaultPlan([dist.Fault("damage", rank, call, bit=bit)])
            found = dist.run_threads(RANKS, body, timeout=60, fault=plan)[rank][1]
            ends["without a trace" if contents(found) == contents(held) else "rounded away"] += 1
        except ReplicaMismatchError as error:  # a moment's flip is in the weight, too
            right = error.ranks == (rank,) and error.name.endswith(names[bit % len(names)])
            ends["named" if right else str(error)] += 1
    return ends


def test_a_flipped_bit_is_named(seeds):
    chosen = {*seeds(50), 87, 102}  # two of which the next update rounds away, and the loss is not finite
    assert flips(chosen) == {"named": len(chosen)}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_hash_notices_sign_flips_and_pairs_of_equal_bits(dtype):
    rng, w = np.random.default_rng(0), np.arange(1, 4097, dtype=dtype)
    pairs = rng.choice(w.size, (400, 2), replace=False) * w.itemsize * 8 + rng.integers(w.itemsize * 8, size=(400, 1))
    changed = [-w, *(np.where(np.isin(np.arange(w.size), pair), -w, w) for pair in ([1, 3], [0, 1], [0, 2], [5, 900]))]
    changed += [with_flipped_bit(with_flipped_bit(w, a), b) for a, b in pairs.tolist()]
    assert _digest(mg.from_numpy(w)) not in {_digest(mg.from_numpy(one)) for one in changed}


def test_there_is_no_false_alarm(seeds):
    dist.run_threads(2, lambda comm: Run(comm).steps(len(seeds(200))), timeout=60)


def test_one_rank_whose_program_moved_a_weight_gives_no_false_alarm():
    """Its optimizer then begins to count anew what it reads."""

    def body(comm):
        run = Run(comm)
        run.steps(2)
        if comm.rank == 1:
            run.params[0][1].data = run.params[0][1].data.copy()
        run.steps(6)

    dist.run_threads(2, body, timeout=60)


def test_what_the_error_says_and_when_nobody_compares():
    def body(comm, every):
        run = Run(comm)
        run.trainer.config = TrainingConfig(compare_every=every)
        run.steps(2)
        run.held()[-1][1].data[0] += comm.rank == 1
        raises(ReplicaMismatchError, "'exp_avg.* of 2.bias'", run.trainer.assert_replicas_identical, run.params)
        run.steps(2)

    with pytest.raises(ReplicaMismatchError, match=r"'.*' .* differ: rank 1 .*\(step 4\); unless the program changed"):
        dist.run_threads(RANKS, lambda comm: body(comm, 4), timeout=60)
    dist.run_threads(RANKS, lambda comm: body(comm, 0), timeout=60)


@pytest.fixture
def told(monkeypatch):
    """The warnings of all ranks: pytest's own records are not for threads."""
    texts: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda text, *rest, **options: texts.append(text))
    return texts


KINDS = ("block", "stage 3", "distributed", "bucketed", "stage 1", "stage 2", "reproducible", "simple", "amp")


@pytest.mark.long(but=2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_suspect_step_is_computed_again_and_the_fault_is_transient_or_persistent(kind, told):
    def body(comm, spoiled=0, large=1.0, recheck=True, factor=1e6, flipped=(), scaler=None):
        net, calls, last = nets.Net() if kind == "block" else dp.Net(np.float32), 0, comm.rank == comm.world_size - 1
        mg.manual_seed(comm.rank * (kind != "reproducible"))

        @mg.autocast(None, mg.bfloat16, enabled=kind == "amp")
        def loss_of(x, y):
            nonlocal calls
            calls += 1
            wrong = factor if calls == spoiled and last else 1.0  # buffers are then wrong, too
            return net.loss(mg.nn.functional.dropout(x / wrong, 0.1), y) * wrong

        config = TrainingConfig(1e-3, 0.01, 1.0, 2, kind == "reproducible", 11, recheck)
        if kind == "block":
            trainer = dist.BlockDistributedTrainer(net, comm, config, loss_fn=loss_of, scaler=scaler)
        elif kind in ("simple", "amp"):
            trainer = dist.SimpleTrainer(config) if kind == "simple" else dist.AmpTrainer(config, None, comm)
        else:
            trainer = dp.make_trainer(kind.replace("reproducible", "bucketed"), comm, net=net, config=config)

        def damaged(step, named, reduce=trainer._step.reducer.reduce):
            grads = merged((found := reduce(step, named))[0])
            if last and step.global_step in left:
                left.clear()
                for grad in grads.values():
                    grad.data[...] *= factor
            return [grads], found[1]

        left, trainer._step.reducer.reduce, losses = [*flipped], damaged, []
        for i in range(22):
            x, y = (a * (large if i == 16 else 1.0) for a in nets.batch(i, slice(comm.rank, 12, 2)))
            loss = partial(loss_of, mg.from_numpy(x).float(), mg.from_numpy(y).float())
            made = trainer.train_batch(x, y) if kind == "block" else dp.feed(trainer, net, loss, 6.0)
            losses.append(made and made.loss)
        assert getattr(trainer, "skipped_steps", 0) == (scaler is not None and scaler.get_scale() > 1.0)
        with dp.gathered(trainer):
            return nets.held(net), losses

    def ran(words=None, **options):
        told.clear()
        found = dist.run_threads(ranks, lambda comm: body(comm, **options), timeout=60)[0]
        assert len(told) == (0 if words is None else ranks) and all(re.search(words, text) for text in told), told
        return found

    ranks = 1 if kind == "simple" else 2
    clean, large = ran(recheck=False), ran(recheck=False, large=1e4)
    assert ran() == clean != large
    assert ran("step 9: the gradient's norm was .* the fault is transient", spoiled=17) == clean
    assert ran(r"step 9: .* was .*e\+.*, usual .* transient", flipped=[8]) == clean  # on a rank, after the reduction
    if kind == "block":
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow leaves the step out, and is no fault
            body(dist.NoOpCommunicator(), spoiled=17, factor=1e200, scaler=GradScaler(1e300))
        body(dist.NoOpCommunicator(), flipped=[8], factor=np.nan, scaler=GradScaler(1.0))  # which cannot fall
        assert "norm was nan" in told[-1] and "transient" in told[-1]
    assert ran("step 9: .* the fault is persistent", large=1e4) == large


def test_a_window_that_was_loaded_unfinished_is_not_computed_again_and_one_whose_loss_then_fails_is_dropped(told):
    config, factors = TrainingConfig(grad_accum_steps=2, recheck=True), iter([1.0] * 20)
    net, loss = mg.nn.Linear(2, 1), lambda: net(mg.ones(3, 2)).sum() * next(factors)
    trainer, other = dist.SimpleTrainer(config), dist.SimpleTrainer(config)
    params = [*net.named_parameters()]
    other.backward_and_step(loss, params)
    for _ in range(11):
        trainer.backward_and_step(loss, params)
    trainer.load_state_dict(params, *other.state_dict(params))
    for number in range(2):
        trainer._step.gradients._norms.extend([1e-9] * 20)
        while trainer.backward_and_step(loss, params) is None:
            pass
        assert [text[:6] for text in told] == ["step 2"] * number
    trainer.backward_and_step(loss, params)
    raises(StopIteration, "", trainer.backward_and_step, loss, params)
    assert trainer._step.accumulator.current_step == 0


def test_a_rank_without_micro_batches_computes_again_with_the_others(told):
    def body(comm):
        net, x, config = dp.Net(), mg.ones(2, 5, dtype=np.float64), TrainingConfig(grad_accum_steps=2, recheck=True)
        trainer, params, loss = dist.BucketedTrainer(config, comm), [*net.named_parameters()], partial(net.loss, x, x)
        for _ in range(4):
            trainer.backward_and_step(loss, params)
        for step in (3, 4):
            trainer._step.gradients._norms.extend([1e-9] * 20)
            if comm.rank == 0:
                trainer.backward_and_step(loss, params)
                del trainer._step.gradients._kept[: step - 3]  # then nobody computes again
            assert trainer.flush(params).step == step

    dist.run_threads(2, body, timeout=20)
    assert len(told) == 2 and all(text.startswith("step 3: ") and "persistent" in text for text in told)
