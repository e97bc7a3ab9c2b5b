"""What the character-GPT scripts share: settings and their flags, runs on disk, and errors as one line.

A run is a folder: ``metrics.jsonl``, ``loss.png`` (with matplotlib), and ``step-00000123/`` checkpoints that hold the
weights, the trainer's state, the settings, the vocabulary and the random state.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import minigrad
from minigrad.data import CharTokenizer, DataError
from minigrad.device import Device, DeviceError
from minigrad.distributed import NonFiniteLossError, SimpleTrainer, TrainingConfig
from minigrad.models import GPT2, GPT2Config
from minigrad.optim import AdamW, CosineAnnealing, NonFiniteGradientError, decay_groups
from minigrad.serialization import Checkpoint, CheckpointError, list_checkpoints, load_checkpoint, save_checkpoint

RUNS = Path("runs")


def setting(default: Any, help: str, fixed: bool = False) -> Any:
    """A field with its flag's help text. ``fixed``: a resumed run must keep the value, or it would not be the same run."""
    return dataclasses.field(default=default, metadata={"help": help, "fixed": fixed})


@dataclasses.dataclass
class Settings:
    """Everything that decides a training run. The sizes are nanoGPT's for a CPU."""

    steps: int = setting(3000, "optimizer steps")
    batch_size: int = setting(12, "sequences per micro-batch", fixed=True)
    block_size: int = setting(64, "characters per sequence, the longest context", fixed=True)
    grad_accum: int = setting(1, "micro-batches per step", fixed=True)
    n_layer: int = setting(4, "transformer blocks", fixed=True)
    n_head: int = setting(4, "attention heads", fixed=True)
    n_embd: int = setting(128, "channels", fixed=True)
    dropout: float = setting(0.0, "dropout probability", fixed=True)
    lr: float = setting(1e-3, "highest learning rate (cosine schedule)", fixed=True)
    min_lr: float = setting(1e-4, "last learning rate", fixed=True)
    warmup: int = setting(100, "steps over which the learning rate rises", fixed=True)
    weight_decay: float = setting(0.1, "weight decay of matrices", fixed=True)
    beta2: float = setting(0.99, "AdamW's decay of squared gradients", fixed=True)
    grad_clip: float = setting(1.0, "limit of the gradient norm, 0 for none", fixed=True)
    seed: int = setting(1337, "of weights, batches, dropout and samples", fixed=True)
    val_fraction: float = setting(0.1, "part of the text held back for validation", fixed=True)
    eval_every: int = setting(250, "steps between validations")
    eval_batches: int = setting(20, "batches per validation")
    sample_every: int = setting(500, "steps between printed samples, 0 for none")
    sample_chars: int = setting(200, "characters per sample")
    save_every: int = setting(500, "steps between checkpoints")
    keep: int = setting(2, "checkpoints kept")

    def check(self) -> None:
        """Raise ValueError for values that no part of the training would refuse more clearly."""
        for name, least in (
            ("steps", 1), ("batch_size", 1), ("block_size", 1), ("grad_accum", 1), ("warmup", 0), ("eval_every", 1),
            ("eval_batches", 1), ("sample_every", 0), ("sample_chars", 1), ("save_every", 1), ("keep", 1), ("seed", 0),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"{flag(name)} is {getattr(self, name)}, expected at least {least}")
        if self.grad_clip < 0:
            raise ValueError(f"--grad-clip is {self.grad_clip}, expected a number above 0, or 0 for no clipping")

    def build(self, vocab_size: int) -> tuple[GPT2, SimpleTrainer]:
        """A new model and its trainer; raises ValueError for settings that do not fit together."""
        minigrad.manual_seed(self.seed)
        model = GPT2(
            GPT2Config(vocab_size, self.block_size, self.n_layer, self.n_head, self.n_embd, dropout=self.dropout)
        )
        groups = decay_groups(model.named_parameters(), self.weight_decay)
        optimizer = AdamW(groups, lr=self.lr, betas=(0.9, self.beta2))
        config = TrainingConfig(max_grad_norm=self.grad_clip or None, grad_accum_steps=self.grad_accum)
        warmup = min(self.warmup, self.steps)
        schedule = CosineAnnealing(self.lr, self.min_lr, warmup_steps=warmup, total_steps=max(self.steps, warmup + 1))
        return model, SimpleTrainer.with_optimizer(config, optimizer).with_lr_schedule(schedule)


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with the nearest flag for a misspelt one."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with code 2."""
        raise UsageError(f"{message} ({self.prog} --help lists the flags)")

    def parse(self) -> argparse.Namespace:
        """The parsed command line; unknown flags are refused with a suggestion."""
        known, unknown = self.parse_known_args()
        if unknown:
            near = difflib.get_close_matches(unknown[0].split("=")[0], self._option_string_actions, 1)
            self.error(f"unknown argument {unknown[0]}" + (f"; did you mean {near[0]}?" if near else ""))
        return known

    def add_settings(self) -> None:
        """A flag for each field of Settings; those not given are absent from the namespace."""
        for field in dataclasses.fields(Settings):
            kind = type(field.default)
            text = f"{field.metadata['help']} (default {field.default})"
            self.add_argument(flag(field.name), type=kind, default=argparse.SUPPRESS, metavar=kind.__name__, help=text)


class UsageError(ValueError):
    """The command line cannot be followed."""


def run_cli(main: Callable[[], int]) -> NoReturn:
    """Run a script's main; errors that a user can mend become one line, with exit code 2 (input) or 1 (the run)."""
    try:
        code = main()
    except (NonFiniteLossError, NonFiniteGradientError) as error:
        code = complain(error, 1)
    except (UsageError, DataError, CheckpointError, DeviceError) as error:
        code = complain(error, 2)
    except OSError as error:
        code = complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)
    except KeyboardInterrupt:
        code = complain("interrupted", 130)
    sys.exit(code)


def complain(message: object, code: int) -> int:
    """Print ``error: message`` as one line and return the exit code."""
    print("error: " + " ".join(str(message).split()), file=sys.stderr)
    return code


def choose_device(name: str) -> Device:
    """The device, known to work; raises DeviceError otherwise."""
    device = Device(name)
    assert device.kernels is not None  # loading them is the check
    return device


# ---------------------------------------------------------------------- runs on disk


def new_folder(chosen: str | None) -> Path:
    """Where a new run goes: the folder that was asked for, which must hold no run, else runs/char-gpt, -2, -3 ..."""
    if chosen is not None:
        folder = Path(chosen)
        if folder.is_dir() and list_checkpoints(folder):
            raise UsageError(f"{folder} holds a run already; add --resume to continue it, or choose another --out")
        return folder
    number, folder = 1, RUNS / "char-gpt"
    while folder.exists():
        number += 1
        folder = RUNS / f"char-gpt-{number}"
    return folder


def latest_folder(chosen: str | None) -> Path:
    """The run to continue or sample from: the one asked for, else the one under runs/ saved last."""
    if chosen is not None:
        return Path(chosen)
    saved = [(list_checkpoints(f)[-1].path.stat().st_mtime, f) for f in RUNS.glob("*") if list_checkpoints(f)]
    if not saved:
        raise UsageError(f"no run with a checkpoint under {RUNS}/; train one first, or name its folder")
    return max(saved)[1]


def save_run(
    folder: Path, model: GPT2, trainer: SimpleTrainer, settings: Settings, tokenizer: CharTokenizer, corpus: dict[str, Any]
) -> Path:
    """Save a checkpoint that an exact resume needs; returns its folder."""
    arrays, meta = trainer.state_dict(model.named_parameters())
    state = {
        "step": trainer.global_step,
        "trainer": meta,
        "generator": minigrad.default_generator.state_dict(),
        "settings": dataclasses.asdict(settings),
        "tokenizer": tokenizer.to_dict(),
        "corpus": corpus,
    }
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return save_checkpoint(folder, {"model": weights, "trainer": arrays}, state, keep=settings.keep)


@dataclasses.dataclass
class Run:
    """A run read back from a checkpoint."""

    checkpoint: Checkpoint
    settings: Settings
    tokenizer: CharTokenizer
    model: GPT2
    trainer: SimpleTrainer


def load_run(folder: Path, step: int | None = None, changes: dict[str, Any] | None = None) -> Run:
    """Load the newest checkpoint of a run (or that of ``step``), with some settings changed.

    Raises CheckpointError for one that is damaged or not of a character GPT, UsageError for a change of what is fixed.
    """
    checkpoint = load_checkpoint(folder, step)
    state, tensors = checkpoint.state, checkpoint.tensors
    fixed = {field.name for field in dataclasses.fields(Settings) if field.metadata["fixed"]}
    try:
        settings = Settings(**state["settings"])
        for name, value in (changes or {}).items():
            if name in fixed and value != getattr(settings, name):
                raise UsageError(
                    f"{flag(name)} {value}: the run in {folder} has {getattr(settings, name)}, and a resumed run keeps it"
                )
        settings = dataclasses.replace(settings, **(changes or {}))
        settings.check()
        tokenizer = CharTokenizer.from_dict(state["tokenizer"])
        model, trainer = settings.build(tokenizer.vocab_size)
        model.load_state_dict(tensors["model"])
        trainer.load_state_dict(model.named_parameters(), tensors["trainer"], state["trainer"])
        minigrad.default_generator.load_state_dict(state["generator"])
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{checkpoint.path} is not a checkpoint of this script: {reason}", checkpoint.path) from error
    return Run(checkpoint, settings, tokenizer, model, trainer)
