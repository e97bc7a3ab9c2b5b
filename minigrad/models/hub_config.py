"""Hugging Face's ``config.json``, read so that nothing is ignored in silence.

A family takes the fields that it knows, states which are without effect and which values it cannot follow; what is left
over is reported.
"""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, get_type_hints

from ..errors import expect
from ..files.safetensors_format import CheckpointError, read_json, show

CONFIG = "config.json"
MAX_CONFIG = 1 << 20  # bytes; published ones have a few thousand
LARGE = 2.0**128  # no number of float32 is as large
_REQUIRED: Any = object()

# About the file, about other uses of the model, or about how transformers runs it.
INERT = (
    "_attn_implementation", "_name_or_path", "architectures", "auto_map", "chunk_size_feed_forward", "dtype",
    "id2label", "initializer_range", "label2id", "model_type", "name_or_path", "output_attentions",
    "output_hidden_states", "pad_token_id", "problem_type", "return_dict", "task_specific_params", "torch_dtype",
    "torchscript", "transformers_version", "use_cache", "use_return_dict",
)  # fmt: skip
# What would change the numbers, with the values that do not.
REFUSED: dict[str, tuple[Any, ...]] = {
    "attn_logit_softcapping": (None,), "cross_attention_hidden_size": (None,), "final_logit_softcapping": (None,),
    "is_encoder_decoder": (False,), "pruned_heads": (None, {}), "quantization_config": (None,),
    "use_sliding_window": (False,),
}  # fmt: skip


class HubConfig:
    """The fields of one ``config.json``; errors are `CheckpointError` and name the file."""

    def __init__(self, folder: Path) -> None:
        self.path: Path = folder / CONFIG
        if not os.path.isdir(folder):
            raise CheckpointError(f"{folder} is not a folder; models are read from local folders", folder)
        self.values: Any = read_json(self.path, MAX_CONFIG)
        if not isinstance(self.values, dict):
            raise self.error("it is not a JSON object")
        self._used = set(INERT)
        for name, values in REFUSED.items():
            self.only(name, *values)
        kinds = self.get("layer_types", None)  # one name for each layer
        if kinds is not None and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
            raise self.error(f"layer_types = {show(kinds)} is not supported, only 'full_attention' of every layer")
        layers = self.values.get("num_hidden_layers")
        if kinds is not None and type(layers) is int and len(kinds) != layers:
            raise self.error(f"layer_types has {len(kinds)} entries, but num_hidden_layers is {layers}")

    def error(self, fault: str) -> CheckpointError:
        """A `CheckpointError` that names the file."""
        return CheckpointError(f"{self.path}: {fault}", self.path)

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """A field, or the default; without one, a missing field is an error."""
        self._used.add(name)
        value = self.values.get(name, default)
        if value is _REQUIRED:
            raise self.error(f"the field {name!r} is missing")
        return value

    def integer(self, name: str, default: Any = _REQUIRED) -> int:
        """A positive integer. null is taken as missing where there is a default."""
        value = self.get(name, default)
        value = default if value is None and default is not _REQUIRED else value
        return int(self._checked(name, value, type(value) is int and 1 <= value < 2**31, "a positive integer"))

    def number(self, name: str, default: float, above: float = 0.0) -> float:
        """A number above ``above`` that float32 can hold."""
        return self.check_number(name, self.get(name, default), above)

    def check_number(self, name: str, value: Any, above: float = 0.0) -> float:
        """``value`` if it is a number above ``above`` that float32 can hold."""
        good = type(value) in (int, float) and above < value < LARGE
        return float(self._checked(name, value, good, f"a number above {above:g} and below {LARGE:.1e}"))

    def probability(self, name: str, default: float) -> float:
        """A number in [0, 1)."""
        value = self.get(name, default)
        good = type(value) in (int, float) and 0 <= value < 1
        return float(self._checked(name, value, good, "a probability below 1"))

    def boolean(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.get(name, default)
        return bool(self._checked(name, value, type(value) is bool, "true or false"))

    def _checked(self, name: str, value: Any, good: bool, expected: str) -> Any:
        if not good:
            raise self.error(f"{name} is {show(value)}, expected {expected}")
        return value

    def token_ids(self, name: str) -> int | tuple[int, ...] | None:
        """A token, several, or null. Those beyond the vocabulary, as transformers' defaults are for small models, never
        come."""
        value = self.get(name, None)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        good = all(type(index) is int and 0 <= index < 2**31 for index in ids)
        self._checked(name, value, good, "a token, a list of tokens, or null")
        return tuple(ids) if isinstance(value, list) and ids else ids[0] if ids else None

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse the field unless it is absent or has one of these values."""
        if name in self.values:
            value = self.get(name)
            if not any(type(value) is type(known) and value == known for known in allowed):
                expected = " or ".join("null" if a is None else show(a) for a in allowed)
                raise self.error(f"{name} = {show(value)} is not supported, only {expected}")

    def inert(self, *names: str) -> None:
        """Fields without effect on the numbers."""
        self._used.update(names)

    def finish(self) -> None:
        """Warn of fields that nobody has asked for, unless they are null or false."""
        unknown = [name for name, value in self.values.items() if name not in self._used and value not in (None, False)]
        if unknown:
            names = ", ".join(show(name) for name in unknown)
            warnings.warn(f"{self.path}: not known here, and without effect: {names}", UserWarning, stacklevel=3)


class Stored(NamedTuple):
    """How ``config.json`` says a field of a configuration, whose type is annotated with this."""

    name: str
    read: Callable[..., Any] = HubConfig.integer
    default: tuple[Any, ...] = ()  # what a missing field means; none: it is an error

    @staticmethod
    def fields(kind: type) -> "dict[str, Stored]":
        """Of all fields that are so annotated."""
        kinds = get_type_hints(kind, include_extras=True)
        found = {name: getattr(hint, "__metadata__", (None,))[0] for name, hint in kinds.items()}
        return {name: stored for name, stored in found.items() if isinstance(stored, Stored)}

    @staticmethod
    def read_all(kind: type, hub: HubConfig) -> dict[str, Any]:
        """The values of these fields."""
        return {name: s.read(hub, s.name, *s.default) for name, s in Stored.fields(kind).items()}

    @staticmethod
    def write_all(config: Any) -> dict[str, Any]:
        """The fields of ``config.json`` that say these."""
        return {s.name: getattr(config, name) for name, s in Stored.fields(type(config)).items()}


TokenIds = int | tuple[int, ...] | None
Bos: TypeAlias = Annotated[TokenIds, Stored("bos_token_id", HubConfig.token_ids)]
Eos: TypeAlias = Annotated[TokenIds, Stored("eos_token_id", HubConfig.token_ids)]


def check_sizes(config: Any, *names: str) -> None:
    """ValueError unless the fields of these names are positive integers."""
    for name in names:
        value = getattr(config, name)
        positive = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        expect(positive, f"{type(config).__name__}: {name}", value, "a positive integer")


def check_numbers(config: Any) -> None:
    """ValueError unless ``dropout`` is a probability below 1, and ``eps`` a number of float32."""
    expect(0 <= config.eps < LARGE, f"{type(config).__name__}: eps", config.eps, f"a number in [0, {LARGE:.1e})")
    expect(0 <= config.dropout < 1, f"{type(config).__name__}: dropout", config.dropout, "[0, 1)")
