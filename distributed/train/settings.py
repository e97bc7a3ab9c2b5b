"""The YAML file of ``python -m minigrad.distributed.train``, read into dataclasses and checked by name.

A misspelt key, a wrong type or a key given twice is an error: a run of days must not find out at its end that half of
its settings were never read.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from minigrad.models import GPT2, CausalLM, GPT2Config, Llama, LlamaConfig
from minigrad.optim import AdamW, CosineAnnealing

from ..comm.launchers import Place
from ..job.train_place import DistributedTrainConfig
from .config import TrainingConfig

Section = TypeVar("Section")


class SettingsError(ValueError):
    """The file or the flags cannot be followed; the message names the key."""


@dataclasses.dataclass(frozen=True)
class ModelSection:
    """``model``: a GPT-2 or a Llama; its vocabulary is that of the text, its context ``training.seq_len``.

    ``n_kv_head`` is for Llama alone (default: n_head); ``n_inner`` None is 4 n_embd.
    """

    family: str = "gpt2"
    n_layer: int = 4
    n_head: int = 4
    n_kv_head: int | None = None
    n_embd: int = 128
    n_inner: int | None = None
    dropout: float = 0.0
    tied: bool = True

    def build(self, vocab_size: int, seq_len: int) -> CausalLM:
        """A new model, with weights from the default generator."""
        if self.family == "gpt2":
            channels = (self.n_head, self.n_embd, self.dropout)
            gpt = GPT2Config(vocab_size, seq_len, self.n_layer, *channels, tied=self.tied, n_inner=self.n_inner)
            return GPT2(gpt)
        heads = (self.n_head, self.n_head if self.n_kv_head is None else self.n_kv_head)
        inner = 4 * self.n_embd if self.n_inner is None else self.n_inner
        sizes = (seq_len, self.n_layer, *heads, self.n_embd, inner)
        return Llama(LlamaConfig(vocab_size, *sizes, dropout=self.dropout, tied=self.tied))


@dataclasses.dataclass(frozen=True)
class DataSection:
    """``data``: ``source`` is ``pydoc``, ``shakespeare``, or paths of text files and folders. Characters are tokens."""

    source: str | list[str] = "pydoc"


@dataclasses.dataclass(frozen=True)
class DistributedSection:
    """``training.distributed``: the fields of DistributedTrainConfig. ``rank`` is better left to a launcher."""

    world_size: int
    rank: int | None = None
    local_rank: int | None = None
    role: str | None = None
    coordinator_addr: str | None = None
    backend: str = "cpu"


@dataclasses.dataclass(frozen=True)
class TrainingSection:
    """``training``. The defaults are entrenar's, but for ``seq_len`` (512 there).

    ``batch_size`` sequences of ``seq_len`` tokens make a micro-batch of one rank; ``accumulation_steps`` of them a
    step. Training ends after ``max_steps``, or after ``epochs``: one of the two is given.
    """

    output_dir: str = "runs/distributed"
    seed: int = 42
    max_steps: int | None = None
    epochs: int | None = None
    batch_size: int = 8
    seq_len: int = 64
    accumulation_steps: int = 1
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01
    warmup_steps: int = 0
    max_grad_norm: float | None = 1.0
    log_interval: int = 1
    save_interval: int = 100
    keep: int = 5
    timeout: float = 600.0
    distributed: DistributedSection | None = None

    def trainer_config(self) -> TrainingConfig:
        """What the trainer is told."""
        return TrainingConfig(self.lr, self.weight_decay, self.max_grad_norm, self.accumulation_steps)

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

    def fixed(self) -> dict[str, Any]:
        """The settings that make the run what it is, by dotted name."""
        free = ("output_dir", "log_interval", "save_interval", "keep", "timeout", "distributed")
        out = {f"model.{key}": value for key, value in dataclasses.asdict(self.model).items()}
        out |= {f"training.{k}": v for k, v in dataclasses.asdict(self.training).items() if k not in free}
        return out


def read_settings(path: str | Path) -> Settings:
    """The settings of a YAML file. Raises SettingsError, naming the key, for everything that is not understood, and
    ModuleNotFoundError, saying what to install, without PyYAML."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'a YAML configuration needs PyYAML; install the extra `yaml`: pip install "minigrad-cuda[yaml]"'
        ) from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML is not typed
        """Plain values only, and no key twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, str):
                    raise SettingsError(f"{path}, line {key_node.start_mark.line + 1}: the key {key!r} is no text")
                if key in seen:
                    raise SettingsError(f"{path}, line {key_node.start_mark.line + 1}: {key} is given twice")
                seen.add(key)
            return dict(super().construct_mapping(node, deep))

    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingsError(f"{path} is no valid YAML: {' '.join(str(error).split())}") from error
    settings = _section(Settings, {} if content is None else content, "")
    _check(settings)
    return settings


def resolve(
    section: DistributedSection | None,
    place: Place,
    *,
    world_size: int | None = None,
    rank: int | None = None,
    coordinator: str | None = None,
) -> DistributedTrainConfig:
    """This process's place: from the flags, else from the file, else from what launched it.

    Raises SettingsError for a place that makes no sense, and for one that a launcher contradicts.
    """
    given = {} if section is None else dataclasses.asdict(section)
    for name, value in (("world_size", world_size), ("rank", rank), ("coordinator_addr", coordinator)):
        given[name] = given.get(name) if value is None else value
    if given["world_size"] is None:
        given["world_size"] = place.world_size
    if given["rank"] is None:
        if place.source == "single" and given["world_size"] != 1 and given.get("backend") == "cuda":
            raise SettingsError(f"which of the {given['world_size']} ranks is this? Nothing launched it: pass --rank")
        given["rank"] = place.rank
    try:
        config = DistributedTrainConfig(**given)
        config.check_place(place)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return config


# ------------------------------------------------------------------ reading


def _section(kind: type[Section], content: Any, where: str) -> Section:
    """A dataclass from a mapping, each key known and each value of its type."""
    if not isinstance(content, dict):
        raise SettingsError(f"{where or 'the file'} is {_show(content)}, expected keys and values")
    hints = typing.get_type_hints(kind)
    for key in content:
        if key not in hints:
            near = difflib.get_close_matches(str(key), hints, 1)
            raise SettingsError(
                f"unknown key {where}{'.' * bool(where)}{key}"
                + (f"; did you mean {near[0]}?" if near else f"; the keys here are {', '.join(hints)}")
            )
    values = {key: _value(hints[key], value, f"{where}{'.' * bool(where)}{key}") for key, value in content.items()}
    missing = [
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]  # all sections are dataclasses
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise SettingsError(f"{where} needs {', '.join(missing)}")
    return kind(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for choice in choices:
        if dataclasses.is_dataclass(choice) and value is not None:
            return _section(typing.cast(type, choice), value, where)
        if choice is float and type(value) in (int, float):
            return float(value)
        if typing.get_origin(choice) is list:
            if type(value) is list and value and all(type(one) is str for one in value):
                return value
        elif type(value) is choice:
            return value
    wanted = " or ".join(_NAMES.get(str(choice), choice.__name__) for choice in choices)
    hint_text = ""
    if type(value) is str and float in choices and _is_number(value):
        hint_text = f" (YAML reads {value} as text; write it with a dot, as 1.0e-3)"
    raise SettingsError(f"{where} is {_show(value)}, expected {wanted}{hint_text}")


_NAMES = {
    "<class 'int'>": "an integer",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'str'>": "text",
    "list[str]": "a list of paths",
    "<class 'NoneType'>": "null",
}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def _check(settings: Settings) -> None:
    """Values that no part of the training would refuse more clearly."""
    t, m = settings.training, settings.model
    for name, least in (
        ("seed", 0), ("max_steps", 1), ("epochs", 1), ("batch_size", 1), ("seq_len", 1), ("accumulation_steps", 1),
        ("warmup_steps", 0), ("log_interval", 1), ("save_interval", 1), ("keep", 1),
    ):  # fmt: skip
        value = getattr(t, name)
        if value is not None and value < least:
            raise SettingsError(f"training.{name} is {value}, expected at least {least}")
    if not 0 < t.timeout < float("inf"):
        raise SettingsError(f"training.timeout is {t.timeout}, expected seconds above 0")
    if (t.max_steps is None) == (t.epochs is None):
        raise SettingsError("training needs one of max_steps and epochs" + ("" if t.epochs is None else ", not both"))
    if m.family not in ("gpt2", "llama"):
        raise SettingsError(f"model.family is {m.family!r}, expected gpt2 or llama")
    if m.family == "gpt2" and m.n_kv_head is not None:
        raise SettingsError(
            f"model.n_kv_head is {m.n_kv_head}, but a gpt2 has as many as heads of queries: leave it out"
        )
    try:
        t.trainer_config()
        AdamW(lr=t.lr, betas=(t.beta1, t.beta2), weight_decay=t.weight_decay)
        t.schedule(1)
    except ValueError as error:
        raise SettingsError(f"training: {error}") from error
