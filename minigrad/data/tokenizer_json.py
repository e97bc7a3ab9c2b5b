"""The ``tokenizer.json`` of Hugging Face's `tokenizers`, for byte-level BPE.

Every field is either understood or refused by name: a field that is skipped would change the tokens in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..files.safetensors_format import show
from .bpe_definition import AddedToken, Definition
from .errors import DataError
from .pretokenize import DIGIT, DIGITS, GPT2, LLAMA3, to_bytes, to_characters

# Patterns of Split, and the one of this package that finds the same words.
KNOWN_PATTERNS = {
    GPT2: GPT2,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2,
    LLAMA3: LLAMA3,
}
_ANY_BOOL: tuple[Any, ...] = (False, True)


def from_json(document: Any) -> Definition:
    """What a ``tokenizer.json`` says.

    Raises:
        DataError: naming the first field that is wrong or not supported.
    """
    top = _fields(
        document,
        "the file",
        ("added_tokens", "pre_tokenizer", "post_processor", "decoder", "model"),
        {"version": ("1.0",), "truncation": (None,), "padding": (None,), "normalizer": (None,)},
    )
    # The flags concern the other roles of ByteLevel; a decoder does not read them.
    flags = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), _ANY_BOOL)
    if "type" not in _fields(top.get("decoder"), "decoder", (), {"type": ("ByteLevel",), **flags}):
        raise DataError("decoder.type is missing")
    # unk_token and fuse_unk are without effect: all bytes are in the vocabulary.
    model = _fields(
        top.get("model"),
        "model",
        ("vocab", "merges", "unk_token"),
        {
            "type": ("BPE",),
            "dropout": (None,),
            "continuing_subword_prefix": (None, ""),
            "end_of_word_suffix": (None, ""),
            "fuse_unk": _ANY_BOOL,
            "byte_fallback": (False,),
            "ignore_merges": _ANY_BOOL,
        },
    )
    if not isinstance(model.get("unk_token"), str | None):
        raise DataError(f"model.unk_token: {show(model['unk_token'])} is not a text or null")
    added = _added_tokens(top.get("added_tokens", []))
    merges = parse_merges(model.get("merges"))
    stages, add_prefix_space = _pre_tokenizer(top.get("pre_tokenizer"))
    prefix, suffix = _post_processor(top.get("post_processor"), {token.content: token.id for token in added})
    return Definition(
        parse_vocab(model.get("vocab"), added, merges),
        merges,
        added,
        stages,
        add_prefix_space,
        model.get("ignore_merges", False),
        prefix,
        suffix,
    )


def to_json(definition: Definition) -> dict[str, Any]:
    """The ``tokenizer.json`` that `from_json` reads back as an equal definition."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    stages = list(definition.stages)
    use_regex = stages[-1:] == [GPT2]
    steps: list[dict[str, Any]] = []
    for stage in stages[: len(stages) - use_regex]:
        if stage in (DIGIT, DIGITS):
            steps.append({"type": "Digits", "individual_digits": stage == DIGIT})
        else:
            steps.append({"type": "Split", "pattern": {"Regex": stage}, "behavior": "Isolated", "invert": False})
    steps.append({**byte_level, "add_prefix_space": definition.add_prefix_space, "use_regex": use_regex})
    added = [
        {
            "id": token.id,
            "content": token.content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": token.normalized,
            "special": token.special,
        }
        for token in sorted(definition.added, key=lambda token: token.id)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        "post_processor": _template(definition),
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": definition.ignore_merges,
            "vocab": vocab_strings(definition),
            "merges": [[to_characters(left), to_characters(right)] for left, right in definition.merges],
        },
    }


def _fields(value: Any, where: str, free: Sequence[str], fixed: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """An object whose keys are known: `free` ones, checked later, and `fixed` ones, which must have a known value."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: {show(value)} is not supported here, an object is expected")
    for key, found in value.items():
        if key in fixed:
            if not any(type(found) is type(known) and found == known for known in fixed[key]):
                raise DataError(f"{where}: {key} = {show(found)} is not supported")
        elif key not in free:
            raise DataError(f"{where}: the field {show(key)} is not supported")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{where}: {show(value)} is not a list")
    return value


def _kind(value: Any, where: str) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise DataError(f"{where}: {show(value)} is not supported")
    return kind


def _added_tokens(value: Any) -> list[AddedToken]:
    flags = {"single_word": (False,), "lstrip": (False,), "rstrip": (False,)}
    tokens = []
    for item in _list(value, "added_tokens"):
        where = f"added_tokens: {show(item.get('content') if isinstance(item, dict) else item)}"
        fields = _fields(item, where, ("id", "content"), {**flags, "normalized": _ANY_BOOL, "special": _ANY_BOOL})
        content, index = fields.get("content"), fields.get("id")
        if not isinstance(content, str) or type(index) is not int or index < 0:
            raise DataError(f"{where}: a token needs a content and an id, found {show(item)}")
        tokens.append(AddedToken(content, index, fields.get("special", False), fields.get("normalized", True)))
    return sorted(tokens, key=lambda token: token.id)


def parse_vocab(value: Any, added: Sequence[AddedToken], merges: Sequence[tuple[bytes, bytes]]) -> dict[bytes, int]:
    """The byte-level tokens of ``vocab``. Added tokens are in it only if plain text can give them too.

    Raises:
        DataError: naming the entry at fault.
    """
    if not isinstance(value, dict):
        raise DataError(f"model.vocab: {show(value)} is not an object")
    added_ids = {token.content: token.id for token in added}
    made = {left + right for left, right in merges}
    vocab = {}
    for token, index in value.items():
        if type(index) is not int or index < 0:
            raise DataError(f"model.vocab: {show(token)} has the id {show(index)}")
        raw = to_bytes(token)
        if token in added_ids:
            if added_ids[token] != index:
                raise DataError(f"the added token {show(token)} has the ids {index} and {added_ids[token]}")
            if raw is None or raw != token.encode() or (len(raw) > 1 and raw not in made):
                continue
        if not raw:
            raise DataError(f"model.vocab: {show(token)} is neither a byte-level token nor an added one")
        vocab[raw] = index
    return vocab


def vocab_strings(definition: Definition) -> dict[str, int]:
    """The vocabulary as files have it, added tokens included."""
    strings = {to_characters(token): index for token, index in definition.vocab.items()}
    strings.update({token.content: token.id for token in definition.added})
    return dict(sorted(strings.items(), key=lambda item: item[1]))


def parse_merges(value: Any) -> list[tuple[bytes, bytes]]:
    """Merges as texts ``"a b"`` or as lists ``["a", "b"]``.

    Raises:
        DataError: naming the merge at fault.
    """
    merges = []
    for item in _list(value, "model.merges"):
        parts = item.split(" ") if isinstance(item, str) else item
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise DataError(f"model.merges: {show(item)} is not a pair of tokens")
        left, right = map(to_bytes, parts)
        if not left or not right:
            raise DataError(f"model.merges: {show(item)} is not a pair of byte-level tokens")
        merges.append((left, right))
    return merges


def _pre_tokenizer(value: Any) -> tuple[tuple[str, ...], bool]:
    steps = [value]
    if _kind(value, "pre_tokenizer") == "Sequence":
        steps = _list(_fields(value, "pre_tokenizer", ("type", "pretokenizers"), {}).get("pretokenizers"), "Sequence")
    stages: list[str] = []
    for index, step in enumerate(steps):
        kind = _kind(step, "pre_tokenizer")
        where = f"pre_tokenizer {show(kind)}"
        if kind == "ByteLevel" and index == len(steps) - 1:
            prefix_space = _ANY_BOOL if len(steps) == 1 else (False,)
            flags = {"add_prefix_space": prefix_space, "trim_offsets": _ANY_BOOL, "use_regex": _ANY_BOOL}
            fields = _fields(step, where, ("type",), flags)
            if "add_prefix_space" not in fields:
                raise DataError(f"{where}: add_prefix_space is missing")
            if fields.get("use_regex", True):
                stages.append(GPT2)
            return tuple(stages), fields["add_prefix_space"]
        if kind == "Digits":
            fields = _fields(step, where, ("type",), {"individual_digits": _ANY_BOOL})
            stages.append(DIGIT if fields.get("individual_digits", False) else DIGITS)
        elif kind == "Split":
            # All text is matched by the known patterns: to isolate the matches is to remove what lies between them.
            isolated = not step.get("invert", False)
            choices = {"behavior": ("Isolated" if isolated else "Removed",), "invert": _ANY_BOOL}
            pattern = _fields(step, where, ("type", "pattern"), choices).get("pattern")
            regex = _fields(pattern, f"{where}: pattern", ("Regex",), {}).get("Regex")
            if not isinstance(regex, str) or regex not in KNOWN_PATTERNS or "behavior" not in step:
                raise DataError(f"{where}: the pattern {show(regex)} is not supported, only GPT-2's and Llama 3's")
            stages.append(KNOWN_PATTERNS[regex])
        else:
            raise DataError(f"{where} is not supported at this place")
    raise DataError("pre_tokenizer: it does not end with ByteLevel, so this is not a byte-level BPE")


def _post_processor(value: Any, ids: dict[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Special tokens before and after one text. The template for pairs of texts is not used: there is no such call."""
    if value is None:
        return (), ()
    steps = [value]
    if _kind(value, "post_processor") == "Sequence":
        steps = _list(_fields(value, "post_processor", ("type", "processors"), {}).get("processors"), "processors")
    found: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for step in steps:
        kind = _kind(step, "post_processor")
        where = f"post_processor {show(kind)}"
        if kind == "ByteLevel":  # concerns offsets only
            names = ("add_prefix_space", "trim_offsets", "use_regex")
            _fields(step, where, ("type",), dict.fromkeys(names, _ANY_BOOL))
        elif kind == "TemplateProcessing" and not found:
            fields = _fields(step, where, ("type", "single", "pair", "special_tokens"), {})
            found.append(_single_template(fields.get("single"), fields.get("special_tokens"), ids, where))
        else:
            raise DataError(f"{where} is not supported at this place")
    return found[0] if found else ((), ())


def _single_template(
    single: Any, special: Any, ids: dict[str, int], where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    parts: list[list[str]] = [[]]
    for item in _list(single, f"{where}: single"):
        kind, fields = next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else (None, None)
        name = fields.get("id") if isinstance(fields, dict) else None
        if kind == "Sequence" and name == "A":
            parts.append([])
        elif kind == "SpecialToken" and isinstance(name, str) and name in ids:
            entry = special.get(name) if isinstance(special, dict) else None
            if not isinstance(entry, dict) or entry.get("ids") != [ids[name]]:
                raise DataError(f"{where}: {show(name)} does not stand for the one added token {show(name)}")
            parts[-1].append(name)
        else:
            raise DataError(f"{where}: {show(item)} in single is not supported")
    if len(parts) != 2:
        raise DataError(f"{where}: single must contain the sequence A once")
    return tuple(parts[0]), tuple(parts[1])


def _template(definition: Definition) -> dict[str, Any] | None:
    names = definition.prefix + definition.suffix
    if not names:
        return None
    ids = {token.content: token.id for token in definition.added}

    def part(sequence: str, type_id: int) -> list[dict[str, Any]]:
        before = [{"SpecialToken": {"id": name, "type_id": type_id}} for name in definition.prefix]
        after = [{"SpecialToken": {"id": name, "type_id": type_id}} for name in definition.suffix]
        return [*before, {"Sequence": {"id": sequence, "type_id": type_id}}, *after]

    return {
        "type": "TemplateProcessing",
        "single": part("A", 0),
        "pair": part("A", 0) + part("B", 1),
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in names},
    }
