"""The tokenizers of train_gpt2.py: bytes, or that of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from command_line import UsageError

from minigrad.data import BytePairTokenizer, DataError, LibraryTokenizer, load_tokenizer

ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>")  # of GPT-2 and Qwen, Llama 3, and Mistral


class ByteTokenizer:
    """The bytes of UTF-8 as tokens 0 to 255, and 256 for the end of a text."""

    vocab_size = 257
    end_of_text = 256

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """The bytes of ``text``."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode_bytes(self, tokens: npt.ArrayLike | Sequence[int]) -> bytes:
        """The bytes of tokens, without the ends of texts. Raises DataError for a token beyond the vocabulary."""
        ids = np.asarray(tokens).reshape(-1)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise DataError(f"a token is not in [0, {self.vocab_size}): {ids.min()} to {ids.max()}")
        return ids[ids < 256].astype(np.uint8).tobytes()

    def decode(self, tokens: npt.ArrayLike | Sequence[int]) -> str:
        """Their text; what is no UTF-8 becomes U+FFFD."""
        return self.decode_bytes(tokens).decode(errors="replace")

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"kind": "bytes"}


ShardTokenizer = ByteTokenizer | LibraryTokenizer


def as_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer of ours, which comes back as it is, or of a ``Tokenizer`` of Hugging Face's tokenizers."""
    return load_tokenizer(tokenizer) if hasattr(tokenizer, "to_str") else tokenizer


def choose_tokenizer(name: Any) -> ShardTokenizer:
    """``bytes``, the path of a tokenizer.json or of a folder with one, or what ``as_tokenizer`` takes.

    Raises UsageError and DataError for what cannot be had, and for vocabularies that do not fit 16 bits.
    """
    tokenizer: ShardTokenizer = ByteTokenizer() if name == "bytes" else as_tokenizer(name)
    if isinstance(name, (str, Path)) and name != "bytes":
        if not Path(name).exists():
            raise UsageError(f"--tokenizer {name}: expected bytes, a tokenizer.json, or a folder with one")
        tokenizer = load_tokenizer(name)
    if tokenizer.vocab_size > 1 << 16:
        raise UsageError(f"--tokenizer {name} has {tokenizer.vocab_size:,} tokens; shards hold 16 bits a token")
    return tokenizer


def tokenizer_of(state: Mapping[str, Any]) -> ShardTokenizer:
    """The inverse of ``to_dict``. Raises ValueError or DataError for anything else."""
    if state == ByteTokenizer().to_dict():
        return ByteTokenizer()
    for kind in (BytePairTokenizer, LibraryTokenizer):
        if state.get("kind") == kind.kind:
            return kind.from_dict(state)
    raise ValueError(f"{state.get('kind')!r} is no kind of tokenizer: expected 'bytes', 'byte pairs' or 'tokenizers'")


def plain_tokens(tokenizer: ShardTokenizer, text: str) -> npt.NDArray[np.int64]:
    """The tokens of a text in which what looks like a special token is none."""
    if isinstance(tokenizer, LibraryTokenizer):
        return tokenizer.encode(text, special_tokens=False)
    return tokenizer.encode(text)


def end_of_text(tokenizer: ShardTokenizer) -> int | None:
    """The token that ends a text, None where the tokenizer has none."""
    if isinstance(tokenizer, LibraryTokenizer):
        return next((index for text, index in tokenizer.special_tokens.items() if text in ENDS_OF_TEXT), None)
    return tokenizer.end_of_text


def in_words(tokenizer: ShardTokenizer) -> str:
    """What it is, for people."""
    return "bytes as tokens" if isinstance(tokenizer, ByteTokenizer) else f"{tokenizer.vocab_size:,} kinds of tokens"
