"""Characters as tokens: the vocabulary is the sorted set of the characters of the training text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DataError

Tokens = npt.NDArray[np.int64]


class CharTokenizer:
    """One token per Unicode character (code point), numbered in the order of code points.

    Both directions are table look-ups on whole arrays: UTF-32 text *is* an array of code points.

    Args:
        characters: the vocabulary, sorted and without repeats, as `from_text` makes it.

    Raises:
        DataError: it is empty, unsorted, or holds a lone surrogate (half of a UTF-16 pair, which is no character).
    """

    def __init__(self, characters: str) -> None:
        codes = _code_points(characters)
        if not len(codes):
            raise DataError("a vocabulary needs at least one character")
        if not (codes[1:] > codes[:-1]).all():
            raise DataError("the characters of a vocabulary must be sorted and different")
        self.characters = characters
        self._codes = codes
        # One entry beyond the last known code point, for every character beyond.
        self._ids = np.full(int(codes[-1]) + 2, -1, dtype=np.int64)
        self._ids[codes] = np.arange(len(codes))

    @classmethod
    def from_text(cls, text: str) -> "CharTokenizer":
        """The vocabulary of `text`.

        Raises:
            DataError: the text is empty.
        """
        if not text:
            raise DataError("the text is empty: there is no vocabulary to learn")
        return cls(_text(np.unique(_code_points(text))))

    @property
    def vocab_size(self) -> int:
        """Number of different characters."""
        return len(self._codes)

    def encode(self, text: str) -> Tokens:
        """Token ids of `text`, int64 of shape ``(len(text),)``.

        Raises:
            DataError: a character is not in the vocabulary; it is named, and where it stands.
        """
        codes = _code_points(text)
        ids: Tokens = self._ids[np.minimum(codes, len(self._ids) - 1)]
        if len(ids) and ids.min() < 0:
            position = int(ids.argmin())
            line = text.count("\n", 0, position) + 1
            character = text[position]
            place = f"(U+{ord(character):04X}) at position {position:,}, line {line:,}"
            known = f"the {self.vocab_size} characters of the vocabulary"
            raise DataError(f"the character {character!r} {place}, is not among {known}")
        return ids

    def decode(self, tokens: npt.ArrayLike | Sequence[int]) -> str:
        """The text of token ids of any shape, read in row-major order.

        Raises:
            DataError: an id is not an integer in ``[0, vocab_size)``.
        """
        return _text(self._codes[checked_ids(tokens, self.vocab_size)])

    def to_dict(self) -> dict[str, Any]:
        """JSON values from which `from_dict` makes an equal tokenizer; for checkpoints."""
        return {"kind": "characters", "characters": self.characters}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "CharTokenizer":
        """The inverse of `to_dict`.

        Raises:
            DataError: `state` is not what `to_dict` returns.
        """
        if not isinstance(state, Mapping) or state.get("kind") != "characters":
            raise DataError("this is not the state of a character tokenizer")
        if not isinstance(state.get("characters"), str):
            raise DataError("the state of the character tokenizer lacks its characters")
        return cls(state["characters"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharTokenizer) and self.characters == other.characters

    def __hash__(self) -> int:
        return hash(self.characters)

    def __repr__(self) -> str:
        return f"CharTokenizer(vocab_size={self.vocab_size})"


def checked_ids(tokens: npt.ArrayLike | Sequence[int], vocab_size: int) -> npt.NDArray[Any]:
    """The ids as a row. DataError for one that is not an integer in ``[0, vocab_size)``."""
    ids = np.asarray(tokens).reshape(-1)
    if not ids.size:
        return ids.astype(np.int64)
    if ids.dtype.kind not in "iu":
        raise DataError(f"token ids must be integers, got {ids.dtype}")
    wrong = (ids < 0) | (ids >= vocab_size)
    if wrong.any():
        position = int(wrong.argmax())
        raise DataError(f"token {ids[position]} at position {position:,} is not in [0, {vocab_size})")
    return ids


def encoded(text: str, encoding: str = "utf-8") -> bytes:
    """The bytes of a text. DataError for half of a UTF-16 pair, which no encoding has."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        lone = f"U+{ord(text[error.start]):04X} at position {error.start:,}"
        raise DataError(f"{lone} is a lone surrogate, not a character") from None


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(encoded(text, "utf-32-le"), dtype="<u4")


def _text(codes: npt.NDArray[np.uint32]) -> str:
    return codes.astype("<u4").tobytes().decode("utf-32-le")
