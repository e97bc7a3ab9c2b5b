"""What a byte-pair tokenizer consists of, and whether the parts fit."""

from __future__ import annotations

from dataclasses import dataclass

from ..files.safetensors_format import show
from .errors import DataError
from .pretokenize import to_bytes

MAX_ADDED = 10_000  # added tokens: each place of a text is compared with all of them


@dataclass(frozen=True)
class AddedToken:
    """A text that is one token, found before words are cut; `special` ones never come from `encode`'s plain text."""

    content: str
    id: int
    special: bool = True
    normalized: bool = False


@dataclass(frozen=True)
class Definition:
    """All that decides the tokens of a text.

    Attributes:
        vocab: bytes to id.
        merges: in the order of their ranks.
        added: special and other added tokens.
        stages: patterns that cut the text, one after the other.
        add_prefix_space: whether text gets a leading space.
        ignore_merges: whether a word that is in the vocabulary is taken whole.
        prefix, suffix: special tokens around a text.
    """

    vocab: dict[bytes, int]
    merges: list[tuple[bytes, bytes]]
    added: list[AddedToken]
    stages: tuple[str, ...]
    add_prefix_space: bool = False
    ignore_merges: bool = False
    prefix: tuple[str, ...] = ()
    suffix: tuple[str, ...] = ()


def token_table(definition: Definition) -> list[bytes]:
    """The bytes of each token by id, after all checks on a definition.

    Raises:
        DataError: naming what is missing or contradicts.
    """
    vocab = definition.vocab
    table = {index: token for token, index in vocab.items()}
    if len(table) != len(vocab):
        raise DataError("two tokens of the vocabulary have one id")
    made = set()
    for byte in range(256):
        if bytes([byte]) not in vocab:
            raise DataError(f"the vocabulary lacks the byte 0x{byte:02x}: it is not a byte-level one")
        made.add(bytes([byte]))
    if len(set(definition.merges)) != len(definition.merges):
        raise DataError("a merge appears twice")
    for left, right in definition.merges:
        for token in (left, right, left + right):
            if token not in vocab:
                raise DataError(f"the merge of {show(left)} and {show(right)}: {show(token)} is not in the vocabulary")
        made.add(left + right)
    if len(definition.added) > MAX_ADDED:
        raise DataError(f"{len(definition.added):,} added tokens, the limit is {MAX_ADDED:,}")
    contents = set()
    added_ids = set()
    for added in definition.added:
        raw = _utf8(added.content)
        if not raw or added.content in contents or added.id in added_ids:
            raise DataError(f"the added token {show(added.content)} is empty, or it or its id {added.id} comes twice")
        contents.add(added.content)
        added_ids.add(added.id)
        if table.setdefault(added.id, raw) != raw:
            raise DataError(f"the added token {show(added.content)} has the id {added.id} of {show(table[added.id])}")
        written = to_bytes(added.content)
        if written in vocab and (written != raw or vocab[written] != added.id):
            raise DataError(f"the added token {show(added.content)} is how files write {show(written)}: choose another")
        if added.special and vocab.get(raw) == added.id and raw in made:
            raise DataError(f"the special token {show(added.content)} is also what plain text is encoded to")
    if any(name not in contents for name in definition.prefix + definition.suffix):
        raise DataError("the post-processor adds a token that is not among added_tokens")
    try:
        return [table[index] for index in range(len(table))]
    except KeyError as error:
        raise DataError(
            f"{len(table):,} tokens must have the ids 0 to {len(table) - 1:,}: {error.args[0]:,} is missing"
        ) from None


def _utf8(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise DataError(f"{show(content)} is not Unicode text") from None
