"""The YAML file of ``python -m minigrad.distributed.train``, read into dataclasses and checked by name.

A misspelt key, a wrong type or a key given twice is an error: a run of days must not find out at its end that half of
its settings were never read.
"""

import contextlib
import dataclasses
import difflib
import functools
import itertools
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from minigrad.data import BytePairTokenizer, CharTokenizer, LibraryTokenizer, load_tokenizer
from minigrad.device import Device
from minigrad.dtypes import bfloat16, float16
from minigrad.errors import NonNegative, NonNegativeInt, PositiveInt, check_fields, check_float, check_int, of_extra
from minigrad.models import GPT2, CausalLM, Llama
from minigrad.optim import AdamW, CosineAnnealing
from minigrad.tools.free_memory import BLOCK_SECONDS, check_model_fits

from ..comm.launchers import Place
from ..job.rendezvous import DistributedTrainConfig
from .config import GradLimit, TrainingConfig

Section = TypeVar("Section")
Seed: TypeAlias = Annotated[int, functools.partial(check_int, least=0, most=2**64 - 1)]
BelowOne: TypeAlias = Annotated[float, functools.partial(check_float, below=1.0)]
# What PyYAML raises for a wrong !!tag, for 31 February, for a number of 5,000 digits, and for deep nesting.
UNFIT = (ValueError, AttributeError, KeyError, TypeError, RecursionError)


class SettingsError(ValueError):
    """The file or the flags cannot be followed; the message names the key."""


@contextlib.contextmanager
def of_file(path: str | Path, flags: Iterable[str] = ()) -> Iterator[None]:
    """A SettingsError that is raised within names the file, and the flags that outweigh it, in one line."""
    try:
        yield
    except SettingsError as error:
        where = " ".join([str(path), *(f"--{flag}" for flag in flags)])
        raise SettingsError(" ".join(f"{where}: {error}".partition("\n  at ")[0].split())) from error


@contextlib.contextmanager
def of_key(key: str, kinds: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """An error of these kinds that is raised within is a SettingsError, which names this key."""
    try:
        yield
    except SettingsError:
        raise
    except kinds as error:
        raise SettingsError(f"{key}: {error}") from error


@dataclasses.dataclass(frozen=True)
class ModelSection:
    """``model``: a GPT-2 or a Llama; its vocabulary is that of the text, its context ``training.seq_len``.

    ``n_kv_head`` is for Llama alone (default: n_head); ``n_inner`` None is 4 n_embd. With ``checkpoint_blocks``
    backward computes activations again, for less memory.
    """

    family: str = "gpt2"
    n_layer: int = 4
    n_head: int = 4
    n_kv_head: int | None = None
    n_embd: int = 128
    n_inner: int | None = None
    dropout: float = 0.0
    tied: bool = True
    checkpoint_blocks: bool = False

    def build(
        self, vocab_size: int, seq_len: int, batch_size: int, device: Device, say: Callable[[str], None]
    ) -> CausalLM:
        """A new model, with weights from the default generator: thousands of layers take a while, so ``say`` tells.

        ValueError for one that cannot be trained here on such micro-batches, on this rank and those beside it.
        """
        sizes = {key: n for key, n in dataclasses.asdict(self).items() if key != "family" and n is not None}
        kind: type[CausalLM] = GPT2
        if self.family != "gpt2":
            kind, sizes = Llama, {"n_kv_head": self.n_head, "n_inner": 4 * self.n_embd, **sizes}
        config = kind.config_class(vocab_size, seq_len, **sizes)
        ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1)) if device.type == "cpu" else 1  # share the memory
        # 16 bytes: weight, gradient, and AdamW's two moments, in float32.
        least = check_model_fits(config, 16, device, ranks, batch_size * seq_len)
        seconds = f", in about {self.n_layer * BLOCK_SECONDS:.0f} s" if self.n_layer > 1000 else ""
        say(f"making a {self.family} of {self.n_layer:,} layers{seconds}: at least {least} of memory for a step")
        return kind(config)


@dataclasses.dataclass(frozen=True)
class DataSection:
    """``data``: ``source`` is ``pydoc``, ``shakespeare``, or paths of text files and folders.

    ``tokens`` are ``characters``, ``bytes``, or those of the tokenizer.json at this path.
    """

    source: str | list[str] = "pydoc"
    tokens: str = "characters"

    def tokenizer_of(self, text: str) -> CharTokenizer | LibraryTokenizer:
        """What makes tokens of the text. Raises DataError for a file that is none."""
        if self.tokens == "characters":
            return CharTokenizer.from_text(text)
        return BytePairTokenizer.train(text, 256) if self.tokens == "bytes" else load_tokenizer(self.tokens)


@dataclasses.dataclass(frozen=True)
class DistributedSection:
    """``training.distributed``: the fields of DistributedTrainConfig. ``rank`` is better left to a launcher, which may
    say ``world_size``, too."""

    world_size: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    role: str | None = None
    coordinator_addr: str | None = None
    backend: str = "cpu"


@dataclasses.dataclass(frozen=True)
class TrainingSection:
    """``training``. The defaults are entrenar's, but for ``seq_len`` (512 there).

    ``batch_size`` sequences of ``seq_len`` tokens make a micro-batch of one rank; ``accumulation_steps`` of them a
    step. Training ends after ``max_steps``, or after ``epochs``: one of the two is given. ``mixed_precision`` is
    ``bf16`` or ``fp16``.
    """

    output_dir: str = "runs/distributed"
    seed: Seed = 42
    max_steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    batch_size: PositiveInt = 8
    seq_len: PositiveInt = 64
    accumulation_steps: PositiveInt = 1
    lr: NonNegative = 1e-3
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    weight_decay: NonNegative = 0.01
    warmup_steps: NonNegativeInt = 0
    max_grad_norm: GradLimit | None = 1.0
    mixed_precision: str | None = None
    log_interval: PositiveInt = 1
    save_interval: PositiveInt = 100
    keep: PositiveInt = 5
    timeout: float = 600.0
    distributed: DistributedSection | None = None

    def trainer_config(self) -> TrainingConfig:
        """What the trainer is told."""
        return TrainingConfig(self.lr, self.weight_decay, self.max_grad_norm, self.accumulation_steps)

    @property
    def compute_dtype(self) -> Any:
        """The dtype of mixed precision."""
        return float16 if self.mixed_precision == "fp16" else bfloat16

    def optimizer(self, model: CausalLM) -> AdamW:
        """AdamW for all parameters."""
        betas = (self.beta1, self.beta2)
        return AdamW(model.named_parameters(), lr=self.lr, betas=betas, weight_decay=self.weight_decay)

    def schedule(self, steps: int) -> CosineAnnealing:
        """Linear warmup, then a cosine to 0 at the last step."""
        warmup = min(self.warmup_steps, steps)
        return CosineAnnealing(self.lr, 0.0, warmup_steps=warmup, total_steps=max(steps, warmup + 1))


@dataclasses.dataclass(frozen=True)
class Settings:
    """The whole file. What must not change when a run is resumed is ``fixed``."""

    model: ModelSection = dataclasses.field(default_factory=ModelSection)
    data: DataSection = dataclasses.field(default_factory=DataSection)
    training: TrainingSection = dataclasses.field(default_factory=TrainingSection)

    def __post_init__(self) -> None:
        """Values that no part of the training would refuse more clearly."""
        t, m = self.training, self.model
        if (t.max_steps is None) == (t.epochs is None):
            more = "" if t.epochs is None else ", not both"
            raise SettingsError(f"training needs one of max_steps and epochs{more}")
        if m.family not in ("gpt2", "llama"):
            raise SettingsError(f"model.family is {m.family!r}, expected gpt2 or llama")
        if m.family == "gpt2" and m.n_kv_head is not None:
            raise SettingsError(f"model.n_kv_head is {m.n_kv_head}, but a gpt2 has n_head of them: leave it out")
        if t.mixed_precision not in (None, "bf16", "fp16"):
            raise SettingsError(f"training.mixed_precision is {t.mixed_precision!r}, expected bf16, fp16 or null")
        if not 0 < t.timeout < math.inf:
            raise SettingsError(f"training.timeout is {t.timeout}, expected seconds above 0")
        with of_key("training"):
            check_fields(t)

    def named(self) -> dict[str, Any]:
        """All settings but those of ``training.distributed``, by dotted name."""
        found = _by_name(dataclasses.asdict(self), "")
        return {name: value for name, value in found if not name.startswith("training.distributed")}

    def fixed(self) -> dict[str, Any]:
        """The settings that make the run what it is, by dotted name."""
        free = ["output_dir", "max_steps", "epochs", "log_interval", "save_interval", "keep", "timeout"]
        changeable = {"data.source", *(f"training.{key}" for key in free)}
        return {name: value for name, value in self.named().items() if name not in changeable}


# entrenar's command-line flags, and the keys that they set.
FLAGS = {
    "--output-dir": "training.output_dir",
    "--epochs": "training.epochs",
    "--batch-size": "training.batch_size",
    "--lr": "training.lr",
    "--save-every": "training.save_interval",
    "--log-every": "training.log_interval",
    "--seed": "training.seed",
    "--world-size": "training.distributed.world_size",
    "--rank": "training.distributed.rank",
    "--coordinator": "training.distributed.coordinator_addr",
}
# entrenar's names in the file, and ours.
OTHER_NAMES = {
    "model.architecture": "model.family",
    "data.train": "data.source",
    "training.steps": "training.max_steps",
    "training.grad_clip": "training.max_grad_norm",
    "training.gradient_checkpointing": "model.checkpoint_blocks",
    **{f"optimizer.{name}": f"training.{name}" for name in ("lr", "beta1", "beta2", "weight_decay")},
}
# What entrenar's files may say, and what is so anyway.
ALWAYS = {"optimizer": {}, "optimizer.name": "adamw", "training.deterministic": True}


def read_overrides(arguments: Sequence[str]) -> dict[str, str]:
    """``--SECTION.KEY VALUE`` and ``--SECTION.KEY=VALUE`` as {"SECTION.KEY": "VALUE"}. Raises SettingsError."""
    found: dict[str, str] = {}
    rest = [part for one in arguments for part in (one.split("=", 1) if one.startswith("--") else [one])]
    for flag, value in itertools.zip_longest(rest[::2], rest[1::2]):
        if not flag.startswith("--") or "." not in flag or value is None or value.startswith("--"):
            raise SettingsError(f"unknown argument {flag}: expected a flag of --help, or --SECTION.KEY VALUE")
        found[flag.removeprefix("--")] = value
    return found


def read_settings(path: str | Path, overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings of a YAML file, and of ``overrides``: values, as text, by dotted name.

    Raises SettingsError, naming file and key in one line, for everything that is not understood, and
    ModuleNotFoundError, saying what to install, without PyYAML.
    """
    yaml = of_extra("yaml", "yaml", "a YAML configuration needs PyYAML")

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]  # PyYAML is not typed
        """Plain values only, and no key twice; 1e-3 is a number, as in YAML 1.2."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, value_node in node.value if isinstance(node, yaml.MappingNode) else []:
                key = self.construct_object(key_node, deep=True)
                line = f"line {key_node.start_mark.line + 1}"
                if not isinstance(key, str) or "." in key:
                    raise SettingsError(f"{line}: the key {key!r} is no text without a dot")
                if key in seen:
                    raise SettingsError(f"{line}: {key} is given twice")
                seen.add(key)
                with of_key(f"{line}: {key}", UNFIT):
                    self.construct_object(value_node, deep=True)
            return dict(super().construct_mapping(node, deep))

    number = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$", re.ASCII)
    # int and str again: an integer of 5,000 digits in base 16 could be read, but no message could show it.
    Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(str(loader.construct_yaml_int(node))))
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    with of_file(path, overrides or {}):
        with of_key("it cannot be read", (OSError, ValueError)):
            text = Path(path).read_text(encoding="utf-8")
        with of_key("it is no valid YAML", (yaml.YAMLError, *UNFIT)):
            content = yaml.load(text, Loader)
        content = {} if content is None else content
        if isinstance(content, dict):
            given = {key: _plain(yaml, Loader, key, text) for key, text in (overrides or {}).items()}
            content = _overridden(content, given)
        return _section(Settings, content, "")


def resolve(section: DistributedSection | None, place: Place) -> DistributedTrainConfig:
    """This process's place: from the settings, else from what launched it.

    Raises SettingsError for a place that makes no sense, and for one that a launcher contradicts.
    """
    alone = place.source == "single"
    given = dataclasses.asdict(section or DistributedSection())
    if given["world_size"] is None:
        if section is not None and alone:
            raise SettingsError("training.distributed needs world_size: nothing launched this process")
        given["world_size"] = place.world_size
    if given["rank"] is None:
        if alone and given["world_size"] != 1 and (given["backend"] == "cuda" or given["coordinator_addr"]):
            raise SettingsError(f"which of the {given['world_size']} ranks is this? Nothing launched it: pass --rank")
        given["rank"] = place.rank
    with of_key("training.distributed"):
        config = DistributedTrainConfig(**given)
        config.check_place(place)
    if config.by_hand and config.local_rank is not None:
        raise SettingsError("training.distributed.local_rank is for GPUs, or for a launcher to say; leave it out")
    return config


# ------------------------------------------------------------------ reading


def _plain(yaml: Any, loader: Any, key: str, text: str) -> Any:
    """A value of the command line, as in the file."""
    with of_key(f"{key}: {text[:40]!r} is no value of YAML", (yaml.YAMLError, *UNFIT)):
        return yaml.load(text, loader)


def _overridden(content: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The file's keys under this module's names, and over them those of the command line."""
    named = dict(_by_name(content, ""))
    for other, name in OTHER_NAMES.items():
        if other in named:
            if name in named:
                raise SettingsError(f"{other} and {name} are the same: give one")
            named[name] = named.pop(other)
    named = {name: value for name, value in named.items() if name not in ALWAYS or value != ALWAYS[name]}
    given = {OTHER_NAMES.get(name, name): value for name, value in overrides.items()}
    lengths = {"training.max_steps", "training.epochs"}  # one given here outweighs the other there
    if lengths & given.keys():
        named = {name: value for name, value in named.items() if name not in lengths}
    return {**named, **given}


def _by_name(content: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """The values within sections, by dotted name."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _by_name(value, f"{where}{key}.")
        else:
            yield where + key, value


def _section(kind: type[Section], named: Any, where: str) -> Section:
    """A dataclass from values by dotted name, each key known and each value of its type."""
    if not isinstance(named, dict):
        raise SettingsError(f"{where or 'the file'} is {_show(named)}, expected keys and values")
    hints, prefix = typing.get_type_hints(kind), f"{where}{'.' * bool(where)}"
    content: dict[str, Any] = {}
    for name, value in named.items():
        key, dot, rest = name.partition(".")
        if key not in hints:
            near = difflib.get_close_matches(key, hints, 1)
            advice = f"did you mean {near[0]}?" if near else f"the keys here are {', '.join(hints)}"
            raise SettingsError(f"unknown key {prefix}{key}; {advice}")
        if not dot:
            content[key] = value
            continue
        section = {} if content.get(key) is None else content[key]
        if not isinstance(section, dict):
            raise SettingsError(f"{key} is {_show(section)}, expected keys and values, of which {prefix}{name} is one")
        content[key] = {**section, rest: value}
    return kind(**{key: _value(hints[key], value, prefix + key) for key, value in content.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    choices = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for choice in choices:
        if dataclasses.is_dataclass(choice) and value is not None:
            return _section(typing.cast(type, choice), value, where)
        if choice is float and type(value) is int and abs(value) < 2**1023:
            return float(value)
        if type(value) is typing.get_origin(choice) is list and value and all(type(one) is str for one in value):
            return value
        if type(value) is choice:
            return value
    wanted = " or ".join(_NAMES.get(str(choice), choice.__name__) for choice in choices)
    raise SettingsError(f"{where} is {_show(value)}, expected {wanted}")


_NAMES = {
    "<class 'int'>": "an integer",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'str'>": "text",
    "list[str]": "a list of paths",
    "<class 'NoneType'>": "null",
}


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
