"""Train a language model block by block on several ranks, from a YAML file.

    python -m minigrad.distributed.launch -n 2 -m minigrad.distributed.train examples/distributed_gpt.yaml
    python -m minigrad.distributed.train CONFIG.yaml                       one process, or torchrun, mpirun, srun
    python -m minigrad.distributed.train CONFIG.yaml --world-size 2 --rank 0 --coordinator node1:29500      by hand

Flags outweigh the file; nothing outweighs a launcher, which must agree with both. Every key of the file is a flag, too:
--training.max_steps 500. Rank 0 writes metrics.jsonl and the checkpoints into the output folder; --resume goes on from
the newest one: bit for bit with as many ranks, with any number, and to more steps.

Ctrl-C and SIGTERM finish the step and save it. If a rank dies, the others save the last whole step; with the launcher's
--max-restarts the run then goes on by itself.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import shlex
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import minigrad
from minigrad.data import DataError, EpochBatches, load_corpus
from minigrad.mixed_precision import autocast
from minigrad.optim import GradScaler, NonFiniteGradientError
from minigrad.serialization import CheckpointError, list_checkpoints

from ..comm.comm_errors import CollectiveMismatchError, CommError, RendezvousError
from ..comm.communicator import Communicator, all_gather_json
from ..comm.launchers import discover_place, restarts
from ..job.launch import GRACE, LaunchJob, carried, find_mpirun, handled
from ..job.rendezvous import DistributedTrainConfig, parse_address
from ..job.store import Store
from .block_trainer import BlockDistributedTrainer
from .checkpoint import by_rank_0
from .config import NonFiniteLossError, TrainingMetrics
from .grad_sync import ReplicaMismatchError, agree_on_settings, difference
from .settings import FLAGS, Settings, SettingsError, of_file, of_key, read_overrides, read_settings, resolve
from .signals import interrupted, interrupts, what_is_lost


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the flags, meet the other ranks, train.

    Returns 2 for what cannot be followed, 1 for a run that failed, and 128 + the signal's number for one that a signal
    has stopped.
    """
    parser = argparse.ArgumentParser(
        prog="python -m minigrad.distributed.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", help="the settings")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="check everything, and train nothing")
    for flag, key in FLAGS.items():
        parser.add_argument(flag, dest=key, metavar="VALUE", help=key)
    options, rest = parser.parse_known_args(arguments)
    try:
        given = {key: value for key in FLAGS.values() if (value := getattr(options, key)) is not None}
        settings = read_settings(options.config, given := {**given, **read_overrides(rest)})
        with of_file(options.config, given):
            config = resolve(settings.training.distributed, discover_place())
        if config.by_hand:
            alike = {**settings.named(), "file": options.config, "resume": options.resume, "dry-run": options.dry_run}
            return run_by_hand(config, alike, sys.argv[1:] if arguments is None else arguments)
        with config.connect(timeout=settings.training.timeout) as comm, of_file(options.config, given):
            run = Run(comm, settings, options.resume, options.dry_run)
            run.arguments = sys.argv[1:] if arguments is None else arguments
            try:
                return 0 if options.dry_run else run.train()
            except CommError as error:
                return _complain(error, 1, run.rescue(error))
            finally:
                run.trainer.close()
    except (SettingsError, DataError, CheckpointError, CollectiveMismatchError, ModuleNotFoundError) as error:
        return _complain(error, 2)
    except (CommError, NonFiniteLossError, NonFiniteGradientError, ReplicaMismatchError, OSError) as error:
        return _complain(error, 1)
    except KeyboardInterrupt as error:
        return _complain(error if error.args else "interrupted", 130)


class Run:
    """One rank of a run. To make one is a collective of all ranks. A dry one writes nothing."""

    def __init__(self, comm: Communicator, settings: Settings, resume: bool = False, dry: bool = False) -> None:
        self.comm = comm
        self.settings = settings
        t = settings.training
        self.folder: Path = Path(t.output_dir)
        length = {"training.max_steps": t.max_steps, "training.epochs": t.epochs}
        agree_on_settings(comm, {**settings.fixed(), **length, "--resume": resume})
        with of_key("data.source"):
            corpus = load_corpus(settings.data.source, t.seq_len + 1)
        self.text: str = str(corpus.metadata["sha256"])
        agree_on_settings(comm, {"the text": self.text})
        again = bool(restarts())  # in a folder that was this job's from its first start on
        self._check_folder(resume or dry or again)
        if again:
            resume |= by_rank_0(comm, lambda: bool(list_checkpoints(self.folder)), "look into", self.folder)
        with of_key("data.tokens"):
            tokenizer = settings.data.tokenizer_of(corpus.text)
        self.batches: EpochBatches = EpochBatches(tokenizer.encode(corpus.text), t.batch_size, t.seq_len, t.seed)
        self.place: tuple[int, int] = (0, 0)
        """The epoch, and how many of its batches all ranks together have had."""
        minigrad.manual_seed(t.seed)
        with of_key("model"):
            model = settings.model.build(tokenizer.vocab_size, t.seq_len, t.batch_size, comm.device, self.say)
        model.to(device=comm.device)
        self.trainer: BlockDistributedTrainer = BlockDistributedTrainer(
            model,
            comm,
            t.trainer_config(),
            optimizer=t.optimizer(model),
            loss_fn=None if t.mixed_precision is None else autocast(None, t.compute_dtype)(model.loss),
            scaler=GradScaler() if t.mixed_precision == "fp16" else None,
            log=None if dry else self.folder / "metrics.jsonl",
            log_every=t.log_interval,
        )
        self._check_folder(resume or dry or again)  # once more: the trainer's log has locked it
        self.saved_step: int | None = None
        self.arguments: Sequence[str] = ["CONFIG.yaml"]
        if resume:
            self._resume()
        elif again:
            self.trainer.log.resume_after(0)
        self._place_of_step = self.place
        self.steps: int = t.max_steps or self.trainer.global_step + -(-self._rounds_left() // t.accumulation_steps)
        self.trainer.with_lr_schedule(t.schedule(self.steps))
        done = self.trainer.global_step
        steps = f"steps {done + 1} to {self.steps}" if done < self.steps else f"{done} steps done"
        sizes = f"{model.num_parameters():,} parameters in {self.trainer.layout.num_blocks} blocks"
        self.say(f"{sizes} on {comm.world_size} ranks, {steps}, in {self.folder}")

    def _check_folder(self, may_exist: bool) -> None:
        """Rank 0 looks, and all learn: a new run replaces nothing."""
        logged = any(log.stat().st_size for log in self.folder.glob("metrics.jsonl"))
        found = self.comm.rank == 0 and (logged or bool(list_checkpoints(self.folder)))
        if all_gather_json(self.comm, found)[0] and not may_exist:
            raise SettingsError(f"{self.folder} holds a run: add --resume, delete it, or change training.output_dir")

    def _resume(self) -> None:
        extra = self.trainer.load_checkpoint(self.folder)
        for key, value in self._identity().items():
            if extra.get(key) != value:
                raise SettingsError(f"{key} is {value!r}; the run in {self.folder} has {extra.get(key)!r} and keeps it")
        self.place = (int(extra["epoch"]), int(extra["batch"]))
        self.saved_step = self.trainer.global_step

    def _identity(self) -> dict[str, Any]:
        return {"the text": self.text, **self.settings.fixed()}

    def _rounds_left(self) -> int:
        """Rounds to the end of the last epoch, where ``epochs`` are given: in each, every rank has a batch at most."""
        (epoch, batch), ranks, n = self.place, self.comm.world_size, len(self.batches)
        epochs = self.settings.training.epochs or 0
        return -(-(n - batch) // ranks) + (epochs - epoch - 1) * -(-n // ranks)

    def next_batch(self) -> tuple[np.ndarray, ...]:
        """This rank's tokens and targets, (B, T) each, of the next round; () if the epoch has no batch left for it.

        In each round the ranks take the next batches of the epoch, in order of rank: so nothing is seen twice, and
        nothing left out, when another number of ranks goes on.
        """
        (epoch, first), ranks = self.place, self.comm.world_size
        # Random numbers of dropout depend on seed, rank and place alone: no checkpoint need hold them.
        seed = (self.settings.training.seed + 1 + self.comm.rank) % 2**64
        minigrad.default_generator.load_state_dict({"seed": seed, "offset": (epoch * len(self.batches) + first) << 20})
        self.place = (epoch, first + ranks) if first + ranks < len(self.batches) else (epoch + 1, 0)
        self.batches.sampler.epoch, self.batches.sampler.position = epoch, first + self.comm.rank
        return next(iter(self.batches)) if first + self.comm.rank < len(self.batches) else ()

    def train(self) -> int:
        """Train to the last step, or to a signal, and save; returns the exit code."""
        t, trainer, number = self.settings.training, self.trainer, 0
        if trainer.global_step >= self.steps:
            self.say(f"nothing to do: the run has {trainer.global_step} steps; more training.max_steps or epochs go on")
            return 0
        tokens = t.batch_size * t.seq_len * t.accumulation_steps * self.comm.world_size
        trainer.log.begin(self.steps, tokens, settings=self.settings.fixed(), parameters=trainer.model.num_parameters())
        with interrupts(self._what_is_lost) as received:
            while trainer.global_step < self.steps and self.place[0] != t.epochs and not number:
                metrics = trainer.train_batch(*self.next_batch())
                if metrics is None and self.place[0] == t.epochs:
                    metrics = trainer.finish_window()
                if metrics is not None:
                    self._after(metrics)
                    number = interrupted(self.comm, received)
            trainer.verify_replicas()
            self._save()
        step = f"step {trainer.global_step}"
        if number:
            self.say(f"stopped after {step}, saved. To go on:\n  {self._command()}")
            return 128 + number
        self.say(f"done: {step}; all {self.comm.world_size} ranks hold the same weights, bit for bit")
        return 0

    def _after(self, metrics: TrainingMetrics) -> None:
        t = self.settings.training
        if metrics.step % t.log_interval == 0:
            norm = "" if metrics.grad_norm is None else f"  gradient norm {metrics.grad_norm:.4f}"
            self.say(f"step {metrics.step:5d}  loss {metrics.loss:.4f}{norm}  lr {metrics.lr:.2e}")
        self._place_of_step = self.place
        if metrics.step % t.save_interval == 0:
            self._save()

    def _save(self, alone: bool = False) -> None:
        if self.saved_step != self.trainer.global_step:
            epoch, batch = self._place_of_step
            extra = {**self._identity(), "epoch": epoch, "batch": batch}
            self.trainer.save_checkpoint(self.folder, extra, self.settings.training.keep, alone=alone)
            self.saved_step = self.trainer.global_step

    def rescue(self, error: CommError) -> str:
        """Save without the others, of which some are gone; says what is saved. Weights change only after a whole
        reduction, so they are those of the last step.
        """
        step = self.trainer.global_step
        # This rank is alive, whatever the error says of ranks that merely wait for another one.
        alive = [rank for rank in range(self.comm.world_size) if rank not in error.ranks or rank == self.comm.rank]
        if self.saved_step != step and step and self.comm.rank == alive[0]:
            self._save(alone=True)
        saves = f"rank {alive[0]} saves step {step}" if self.saved_step != step else f"step {step} is saved"
        return f"; {saves} in {self.folder}. To go on: {self._command()}" if step else "; no step was made"

    def _command(self, resume: bool = True) -> str:
        """What goes on with the run, or begins it again, as it was started, on as many ranks."""
        launcher = ["-m", "minigrad.distributed.launch", "-n", str(self.comm.world_size)]
        words = ["-m", "minigrad.distributed.train", *(word for word in self.arguments if word != "--resume")]
        return shlex.join(["python", *launcher * ("MINIGRAD_LAUNCH" in os.environ), *words, *["--resume"] * resume])

    def _what_is_lost(self) -> str:
        return what_is_lost(self.trainer.global_step, self.saved_step, self._command(self.saved_step is not None))

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.comm.rank == 0:
            print(text, flush=True)


def _complain(error: BaseException | str, code: int, rescued: str = "") -> int:
    text = str(error).partition("\n  at ")[0]  # without the line of this program, which is no news to its user
    print("error: " + " ".join((text + rescued).split()), file=sys.stderr)
    return code


# ------------------------------------------------------------------ by hand

# Ranks on CPUs that were started by hand, one process each, become one job of the launcher. Processes of MPI that are
# started apart cannot join each other. So they meet at the coordinator's address, rank 0's process runs the launcher
# for all, and the others are its remote ends: they show what it says, pass their signals on to it, and return its exit
# code. Whichever of them is gone, the job ends.

# Of each process; the launched ranks learn their places from MPI.
OWN = [f"--training.distributed.{key}=null" for key in ("rank", "local_rank", "role", "coordinator_addr")]

ANSWER_SECONDS = 10.0  # after the grace that the ranks have, in which a process that was to end still waits for rank 0


@dataclass(eq=False)
class HandJob(LaunchJob):
    """The launcher's job in rank 0's process, which the other processes follow."""

    store: Store
    places: list[str]
    heard: set[int] = field(default_factory=set)  # ranks whose processes got a signal

    def _on_signal(self, number: int, frame: object, rank: int = 0) -> None:
        """The first signal of each process is the same wish; a second one of the same process ends all at once."""
        if self.stop is None or rank in self.heard:
            super()._on_signal(number, frame)
        self.heard.add(rank)

    def _look_around(self) -> None:
        for rank, word in self.store.hear(0):
            number = signal.Signals(int(word or signal.SIGTERM))
            what = f"got {number.name}" if word else "is gone, so the job ends"
            self._say(f"the process of rank {rank}, started by hand on {self.places[rank]}, {what}")
            self._on_signal(number, None, rank if word else -1)

    def _say(self, line: str) -> None:
        super()._say(line)
        self.store.tell(f"launch: {line}")


def run_by_hand(config: DistributedTrainConfig, settings: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Meet the other processes, train as a job of all, return its exit code.

    ``arguments`` are those of the train command; ``settings`` must be the same in all processes, and so must the
    folder, the Python and the variables (``carried``) that they were started with. Raises ModuleNotFoundError without
    mpirun, RendezvousError for ranks that are missing, and SettingsError for what differs.
    """
    mpirun, secret = find_mpirun(), os.environ.get("MINIGRAD_RENDEZVOUS_SECRET")
    alike = {**settings, "backend": config.backend, "the folder": os.getcwd(), "the Python": sys.executable}
    alike |= {f"the variable {name}": value for name, value in carried().items()}
    boot = Path("/proc/sys/kernel/random/boot_id")  # by which machines of one name differ, where Linux tells
    told_apart = boot.read_text() if boot.exists() else ""
    mine = [socket.gethostname(), told_apart, {key: _short(repr(value)) for key, value in alike.items()}]
    with Store(config.rank, config.world_size, *parse_address(str(config.coordinator_addr)), secret=secret) as store:
        values = store.all_gather(json.dumps(mine).encode())
        # Ranks that were started for GPUs send no JSON.
        told: list[Any] = [json.loads(v) if v.startswith(b"[") else ["", "", {"backend": "another"}] for v in values]
        places, found = [place for place, *_ in told], difference([said for *_, said in told])
        if found is not None:
            raise SettingsError(found[1])
        if len({(place, boot) for place, boot, _ in told}) > len(set(places)):
            raise SettingsError(f"several machines are called {places[0]}: MPI needs host names that differ")
        if config.rank:
            print(f"rank {config.rank} of {config.world_size}: its output is at rank 0, on {places[0]}", flush=True)
            return _follow(store, config.rank)
        hosts = [*Counter(places).items()] if len(set(places)) > 1 else []
        program = ["-m", "minigrad.distributed.train", *arguments, *OWN]
        job = HandJob(mpirun, config.world_size, hosts, None, program, None, GRACE, store, places)
        code = job.run()
        store.tell(str(code))
        while list(store.hear(0)):  # what is left unread would cut the connections before the code has arrived
            pass
        return code


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:60]}... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _follow(store: Store, rank: int) -> int:
    """Show what rank 0's process says, and tell it of signals, until it tells the exit code."""
    signals: list[int] = []
    deadline = math.inf
    with handled(lambda number, frame: signals.append(number)):
        while time.monotonic() < deadline:
            while signals:
                store.tell(str(signals.pop(0)))
                deadline = min(deadline, time.monotonic() + GRACE + ANSWER_SECONDS)
            for _, word in store.hear(0.2):
                if word is None:
                    raise RendezvousError("the process of rank 0 is gone, and with it the job", rank=rank, ranks=[0])
                if word.isdecimal():
                    return int(word)
                with contextlib.suppress(BrokenPipeError):  # nobody reads it any more; the job goes on
                    print(word, file=sys.stderr, flush=True)
    raise RendezvousError("the process of rank 0 does not answer", rank=rank, ranks=[0])
