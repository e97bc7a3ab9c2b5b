"""The tokenizers of train_gpt2.py: GPT-2's by tiktoken, that of a model's folder, or bytes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from command_line import UsageError

from minigrad.data import BytePairTokenizer, DataError

END_OF_TEXT = "<|endoftext|>"


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


class TiktokenTokenizer:
    """An encoding of tiktoken, which downloads its table once. Raises UsageError where that cannot be had."""

    def __init__(self, name: str = "gpt2") -> None:
        self.name = name
        try:
            self._encoding: Any = importlib.import_module("tiktoken").get_encoding(name)
        except ImportError as error:
            raise UsageError(
                f"tiktoken is not installed (pip install tiktoken), so there is no encoding {name!r}; "
                "--tokenizer bytes, or the folder of a model, needs nothing"
            ) from error
        except (OSError, ValueError) as error:  # no network; no such encoding
            raise UsageError(
                f"tiktoken cannot load its encoding {name!r} ({error}); --tokenizer bytes, or the folder of a model, "
                "needs no download"
            ) from error
        self.vocab_size: int = self._encoding.n_vocab
        self.end_of_text: int = self._encoding.eot_token

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """The tokens of ``text``; what looks like a special token in it is none."""
        return np.array(self._encoding.encode_ordinary(text), np.int64)

    def decode_bytes(self, tokens: npt.ArrayLike | Sequence[int]) -> bytes:
        """The bytes of tokens."""
        found: bytes = self._encoding.decode_bytes(np.asarray(tokens).reshape(-1).tolist())
        return found

    def decode(self, tokens: npt.ArrayLike | Sequence[int]) -> str:
        """Their text; what is no UTF-8 becomes U+FFFD."""
        return self.decode_bytes(tokens).decode(errors="replace")

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"kind": "tiktoken", "name": self.name}


class LibraryTokenizer:
    """A ``Tokenizer`` of Hugging Face's tokenizers that is no byte-level BPE, with the methods of ours. What the caller
    has loaded is trusted; what it does not know is up to its rules, so a text may not come back unchanged."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size: int = self._tokenizer.get_vocab_size()

    def encode(self, text: str, *, template: bool = False) -> npt.NDArray[np.int64]:
        """The tokens of ``text``; with ``template``, those that the tokenizer puts around a text, too."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=template).ids, np.int64)

    def decode(self, tokens: npt.ArrayLike | Sequence[int]) -> str:
        """Their text, special tokens included."""
        ids = np.asarray(tokens).reshape(-1)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise DataError(f"a token is not in [0, {self.vocab_size}): {ids.min()} to {ids.max()}")
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def as_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer of ours, which comes back as it is, or of a ``Tokenizer`` of Hugging Face's tokenizers."""
    if not (hasattr(tokenizer, "to_str") and hasattr(tokenizer, "get_vocab_size")):
        return tokenizer
    try:
        return BytePairTokenizer(tokenizer)
    except DataError:
        return LibraryTokenizer(tokenizer)


ShardTokenizer = ByteTokenizer | TiktokenTokenizer | BytePairTokenizer


def choose_tokenizer(name: str) -> ShardTokenizer:
    """``auto`` (tiktoken where it is installed, else bytes), ``gpt2``, ``bytes``, or a folder with a tokenizer.

    Raises UsageError and DataError for what cannot be had, and for vocabularies that do not fit 16 bits.
    """
    tokenizer: ShardTokenizer
    if name == "auto":
        name = "gpt2" if importlib.util.find_spec("tiktoken") is not None else "bytes"
    if name == "bytes":
        tokenizer = ByteTokenizer()
    elif name == "gpt2":
        tokenizer = TiktokenTokenizer(name)
    elif Path(name).is_dir():
        tokenizer = BytePairTokenizer.from_pretrained(name)
    else:
        raise UsageError(f"--tokenizer {name}: expected auto, gpt2, bytes, or a folder with tokenizer.json")
    if tokenizer.vocab_size > 1 << 16:
        raise UsageError(f"--tokenizer {name} has {tokenizer.vocab_size:,} tokens; shards hold 16 bits a token")
    return tokenizer


def tokenizer_of(state: Mapping[str, Any]) -> ShardTokenizer:
    """The inverse of ``to_dict``. Raises ValueError, UsageError or DataError for anything else."""
    kind = state.get("kind")
    if kind == "bytes":
        return ByteTokenizer()
    if kind == "tiktoken":
        return TiktokenTokenizer(str(state["name"]))
    if kind == "byte pairs":
        return BytePairTokenizer.from_dict(state)
    raise ValueError(f"{kind!r} is no kind of tokenizer: expected 'bytes', 'tiktoken' or 'byte pairs'")


def plain_tokens(tokenizer: ShardTokenizer, text: str) -> npt.NDArray[np.int64]:
    """The tokens of a text in which what looks like a special token is none."""
    if isinstance(tokenizer, BytePairTokenizer):
        return tokenizer.encode(text, special_tokens=False)
    return tokenizer.encode(text)


def end_of_text(tokenizer: ShardTokenizer) -> int | None:
    """The token that ends a text, None where the tokenizer has none."""
    if isinstance(tokenizer, BytePairTokenizer):
        return tokenizer.special_tokens.get(END_OF_TEXT)
    return tokenizer.end_of_text


def in_words(tokenizer: ShardTokenizer) -> str:
    """What it is, for people."""
    if isinstance(tokenizer, ByteTokenizer):
        missing = importlib.util.find_spec("tiktoken") is None
        return "bytes as tokens" + (" (tiktoken is not installed)" if missing else "")
    if isinstance(tokenizer, TiktokenTokenizer):
        return f"tiktoken's {tokenizer.name} tokens"
    return "the folder's byte-pair tokens"
