"""Bits that flip in the weights or moments of one rank are noticed, with rank and tensor, and nothing else is."""

import block_trainer_nets as nets
import numpy as np
import pytest

import minigrad as mg
from minigrad import distributed as dist
from minigrad.distributed import NonFiniteLossError, ReplicaMismatchError, TrainingConfig
from minigrad.distributed.comm.threads.faults import with_flipped_bit
from minigrad.distributed.train.grad_sync import moments
from minigrad.distributed.train.recheck import SuspectStepWarning
from minigrad.optim import NonFiniteGradientError

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

    def steps(self, n: int, flip=lambda i: None) -> None:
        for i in range(n):
            flip(i)
            rng = np.random.default_rng([self.trainer.global_step, self.comm.rank])
            x = mg.from_numpy(rng.standard_normal((3, 4)).astype(np.float32))
            loss = (self.model(x) ** 2).mean()
            self.trainer.step(self.params, loss.backward(), loss.item())


def flips(comm, count: int) -> tuple[int, list[str]]:
    """How many flips were rounded away before the ranks compared, and the errors that named something else."""
    run, rng = Run(comm), np.random.default_rng(1)
    run.steps(EVERY)
    before, start = [t.data.copy() for _, t in run.held()], run.trainer.global_step
    absorbed, wrong = 0, []
    for _ in range(count):
        rank, moment, which = int(rng.integers(RANKS)), int(rng.integers(EVERY)), int(rng.integers(len(before)))
        name, tensor = run.held()[which]
        bit = int(rng.integers(8 * tensor.data.nbytes))

        def flip(i, array=tensor.data, place=(rank, moment), bit=bit) -> None:
            if (comm.rank, i) == place:
                array[...] = with_flipped_bit(array, bit)

        try:
            run.steps(EVERY, flip)
            absorbed += 1
        except ReplicaMismatchError as error:  # a moment's flip is in the weight, too
            if error.ranks != (rank,) or not error.name.endswith(name.rpartition(" ")[2]):
                wrong.append(str(error))
        except (NonFiniteLossError, NonFiniteGradientError) as error:
            wrong += [] if f"rank {rank}" in str(error) or "gradient" in str(error) else [str(error)]
        for (_, t), values in zip(run.held(), before):
            t.data[...] = values
        run.trainer._step.global_step = start
    run.steps(2 * EVERY)  # no alarm of what was put back
    return absorbed, wrong


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_a_flipped_bit_is_named(count):
    absorbed, wrong = dist.run_threads(RANKS, lambda comm: flips(comm, count), timeout=60)[0]
    assert absorbed <= count / 50 and not wrong


@pytest.mark.parametrize("steps", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_there_is_no_false_alarm(steps):
    dist.run_threads(2, lambda comm: Run(comm).steps(steps), timeout=60)


def test_what_the_error_says_and_when_nobody_compares():
    def body(comm, every):
        run = Run(comm)
        run.trainer.config = TrainingConfig(compare_every=every)
        run.steps(2)
        run.held()[-1][1].data[0] += comm.rank == 1
        run.steps(2)

    with pytest.raises(ReplicaMismatchError, match=r"'.*' .* differ: rank 1 .*\(step 4\); unless the program changed"):
        dist.run_threads(RANKS, lambda comm: body(comm, 4), timeout=60)
    dist.run_threads(RANKS, lambda comm: body(comm, 0), timeout=60)


def test_a_suspect_step_is_computed_again_and_the_fault_is_transient_or_persistent():
    def body(comm, spoiled=0, large=1.0, recheck=True):
        net, calls = nets.Net(), 0

        def loss_of(x, y):
            nonlocal calls
            calls += 1
            return net.loss(x, y) * (1e6 if (comm.rank, calls) == (1, spoiled) else 1.0)

        config = TrainingConfig(grad_accum_steps=2)
        trainer = dist.BlockDistributedTrainer(net, comm, config, loss_fn=loss_of, recheck=recheck)
        for i in range(22):
            trainer.train_batch(*(a * (large if i == 16 else 1.0) for a in nets.batch(i, slice(comm.rank, 12, 2))))
        return nets.held(net)

    def ran(**options):
        return dist.run_threads(2, lambda comm: body(comm, **options), timeout=60)[0]

    clean, large = ran(recheck=False), ran(recheck=False, large=100.0)
    assert ran() == clean != large
    with pytest.warns(SuspectStepWarning, match=r"step 9: the gradient's norm was .* the fault is transient"):
        assert ran(spoiled=17) == clean
    with pytest.warns(SuspectStepWarning, match=r"step 9: .* the fault is persistent"):
        assert ran(large=100.0) == large
