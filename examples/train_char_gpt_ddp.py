"""Train the character-level GPT of train_char_gpt.py on several processes, each with its part of every batch.

    python -m minigrad.distributed.launch -n 2 examples/train_char_gpt_ddp.py
    python -m minigrad.distributed.launch -n 2 examples/train_char_gpt_ddp.py --resume
    python examples/sample.py --prompt "The "

It sees the same batches as one process would, and all ranks end with the same weights, bit for bit. If a rank dies, the
others save the last whole step before they stop, so --resume goes on from there, on any number of ranks. Without the
launcher it trains in one process.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from char_run import Run, Settings, latest_folder, new_folder, run_contents, run_of
from command_line import Parser, RunError, UsageError, run_cli
from train_char_gpt import load_text

import minigrad
from minigrad import GradStore, Tensor
from minigrad.data import CharTokenizer, FixedBatches, RandomBatches, train_val_split
from minigrad.device import CPU
from minigrad.distributed import (
    BucketedTrainer,
    CommError,
    Communicator,
    NonFiniteLossError,
    TrainingMetrics,
    agree_on_settings,
    all_gather_bytes,
    init_process_group,
    load_distributed_checkpoint,
    mean_over_ranks,
    save_distributed_checkpoint,
)
from minigrad.optim import NonFiniteGradientError
from minigrad.serialization import save_checkpoint


def main() -> int:
    """Parse the flags, meet the other ranks, train."""
    parser = Parser(__doc__)
    parser.add_argument("--data", nargs="+", default=None, metavar="PATH", help="text files, folders, or: shakespeare")
    parser.add_argument("--out", default=None, metavar="FOLDER", help="folder of the run (default runs/char-gpt...)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out, or the one saved last")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds that a rank waits for others"
    )
    parser.add_settings(Settings)
    flags = vars(parser.parse())
    data, out, resume, timeout = (flags.pop(name) for name in ("data", "out", "resume", "timeout"))
    with init_process_group(timeout=timeout) as comm:
        training = Training(comm, prepare(comm, data, out, resume, flags), data)
        try:
            return training.train()
        except CommError as error:
            raise RunError(f"{error}; {training.rescue(error)}") from error
        except (NonFiniteLossError, NonFiniteGradientError) as error:
            raise RunError(error) from error


def prepare(comm: Communicator, data: list[str] | None, out: str | None, resume: bool, flags: dict[str, Any]) -> Run:
    """A new run, or that of rank 0's checkpoint, with a trainer that overlaps the all-reduce with backward."""
    trainer = functools.partial(_bucketed, comm)
    if resume:
        folder = from_rank_0(comm, lambda: str(latest_folder(out)))
        return run_of(load_distributed_checkpoint(comm, folder), CPU, flags, Settings, trainer)
    try:
        settings = Settings(**flags)
        settings.check()
        corpus = load_text(data, settings)
        tokenizer = CharTokenizer.from_text(corpus.text)
        model, made = settings.build(tokenizer.vocab_size, CPU, trainer)
    except ValueError as error:  # settings out of range, and every kind of bad input: alike on all ranks
        raise UsageError(error) from error
    origin = {**corpus.metadata, "name": corpus.name, "data": data}
    folder = from_rank_0(comm, lambda: str(new_folder(out, settings.family)))
    return Run(Path(folder), settings, origin, tokenizer, model, made)


def _bucketed(comm: Communicator, config: Any, **kwargs: Any) -> BucketedTrainer:
    return BucketedTrainer(config, comm, **kwargs)


def from_rank_0(comm: Communicator, fn: Callable[[], str]) -> str:
    """What ``fn`` returns on rank 0; its UsageError is raised on all ranks."""
    answer = ""
    if comm.rank == 0:
        try:
            answer = "=" + fn()
        except UsageError as error:
            answer = f"!{error}"
    found = all_gather_bytes(comm, answer.encode())[0].decode()
    if found.startswith("!"):
        raise UsageError(found[1:])
    return found[1:]


class Training:
    """This rank's share of the training loop."""

    def __init__(self, comm: Communicator, run: Run, data: list[str] | None) -> None:
        self.comm = comm
        self.run = run
        self.settings: Settings = run.settings
        s = run.settings
        corpus = load_text(run.origin["data"] if data is None else data, s)
        agree_on_settings(comm, {"the text": corpus.metadata["sha256"], "the settings": s})
        if corpus.metadata["sha256"] != run.origin["sha256"]:
            raise UsageError(f"{corpus.name} is not the text that the run in {run.folder} was trained on")
        train, val = train_val_split(run.tokenizer.encode(corpus.text), s.val_fraction, s.block_size)
        self.batches: RandomBatches = RandomBatches(
            train, s.batch_size, s.block_size, s.seed, comm.rank, comm.world_size
        )
        self.val_batches: FixedBatches = FixedBatches(val, s.batch_size, s.block_size, s.eval_batches)
        assert isinstance(run.trainer, BucketedTrainer)
        self.trainer: BucketedTrainer = run.trainer
        self.saved_step: int | None = self.trainer.global_step or None

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.comm.rank == 0:
            print(text)

    def train(self) -> int:
        """Train to the last step; returns the exit code."""
        s, trainer, model = self.settings, self.trainer, self.run.model
        self.say(
            f"GPT: {model.num_parameters():,} parameters on {self.comm.world_size} ranks, "
            f"{s.batch_size * s.block_size * s.grad_accum:,} tokens a step, {minigrad.get_num_threads()} threads each\n"
            f"run: {self.run.folder}, steps {trainer.global_step + 1} to {s.steps}"
        )
        trainer.broadcast_params(model.named_parameters())
        started = time.perf_counter()
        while trainer.global_step < s.steps:
            metrics = self.step()
            if metrics.step % s.eval_every == 0 or metrics.step == s.steps:
                self.say(
                    f"step {metrics.step:5d}  train loss {metrics.loss:.4f}  validation loss {self.validate():.4f}"
                )
            if s.sample_every and (metrics.step % s.sample_every == 0 or metrics.step == s.steps):
                self.say(f"{'-' * 30} sample\n{self.sample() if self.comm.rank == 0 else ''}\n{'-' * 37}")
            if metrics.step % s.save_every == 0:
                self.save()
        self.save()
        trainer.assert_replicas_identical(model.named_parameters())
        self.say(
            f"done in {time.perf_counter() - started:.0f} s; all {self.comm.world_size} ranks hold the same weights, "
            f"bit for bit; they are in {self.run.folder}"
        )
        return 0

    def step(self) -> TrainingMetrics:
        """One optimizer step, of ``grad_accum`` micro-batches."""
        s, trainer, params = self.settings, self.trainer, list(self.run.model.named_parameters())
        self.run.model.train()
        # Dropout's random numbers depend on the seed, the rank and the step alone: no checkpoint need hold them.
        minigrad.default_generator.load_state_dict(
            {"seed": (s.seed + 1 + self.comm.rank) % 2**64, "offset": trainer.global_step << 20}
        )
        for i in range(s.grad_accum):
            x, y = self.batches.batch(trainer.global_step * s.grad_accum + i)
            if len(x):
                metrics = trainer.backward_and_step(self.loss(x, y), params, weight=len(x))
            else:  # more ranks than sequences
                metrics = trainer.step(params, GradStore(), 0.0, weight=0)
        assert metrics is not None  # the window is full after grad_accum micro-batches
        return metrics

    def loss(self, x: np.ndarray, y: np.ndarray) -> Tensor:
        """Mean cross-entropy of a batch, (B, T) tokens and (B, T) targets."""
        return self.run.model.loss(minigrad.from_numpy(x), minigrad.from_numpy(y))

    @minigrad.no_grad()
    def validate(self) -> float:
        """Mean loss (nats per character) over the validation batches, of which each rank takes some."""
        self.run.model.eval()
        total, count = 0.0, 0
        for x, y in itertools.islice(self.val_batches, self.comm.rank, None, self.comm.world_size):
            total += self.loss(x, y).item() * y.size
            count += y.size
        mean = mean_over_ranks(self.comm, {"loss": total / max(count, 1)}, weight=count)["loss"]
        if not math.isfinite(mean):
            raise NonFiniteLossError(f"the validation loss is {mean}", self.trainer.global_step)
        return mean

    def sample(self) -> str:
        """Some text of the model's own."""
        tokenizer, s = self.run.tokenizer, self.settings
        out = self.run.model.generate(minigrad.zeros(1, 1, dtype=minigrad.int64), s.sample_chars, top_k=40, seed=s.seed)
        return tokenizer.decode(out.numpy()[0])

    def save(self) -> None:
        """Save a checkpoint, unless this step has one."""
        if self.saved_step != self.trainer.global_step:
            contents = run_contents(self.run) if self.comm.rank == 0 else ({}, {})
            save_distributed_checkpoint(self.comm, self.run.folder, *contents, keep=self.settings.keep)
            self.saved_step = self.trainer.global_step

    def rescue(self, error: CommError) -> str:
        """Save without the others. Weights change only after a whole reduction, so they are those of the last step."""
        step, folder = self.trainer.global_step, self.run.folder
        if self.saved_step == step:
            return f"step {step} is saved in {folder}"
        alive = [rank for rank in range(self.comm.world_size) if rank not in error.ranks]
        if self.comm.rank != alive[0]:
            return f"rank {alive[0]} saves step {step}"
        tensors, state = run_contents(self.run)
        return f"saved step {step}: {save_checkpoint(folder, tensors, state, keep=None)}"


if __name__ == "__main__":
    run_cli(main)
