"""reproducible=True: the same bits of everything for any number of ranks, also after a restart on another number."""

import hashlib

import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad import distributed as dist
from minigrad.distributed import TrainingConfig
from minigrad.distributed.train.tree import Node, added, root
from minigrad.models import GPT2, GPT2Config
from minigrad.optim import AdamW, CosineAnnealing

LEAVES = 8  # micro-batches of a step
CONFIG = GPT2Config(vocab_size=13, block_size=6, n_layer=2, n_head=2, n_embd=8, dropout=0.2)
TOKENS = np.random.default_rng(0).integers(0, 13, (97, 2, 7))


class Run:
    """Training on one of the ranks, from the start or from what another world has saved."""

    def __init__(self, comm, saved=None, kind=dist.BucketedTrainer, device="cpu", leaves=LEAVES):
        mg.manual_seed(5)
        self.comm, self.leaves, self.metrics, self.device = comm, leaves, [], device
        self.model = GPT2(CONFIG)
        self.model.to(device=device)
        own = -(-leaves // comm.world_size)
        config = TrainingConfig(max_grad_norm=0.5, grad_accum_steps=own, reproducible=True)
        schedule = CosineAnnealing(0.01, 0.0, warmup_steps=0, total_steps=300)
        options = {"bucket_size_bytes": 1500} if kind is not dist.AmpTrainer else {"communicator": comm}
        args = (config,) if kind is dist.AmpTrainer else (config, comm)
        optimizer = AdamW(self.params, lr=0.01)
        self.trainer = kind(*args, optimizer=optimizer, schedule=schedule, **options)
        if saved is not None:
            weights, arrays, meta = saved
            self.model.load_state_dict(weights)
            self.trainer.load_state_dict(self.params, arrays, meta)

    @property
    def params(self):
        return list(self.model.named_parameters())

    def step(self):
        own, trainer = self.trainer.config.grad_accum_steps, self.trainer
        for leaf in range(self.comm.rank * own, (self.comm.rank + 1) * own):
            if leaf < self.leaves:
                batch = mg.from_numpy(TOKENS[(trainer.global_step * self.leaves + leaf) % len(TOKENS)]).to(self.device)
                found = trainer.backward_and_step(self.model.loss(batch[:, :-1], batch[:, 1:]), self.params, leaf + 1.5)
            else:
                found = trainer.step(self.params, mg.GradStore(), 0.0, weight=0.0)
        self.metrics.append(found)

    def saved(self):
        return self.model.state_dict(), *self.trainer.state_dict(self.params)


def history(*parts, **options) -> str:
    """The hash of all metrics, and of weights and moments at the end, of (ranks, steps) one after the other."""
    saved, out = None, hashlib.sha256()

    def body(comm):
        run = Run(comm, saved, **options)
        for _ in range(steps):
            run.step()
        run.trainer.assert_replicas_identical(run.params)
        return run.metrics, run.saved()

    for ranks, steps in parts:
        metrics, saved = dist.run_threads(ranks, body, timeout=60)[0]
        for one in metrics:
            out.update(repr(one).encode())
        weights, arrays, _ = saved
        saved = ({name: x.detach().cpu().numpy().copy() for name, x in weights.items()}, *saved[1:])
    for name, x in sorted({**saved[0], **arrays}.items()):
        out.update(name.encode() + np.ascontiguousarray(x).tobytes())
    return out.hexdigest()


def histories(n: int):
    """Twelve, of n steps: straight on 1, 2, 3, 4 and 8 ranks, and with restarts on other numbers."""
    a, b = n // 3, n - n // 3
    straight = [[(ranks, n)] for ranks in (1, 2, 3, 4, 8)]
    restarted = [[(x, a), (y, b)] for x, y in ((1, 2), (2, 1), (4, 3), (8, 4), (3, 8), (2, 8))]
    return [*straight, *restarted, [(1, 1), (4, a), (3, b - 1)]]


def test_one_history_for_any_worlds():
    assert len({history(*parts) for parts in histories(3)}) == 1


@pytest.mark.long
def test_one_history_of_200_steps_for_twelve_worlds():
    assert len({history(*parts) for parts in histories(200)}) == 1
