"""Byte-level byte-pair encoding, as GPT-2 and Llama 3 use it: any text becomes tokens, and comes back unchanged."""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import bpe_files
from .bpe_definition import AddedToken, Definition, token_table
from .bpe_training import learn_merges
from .errors import DataError
from .pretokenize import PATTERNS, compile_pattern, split
from .tokenizer import Tokens, checked_ids, lone_surrogate
from .tokenizer_json import from_json, to_json

_CACHED_WORDS = 100_000
_CACHED_LENGTH = 64  # characters; longer words seldom come twice


class BytePairTokenizer:
    """Words cut by a regular expression, their UTF-8 bytes merged pair by pair (Radford et al., 2019).

    All 256 bytes are tokens, so there is no unknown character, and ``decode(encode(text)) == text`` for every text.
    (Where a file sets `add_prefix_space`, the text comes back with that space.) The tokens are those of Hugging Face's
    `tokenizers` for the same file.

    Make one with `train`, `from_file`, `from_pretrained`, `from_gpt2_files` or `from_dict`.

    Args:
        definition: vocabulary, merges and rules, checked here.

    Attributes:
        definition: as given; not to be changed.

    Raises:
        DataError: the parts of the definition contradict each other.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._table = token_table(definition)
        vocab = definition.vocab
        self._byte_ids = [vocab[bytes([byte])] for byte in range(256)]
        # (left, right) -> (rank, merged)
        self._merges: dict[tuple[int, int], tuple[int, int]] = {
            (vocab[left], vocab[right]): (rank, vocab[left + right])
            for rank, (left, right) in enumerate(definition.merges)
        }
        added = {token.id for token in definition.added}
        self._whole = {w: i for w, i in vocab.items() if i not in added} if definition.ignore_merges else {}
        self._stages = [compile_pattern(pattern) for pattern in definition.stages]
        self._added = {token.content: token.id for token in definition.added}
        # The tokenizers library looks for those marked `normalized` in what the others leave.
        passes = [[t.content for t in definition.added if t.normalized == later] for later in (False, True)]
        self._added_patterns = [_any_of(contents) for contents in passes if contents]
        self._template = tuple([self._added[name] for name in part] for part in (definition.prefix, definition.suffix))
        self._cache: dict[str, list[int]] = {}

    # ---- how to get one ----

    @classmethod
    def train(
        cls, text: str, vocab_size: int, special_tokens: Sequence[str] = (), pattern: str = "gpt2"
    ) -> BytePairTokenizer:
        """Learn merges from a text; the same text gives the same tokenizer.

        Args:
            text: special tokens in it are not learned from.
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
            raise DataError(
                f"vocab_size must be at least {256 + len(special_tokens)} (256 bytes and {len(special_tokens)} special "
                f"tokens), got {vocab_size}"
            )
        if not all(special_tokens):
            raise DataError("a special token must not be empty")
        pieces = _any_of(special_tokens).split(text)[::2] if special_tokens else [text]
        words = Counter(split(pieces, [compile_pattern(PATTERNS[pattern])]))
        counts = {_utf8(word, text): count for word, count in words.items()}
        tokens, merges = learn_merges(counts, vocab_size - len(special_tokens))
        vocab = {token: index for index, token in enumerate(tokens)}
        added = [AddedToken(content, len(tokens) + index) for index, content in enumerate(special_tokens)]
        return cls(Definition(vocab, merges, added, (PATTERNS[pattern],)))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> BytePairTokenizer:
        """Read a ``tokenizer.json`` of Hugging Face's `tokenizers`, with a byte-level BPE model.

        GPT-2, Llama 3, SmolLM2 and their like. What is not supported in a file (a normalizer, another pattern, other
        pre-tokenizers than ByteLevel, Digits and Split, ...) is an error that names it.

        Raises:
            DataError: naming the file and the fault.
        """
        return bpe_files.at_path(path, lambda: cls(from_json(bpe_files.read_json(Path(path)))))

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> BytePairTokenizer:
        """Read the ``tokenizer.json`` of a model's folder in Hugging Face's format.

        Raises:
            DataError: there is none, or it is not byte-level BPE.
        """
        path = Path(folder) / "tokenizer.json"
        only = "only byte-level BPE in a tokenizer.json is read, as of GPT-2, Llama 3 and SmolLM2"
        if not path.exists():
            others = [name for name in ("tokenizer.model", "vocab.txt", "vocab.json") if path.with_name(name).exists()]
            kinds = {"tokenizer.model": " of SentencePiece", "vocab.txt": " of WordPiece"}
            instead = f"; there is a {others[0]}{kinds.get(others[0], '')}" if others else ""
            raise DataError(f"{path} is missing{instead}; {only}")
        try:
            return cls.from_file(path)
        except DataError as error:
            raise DataError(f"{error}; {only}") from error

    @classmethod
    def from_gpt2_files(
        cls,
        vocab: str | os.PathLike[str],
        merges: str | os.PathLike[str],
        special_tokens: Sequence[str] = ("<|endoftext|>",),
    ) -> BytePairTokenizer:
        """Read GPT-2's ``vocab.json`` (or ``encoder.json``) and ``merges.txt`` (or ``vocab.bpe``).

        Args:
            vocab, merges: the files.
            special_tokens: which entries of the vocabulary are special; the files do not say.

        Raises:
            DataError: naming the fault.
        """
        document = bpe_files.at_path(vocab, lambda: bpe_files.read_json(Path(vocab)))
        lines = bpe_files.at_path(merges, lambda: bpe_files.read_lines(Path(merges)))
        return bpe_files.at_path(vocab, lambda: cls(bpe_files.from_gpt2(document, lines, special_tokens)))

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> BytePairTokenizer:
        """The inverse of `to_dict`.

        Raises:
            DataError: `state` is not what `to_dict` returns.
        """
        if not isinstance(state, Mapping) or state.keys() != {"kind", "tokenizer"} or state["kind"] != "byte pairs":
            raise DataError("this is not the state of a byte-pair tokenizer")
        return cls(from_json(state["tokenizer"]))

    # ---- where it goes ----

    def to_dict(self) -> dict[str, Any]:
        """JSON values from which `from_dict` makes an equal tokenizer; for checkpoints."""
        return {"kind": "byte pairs", "tokenizer": to_json(self.definition)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``tokenizer.json`` that `from_file` and Hugging Face's `tokenizers` read; replaced at once, durably.

        Raises:
            OSError: the file cannot be written.
        """
        bpe_files.write_json(Path(path), to_json(self.definition))

    def save_gpt2_files(self, vocab: str | os.PathLike[str], merges: str | os.PathLike[str]) -> None:
        """Write ``vocab.json`` and ``merges.txt`` as GPT-2 has them. Give `from_gpt2_files` the special tokens again.

        Raises:
            DataError: this tokenizer has rules that these files cannot express; `save` keeps them.
            OSError: a file cannot be written.
        """
        document, lines = bpe_files.to_gpt2(self.definition)
        bpe_files.write_json(Path(vocab), document)
        bpe_files.write_text(Path(merges), lines)

    # ---- text to tokens and back ----

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return len(self._table)

    @property
    def special_tokens(self) -> dict[str, int]:
        """The special tokens and their ids."""
        return {token.content: token.id for token in self.definition.added if token.special}

    def encode(self, text: str, *, special_tokens: bool = True, template: bool = False) -> Tokens:
        """Token ids of `text`, int64 ``(N,)``.

        Args:
            text: anything that UTF-8 can encode.
            special_tokens: True: a special or added token that stands in the text becomes its one id. False: it is
                text like any other, and no special id comes out; for text that you do not trust.
            template: put the tokens around the text that the file's post-processor asks for, such as Llama 3's
                ``<|begin_of_text|>``.

        Raises:
            DataError: the text holds a lone surrogate.
        """
        ids: list[int] = []
        prefix, suffix = self._template if template else ([], [])
        ids += prefix
        pieces: list[str | int] = [text]
        for pattern in self._added_patterns if special_tokens else ():
            pieces = [part for piece in pieces for part in self._find_added(pattern, piece)]
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            elif piece:
                self._encode_words(piece, ids)
        ids += suffix
        return np.array(ids, dtype=np.int64)

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

    def _find_added(self, pattern: re.Pattern[str], piece: str | int) -> list[str | int]:
        """A piece of text cut into text and ids; an id stays as it is."""
        if isinstance(piece, int):
            return [piece]
        # Of what `split` gives, even places hold text, odd ones what the pattern found.
        return [self._added[part] if index % 2 else part for index, part in enumerate(pattern.split(piece))]

    def _encode_words(self, text: str, ids: list[int]) -> None:
        if self.definition.add_prefix_space and not text.startswith(" "):
            text = " " + text
        cache = self._cache
        for word in split([text], self._stages):
            known = cache.get(word)
            if known is None:
                raw = _utf8(word, text)
                whole = self._whole.get(raw)
                known = self._merge(raw) if whole is None else [whole]
                if len(word) <= _CACHED_LENGTH:
                    if len(cache) >= _CACHED_WORDS:
                        cache.clear()
                    cache[word] = known
            ids += known

    def _merge(self, word: bytes) -> list[int]:
        """The tokens of a word: always the merge of the lowest rank first, of equal ones the leftmost. O(n log n)."""
        symbols = [self._byte_ids[byte] for byte in word]
        end = len(symbols)
        after = list(range(1, end + 1))
        before = list(range(-1, end - 1))
        merges = self._merges
        heap = []
        for left in range(end - 1):
            found = merges.get((symbols[left], symbols[left + 1]))
            if found:
                heap.append((found[0], left, found[1]))
        heapq.heapify(heap)
        while heap:
            rank, left, merged = heapq.heappop(heap)
            right = after[left]
            # -1 marks a symbol that was merged into its left neighbour; no pair with it has a rank.
            if right == end or merges.get((symbols[left], symbols[right])) != (rank, merged):
                continue
            symbols[left], symbols[right] = merged, -1
            after[left] = after[right]
            if after[left] < end:
                before[after[left]] = left
            for start in (before[left], left):
                if start >= 0 and after[start] < end:
                    found = merges.get((symbols[start], symbols[after[start]]))
                    if found:
                        heapq.heappush(heap, (found[0], start, found[1]))
        return [symbol for symbol in symbols if symbol >= 0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BytePairTokenizer) and self.definition == other.definition

    def __hash__(self) -> int:
        return hash((self.vocab_size, tuple(self.definition.merges)))

    def __repr__(self) -> str:
        return f"BytePairTokenizer(vocab_size={self.vocab_size})"


def _any_of(contents: Iterable[str]) -> re.Pattern[str]:
    """Leftmost, and of those the longest; one group, so that `split` keeps what it found."""
    return re.compile("(" + "|".join(map(re.escape, sorted(contents, key=len, reverse=True))) + ")")


def _utf8(word: str, text: str) -> bytes:
    try:
        return word.encode()
    except UnicodeEncodeError as error:
        surrogate = word[error.start]
        raise lone_surrogate(surrogate, text.index(surrogate)) from None
