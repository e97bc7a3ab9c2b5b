"""Words: nothing is lost, classes are those of Unicode 16, and the cuts are those of the tokenizers library."""

from __future__ import annotations

import random
import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.data.pretokenize import (
    BYTE_CHARACTERS,
    DIGIT,
    DIGITS,
    GPT2,
    LLAMA3,
    compile_pattern,
    split,
    to_bytes,
    to_characters,
)

PATTERNS = [GPT2, LLAMA3, DIGIT, DIGITS]
CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
PIECES = (
    [
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\x85",
        "\xa0",
        "\x1c",
        "\u2028",
        "\u3000",
        "\x00",
        "\ufeff",
        "'s",
        "'S",
        "'ſ",
        "'LL",
    ]
    + [
        "é",
        "e\u0301",
        "\u0301",
        "中文",
        "日本",
        "한국",
        "😀",
        "👨\u200d👩\u200d👧",
        "٣",
        "½",
        "Ⅷ",
        "१२",
        "12345",
        "a",
        "BC",
    ]
    + ["!?", ".", "-", "ﬁ", "𝔘", "𞤀"]
)
mixed = st.lists(st.sampled_from(PIECES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)).map("".join)


def test_gpt2s_own_examples():
    words = compile_pattern(GPT2).findall("Hello, it's   2026!\n\n  I'LL go")
    assert words == ["Hello", ",", " it", "'s", "  ", " 2026", "!", "\n\n ", " I", "'", "LL", " go"]
    words = compile_pattern(LLAMA3).findall("Hello, it's   2026!\n\n  I'LL go")
    assert words == ["Hello", ",", " it", "'s", "  ", " ", "202", "6", "!\n\n", " ", " I", "'LL", " go"]


@given(mixed)
def test_no_text_is_lost(text):
    for pattern in PATTERNS:
        assert "".join(compile_pattern(pattern).findall(text)) == text
    stages = [compile_pattern(DIGIT), compile_pattern(GPT2)]
    words = list(split([text], stages))
    assert "".join(words) == text
    assert all(len(word.strip()) == 1 for word in words if unicodedata.category(word[-1])[0] == "N")


def test_classes_hold_what_unicodedata_says():
    for major in "LN":
        inside = compile_pattern(rf"\p{{{major}}}")
        for character in CHARACTERS:
            category = unicodedata.category(character)
            if category != "Cn":  # what this Python's Unicode does not know may have been added later
                assert bool(inside.fullmatch(character)) == (category[0] == major), hex(ord(character))
    for added in "\u1c89\U0001e5f0\U0002ebf0\U000323af":  # letters since Unicode 14 to 16
        assert compile_pattern(r"\p{L}").fullmatch(added)
    assert compile_pattern(r"\p{N}").fullmatch("\U0001ccf0")


def test_white_space():
    assert "".join(c for c in CHARACTERS if compile_pattern(r"\s").fullmatch(c)) == "".join(
        c for c in CHARACTERS if re.fullmatch(r"\s", c) and c not in "\x1c\x1d\x1e\x1f"
    )
    assert not compile_pattern(r"\S").fullmatch("\u3000")
    assert compile_pattern(r"\S").fullmatch("\x1c")


def test_the_table_of_bytes():
    assert len(set(BYTE_CHARACTERS)) == 256
    assert to_characters(b" \n\x00az\xad\xff") == "ĠĊĀazŃÿ"
    assert to_bytes("ĠĊĀazŃÿ") == b" \n\x00az\xad\xff"
    assert to_bytes("a b") is None
    assert all(character.isprintable() and not character.isspace() for character in BYTE_CHARACTERS)


@pytest.mark.parametrize("pattern", PATTERNS, ids=["gpt2", "llama3", "digit", "digits"])
def test_the_cuts_are_those_of_the_tokenizers_library(pattern):
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")
    splitter = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    ours = compile_pattern(pattern)

    def check(text):
        assert [word for word, _ in splitter.pre_tokenize_str(text)] == ours.findall(text)

    categories = [unicodedata.category(character) for character in CHARACTERS]
    ends = [index for index, (left, right) in enumerate(pairwise(categories)) if left != right]
    chosen = [CHARACTERS[index] for end in ends for index in (end, end + 1)]  # both ends of each run of a category
    for first in range(0, len(chosen), 512):
        check("".join(f"a{c}1{c} {c}" for c in chosen[first : first + 512]))
    draw = random.Random(0)
    for _ in range(1000):
        check("".join(draw.choice(PIECES + CHARACTERS[: 32 * 8 : 8]) for _ in range(draw.randint(0, 12))))
