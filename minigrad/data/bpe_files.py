"""Reading and writing the files of byte-pair tokenizers, among them GPT-2's ``vocab.json`` and ``merges.txt``.

Files come from anywhere, so sizes are bounded, and every fault is a `DataError`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..files import durable
from ..files.safetensors_format import CheckpointError, parse_json, read_bytes, show
from .bpe_definition import AddedToken, Definition
from .errors import DataError
from .pretokenize import GPT2, to_characters
from .tokenizer_json import parse_merges, parse_vocab, vocab_strings

MAX_BYTES = 64 << 20
# Lists and objects, and commas: they bound the memory that a file can ask for. Llama 3's has 280,000 and 690,000.
MAX_CONTAINERS = 1_000_000
MAX_COMMAS = 4_000_000
_R = TypeVar("_R")


def from_gpt2(vocab: Any, lines: Sequence[str], special_tokens: Sequence[str]) -> Definition:
    """What the two files of GPT-2 say.

    Raises:
        DataError: naming the fault.
    """
    if not isinstance(vocab, dict):
        raise DataError(f"{show(vocab)} is not an object of tokens and ids")
    for token in special_tokens:
        if type(vocab.get(token)) is not int:
            raise DataError(f"the special token {show(token)} is not in the vocabulary: name others, or none")
    added = sorted([AddedToken(token, vocab[token]) for token in special_tokens], key=lambda token: token.id)
    merges = parse_merges([line for line in lines[lines[0].startswith("#version") :] if line])
    return Definition(parse_vocab(vocab, added, merges), merges, added, (GPT2,))


def to_gpt2(definition: Definition) -> tuple[dict[str, int], str]:
    """The content of ``vocab.json``, and the text of ``merges.txt``.

    Raises:
        DataError: the files cannot express this tokenizer.
    """
    plain = Definition(definition.vocab, definition.merges, definition.added, (GPT2,))
    strings = vocab_strings(definition)
    same = all(token.special and not token.normalized for token in definition.added)
    if definition != plain or not same:
        raise DataError("GPT-2's files cannot express this tokenizer's pattern or added tokens: save it as one file")
    pairs = [f"{to_characters(left)} {to_characters(right)}\n" for left, right in definition.merges]
    return strings, "#version: 0.2\n" + "".join(pairs)


# ---- reading and writing -------------------------------------------------------------------------------------------


def at_path(path: str | os.PathLike[str], read: Callable[[], _R]) -> _R:
    """`read()`, its errors beginning with the path."""
    try:
        return read()
    except DataError as error:
        raise DataError(f"{os.fspath(path)}: {error}") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a text file of bounded size.

    Raises:
        DataError: it cannot be read, is too large, or not UTF-8.
    """
    try:
        text = _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 at byte {error.start:,}") from None
    return [line.removesuffix("\r") for line in text.split("\n")]


def read_json(path: Path) -> Any:
    """The JSON of a file: of bounded size, without duplicate keys.

    Raises:
        DataError: it cannot be read, is too large, or not such JSON.
    """
    raw = _read(path)
    try:
        return parse_json(raw, MAX_CONTAINERS, MAX_COMMAS)
    except ValueError as error:
        raise DataError(str(error)) from None


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, MAX_BYTES)
    except CheckpointError as error:
        raise DataError(error.args[0].removeprefix(f"{path}: ")) from None


def write_json(path: Path, document: Any) -> None:
    """Replace a file by JSON, durably."""
    write_text(path, json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def write_text(path: Path, text: str) -> None:
    """Replace a file by a text in UTF-8, durably."""
    durable.replace_file(path, [text.encode()])
