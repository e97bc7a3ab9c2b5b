"""Train a language model block by block on several ranks, from a YAML file.

    python -m minigrad.distributed.launch -n 2 -m minigrad.distributed.train examples/distributed_gpt.yaml
    python -m minigrad.distributed.train CONFIG.yaml                       one process, or torchrun, mpirun, srun
    python -m minigrad.distributed.train CONFIG.yaml --world-size 2 --rank 0 --coordinator node1:29500      on GPUs

Flags outweigh the file; nothing outweighs a launcher, which must agree with both. Rank 0 writes metrics.jsonl and the
checkpoints into the output folder; --resume goes on from the newest one, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import minigrad
from minigrad.data import CharTokenizer, DataError, EpochBatches, load_corpus
from minigrad.optim import NonFiniteGradientError
from minigrad.serialization import CheckpointError, list_checkpoints

from ..comm.comm_errors import CollectiveMismatchError, CommError
from ..comm.communicator import Communicator
from ..comm.gather import all_gather_bytes
from ..comm.launchers import discover_place
from .block_trainer import BlockTrainer
from .config import NonFiniteLossError, TrainingMetrics
from .grad_sync import ReplicaMismatchError, agree_on_settings, shard_batches
from .settings import Settings, SettingsError, read_settings, resolve
from .step_log import StepLog


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the flags, meet the other ranks, train; 2 for what cannot be followed, 1 for a run that failed."""
    parser = argparse.ArgumentParser(
        prog="python -m minigrad.distributed.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", help="the settings")
    parser.add_argument("--world-size", type=int, metavar="N", help="number of ranks")
    parser.add_argument("--rank", type=int, metavar="R", help="this process's number, from 0")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="where ranks on GPUs meet")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    options = parser.parse_args(arguments)
    try:
        settings = read_settings(options.config)
        config = resolve(
            settings.training.distributed,
            discover_place(),
            world_size=options.world_size,
            rank=options.rank,
            coordinator=options.coordinator,
        )
        with config.connect(timeout=settings.training.timeout) as comm:
            run = Run(comm, settings, options.resume)
            try:
                run.train()
            finally:
                run.trainer.close()
    except (SettingsError, DataError, CheckpointError, CollectiveMismatchError, ModuleNotFoundError) as error:
        return _complain(error, 2)
    except (CommError, NonFiniteLossError, NonFiniteGradientError, ReplicaMismatchError, OSError) as error:
        return _complain(error, 1)
    return 0


class Run:
    """One rank of a run. To make one is a collective of all ranks."""

    def __init__(self, comm: Communicator, settings: Settings, resume: bool = False) -> None:
        self.comm = comm
        self.settings = settings
        t = settings.training
        self.folder: Path = Path(t.output_dir)
        agree_on_settings(comm, {**settings.fixed(), "--resume": resume})
        corpus = load_corpus(settings.data.source, t.seq_len + 1)
        self.text: str = str(corpus.metadata["sha256"])
        agree_on_settings(comm, {"the text": self.text})
        self._check_folder(resume)
        tokenizer = CharTokenizer.from_text(corpus.text)
        self.batches: EpochBatches = EpochBatches(tokenizer.encode(corpus.text), t.batch_size, t.seq_len, t.seed)
        self.mine: range = shard_batches(len(self.batches), comm.rank, comm.world_size)
        self.rounds_per_epoch: int = len(shard_batches(len(self.batches), 0, comm.world_size))
        if t.max_steps is None:
            self.rounds: int = (t.epochs or 0) * self.rounds_per_epoch
        else:
            self.rounds = t.max_steps * t.accumulation_steps
        self.steps: int = -(-self.rounds // t.accumulation_steps)
        minigrad.manual_seed(t.seed)
        try:
            model = settings.model.build(tokenizer.vocab_size, t.seq_len)
        except ValueError as error:
            raise SettingsError(f"model: {error}") from error
        model.to(device=comm.device)
        self.trainer: BlockTrainer = BlockTrainer(
            model,
            comm,
            t.trainer_config(),
            optimizer=t.optimizer(model),
            schedule=t.schedule(self.steps),
            log=StepLog(comm, self.folder / "metrics.jsonl", t.log_interval),
        )
        minigrad.manual_seed((t.seed + 1 + comm.rank) % 2**64)  # of dropout; a checkpoint has every rank's
        self.saved_step: int | None = None
        if resume:
            self._resume()

    def _check_folder(self, resume: bool) -> None:
        """Rank 0 looks, and all learn: a new run replaces nothing."""
        log = self.folder / "metrics.jsonl"
        found = self.comm.rank == 0 and (bool(list_checkpoints(self.folder)) or log.exists())
        if all_gather_bytes(self.comm, b"+" if found else b"-")[0] == b"+" and not resume:
            raise SettingsError(
                f"{self.folder} holds a run already: add --resume, choose another training.output_dir, or delete it"
            )

    def _resume(self) -> None:
        extra = self.trainer.load_checkpoint(self.folder)
        now = self._identity()
        for key, value in now.items():
            if extra.get(key) != value:
                raise SettingsError(f"{key} is {value!r}; the run in {self.folder} has {extra.get(key)!r} and keeps it")
        self.saved_step = self.trainer.global_step

    def _identity(self) -> dict[str, Any]:
        return {"world_size": self.comm.world_size, "the text": self.text, **self.settings.fixed()}

    def batch(self, number: int) -> tuple[np.ndarray, ...]:
        """This rank's tokens and targets, (B, T) each, in round ``number`` of the run; () where it has none left.

        In each round every rank takes the next batch of the epoch that is its own; a pure function of seed and number.
        """
        epoch, i = divmod(number, self.rounds_per_epoch)
        if i >= len(self.mine):
            return ()
        self.batches.sampler.epoch, self.batches.sampler.position = epoch, self.mine[i]
        return next(iter(self.batches))

    def train(self) -> None:
        """Train to the last step, and save it."""
        t, trainer = self.settings.training, self.trainer
        first = trainer.global_step * t.accumulation_steps
        self.say(
            f"{trainer.model.num_parameters():,} parameters in {trainer.layout.num_blocks} blocks on "
            f"{self.comm.world_size} ranks, steps {trainer.global_step + 1} to {self.steps}, in {self.folder}"
        )
        for number in range(first, self.rounds):
            self._after(trainer.train_batch(*self.batch(number)))
        self._after(trainer.finish_window())
        trainer.verify_replicas()
        self._save()
        self.say(
            f"done: step {trainer.global_step}; all {self.comm.world_size} ranks hold the same weights, bit for bit"
        )

    def _after(self, metrics: TrainingMetrics | None) -> None:
        if metrics is None:
            return
        t = self.settings.training
        if metrics.step % t.log_interval == 0:
            norm = "" if metrics.grad_norm is None else f"  gradient norm {metrics.grad_norm:.4f}"
            self.say(f"step {metrics.step:5d}  loss {metrics.loss:.4f}{norm}  lr {metrics.lr:.2e}")
        if metrics.step % t.save_interval == 0:
            self._save()

    def _save(self) -> None:
        if self.saved_step != self.trainer.global_step:
            self.trainer.save_checkpoint(self.folder, self._identity(), self.settings.training.keep)
            self.saved_step = self.trainer.global_step

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.comm.rank == 0:
            print(text, flush=True)


def _complain(error: Exception, code: int) -> int:
    text = str(error).partition("\n  at ")[0]  # without the line of this program, which is no news to its user
    print("error: " + " ".join(text.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
