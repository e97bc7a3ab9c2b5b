"""Complete models: language models of the GPT-2 and Llama families, with the weights that Hugging Face's files hold."""

from pathlib import Path
from typing import Any

from .. import hints as _hints
from ..device import CPU, Place
from ..files.durable import StrPath
from .causal_lm import CausalLM
from .gpt2 import GPT2
from .gpt2_config import GPT2Config, gpt2_memory
from .hub_config import HubConfig
from .llama import Llama, LlamaConfig, RopeScaling

__all__ = ["GPT2", "CausalLM", "GPT2Config", "Llama", "LlamaConfig", "RopeScaling", "from_pretrained", "gpt2_memory"]

FAMILIES: dict[str, type[CausalLM]] = {kind: family for family in (GPT2, Llama) for kind in family.model_types}


def from_pretrained(
    folder: StrPath, *, dtype: Any = None, device: Place = CPU, dropout: float | None = None
) -> CausalLM:
    """The model of a folder in Hugging Face's format, of the family that its ``config.json`` names.

    GPT-2 (``"model_type": "gpt2"``) and Llama (``"llama"``; SmolLM2 is one), of which ``"mistral"`` and ``"qwen3"`` are
    settings. For the arguments see `CausalLM.from_pretrained`.

    Raises:
        CheckpointError: as there, or the family is another one.
    """
    hub = HubConfig(Path(folder))
    family = hub.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise hub.error(f"model_type {family!r:.60} is not supported, only {', '.join(FAMILIES)}")
    return FAMILIES[family].from_pretrained(folder, dtype=dtype, device=device, dropout=dropout)


_hints.answer_for(__name__)
