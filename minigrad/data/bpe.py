"""Byte-level byte-pair encoding, as GPT-2 and Llama 3 use it: any text becomes tokens, and comes back unchanged.

The arithmetic is that of Hugging Face's `tokenizers`. Here are its files, checked and bounded, its errors as ours, and
what that library leaves open: every byte is a token, and no text can pose as a special token unless it may.
`load_tokenizer` runs files with other rules, too, as the library reads them.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import of_extra
from ..files import durable
from ..files.safetensors_format import parse_json, read_bytes, show
from .errors import DataError
from .tokenizer import Tokens, checked_ids, encoded

Self = TypeVar("Self", bound="LibraryTokenizer")
MAX_BYTES = 64 << 20
# Lists and objects, and commas: they bound the memory that a file can ask for. Llama 3's has 280,000 and 690,000.
MAX_CONTAINERS, MAX_COMMAS = 1_000_000, 4_000_000
MAX_ID = 1 << 24  # of tokens that are not numbered one by one
LONG = 4096  # characters of a word; of longer ones, parts are learned from: time grows with the square of the length
# How words are cut: GPT-2's two spellings (which ByteLevel does by itself), and Llama 3's.
GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PATTERNS: dict[str, dict[str, Any]] = {
    "gpt2": BYTE_LEVEL,
    "llama3": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
            {**BYTE_LEVEL, "use_regex": False},
        ],
    },
}
# GPT-2's table: printable Latin-1 bytes stand for themselves, the others for U+0100 and on.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {byte: byte for byte in _PRINTABLE} | {0x100 + i: byte for i, byte in enumerate(_OTHERS)}


class LibraryTokenizer:
    """A ``Tokenizer`` of Hugging Face's `tokenizers` with any rules, as of Mistral or Qwen3; see `load_tokenizer`.

    Its rules may change a text, which then comes back in another form, and may take long: take a file from whom you
    trust. Needs that library, the extra `bpe`.

    Args:
        tokenizer: it is copied, without its truncation and padding.

    Raises:
        DataError: an id is 2**24 or more, or the library cannot copy it.
    """

    kind = "tokenizers"

    def __init__(self, tokenizer: Any) -> None:
        self._size = 1 + max(tokenizer.get_vocab().values(), default=-1)
        if self._size > MAX_ID:  # saving counts up to it
            raise DataError(f"a token has the id {self._size - 1:,}; the largest may be {MAX_ID - 1:,}")
        document = json.loads(tokenizer.to_str())
        (self._tokenizer, self._state), (self._plain, _) = _of_library(document), _of_library(document)
        self._plain.encode_special_tokens = True

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return self._size

    @property
    def special_tokens(self) -> dict[str, int]:
        """The special tokens and their ids."""
        return {token["content"]: token["id"] for token in self._state["added_tokens"] if token["special"]}

    def encode(self, text: str, *, special_tokens: bool = True, template: bool = False) -> Tokens:
        """Token ids of `text`, int64 ``(N,)``.

        Args:
            text: anything that UTF-8 can encode.
            special_tokens: True: a special or added token that stands in the text becomes its one id. False: it is
                text like any other, and no special id comes out; for text that you do not trust.
            template: put the tokens around the text that the file's post-processor asks for, such as Llama 3's
                ``<|begin_of_text|>``. Only with `special_tokens`.

        Raises:
            DataError: the text holds a lone surrogate, or `template` comes without `special_tokens`.
        """
        if template and not special_tokens:
            raise DataError("encode(template=True) adds special tokens: it goes with special_tokens=True")
        encoded(text)
        chosen = self._tokenizer if special_tokens else self._plain
        with _library_errors("encode"):
            return np.array(chosen.encode(text, add_special_tokens=template).ids, dtype=np.int64)

    def decode(self, tokens: npt.ArrayLike | Sequence[int]) -> str:
        """The text of token ids, special tokens included; bytes that are not UTF-8 become U+FFFD.

        Raises:
            DataError: an id is not an integer in ``[0, vocab_size)``.
        """
        ids = checked_ids(tokens, self.vocab_size).tolist()
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    @classmethod
    def from_file(cls: type[Self], path: durable.StrPath) -> Self:
        """Read a ``tokenizer.json`` of Hugging Face's `tokenizers`.

        Raises:
            DataError: naming the file and the fault.
        """
        with _file(path):
            return cls._read(_read_json(path))

    @classmethod
    def from_dict(cls: type[Self], state: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`.

        Raises:
            DataError: `state` is not what `to_dict` returns.
        """
        if not isinstance(state, Mapping) or state.keys() != {"kind", "tokenizer"} or state["kind"] != cls.kind:
            raise DataError(f"this is not the state of a {cls.__name__}")
        return cls._read(state["tokenizer"])

    @classmethod
    def _read(cls: type[Self], document: Any) -> Self:
        return cls(_of_library(document)[0])

    def to_dict(self) -> dict[str, Any]:
        """JSON values from which `from_dict` makes an equal tokenizer; for checkpoints."""
        return {"kind": self.kind, "tokenizer": json.loads(self._tokenizer.to_str())}

    def save(self, path: durable.StrPath) -> None:
        """Write a ``tokenizer.json`` that `load_tokenizer` and Hugging Face's `tokenizers` read; at once, durably.

        Raises:
            OSError: the file cannot be written.
        """
        durable.replace_file(Path(path), [self._tokenizer.to_str().encode()])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._state == other._state

    def __hash__(self) -> int:
        return hash((self.kind, self.vocab_size))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size})"


class BytePairTokenizer(LibraryTokenizer):
    """Words cut by a regular expression, their UTF-8 bytes merged pair by pair (Radford et al., 2019).

    All 256 bytes are tokens, so there is no unknown character, and ``decode(encode(text)) == text`` for every text.
    (Where a file sets `add_prefix_space`, the text comes back with that space.)

    Make one with `train`, `from_file` or `from_dict`, or from a `Tokenizer` of Hugging Face's
    `tokenizers`. Needs that library, the extra `bpe`.

    Args:
        tokenizer: a byte-level BPE. It is copied, without its truncation and padding.

    Raises:
        DataError: it is no byte-level BPE, or its tokens have gaps.
        ModuleNotFoundError: `tokenizers` is not installed.
    """

    kind = "byte pairs"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._state = _made(json.loads(tokenizer.to_str()))
        contents = {token["content"]: token["id"] for token in self._state["added_tokens"]}
        model = self._state["model"]
        table = {index: _bytes(token) for token, index in model["vocab"].items() if token not in contents}
        if len(table) + len(contents.keys() & model["vocab"].keys()) < len(model["vocab"]):
            raise DataError("two tokens of the vocabulary have one id")
        table |= {index: content.encode() for content, index in contents.items()}
        if lacking := set(range(256)) - {raw[0] for raw in table.values() if len(raw) == 1}:
            raise DataError(f"the vocabulary lacks the byte 0x{min(lacking):02x}: it is not a byte-level one")
        if missing := set(range(len(table))) - table.keys():
            n = len(table)
            raise DataError(f"{n:,} tokens must have the ids 0 to {n - 1:,}: {min(missing):,} is missing")
        self._table, self._size = [table[index] for index in range(len(table))], len(table)
        merged = {"".join(merge) for merge in model["merges"]}
        if posing := next((c for c in contents if c in model["vocab"] and (c in merged or len(c) == 1)), None):
            raise DataError(f"the added token {show(posing)} is also what plain text is encoded to")
        vocab = {token: index for token, index in model["vocab"].items() if token not in contents}
        plain = {**self._state, "added_tokens": [], "post_processor": None, "model": {**model, "vocab": vocab}}
        self._plain = _made(plain)[0]
        self._check_template()

    def _check_template(self) -> None:
        with _library_errors("post_processor"):
            plain, within = (tokenizer.encode("a").ids for tokenizer in (self._plain, self._tokenizer))
            without = self._tokenizer.encode("a", add_special_tokens=False).ids
        if without != plain:
            raise DataError("post_processor: the text must stand in it once")
        if max(within) >= len(self._table):
            raise DataError("post_processor: it adds a token that does not exist")

    # ---- how to get one ----

    @classmethod
    def train(
        cls, text: str, vocab_size: int, special_tokens: Sequence[str] = (), pattern: str = "gpt2"
    ) -> "BytePairTokenizer":
        """Learn merges from a text; the same text gives the same tokenizer.

        Args:
            text: special tokens in it are not learned from, and nothing across each 4096th character of a word.
            vocab_size: 256 bytes, merges and special tokens together. Fewer come out if no pair is left that occurs
                twice; see `vocab_size` of the result.
            special_tokens: texts that are one token each, e.g. ``["<|endoftext|>"]``; they get the last ids.
            pattern: how words are cut, ``"gpt2"`` or ``"llama3"``.

        Raises:
            DataError: the text is empty, or an argument is out of range.
        """
        if pattern not in PATTERNS:
            raise DataError(f"{pattern!r} is not a pattern: use 'gpt2' or 'llama3'")
        if not text:
            raise DataError("the text is empty: there are no merges to learn")
        if vocab_size < 256 + len(special_tokens):
            least = f"{256 + len(special_tokens)} (256 bytes and {len(special_tokens)} special tokens)"
            raise DataError(f"vocab_size must be at least {least}, got {vocab_size}")
        if not all(special_tokens) or len(set(special_tokens)) < len(special_tokens):
            raise DataError("a special token is empty, or comes twice")
        for each in (text, *special_tokens):
            encoded(each)
        library = _library()
        model = {"type": "BPE", "vocab": {}, "merges": []}
        document = {"version": "1.0", "pre_tokenizer": PATTERNS[pattern], "decoder": BYTE_LEVEL, "model": model}
        learning, _ = _of_library(document)
        options = {"vocab_size": vocab_size - len(special_tokens), "min_frequency": 2, "show_progress": False}
        trainer = library.trainers.BpeTrainer(**options, initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet())
        longest_first = sorted(special_tokens, key=len, reverse=True)
        pieces = re.split("|".join(map(re.escape, longest_first)), text) if special_tokens else [text]
        learning.train_from_iterator((part for piece in pieces for part in _without_long_words(piece)), trainer)
        learning.add_special_tokens([library.AddedToken(token, normalized=False) for token in special_tokens])
        return cls(learning)

    @classmethod
    def _read(cls, document: Any) -> "BytePairTokenizer":
        return cls(_made(document)[0])

    # ---- tokens to text ----

    def decode_bytes(self, tokens: npt.ArrayLike | Sequence[int]) -> bytes:
        """The bytes of token ids of any shape; a token may end within a character.

        Raises:
            DataError: an id is not an integer in ``[0, vocab_size)``.
        """
        return b"".join([self._table[index] for index in checked_ids(tokens, self.vocab_size).tolist()])

    def decode(self, tokens: npt.ArrayLike | Sequence[int]) -> str:
        """The text of token ids, special tokens included; bytes that are not UTF-8 become U+FFFD.

        Raises:
            DataError: an id is not an integer in ``[0, vocab_size)``.
        """
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")


def _without_long_words(text: str) -> Iterator[str]:
    """The text in parts, cut where a word, or a run of spaces, has LONG characters."""
    begin = 0
    for word in re.finditer(rf"(?<!\S)\S{{{LONG},}}|(?<!\s)\s{{{LONG},}}", text):
        for cut in range(word.start() + LONG, word.end(), LONG):
            yield text[begin:cut]
            begin = cut
    yield text[begin:]


def load_tokenizer(source: Any) -> LibraryTokenizer:
    """The tokenizer of a ``tokenizer.json``, of a folder with one, or of Hugging Face's libraries: a ``Tokenizer`` of
    `tokenizers`, or a fast one of `transformers`.

    Byte-level BPE with the rules of GPT-2, Llama 3 or SmolLM2 becomes a `BytePairTokenizer`. What has other rules, as
    that of Mistral or Qwen3, is a `LibraryTokenizer`: its rules run as they are, so take it only from whom you trust.

    Raises:
        DataError: naming the file and the fault.
        ModuleNotFoundError: `tokenizers` is not installed.
    """
    source = getattr(source, "backend_tokenizer", source)  # of transformers
    if hasattr(source, "to_str"):
        return _best(json.loads(source.to_str()))
    path = Path(source)
    if path.is_dir() and not (path / "tokenizer.json").exists():
        kinds = {"tokenizer.model": "SentencePiece", "vocab.txt": "WordPiece", "vocab.json": "GPT-2"}
        other = next((f"; there is a {name} of {kind}" for name, kind in kinds.items() if (path / name).exists()), "")
        raise DataError(f"{path}/tokenizer.json is missing{other}; Hugging Face's tokenizers can save one")
    path = path / "tokenizer.json" if path.is_dir() else path
    with _file(path):
        return _best(_read_json(path))


def _best(document: Any) -> LibraryTokenizer:
    try:
        return BytePairTokenizer._read(document)
    except DataError:
        return LibraryTokenizer._read(document)


def _library() -> Any:
    return of_extra("bpe", "tokenizers", "BytePairTokenizer needs `tokenizers`")


def _made(document: Any) -> tuple[Any, dict[str, Any]]:
    """The same of a document that asks for byte-level BPE and nothing else."""
    _check_rules(document)
    return _of_library(document)


def _of_library(document: Any) -> tuple[Any, dict[str, Any]]:
    """A ``Tokenizer`` of the library, without truncation and padding, and what it saves. DataError for all else."""
    library = _library()
    with _library_errors("not a tokenizer"):
        made = library.Tokenizer.from_str(json.dumps(document))
    made.no_truncation()
    made.no_padding()
    return made, json.loads(made.to_str())


@contextlib.contextmanager
def _library_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        raise DataError(f"{what}: {error}") from None


def _check_rules(document: Any) -> None:
    """Let no rule through that loses text, or that can run or grow without bound: a file may come from anywhere."""
    _check_fields(document, "the file", normalizer=[None])
    affixes = {"continuing_subword_prefix": [None, ""], "end_of_word_suffix": [None, ""]}
    _check_fields(document.get("model"), "model", type=["BPE"], dropout=[None], byte_fallback=[False], **affixes)
    _check_fields(document.get("decoder"), "decoder", type=["ByteLevel"])
    added, vocab = document.get("added_tokens", []), document["model"].get("vocab")
    if not isinstance(added, list) or not isinstance(vocab, dict):
        raise DataError("added_tokens must be a list, and model.vocab an object")
    for token in added:
        _check_fields(token, "added_tokens", lstrip=[False], rstrip=[False], single_word=[False])
    ids = [*vocab.items(), *((token.get("content"), token.get("id")) for token in added)]
    for token, index in ids:  # the library counts up to the largest
        if type(index) is not int or not 0 <= index < len(ids):
            raise DataError(f"{show(token)} has the id {show(index)}; with {len(ids):,} tokens, no id is larger")
    cut = document.get("pre_tokenizer")
    in_steps = isinstance(cut, dict) and isinstance(cut.get("pretokenizers"), list)
    *steps, last = cut["pretokenizers"] if in_steps and cut["pretokenizers"] else [cut]
    _check_fields(last, "pre_tokenizer, at its end", type=["ByteLevel"], add_prefix_space=[False, not steps])
    for step in steps:
        _check_fields(step, "pre_tokenizer", type=["Split", "Digits"])
        if step.get("type") != "Digits":
            regexes = [{"Regex": regex} for regex in (LLAMA3, *GPT2)]
            how = {"behavior": ["Removed"] if step.get("invert") else ["Isolated"]}
            _check_fields(step, "pre_tokenizer 'Split'", pattern=regexes, **how)


def _check_fields(value: Any, where: str, **allowed: list[Any]) -> None:
    """DataError where a field of an object has none of the values allowed for it. A missing one has the first."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: {show(value)} is not supported, an object is expected")
    for field, values in allowed.items():
        if field in value and value[field] not in values:
            raise DataError(f"{where}: {field} = {show(value[field])} is not supported, only {show(values[0])}")


def _bytes(token: str) -> bytes:
    try:
        return bytes([_BYTES[ord(character)] for character in token])
    except KeyError:
        raise DataError(f"model.vocab: {show(token)} is neither a byte-level token nor an added one") from None


# ---- files ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _file(path: durable.StrPath) -> Iterator[None]:
    """A ValueError that is raised within is a fault of this file: a `DataError` that begins with its path."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start:,}") from None
    except ValueError as error:
        raise DataError(f"{path}: {str(error.args[0]).removeprefix(f'{path}: ')}") from None


def _read_json(path: durable.StrPath) -> Any:
    """JSON of bounded size, without duplicate keys."""
    return parse_json(read_bytes(Path(path), MAX_BYTES), MAX_CONTAINERS, MAX_COMMAS)
