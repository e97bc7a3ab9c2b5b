"""A folder of a published model, for the examples: its weights and its tokenizer, and the files that belong to both."""

from __future__ import annotations

import shutil
from pathlib import Path

from command_line import UsageError

from minigrad.data import LibraryTokenizer, load_tokenizer
from minigrad.device import Device
from minigrad.models import CausalLM, from_pretrained

# What transformers reads beside the weights, and what saving weights does not write.
COMPANIONS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


def is_pretrained(folder: Path) -> bool:
    """Whether this is such a folder, and not one of checkpoints."""
    return (folder / "config.json").exists()


def load_pretrained(folder: Path, device: Device, dropout: float | None = None) -> tuple[CausalLM, LibraryTokenizer]:
    """Weights and tokenizer; CheckpointError and DataError name what is missing or not supported."""
    model = from_pretrained(folder, device=device, dropout=dropout)
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise UsageError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} tokens, the model knows "
            f"{model.config.vocab_size:,}; they do not belong together"
        )
    return model, tokenizer


def copy_companions(source: Path, target: Path) -> None:
    """Copy the tokenizer's files as they are."""
    for name in COMPANIONS:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
