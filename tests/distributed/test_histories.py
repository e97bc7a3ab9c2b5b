"""Runs that are killed, stopped, cut off and damaged, and resumed on another number of ranks, end with the bits of a
run that nothing happened to. What they raise before is an error of ours. A seed is the whole of such a history."""

import hashlib
import random
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from in_threads import good, outcomes

import minigrad as mg
from minigrad import distributed as dist
from minigrad.distributed import TrainingConfig
from minigrad.distributed.comm.threads.faults import with_flipped_bit
from minigrad.distributed.train.grad_sync import moments
from minigrad.files import durable
from minigrad.optim import AdamW
from minigrad.serialization import CheckpointError, list_checkpoints

STEPS, LEAVES, CALLS = 4, 4, 34  # of a run; operations in its first save, step and comparison, and in all others
TIMEOUT = 10.0  # of virtual seconds
BATCHES = np.random.default_rng(0).standard_normal((STEPS, LEAVES, 3, 4)).astype(np.float32)
RIGHT: dict[int, str] = {}  # hash of weights and moments by step: the first run of all makes it, see ``alone``


class Rank:
    """Training on one rank; ``step`` is the checkpoint that it begins with, 0 none."""

    def __init__(self, comm: dist.Communicator, folder: Path, step: int) -> None:
        mg.manual_seed(3)
        self.comm, self.folder, self.begin = comm, folder, step
        self.model = mg.nn.Sequential(mg.nn.Linear(4, 5), mg.nn.Tanh(), mg.nn.Dropout(0.2), mg.nn.Linear(5, 2))
        self.params, self.own = list(self.model.named_parameters()), -(-LEAVES // comm.world_size)
        config = TrainingConfig(grad_accum_steps=self.own, reproducible=True, compare_every=1, max_grad_norm=1.0)
        self.trainer = dist.DistributedTrainer(config, comm, AdamW(self.params, lr=0.01))
        if step:
            found = dist.load_distributed_checkpoint(comm, folder, step)
            self.model.load_state_dict(found.tensors["model"])
            self.trainer.load_state_dict(self.params, found.tensors["trainer"], found.state["trainer"])

    def train(self, saves=(), saved=None) -> None:
        """To the end; at every step the hash must be right."""
        while True:
            step = self.trainer.global_step
            held = [*self.params, *moments(self.trainer.optimizer, self.params)]
            content = b"".join(tensor.data.tobytes() for _, tensor in held)
            found = hashlib.sha256(content).hexdigest()
            assert RIGHT.setdefault(step, found) == found, f"step {step} has other bits"
            if step in saves and step > self.begin:
                arrays, meta = self.trainer.state_dict(self.params)
                tensors = {"model": self.model.state_dict(), "trainer": arrays}
                dist.save_distributed_checkpoint(self.comm, self.folder, tensors, {"step": step, "trainer": meta})
                saved.add(step)
            if step == STEPS:
                return
            self.make_step(step)
            self.comm.expose(list)  # until the next step: nobody would notice what flips before a save
            self.trainer._step.reducer.compare(self.trainer._step, self.params)

    def make_step(self, step: int) -> None:
        for leaf in range(self.comm.rank * self.own, (self.comm.rank + 1) * self.own):
            if leaf < LEAVES:
                loss = (self.model(mg.from_numpy(BATCHES[step, leaf])) ** 2).mean()
                self.trainer.step(self.params, loss.backward(), loss.item())
            else:
                self.trainer.step(self.params, mg.GradStore(), 0.0, weight=0.0)


def train(comm: dist.Communicator, folder: Path, begin: int, **options) -> None:
    with np.errstate(all="ignore"):  # a flipped bit makes numbers that overflow
        Rank(comm, folder, begin).train(**options)


def corrupt(rng: random.Random, path: Path) -> str:
    """Flip a bit of one of a checkpoint's files, cut it short, or remove it."""
    file = rng.choice(sorted(path.iterdir()))
    content = np.frombuffer(file.read_bytes(), np.uint8)
    how = rng.choice(["flip", "cut", "remove"])
    if how == "flip":
        file.write_bytes(with_flipped_bit(content, rng.randrange(2**31)).tobytes())
    elif how == "cut":
        file.write_bytes(content[: rng.randrange(content.size)].tobytes())
    else:
        file.unlink()
    return f"{how} {path.name}/{file.name}"


def history(seed: int, folder: Path) -> list[str]:
    """Run after run until one gets to the end, four at most with faults; returns what happened."""
    rng, told = random.Random(seed), []
    saved: set[int] = set()  # steps whose checkpoint is whole
    damaged: set[Path] = set()
    for attempt in range(8):
        entries = list_checkpoints(folder) if folder.exists() else []
        steps = {entry.step for entry in entries}
        assert len(steps) >= min(2, len(saved)) and max(steps, default=0) >= max(saved, default=0)
        saved &= steps
        faulty, world, saves = attempt < 4, rng.randint(1, 4), {s for s in range(STEPS + 1) if rng.random() < 0.6}
        if faulty and entries and rng.random() < 0.3:
            told.append(corrupt(rng, entries[-1].path))
            damaged.add(entries[-1].path)
            saved.discard(entries[-1].step)
        faults = rng.choice([0, 1, 1, 2]) if faulty else 0
        kinds = ("delay", "drop", "kill", "stop", "damage", "damage")  # not flip: all get the same wrong sum
        plan = dist.FaultPlan.random(rng.randrange(2**32), world, CALLS if world > 1 else STEPS, faults, kinds, 20.0)
        begin = entries[-1].step if entries else 0
        body = partial(train, folder=folder, begin=begin, saves=saves, saved=saved)
        told.append(f"{world} ranks from step {begin}, {plan}")
        try:
            dist.run_threads(world, body, TIMEOUT, plan)
            return told
        except Exception as error:
            errors: dict[int, BaseException] = error.rank_errors  # type: ignore[attr-defined]
        told += [f"rank {rank}: {error!r}".replace(str(folder), "") for rank, error in sorted(errors.items())]
        happens = [fault.kind for fault in plan.faults]
        planned = {
            (dist.ReplicaMismatchError,): "damage" in happens,
            (CheckpointError,): entries and entries[-1].path in damaged,
            (dist.CommTimeoutError,): sum(fault.seconds for fault in plan.faults) >= TIMEOUT,
            (dist.CommError, dist.RankKilledError): {*happens} & {"drop", "kill", "stop"},
        }
        assert all(any(isinstance(e, kinds) and planned[kinds] for kinds in planned) for e in errors.values()), told
        if any(isinstance(error, CheckpointError) for error in errors.values()):
            shutil.rmtree(entries[-1].path)
    raise AssertionError(f"it never got to the end: {told}")


@pytest.fixture
def played(tmp_path, monkeypatch, set_threads):
    """``history`` in an empty folder, without waiting for the disk."""
    monkeypatch.setattr(durable, "fsync", lambda fd: None)
    monkeypatch.setattr(durable, "fsync_directory", lambda folder: None)
    set_threads(1)
    RIGHT.clear()
    Rank(dist.NoOpCommunicator(), tmp_path, 0).train()
    assert len(set(RIGHT.values())) == STEPS + 1

    def play(seed: int) -> list[str]:
        try:
            return good([outcomes([seed], lambda seed: history(seed, tmp_path / str(seed)))[seed]])[0]
        except BaseException as error:
            raise AssertionError(f"history {seed}: {error!r}") from error
        finally:
            shutil.rmtree(tmp_path / str(seed), ignore_errors=True)

    return play


@pytest.mark.long
def test_every_history_ends_with_the_bits_of_a_run_without_faults(played, seeds):
    for seed in seeds(500):
        played(seed)


def test_a_history_replays_from_its_seed(played, monkeypatch):
    """Every operation of every rank in the same order, and every error in the same words."""
    order: list[tuple[int, str]] = []
    start = dist.ThreadCommunicator._start

    def noted(comm, call):
        order.append((comm.rank, str(call)))
        return start(comm, call)

    monkeypatch.setattr(dist.ThreadCommunicator, "_start", noted)
    seen = []
    for seed in [*range(10), *range(10)]:
        seen.append((played(seed), [*order]))
        order.clear()
    assert seen[:10] == seen[10:] and len({repr(one) for _, one in seen}) == 10
