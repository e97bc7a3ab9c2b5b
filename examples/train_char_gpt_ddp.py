"""Train the character-level GPT of train_char_gpt.py on several processes, each with its part of every batch.

    python -m minigrad.distributed.launch -n 2 examples/train_char_gpt_ddp.py
    python -m minigrad.distributed.launch -n 2 examples/train_char_gpt_ddp.py --resume
    python examples/sample.py --prompt "The "

It sees the same batches as one process would, and all ranks end with the same weights, bit for bit. Ctrl-C finishes the
step on all ranks, saves, and says how to resume. If a rank dies, the others save the last whole step before they stop,
so --resume goes on from there, on any number of ranks. With --shard each rank keeps only its share of moments (1),
gradients (2) and weights (3); if one dies, the run goes on from the last checkpoint. With the launcher's --max-restarts
it does so by itself; give --out then. Without the launcher it trains in one process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import loading  # noqa: F401  # first
import numpy as np
from char_run import Run, Settings, folder_to_resume, new_folder, run_contents, run_of, run_state
from command_line import Parser, UsageError, run_cli
from estimate import check_memory
from train_char_gpt import PROFILE_HELP, TrainingRun, check_text, load_text

import minigrad
from minigrad import GradStore
from minigrad.data import CharTokenizer, Corpus
from minigrad.device import CPU
from minigrad.distributed import (
    BucketedTrainer,
    CommError,
    Communicator,
    NonFiniteLossError,
    ShardedTrainer,
    TrainingConfig,
    TrainingMetrics,
    agree_on_settings,
    all_gather_bytes,
    init_process_group,
    load_distributed_checkpoint,
    mean_over_ranks,
    restarts,
    save_distributed_checkpoint,
    save_sharded_checkpoint,
)
from minigrad.distributed.comm.communicator import all_gather_json
from minigrad.distributed.train.checkpoint import by_rank_0
from minigrad.distributed.train.signals import interrupted
from minigrad.metrics_log import JsonLinesLog
from minigrad.profiler import Profile
from minigrad.serialization import CheckpointError, list_checkpoints, save_checkpoint

T = TypeVar("T")
TIMEOUT = 600.0
SHARD_STAGES = (0, 1, 2, 3)
SHARD_HELP = (
    "each rank keeps a share of: 1 the moments, 2 the gradients too, 3 the weights too, which are whole in validations "
    "and samples (default 0: nothing)"
)


def main() -> int:
    """Parse the flags, meet the other ranks, train."""
    parser = Parser(__doc__)
    parser.add_argument("--data", nargs="+", default=None, metavar="PATH", help="text files, folders, or: shakespeare")
    parser.add_argument("--out", default=None, metavar="FOLDER", help="folder of the run (default runs/char-gpt...)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out, or the one saved last")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="S", help=f"seconds that a rank waits (default {TIMEOUT:g})"
    )
    parser.add_argument("--shard", type=int, default=0, choices=SHARD_STAGES, help=SHARD_HELP)
    parser.add_argument("--profile", action="store_true", help=PROFILE_HELP)
    parser.add_settings(Settings)
    flags = vars(parser.parse())
    names = ("data", "out", "resume", "timeout", "shard", "profile")
    data, out, resume, timeout, shard, profiling = (flags.pop(name) for name in names)
    if not 0 < timeout < math.inf:
        raise UsageError(f"--timeout is {timeout:g}, expected a number of seconds above 0")
    with init_process_group(timeout=timeout) as comm:
        run, corpus = prepare(comm, data, out, goes_on(comm, out, resume), flags, shard)
        with contextlib.closing(Training(comm, run, corpus)) as training:
            training.profiling = profiling
            return training.train_or_explain()


def goes_on(comm: Communicator, out: str | None, resume: bool) -> bool:
    """Whether a run is continued: as the user says, or as a job has to that the launcher has started again."""
    count = restarts()
    if count is None:
        return resume
    if out is None:
        raise UsageError(
            "with --max-restarts give the run's folder, --out FOLDER: a restart goes on with what is there"
        )
    return resume or bool(count and by_rank_0(comm, lambda: bool(list_checkpoints(out)), "look into", out))


def prepare(
    comm: Communicator, data: list[str] | None, out: str | None, resume: bool, flags: dict[str, Any], shard: int = 0
) -> tuple[Run, Corpus]:
    """A new run, or that of rank 0's checkpoint, with a trainer that overlaps the all-reduce with backward."""
    trainer = functools.partial(bucketed, comm, shard)
    if resume:
        folder = on_rank_0(comm, lambda: folder_to_resume(out))
        run = run_of(load_distributed_checkpoint(comm, folder or ""), CPU, flags, Settings, trainer)
        corpus = load_text(run.origin["data"] if data is None else data, run.settings)
    else:
        try:
            settings = Settings(**flags)
            settings.check()
            corpus = load_text(data, settings)
            tokenizer = CharTokenizer.from_text(corpus.text)
            on_rank_0(comm, lambda: check_memory(settings, tokenizer.vocab_size, CPU, comm.world_size))
            model, made = settings.build(tokenizer.vocab_size, CPU, trainer)
        except ValueError as error:  # settings out of range, and every kind of bad input: alike on all ranks
            raise UsageError(error) from error
        origin = {**corpus.metadata, "name": corpus.name, "data": data}
        folder = on_rank_0(comm, lambda: new_folder(out, settings.family))
        # The others show the folder and, if rank 0 dies, save there.
        name = all_gather_bytes(comm, str(folder).encode())[0].decode()
        run = Run(Path(name), settings, origin, tokenizer, model, made)
    agree_on_settings(comm, {"the text": corpus.metadata["sha256"], "the settings": run.settings})
    check_text(run, corpus)
    return run, corpus


def bucketed(comm: Communicator, shard: int, config: TrainingConfig, **kwargs: Any) -> BucketedTrainer:
    """A trainer whose ranks hold everything (0), or only their shares (the stages of ZeRO)."""
    if not shard:
        return BucketedTrainer(dealt(comm, config), comm, **kwargs)
    if config.reproducible:
        raise UsageError("--shard: --reproducible adds up whole gradients")
    return ShardedTrainer(config, comm, stage=shard, **kwargs)


def dealt(comm: Communicator, config: TrainingConfig) -> TrainingConfig:
    """The configuration of a rank: if it is reproducible, its share of a step's micro-batches is that of all ranks."""
    return (
        config.with_grad_accum_steps(-(-config.grad_accum_steps // comm.world_size)) if config.reproducible else config
    )


def on_rank_0(comm: Communicator, fn: Callable[[], T]) -> T | None:
    """What ``fn`` returns on rank 0, None on the others; if it is refused there, it is on all ranks."""
    result, refused = None, ""
    if comm.rank == 0:
        try:
            result = fn()
        except (UsageError, CheckpointError) as error:
            refused = str(error)
    refused = all_gather_bytes(comm, refused.encode())[0].decode()
    if refused:
        raise UsageError(refused)
    return result


class Training(TrainingRun):
    """The training loop of train_char_gpt.py on this rank. Here is what differs when there are others.

    Whatever talks to the other ranks is called by all of them, in the same order.
    """

    script = "train_char_gpt_ddp.py"

    def __init__(self, comm: Communicator, run: Run, corpus: Any) -> None:
        self.comm = comm
        self.waited: float = 0.0  # seconds, up to the line of metrics.jsonl before
        super().__init__(run, corpus, comm.rank, comm.world_size)

    def open_log(self) -> JsonLinesLog | None:
        """Rank 0 writes metrics.jsonl; if it cannot, no rank trains."""
        return on_rank_0(self.comm, super().open_log)

    def speed(self, tokens_per_second: float) -> dict[str, Any]:
        """What metrics.jsonl says of the speed, and of the seconds that each rank has waited since the line before."""
        waited = self.comm.stats.waited_s
        everyone = all_gather_json(self.comm, waited - self.waited)
        self.waited = waited
        return {**super().speed(tokens_per_second), **({"waited_by_rank": everyone} if len(everyone) > 1 else {})}

    def workers(self) -> str:
        """Who computes, in words."""
        alone = self.comm.world_size == 1
        return super().workers() + ("" if alone else f" on each of {self.comm.world_size} ranks")

    def train(self) -> int:
        """Train from rank 0's weights to the last step; returns the exit code."""
        self.trainer.broadcast_params(self.model.named_parameters())
        if isinstance(self.trainer, ShardedTrainer):
            self.trainer.shard(self.model)
        return super().train()

    def step(self) -> TrainingMetrics:
        """One optimizer step, of ``grad_accum`` micro-batches: of each a rank has its part, or some if reproducible."""
        self.seed()
        return super().step()

    def own_batches(self) -> list[Any]:
        """This rank's part of each of the step's batches, or, if it is reproducible, some of the batches."""
        s, own = self.settings, self.trainer.config.grad_accum_steps
        if not s.reproducible:
            return super().own_batches()
        first = self.trainer.global_step * s.grad_accum
        numbers = range(own * self.comm.rank, own * (self.comm.rank + 1))
        return [self.batches.batch(first + i) if i < s.grad_accum else ((), ()) for i in numbers]

    def micro_batch(self, x: np.ndarray, y: np.ndarray) -> TrainingMetrics | None:
        """Forward and backward, with this rank's part of a batch."""
        params = list(self.model.named_parameters())
        if len(x):
            return self.trainer.backward_and_step(self.loss(x, y), params, weight=len(x))
        # More ranks than sequences, or micro-batches.
        if self.comm.world_size > 1 and getattr(self.trainer, "stage", 0) == 3:  # the others need this rank's weights
            blank = np.zeros((1, self.settings.block_size), np.int64)
            return self.trainer.backward_and_step(self.loss(blank, blank), params, weight=0)
        return self.trainer.step(params, GradStore(), 0.0, weight=0)

    @contextlib.contextmanager
    def whole_weights(self) -> Iterator[None]:
        """Within it this rank has all weights, of which it else may have a share."""
        sharded = self.trainer if isinstance(self.trainer, ShardedTrainer) else None
        if sharded is not None:
            sharded.gather_full_params()
        yield
        if sharded is not None:
            sharded.release_params()

    def show_sample(self, step: int) -> None:
        """Rank 0 does."""
        with self.whole_weights():
            if self.rank == 0:
                super().show_sample(step)

    def gather_traces(self, seen: Profile) -> list[Any]:
        """The trace of each rank."""
        return all_gather_json(self.comm, seen.trace(self.comm.rank))

    def seed(self) -> None:
        """Dropout's random numbers depend on the seed, the rank and the step alone: no checkpoint need hold them."""
        seed = {"seed": (self.settings.seed + 1 + self.comm.rank) % 2**64, "offset": self.trainer.global_step << 20}
        if not self.settings.reproducible:  # whose trainer numbers them
            minigrad.default_generator.load_state_dict(seed)

    def interrupted(self, received: list[int]) -> int:
        """The signal that ends the training on all ranks, whichever got it, or 0."""
        return interrupted(self.comm, received)

    @minigrad.no_grad()
    def validate(self, batches: int | None = None) -> float:
        """Mean loss (nats per character) over the validation batches, of which each rank takes some."""
        self.model.eval()
        total, count = 0.0, 0
        with self.whole_weights():
            for x, y in itertools.islice(self.val_batches, self.comm.rank, batches, self.comm.world_size):
                total += self.loss(x, y).item() * y.size
                count += y.size
        mean = mean_over_ranks(self.comm, {"loss": total / max(count, 1)}, weight=count)["loss"]
        if not math.isfinite(mean):
            step = self.trainer.global_step
            raise NonFiniteLossError(f"the validation loss after step {step} is {mean}", step)
        return mean

    def write_checkpoint(self) -> None:
        """Rank 0 writes for all, if they hold the same, or each its share; they go on when the checkpoint is safe."""
        folder, keep = self.run.folder, self.settings.keep
        if isinstance(self.trainer, ShardedTrainer):
            save_sharded_checkpoint(folder, self.model, self.trainer, run_state(self.run), keep)
        else:
            contents = run_contents(self.run) if self.comm.rank == 0 else ({}, {})
            save_distributed_checkpoint(self.comm, folder, *contents, keep=keep)

    def finish(self) -> None:
        """Make sure that the ranks have the same weights, and say what the run has left."""
        if self.comm.world_size > 1:
            self.trainer.assert_replicas_identical(self.model.named_parameters())
            self.say(f"all {self.comm.world_size} ranks hold the same weights, bit for bit")
        super().finish()

    def rescue(self, error: Exception) -> str:
        """Save without the others. Weights change only after a whole reduction, so they are those of the last step."""
        if not isinstance(error, CommError):
            return super().rescue(error)
        step, folder = self.trainer.global_step, self.run.folder
        # This rank is alive, whatever the error says of ranks that merely wait for another one.
        alive = [rank for rank in range(self.comm.world_size) if rank not in error.ranks or rank == self.comm.rank]
        if self.saved_step == step:
            done = f"step {step} is saved in {folder}"
        elif not step:
            return "no step was made"
        elif isinstance(self.trainer, ShardedTrainer):  # the lost rank's share is lost
            return super().rescue(error)
        elif self.comm.rank != alive[0]:
            return f"rank {alive[0]} saves step {step}"
        else:
            tensors, state = run_contents(self.run)
            done = f"saved step {step}: {save_checkpoint(folder, tensors, state, keep=None)}"
        return f"{done}. To go on: {self.how_to_resume()}"


if __name__ == "__main__":
    run_cli(main)
