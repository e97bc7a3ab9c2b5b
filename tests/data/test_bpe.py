"""Byte pairs, and characters: every text comes back, no text poses as a special token, files."""

import copy
import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings, strategies as st
from refusals import raises

from minigrad.data import (
    BytePairTokenizer,
    CharTokenizer,
    DataError,
    LibraryTokenizer,
    bpe,
    load_corpus,
    load_tokenizer,
)

TEXT = load_corpus("pydoc").text[:60_000] + "日本語 中文 한국어 😀😀 naïve café École ١٢٣ 12345\r\n\t  \n" * 3
PIECES = [" ", "  ", "\n", "\r\n", "\t", "\x85", "\u3000", "'s", "'LL", "the", "return", "é", "e\u0301", "日本", "😀"]
PIECES += ["👨\u200d👩\u200d👧", "12345", "٣", "½", "!?", "\x00", "\ufeff", "ab" * 40]
mixed = st.lists(st.sampled_from(PIECES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)).map("".join)
SPECIAL = ["<|endoftext|>", "<|x|>", "<|endoftext|><|x|>", "éé", "a special one"]
TRAINED = {
    (pattern, bool(special)): BytePairTokenizer.train(TEXT, 600, special, pattern)
    for pattern in ("gpt2", "llama3")
    for special in ([], SPECIAL)
}
with_special = st.lists(mixed | st.sampled_from(SPECIAL)).map("".join)
DOCUMENT = TRAINED["gpt2", True].to_dict()["tokenizer"]
DOCUMENT["model"]["vocab"] |= {token["content"]: token["id"] for token in DOCUMENT["added_tokens"]}  # as in GPT-2's
DELETE = object()


def changed(path, value):
    document = target = copy.deepcopy(DOCUMENT)
    *parents, last = path
    for key in parents:
        target = target[key]
    target[last] = value
    if value is DELETE:
        del target[last]
    return document


def from_document(document):
    return BytePairTokenizer.from_dict({"kind": "byte pairs", "tokenizer": document})


@given(with_special)
def test_every_text_comes_back(text):
    for (_, special), tokenizer in TRAINED.items():
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int64 and ids.ndim == 1
        assert tokenizer.decode(ids) == text
        plain = tokenizer.encode(text, special_tokens=False)
        assert tokenizer.decode(plain) == text
        if special:
            assert not set(plain.tolist()) & set(tokenizer.special_tokens.values())
            assert tokenizer.decode_bytes(ids) == text.encode()


def test_special_tokens():
    tokenizer = TRAINED["gpt2", True]
    assert tokenizer.special_tokens == {content: 595 + i for i, content in enumerate(SPECIAL)}
    assert tokenizer.vocab_size == 600
    text = "<|endoftext|><|x|><|x|><|endoftext|>éé"
    assert tokenizer.encode(text).tolist() == [597, 596, 595, 598]  # the longest first
    learned = BytePairTokenizer.train("ab<|e|>" * 5, 260, ["<|e|>"])
    assert learned.to_dict()["tokenizer"]["model"]["merges"] == [["a", "b"]]
    assert learned.vocab_size == 258  # no other pair occurs twice
    words = BytePairTokenizer.train("abc abc ab\n", 260).to_dict()["tokenizer"]["model"]
    assert words["merges"] == [["a", "b"], ["\u0120", "ab"]]


def test_what_is_not_a_whole_character():
    tokenizer = TRAINED["gpt2", False]
    ids = tokenizer.encode("😀")
    assert tokenizer.decode(ids[:1]) == "\ufffd"
    assert tokenizer.decode_bytes(ids) == "😀".encode()
    assert tokenizer.decode([]) == "" and tokenizer.encode("").shape == (0,)
    assert tokenizer.decode(ids.reshape(1, -1)) == "😀"


def test_wrong_arguments_are_named():
    tokenizer = TRAINED["gpt2", False]
    raises(DataError, r"token 600 at position 1 is not in \[0, 600\)", lambda: tokenizer.decode([0, 600]))
    raises(DataError, "must be integers, got float64", lambda: tokenizer.decode([0.5]))
    raises(DataError, r"U\+D800 at position 2 is a lone surrogate", lambda: tokenizer.encode("a \ud800"))
    raises(DataError, "goes with special_tokens", lambda: tokenizer.encode("a", special_tokens=False, template=True))
    raises(DataError, "lone surrogate", lambda: BytePairTokenizer.train("a\udfff", 300))
    raises(DataError, "the text is empty", lambda: BytePairTokenizer.train("", 300))
    least = r"at least 257 \(256 bytes and 1 special tokens\), got 256"
    raises(DataError, least, lambda: BytePairTokenizer.train("a", 256, ["<|e|>"]))
    raises(DataError, "'gpt5' is not a pattern", lambda: BytePairTokenizer.train("a", 300, pattern="gpt5"))
    word = "".join(map(chr, np.random.default_rng(0).integers(97, 123, 300_000)))
    began = time.monotonic()
    assert BytePairTokenizer.train(word, 1024).vocab_size == 1024 and time.monotonic() - began < 10  # 20 s uncut
    for special in ([""], ["xx", "xx"], ["\ud800"], ["a"], ["Ġ"]):
        with pytest.raises(DataError):
            BytePairTokenizer.train("abab c", 300, special, "llama3").encode("ab")


def test_state_survives_json_and_files(tmp_path):
    for tokenizer in TRAINED.values():
        assert BytePairTokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict()))) == tokenizer
        tokenizer.save(tmp_path / "t.json")
        assert BytePairTokenizer.from_file(tmp_path / "t.json") == tokenizer
    for state in (None, {}, {"kind": "characters"}, {"kind": "byte pairs", "tokenizer": None}):
        raises(DataError, "", BytePairTokenizer.from_dict, state)


def test_gpt2_files_are_read_by_the_library(tmp_path):
    tokenizer = TRAINED["gpt2", False]
    vocab, merges = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.to_dict()["tokenizer"])).model.save(
        str(tmp_path)
    )
    again = load_tokenizer(tokenizers.ByteLevelBPETokenizer(vocab, merges))
    assert isinstance(again, BytePairTokenizer) and again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


@pytest.mark.parametrize("name", ["mistral", "qwen"])
def test_a_file_with_other_rules_runs_as_the_library_reads_it(tmp_path, name):
    if name == "mistral":  # with SentencePiece's rules
        theirs = tokenizers.SentencePieceBPETokenizer()
        theirs.train_from_iterator(
            [TEXT[:9000]], vocab_size=500, special_tokens=["<unk>", "<|x|>"], show_progress=False
        )
    else:  # of bytes, composed before, and digits one by one
        split = {**SPLIT, "pattern": {"Regex": bpe.LLAMA3.replace("{1,3}", "")}}
        rules = {"normalizer": {"type": "NFC"}, "post_processor": template(X, A)}
        rules["pre_tokenizer"] = steps_of(split, {**bpe.BYTE_LEVEL, "use_regex": False})
        theirs = tokenizers.Tokenizer.from_str(json.dumps({**DOCUMENT, **rules}))
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours, text = load_tokenizer(tmp_path), "class or None, cafe\u0301 2026:  x<|x|>"
    assert type(ours) is LibraryTokenizer and ours.vocab_size == theirs.get_vocab_size()
    for around in (False, True):
        assert ours.encode(text, template=around).tolist() == theirs.encode(text, add_special_tokens=around).ids
    special, plain = ours.special_tokens["<|x|>"], ours.encode(text, special_tokens=False).tolist()
    assert special in ours.encode(text) and special not in plain
    assert ours.decode(plain[:9]) == theirs.decode(plain[:9]) and ours.decode(plain[:9]).startswith("class or None")
    assert LibraryTokenizer.from_dict(json.loads(json.dumps(ours.to_dict()))) == load_tokenizer(theirs) == ours
    assert load_tokenizer(SimpleNamespace(backend_tokenizer=theirs)) == ours  # a fast one of transformers
    ours.save(tmp_path / "saved.json")
    assert load_tokenizer(tmp_path / "saved.json") == ours
    raises(DataError, r"token 9999 at position 0 is not in", ours.decode, [9999])


def test_a_tokenizer_of_the_library_is_taken_without_truncation_and_padding():
    theirs = tokenizers.Tokenizer.from_str(json.dumps(DOCUMENT))
    theirs.enable_truncation(3)
    theirs.enable_padding(length=10)
    assert BytePairTokenizer(theirs) == from_document(DOCUMENT)
    assert len(theirs.encode(TEXT).ids) == 10  # theirs is as it was


def template(*single):
    return {
        "type": "TemplateProcessing",
        "single": list(single),
        "pair": [A, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|x|>": {"id": "<|x|>", "ids": [596], "tokens": ["<|x|>"]}},
    }


A, X = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|x|>", "type_id": 0}}
ADDED = DOCUMENT["added_tokens"][0]
DIGITS = {"type": "Digits", "individual_digits": True}
SPLIT = bpe.PATTERNS["llama3"]["pretokenizers"][0]


def steps_of(*items):
    return {"type": "Sequence", "pretokenizers": list(items)}


def test_what_a_file_may_ask_for():
    with_template = from_document({**DOCUMENT, "post_processor": template(X, A, X)})
    plain = TRAINED["gpt2", True].encode("a b").tolist()
    assert with_template.encode("a b", template=True).tolist() == [596, *plain, 596]
    assert with_template.encode("a b").tolist() == plain
    prefixed = from_document(changed(["pre_tokenizer", "add_prefix_space"], True))
    assert prefixed.decode(prefixed.encode("a")) == " a"
    digits = from_document({**DOCUMENT, "pre_tokenizer": steps_of(DIGITS, bpe.BYTE_LEVEL)})
    assert len(digits.encode("12345")) == 5
    as_split = {**SPLIT, "pattern": {"Regex": bpe.GPT2[1]}, "behavior": "Removed", "invert": True}
    byte_level = {**bpe.BYTE_LEVEL, "use_regex": False}
    cut = from_document({**DOCUMENT, "pre_tokenizer": steps_of(as_split, byte_level)})
    assert cut.encode(TEXT).tolist() == TRAINED["gpt2", True].encode(TEXT).tolist()
    texts = [" ".join(pair) for pair in DOCUMENT["model"]["merges"]]
    assert from_document(changed(["model", "merges"], texts)) == from_document(DOCUMENT)
    # A word that is in the vocabulary is taken whole, but not one that is a special token.
    marks = {**DOCUMENT["model"]["vocab"], "!!!": 600}
    added = [*DOCUMENT["added_tokens"], {**ADDED, "id": 600, "content": "!!!"}]
    model = {**DOCUMENT["model"], "vocab": marks, "ignore_merges": True}
    whole = from_document({**DOCUMENT, "model": model, "added_tokens": added})
    assert whole.encode("!!!").tolist() == [600]
    assert 600 not in whole.encode("!!!", special_tokens=False)


def test_what_a_file_may_not_say():
    for path, value, message in [
        (["normalizer"], {"type": "NFC"}, "normalizer = {'type': 'NFC'} is not supported"),
        (["model"], None, "model: None is not supported"),
        (["model", "vocab"], [], "model.vocab an object"),
        (["model", "vocab", "a"], DELETE, "not a tokenizer|0x61"),
        (["model", "vocab", "a"], 600, "must have the ids 0 to"),
        (["model", "vocab", "a"], 10**9, "'a' has the id 1000000000"),
        (["model", "vocab", "a"], True, "'a' has the id True"),
        (["model", "vocab", "a"], 1, "not a tokenizer: .* out of vocabulary|have one id"),
        (["model", "vocab", "a b"], 600, "'a b' is neither a byte-level token nor an added one"),
        (["model", "type"], "Unigram", "'Unigram' is not supported"),
        (["model", "dropout"], 0.1, "dropout"),
        (["model", "byte_fallback"], True, "byte_fallback = True is not supported"),
        (["model", "end_of_word_suffix"], "</w>", "end_of_word_suffix"),
        (["model", "merges", 0], ["a", "\u2603"], "not a tokenizer"),
        (["decoder"], None, "decoder: None is not supported"),
        (["decoder", "type"], "WordPiece", "'WordPiece' is not supported"),
        (["pre_tokenizer"], None, "pre_tokenizer, at its end: None"),
        (["pre_tokenizer", "type"], "Other", "'Other' is not supported, only 'ByteLevel'"),
        (["pre_tokenizer"], steps_of(DIGITS), "at its end: type = 'Digits'"),
        (["pre_tokenizer"], steps_of(DIGITS, {**bpe.BYTE_LEVEL, "add_prefix_space": True}), "add_prefix_space = True"),
        (["pre_tokenizer"], steps_of({"type": "Metaspace"}, bpe.BYTE_LEVEL), "'Metaspace' is not supported"),
        (["pre_tokenizer"], steps_of({**SPLIT, "pattern": {"Regex": "(a+)+$"}}, bpe.BYTE_LEVEL), r"'\(a\+\)\+\$'"),
        (["pre_tokenizer"], steps_of({**SPLIT, "behavior": "Removed"}, bpe.BYTE_LEVEL), "behavior = 'Removed'"),
        (["added_tokens"], {}, "added_tokens must be a list"),
        (["added_tokens", 0, "id"], -1, "has the id -1"),
        (["added_tokens", 0, "lstrip"], True, "lstrip = True is not supported"),
        (["added_tokens"], [*DOCUMENT["added_tokens"], {**ADDED, "content": "a", "id": 64}], "is also what plain text"),
        (["post_processor"], template(A, A), "once"),
        (["post_processor"], template(X), "once"),
        (["post_processor"], template(A, {"SpecialToken": {"id": "<y>", "type_id": 0}}), "post_processor: "),
        (["post_processor"], {"type": "RobertaProcessing", "sep": ["a", 900], "cls": ["a", 64]}, "does not exist"),
    ]:
        error = raises(DataError, message, from_document, changed(path, value))
        assert "\n" not in error.args[0]


@pytest.mark.parametrize("text", ["", "[", "[]", "null", '{"a": 1, "a": 2}', "[" * 100_000, '{"model": NaN}'])
def test_what_is_no_such_json(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    raises(DataError, r"tokenizer\.json: ", lambda: BytePairTokenizer.from_file(tmp_path / "tokenizer.json"))


def test_what_is_no_file(tmp_path, monkeypatch):
    raises(DataError, "the file is missing", lambda: BytePairTokenizer.from_file(tmp_path / "missing.json"))
    raises(DataError, "not a regular file", lambda: BytePairTokenizer.from_file(tmp_path))
    path = tmp_path / "latin.json"
    path.write_bytes(b'"\xe9"')
    raises(DataError, "not UTF-8 at byte 1", lambda: BytePairTokenizer.from_file(path))
    monkeypatch.setattr(bpe, "MAX_BYTES", 2)
    raises(DataError, "the limit is 2", lambda: BytePairTokenizer.from_file(path))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = [[key] for key in DOCUMENT]
PLACES += [[part, key] for part in ("model", "pre_tokenizer", "decoder") for key in DOCUMENT[part]]
PLACES += [["model", "vocab", "a"], ["model", "merges", 0], ["added_tokens", 0]]
PLACES += [["added_tokens", 0, key] for key in DOCUMENT["added_tokens"][0]]


@settings(max_examples=150)
@given(st.sampled_from(PLACES), json_values)
def test_any_other_value_is_refused_or_works(place, value):
    try:
        tokenizer = from_document(changed(place, value))
    except DataError:
        return
    assert tokenizer.decode(tokenizer.encode("the cat é")).strip() == "the cat é"


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    raises(ModuleNotFoundError, "install the extra `bpe`", lambda: BytePairTokenizer.train("ab", 256))


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(text, st.data())
def test_round_trip(text, data):
    tokenizer = CharTokenizer.from_text(text)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64 and ids.shape == (len(text),) and ids.flags.writeable
    assert tokenizer.vocab_size == len(set(text))
    assert tokenizer.decode(ids) == text
    assert ids.tolist() == [sorted(set(text)).index(character) for character in text]
    other = data.draw(st.text(st.sampled_from(sorted(set(text)))))
    assert tokenizer.decode(tokenizer.encode(other)) == other


@given(text, st.characters(exclude_categories=["Cs"]), st.data())
def test_an_unknown_character_is_named(known, unknown, data):
    tokenizer = CharTokenizer.from_text(known)
    position = data.draw(st.integers(0, len(known)))
    if unknown in known:
        return
    caught = raises(DataError, "", lambda: tokenizer.encode(known[:position] + unknown + known[position:]))
    assert f"{unknown!r} (U+{ord(unknown):04X}) at position {position:,}, line" in str(caught)
    assert "\n" not in caught.args[0]


def test_the_line_of_an_unknown_character():
    with pytest.raises(DataError, match=r"'é' \(U\+00E9\) at position 4, line 3, is not among the 2 characters"):
        CharTokenizer.from_text("a\n").encode("a\n\na" + "é")


@given(text)
def test_state_survives_json(text):
    tokenizer = CharTokenizer.from_text(text)
    assert CharTokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict()))) == tokenizer


def test_decode():
    tokenizer = CharTokenizer.from_text("abc😀")
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([3, 0]) == "😀a"
    assert tokenizer.decode(np.array([[0, 1], [2, 3]], np.uint8)) == "abc😀"
    assert tokenizer.encode("").shape == (0,)
    raises(DataError, r"token 4 at position 1 is not in \[0, 4\)", lambda: tokenizer.decode([0, 4]))
    raises(DataError, "token -1", lambda: tokenizer.decode([-1]))
    raises(DataError, "must be integers, got float64", lambda: tokenizer.decode([0.0]))


def test_no_text_and_no_character():
    raises(DataError, "the text is empty", lambda: CharTokenizer.from_text(""))
    raises(DataError, r"U\+D800 at position 1 is a lone surrogate", lambda: CharTokenizer.from_text("a\ud800"))
    raises(DataError, "lone surrogate", lambda: CharTokenizer.from_text("a").encode("\udfff"))
