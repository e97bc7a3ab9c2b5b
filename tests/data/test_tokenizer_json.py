"""Files of tokenizers: what is written is read, and each fault or unknown field is refused by name."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad.data import BytePairTokenizer, DataError, bpe_files

TOKENIZER = BytePairTokenizer.train("the cat then sat, the 2 cats sat there " * 3, 280, ["<|endoftext|>"])
DOCUMENT = TOKENIZER.to_dict()["tokenizer"]


def changed(path, value):
    document = copy.deepcopy(DOCUMENT)
    *parents, last = path
    target = document
    for key in parents:
        target = target[key]
    if value is DELETE:
        del target[last]
    else:
        target[last] = value
    return document


DELETE = object()


def load(document, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return BytePairTokenizer.from_file(path)


def test_round_trip_of_both_kinds_of_files(tmp_path):
    TOKENIZER.save(tmp_path / "t.json")
    assert BytePairTokenizer.from_file(tmp_path / "t.json") == TOKENIZER
    TOKENIZER.save_gpt2_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert BytePairTokenizer.from_gpt2_files(tmp_path / "vocab.json", tmp_path / "merges.txt") == TOKENIZER
    lines = (tmp_path / "merges.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#version: 0.2"
    assert tuple(lines[1].split(" ")) == tuple(DOCUMENT["model"]["merges"][0])
    with pytest.raises(DataError, match=r"vocab.json: the special token '<x>' is not in the vocabulary"):
        BytePairTokenizer.from_gpt2_files(tmp_path / "vocab.json", tmp_path / "merges.txt", ["<x>"])
    with pytest.raises(DataError, match="cannot express"):
        BytePairTokenizer.train("abab", 257, pattern="llama3").save_gpt2_files(tmp_path / "v", tmp_path / "m")


def test_accepted_forms_mean_the_same(tmp_path):
    texts = [" ".join(pair) for pair in DOCUMENT["model"]["merges"]]
    assert load(changed(["model", "merges"], texts), tmp_path) == TOKENIZER
    assert load(changed(["model", "type"], DELETE), tmp_path) == TOKENIZER
    assert load(changed(["model", "unk_token"], "<|endoftext|>"), tmp_path) == TOKENIZER
    assert load(changed(["model", "continuing_subword_prefix"], ""), tmp_path) == TOKENIZER
    assert load(changed(["model", "vocab", "<|endoftext|>"], DELETE), tmp_path) == TOKENIZER
    split = {
        "type": "Split",
        "pattern": {"Regex": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"},
    }
    byte_level = {**DOCUMENT["pre_tokenizer"], "use_regex": False}
    for how in ({"behavior": "Isolated", "invert": False}, {"behavior": "Removed", "invert": True}):
        sequence = {"type": "Sequence", "pretokenizers": [{**split, **how}, byte_level]}
        assert load(changed(["pre_tokenizer"], sequence), tmp_path) == TOKENIZER


def single(*items, special=None):
    known = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [TOKENIZER.vocab_size - 1], "tokens": ["<|endoftext|>"]}}
    return {"type": "TemplateProcessing", "single": list(items), "pair": [], "special_tokens": special or known}


A = {"Sequence": {"id": "A", "type_id": 0}}
END = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}


def test_the_template(tmp_path):
    tokenizer = load(changed(["post_processor"], single(END, A, END)), tmp_path)
    end = tokenizer.special_tokens["<|endoftext|>"]
    inner = tokenizer.encode("the cat").tolist()
    assert tokenizer.encode("the cat", template=True).tolist() == [end, *inner, end]
    assert BytePairTokenizer.from_dict(tokenizer.to_dict()) == tokenizer


def steps(*items):
    return {"type": "Sequence", "pretokenizers": list(items)}


BYTE_LEVEL = DOCUMENT["pre_tokenizer"]
ADDED = DOCUMENT["added_tokens"][0]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["normalizer"], {"type": "NFC"}, "normalizer = {'type': 'NFC'} is not supported"),
        (["truncation"], {"max_length": 5}, "truncation"),
        (["padding"], {}, "padding"),
        (["version"], "2.0", "version = '2.0' is not supported"),
        (["extra"], 1, "the field 'extra' is not supported"),
        (["model"], None, "model: None"),
        (["model", "type"], "Unigram", "model: type = 'Unigram' is not supported"),
        (["model", "dropout"], 0.1, "model: dropout = 0.1"),
        (["model", "byte_fallback"], True, "byte_fallback = True"),
        (["model", "byte_fallback"], 0, "byte_fallback = 0"),
        (["model", "end_of_word_suffix"], "</w>", "end_of_word_suffix"),
        (["model", "unk_token"], 3, "unk_token"),
        (["model", "vocab"], [], "model.vocab"),
        (["model", "vocab", "a"], DELETE, "lacks the byte 0x61"),
        (["model", "vocab", "a"], -1, "'a' has the id -1"),
        (["model", "vocab", "a"], True, "'a' has the id True"),
        (["model", "vocab", "a"], 5, "two tokens of the vocabulary have one id"),
        (["model", "vocab", "a"], 10**6, r"0 to 269: 64 is missing"),
        (["model", "vocab", "a b"], 280, "'a b' is neither a byte-level token nor an added one"),
        (["model", "vocab", ""], 280, "neither"),
        (["model", "vocab", "<|endoftext|>"], 3, "has the ids 3 and"),
        (["model", "merges"], "a b", "is not a list"),
        (["model", "merges", 0], "a", "'a' is not a pair"),
        (["model", "merges", 0], "a b c", "not a pair"),
        (["model", "merges", 0], ["a", 1], "not a pair"),
        (["model", "merges", 0], ["a", ""], "not a pair of byte-level"),
        (["model", "merges", 0], "☃ b", "not a pair of byte-level"),
        (["model", "merges", 0], "q q", "b'qq' is not in the vocabulary"),
        (["model", "merges", 1], DOCUMENT["model"]["merges"][0], "a merge appears twice"),
        (["added_tokens"], {}, "is not a list"),
        (["added_tokens", 0], "<|endoftext|>", "an object is expected"),
        (["added_tokens", 0, "lstrip"], True, "lstrip = True is not supported"),
        (["added_tokens", 0, "single_word"], True, "single_word"),
        (["added_tokens", 0, "content"], 3, "needs a content and an id"),
        (["added_tokens", 0], {**ADDED, "content": "a", "id": 64}, "is also what plain text is encoded to"),
        (["added_tokens", 0], {**ADDED, "content": "<x>", "id": 3}, r"has the id 3 of b'\$'"),
        (["added_tokens"], [ADDED, ADDED], "comes twice"),
        (["added_tokens"], [ADDED, {**ADDED, "content": "", "id": 280}], "is empty"),
        (["added_tokens"], [ADDED, {**ADDED, "content": "\ud800", "id": 280}], "not Unicode text"),
        (["pre_tokenizer"], None, "pre_tokenizer: None is not supported"),
        (["pre_tokenizer"], {"type": "Whitespace"}, "'Whitespace' is not supported"),
        (["pre_tokenizer"], steps(), "does not end with ByteLevel"),
        (["pre_tokenizer"], steps({"type": "Digits"}), "does not end with ByteLevel"),
        (["pre_tokenizer"], steps(BYTE_LEVEL, BYTE_LEVEL), "'ByteLevel' is not supported at this place"),
        (["pre_tokenizer"], steps({"type": "Digits"}, {**BYTE_LEVEL, "add_prefix_space": True}), "add_prefix_space"),
        (["pre_tokenizer", "add_prefix_space"], DELETE, "add_prefix_space is missing"),
        (
            ["pre_tokenizer"],
            steps({"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False}, BYTE_LEVEL),
            "the pattern .* is not supported",
        ),
        (
            ["pre_tokenizer"],
            steps({"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False}, BYTE_LEVEL),
            "the field 'String' is not supported",
        ),
        (
            ["pre_tokenizer"],
            steps({"type": "Split", "pattern": {}, "behavior": "Removed", "invert": False}, BYTE_LEVEL),
            "behavior = 'Removed' is not supported",
        ),
        (["decoder"], None, "decoder"),
        (["decoder"], {"type": "WordPiece"}, "'WordPiece' is not supported"),
        (["decoder"], {}, "decoder.type is missing"),
        (["post_processor"], {"type": "BertProcessing"}, "'BertProcessing' is not supported"),
        (["post_processor"], single(END), "the sequence A once"),
        (["post_processor"], single(A, {"Sequence": {"id": "B"}}), "in single is not supported"),
        (["post_processor"], single(A, {"SpecialToken": {"id": "<x>"}}), "in single is not supported"),
        (["post_processor"], single(A, END, special={"x": 1}), "does not stand for"),
    ],
)
def test_a_fault_is_named(tmp_path, path, value, message):
    with pytest.raises(DataError, match=message) as caught:
        load(changed(path, value), tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "tokenizer.json"))
    assert "\n" not in caught.value.args[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[" * 100_000,
        '{"a": 1, "a": 2}',
        '{"model": ' + "9" * 5000 + "}",
        "NaN",
        "[" + "[]," * 1_000_000,
    ],
    ids=range(8),
)
def test_what_is_no_such_json(tmp_path, text):
    with pytest.raises(DataError):
        load(text, tmp_path)


def test_what_is_no_file(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="missing.json: the file is missing"):
        BytePairTokenizer.from_file(tmp_path / "missing.json")
    with pytest.raises(DataError, match="not a regular file"):
        BytePairTokenizer.from_file(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'"\xe9"')
    with pytest.raises(DataError, match="not UTF-8 at byte 1"):
        BytePairTokenizer.from_file(tmp_path / "latin.json")
    monkeypatch.setattr(bpe_files, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="the limit is 100"):
        load(DOCUMENT, tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = [[key] for key in DOCUMENT] + [
    [part, key] for part in ("model", "pre_tokenizer", "decoder") for key in DOCUMENT[part]
]
PLACES += [
    ["model", "vocab", "a"],
    ["model", "merges", 0],
    ["added_tokens", 0],
    *(["added_tokens", 0, k] for k in ADDED),
]


@settings(max_examples=150)
@given(st.sampled_from(PLACES), json_values)
def test_any_other_value_is_refused_or_works(place, value):
    try:
        tokenizer = BytePairTokenizer.from_dict({"kind": "byte pairs", "tokenizer": changed(place, value)})
    except DataError:
        return
    assert tokenizer.decode(tokenizer.encode("the cat é")).strip() == "the cat é"
