"""What the scripts of the character models share: the settings of a run, and runs on disk.

A run is a folder: ``metrics.jsonl``, ``loss.png`` (with matplotlib), and ``step-00000123/`` checkpoints that hold the
weights, the trainer's state, the settings, the vocabulary and the random state.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from command_line import UsageError, flag

import minigrad
from minigrad.data import CharTokenizer
from minigrad.device import Device
from minigrad.distributed import SimpleTrainer, TrainingConfig, restarts
from minigrad.files import durable
from minigrad.models import GPT2, CausalLM, GPT2Config, Llama, LlamaConfig
from minigrad.optim import AdamW, CosineAnnealing, decay_groups
from minigrad.serialization import Checkpoint, CheckpointError, list_checkpoints, load_checkpoint, save_checkpoint

RUNS = Path("runs")


def setting(default: Any, help: str, fixed: bool = False) -> Any:
    """A field with its flag's help text. ``fixed``: a resumed run keeps the value, or it would not be the same run."""
    return dataclasses.field(default=default, metadata={"help": help, "fixed": fixed})


@dataclasses.dataclass
class Settings:
    """Everything that decides the training run of a GPT. The sizes are nanoGPT's for a CPU."""

    family: ClassVar[str] = "gpt"
    label: ClassVar[str] = "GPT"
    script: ClassVar[str] = "train_char_gpt.py"
    sampler: ClassVar[str] = "sample.py"
    unit: ClassVar[str] = "character"  # what a token is

    steps: int = setting(6000, "optimizer steps")
    batch_size: int = setting(12, "sequences per micro-batch", fixed=True)
    block_size: int = setting(64, "characters per sequence, the longest context", fixed=True)
    grad_accum: int = setting(1, "micro-batches per step", fixed=True)
    n_layer: int = setting(4, "transformer blocks", fixed=True)
    n_head: int = setting(4, "attention heads", fixed=True)
    n_embd: int = setting(128, "channels", fixed=True)
    dropout: float = setting(0.0, "dropout probability", fixed=True)
    lr: float = setting(1e-3, "highest learning rate (cosine schedule)", fixed=True)
    min_lr: float = setting(1e-4, "last learning rate", fixed=True)
    warmup: int = setting(100, "steps over which the learning rate rises (not more than --steps)", fixed=True)
    weight_decay: float = setting(0.1, "weight decay of matrices", fixed=True)
    beta2: float = setting(0.99, "AdamW's decay of squared gradients", fixed=True)
    grad_clip: float = setting(1.0, "limit of the gradient norm, 0 for none", fixed=True)
    seed: int = setting(1337, "of weights, batches, dropout and samples", fixed=True)
    reproducible: bool = setting(
        False,
        "the same bits on any number of ranks: each makes some of the --grad-accum micro-batches",
        fixed=True,
    )
    val_fraction: float = setting(0.1, "part of the text held back for validation", fixed=True)
    eval_every: int = setting(500, "steps between validations")
    eval_batches: int = setting(20, "batches per validation")
    sample_every: int = setting(1000, "steps between printed samples, 0 for none")
    sample_chars: int = setting(200, "characters per sample")
    save_every: int = setting(1000, "steps between checkpoints")
    keep: int = setting(2, "checkpoints kept")

    def check(self) -> None:
        """Raise UsageError for values that no part of the training would refuse more clearly."""
        for name, least in (
            ("steps", 1), ("batch_size", 1), ("block_size", 1), ("grad_accum", 1), ("warmup", 0), ("eval_every", 1),
            ("eval_batches", 1), ("sample_every", 0), ("sample_chars", 1), ("save_every", 1), ("keep", 1), ("seed", 0),
        ):  # fmt: skip
            if not least <= getattr(self, name) < 10**99:
                expected = f"at least {least}" if getattr(self, name) < least else "less than 10^99"
                raise UsageError(f"{flag(name)} is {getattr(self, name)}, expected {expected}")
        if not (self.lr >= 0 and self.min_lr >= 0):
            raise UsageError(f"--lr is {self.lr} and --min-lr {self.min_lr}, expected numbers of at least 0")
        if not self.grad_clip >= 0:
            raise UsageError(f"--grad-clip is {self.grad_clip}, expected a number above 0, or 0 for no clipping")
        if self.min_lr > self.lr:
            raise UsageError(f"--min-lr is {self.min_lr}, more than --lr, {self.lr}; give a smaller --min-lr as well")

    @staticmethod
    def tokenizer_of(state: Any) -> Any:
        """The tokenizer of a checkpoint; raises ValueError for a state that is none."""
        return CharTokenizer.from_dict(state)

    def model(self, vocab_size: int) -> CausalLM:
        """A new model; raises ValueError for sizes that do not fit together."""
        sizes = (self.block_size, self.n_layer, self.n_head, self.n_embd)
        return GPT2(GPT2Config(vocab_size, *sizes, dropout=self.dropout))

    def build(
        self, vocab_size: int, device: Device, trainer: Callable[..., SimpleTrainer] = SimpleTrainer
    ) -> tuple[CausalLM, SimpleTrainer]:
        """A new model and its trainer, made by ``trainer(config, optimizer=..., schedule=...)``.

        Raises ValueError for settings that do not fit together.
        """
        minigrad.manual_seed(self.seed)
        model = self.model(vocab_size)
        model.to(device=device)
        groups = decay_groups(model.named_parameters(), self.weight_decay)
        optimizer = AdamW(groups, lr=self.lr, betas=(0.9, self.beta2))
        clip, count = self.grad_clip or None, self.grad_accum
        config = TrainingConfig(max_grad_norm=clip, grad_accum_steps=count, reproducible=self.reproducible)
        warmup = min(self.warmup, self.steps)
        schedule = CosineAnnealing(self.lr, self.min_lr, warmup_steps=warmup, total_steps=max(self.steps, warmup + 1))
        return model, trainer(config, optimizer=optimizer, schedule=schedule)


@dataclasses.dataclass
class LlamaSettings(Settings):
    """Everything that decides the training run of a Llama, of about as many weights."""

    family: ClassVar[str] = "llama"
    label: ClassVar[str] = "Llama"
    script: ClassVar[str] = "train_llama_char.py"

    n_kv_head: int = setting(2, "heads of keys and values, each for n_head / n_kv_head of queries", fixed=True)
    n_inner: int = setting(344, "channels within the MLP", fixed=True)
    rope_base: float = setting(10000.0, "base of the rotary positions", fixed=True)

    def model(self, vocab_size: int) -> CausalLM:
        """A new model; raises ValueError for sizes that do not fit together."""
        heads = (self.n_head, self.n_kv_head)
        sizes = (self.block_size, self.n_layer, *heads, self.n_embd, self.n_inner)
        return Llama(LlamaConfig(vocab_size, *sizes, rope_base=self.rope_base, dropout=self.dropout))


def settings_of(family: str) -> type[Settings]:
    """The settings of a family of models; raises KeyError for one that is not known."""
    from gpt2_run import GPT2Settings  # which uses this module

    return {settings.family: settings for settings in (Settings, LlamaSettings, GPT2Settings)}[family]


# ---------------------------------------------------------------------- runs on disk


def new_folder(chosen: str | None, family: str) -> Path:
    """Where a new run goes: the folder that was asked for, new or empty, else runs/char-gpt, -2, -3 ..."""
    if chosen is not None:
        folder = Path(chosen)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {folder} is a file, not a folder")
        if other := writer_of(folder):
            raise UsageError(f"cannot write into {folder}: {other} is writing it")
        if list_checkpoints(folder):
            raise UsageError(f"{folder} holds a run already; add --resume to continue it, or choose another --out")
        if folder.exists() and any(folder.iterdir()) and not restarts():  # by this job, which began in it
            raise UsageError(
                f"{folder} is not empty and has no checkpoint to resume; delete it, or choose another --out "
                "(nothing is overwritten)"
            )
        return folder
    name = family if family == "gpt2" else f"char-{family}"
    number, folder = 1, RUNS / name
    while folder.exists():
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


def writer_of(folder: Path) -> str:
    """The process that trains in the folder, in words, or ""."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(folder / "metrics.jsonl", "rb") as log:
        other = durable.other_holder(log.fileno())
        durable.release(log.fileno())
        return other
    return ""


def latest_folder(chosen: str | None) -> Path:
    """The run to continue or sample from: the one asked for, else the one under runs/ saved last."""
    folders = [f for f in RUNS.glob("*") if f.is_dir() and list_checkpoints(f)]
    if chosen is not None:
        if not Path(chosen).is_dir():
            there = f"there are {', '.join(sorted(map(str, folders)))}" if folders else "there is no run under runs/"
            raise UsageError(f"{chosen} is not a folder; {there}")
        return Path(chosen)
    saved = [(list_checkpoints(f)[-1].path.stat().st_mtime, f) for f in folders]
    if not saved:
        raise UsageError(f"no run with a checkpoint under {RUNS}/; train one first, or name its folder")
    return max(saved)[1]


def folder_to_resume(chosen: str | None) -> Path:
    """``latest_folder``, in which nobody trains."""
    folder = latest_folder(chosen)
    if other := writer_of(folder):
        raise UsageError(f"cannot write into {folder}: {other} is writing it")
    return folder


@dataclasses.dataclass
class Run:
    """A training run: what a checkpoint holds, and the folder of its checkpoints. ``origin`` tells of the text."""

    folder: Path
    settings: Settings
    origin: dict[str, Any]
    tokenizer: Any
    model: CausalLM
    trainer: SimpleTrainer


def save_run(run: Run) -> Path:
    """Save a checkpoint, with all that an exact resume needs; returns its folder."""
    tensors, state = run_contents(run)
    return save_checkpoint(run.folder, tensors, state, keep=run.settings.keep)


def run_contents(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a checkpoint holds: tensors by file, and the rest as JSON values."""
    weights = {name: tensor.cpu().numpy() for name, tensor in run.model.state_dict().items()}
    arrays, meta = run.trainer.state_dict(run.model.named_parameters())
    return {"model": weights, "trainer": arrays}, {**run_state(run), "trainer": meta}


def run_state(run: Run) -> dict[str, Any]:
    """What a checkpoint holds beside model and trainer, as JSON values."""
    return {
        "step": run.trainer.global_step,
        "generator": minigrad.default_generator.state_dict(),
        "family": run.settings.family,
        "settings": dataclasses.asdict(run.settings),
        "tokenizer": run.tokenizer.to_dict(),
        "corpus": run.origin,
    }


def load_run(
    folder: Path,
    device: Device,
    step: int | None = None,
    changes: dict[str, Any] | None = None,
    kind: type[Settings] | None = None,
) -> Run:
    """Load a run from its newest checkpoint (or that of ``step``, or the one named), with some settings changed.

    Raises CheckpointError for one that is damaged or not of a character model. Raises UsageError for a change of what
    is fixed and for a run of another ``kind``.
    """
    try:
        checkpoint = load_checkpoint(folder, step)
    except CheckpointError as error:
        offer = "; to go on from that one, delete or rename the damaged folder" if error.previous else ""
        raise CheckpointError(f"{error.args[0]}{offer}", error.path, error.previous) from error
    return run_of(checkpoint, device, changes, kind)


def run_of(
    checkpoint: Checkpoint,
    device: Device,
    changes: dict[str, Any] | None = None,
    kind: type[Settings] | None = None,
    trainer: Callable[..., SimpleTrainer] = SimpleTrainer,
) -> Run:
    """The run that a checkpoint holds; errors as ``load_run``."""
    state, tensors, folder = checkpoint.state, checkpoint.tensors, checkpoint.path.parent
    try:
        fields, family = state["settings"], settings_of(state["family"])
        if kind not in (None, family):
            raise UsageError(f"{folder} is a run of {family.script}: resume it with that script")
        settings = with_changes(family(**fields), changes or {})
        if settings.n_layer > (stored := len(tensors["model"])):  # a claim: so many would take minutes to make
            raise ValueError(f"{settings.n_layer} layers, but the weights are {stored} tensors")
        tokenizer = family.tokenizer_of(state["tokenizer"])
        origin = dict(state["corpus"], data=state["corpus"]["data"], sha256=state["corpus"]["sha256"])
        model, made = settings.build(tokenizer.vocab_size, device, trainer)
        model.load_state_dict(tensors["model"])
        minigrad.default_generator.load_state_dict(state["generator"])
        made.load_state_dict(model.named_parameters(), tensors["trainer"], state["trainer"])
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        path = checkpoint.path
        raise CheckpointError(f"{path} is not a checkpoint of this script: {reason}", path) from error
    return Run(folder, settings, origin, tokenizer, model, made)


def with_changes(settings: Settings, changes: dict[str, Any]) -> Settings:
    """The settings of a resumed run; raises UsageError for a change of one that is fixed."""
    for field in dataclasses.fields(settings):
        old = getattr(settings, field.name)
        new = changes.get(field.name, old)
        if field.metadata["fixed"] and new != old:
            raise UsageError(f"{flag(field.name)} {new}: the run has {old}, and a resumed run keeps it")
    settings = dataclasses.replace(settings, **changes)
    settings.check()
    return settings
