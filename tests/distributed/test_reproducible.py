"""reproducible=True: the same bits of everything for any number of ranks, also after a restart on another number."""

import functools
import hashlib

import numpy as np
import pytest
from ranks import on_processes, requires_mpi
from refusals import raises

import minigrad as mg
from minigrad import distributed as dist
from minigrad.device import Device
from minigrad.distributed import TrainingConfig
from minigrad.distributed.train.tree import TreeAccumulator, insert, root
from minigrad.models import GPT2, GPT2Config
from minigrad.optim import AdamW, CosineAnnealing

LEAVES = 8  # micro-batches of a step
CONFIG = GPT2Config(vocab_size=13, block_size=6, n_layer=2, n_head=2, n_embd=8, dropout=0.2)
TOKENS = np.random.default_rng(0).integers(0, 13, (97, 2, 7))


class Run:
    """Training on one of the ranks, from the start or from what another world has saved."""

    def __init__(self, comm, saved=None, kind=dist.BucketedTrainer, leaves=LEAVES):
        mg.manual_seed(5 if saved is None else 6)
        self.comm, self.leaves, self.metrics = comm, leaves, []
        self.model = GPT2(CONFIG).to(device=comm.device)
        self.params = list(self.model.named_parameters())
        config = TrainingConfig(
            max_grad_norm=0.5, grad_accum_steps=-(-leaves // comm.world_size), reproducible=kind is not None
        )
        schedule = CosineAnnealing(0.01, 0.0, warmup_steps=0, total_steps=300)
        options = {"communicator": comm, "bucket_size_bytes": 1500, "optimizer": AdamW(self.params, lr=0.01)}
        self.trainer = (kind or dist.BucketedTrainer)(config, schedule=schedule, **options)
        if saved is not None:
            self.model.load_state_dict(saved[0])
            self.trainer.load_state_dict(self.params, *saved[1:])

    def step(self):
        own, trainer = self.trainer.config.grad_accum_steps, self.trainer
        for leaf in range(self.comm.rank * own, (self.comm.rank + 1) * own):
            if leaf < self.leaves:
                tokens = TOKENS[(trainer.global_step * self.leaves + leaf) % len(TOKENS)]
                tokens = mg.from_numpy(tokens).to(self.comm.device)
                loss = self.model.loss(tokens[:, :-1], tokens[:, 1:])
                found = trainer.backward_and_step(loss, self.params, leaf + 1.5)
            else:
                found = trainer.step(self.params, mg.GradStore(), 0.0, weight=0.0)
        self.metrics.append(found)

    def saved(self):
        weights = {name: x.detach().cpu().numpy().copy() for name, x in self.model.state_dict().items()}
        return weights, *self.trainer.state_dict(self.params)


def body(comm, steps=2, saved=None, **options):
    """What the steps reported, and what they left; all ranks must have the same."""
    run = Run(comm, saved, **options)
    for _ in range(steps):
        run.step()
    run.trainer.assert_replicas_identical(run.params)
    return run.metrics, run.saved()


def digest(metrics, saved) -> str:
    named = sorted({**saved[0], **saved[1]}.items())
    return hashlib.sha256(b"".join([repr(metrics).encode(), *(x.tobytes() for _, x in named)])).hexdigest()


def history(*parts, devices=None, **options) -> str:
    """The hash of all metrics, and of weights and moments at the end, of (ranks, steps) one after the other."""
    saved, metrics = None, []
    for ranks, steps in parts:
        one = functools.partial(body, steps=steps, saved=saved, **options)
        more, saved = dist.run_threads(ranks, one, timeout=60, devices=devices and devices[:1] * ranks)[0]
        metrics += more
    return digest(metrics, saved)


def histories(n: int):
    """Twelve, of n steps: straight on 1, 2, 3, 4 and 8 ranks, and with restarts on other numbers."""
    a, b = n // 3, n - n // 3
    straight = [[(ranks, n)] for ranks in (1, 2, 3, 4, 8)]
    restarted = [[(x, a), (y, b)] for x, y in ((1, 2), (2, 1), (4, 3), (8, 4), (3, 8), (2, 8))]
    return [*straight, *restarted, [(1, 1), (4, a), (3, b - 1)]]


def test_one_history_for_any_worlds(seeds):
    assert len({history(*parts) for parts in histories(len(seeds(3)))}) == 1
    assert len({history((ranks, 2), kind=None) for ranks in (1, 2, 3)}) == 3  # sums in order of rank


CUDA = {"devices": [Device("cuda:0")], "leaves": 2}
OTHERS = {"bfloat16": {"kind": dist.AmpTrainer}, "five leaves": {"leaves": 5}, "cuda": CUDA}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_other_trainers_and_devices(options):
    if options is CUDA and not mg.cuda.is_available():
        pytest.skip("no CUDA device, and NUMBA_ENABLE_CUDASIM=1 is not set")
    assert len({history(*parts, **options) for parts in ([(1, 2)], [(2, 1), (3, 1)])}) == 1


def on_process(comm) -> str:
    return digest(*body(comm))


@pytest.mark.long
@requires_mpi
def test_processes_have_the_bits_of_threads():
    assert {line[4:] for line in on_processes(2, on_process).stdout.splitlines()} == {history((3, 2))}


def test_the_tree_depends_on_the_number_of_leaves_alone():
    tree = TreeAccumulator(3, rank=2)
    tree.key_draws(step=5)
    assert mg.default_generator.offset == (5 * 2**20 + 6) * 2**20

    def add(left, right):
        left[:] = [[*left], [*right]]

    for cut in range(8):
        parts = {}, {}
        for i in range(7):
            insert(parts[i >= cut], 0, i, [i], add)
        for key, content in parts[1].items():
            insert(parts[0], *key, content, add)
        assert root(parts[0], add) == [[[[0], [1]], [[2], [3]]], [[[4], [5]], [6]]]
    raises(RuntimeError, "node 6 of level 0 .* is there already", insert, parts[0], 0, 6, [6], add)
    tree.current_step = 3
    raises(RuntimeError, "has its 3 micro-batches", tree.add_of, [], mg.GradStore(), 0.0, 1.0)
