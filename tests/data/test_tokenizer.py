"""Characters to tokens and back."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises

from minigrad.data import CharTokenizer, DataError

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
