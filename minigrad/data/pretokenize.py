r"""Text to words, before byte-pair encoding: the regular expressions of GPT-2 and Llama 3, and bytes as characters.

The expressions use ``\p{L}`` (letters) and ``\p{N}`` (numbers), which Python's `re` lacks. Here they are classes of
ranges, from `unicodedata`, and what Unicode added up to version 16, so that a text has the same tokens under each
Python from 3.10 (Unicode 13) to 3.14. White space is Unicode's property: Python's ``\s`` also has U+001C to U+001F.

Sources: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and its `encoder.py`,
https://github.com/openai/gpt-2; Llama 3's `tokenizer.py`, https://github.com/meta-llama/llama3.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
DIGIT = r"\p{N}|[^\p{N}]+"
DIGITS = r"\p{N}+|[^\p{N}]+"
PATTERNS = {"gpt2": GPT2, "llama3": LLAMA3}

# Assigned from Unicode 14 to 16.
_NEW_LETTERS = """
870-887 889-88E 8B5 8C8-8C9 C5D CDD 170D 171F 1B4C 1C89-1C8A 2C2F 2C5F 9FFD-9FFF A7C0-A7C1 A7CB-A7CD A7D0-A7D1 A7D3
A7D5-A7DC A7F2-A7F4 10570-1057A 1057C-1058A 1058C-10592 10594-10595 10597-105A1 105A3-105B1 105B3-105B9 105BB-105BC
105C0-105F3 10780-10785 10787-107B0 107B2-107BA 10D4A-10D65 10D6F-10D85 10EC2-10EC4 10F70-10F81 11071-11072 11075
1123F-11240 11380-11389 1138B 1138E 11390-113B5 113B7 113D1 113D3 11740-11746 11AB0-11ABF 11BC0-11BE0 11F02 11F04-11F10
11F12-11F33 12F90-12FF0 1342F 13441-13446 13460-143FA 16100-1611D 16A70-16ABE 16D40-16D6C 18CFF 1AFF0-1AFF3 1AFF5-1AFFB
1AFFD-1AFFE 1B11F-1B122 1B132 1B155 1DF00-1DF1E 1DF25-1DF2A 1E030-1E06D 1E290-1E2AD 1E4D0-1E4EB 1E5D0-1E5ED 1E5F0
1E7E0-1E7E6 1E7E8-1E7EB 1E7ED-1E7EE 1E7F0-1E7FE 2A6DE-2A6DF 2B735-2B739 2EBF0-2EE5D 31350-323AF
"""
_NEW_NUMBERS = """
10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16AC0-16AC9 16D70-16D79 1CCF0-1CCF9 1D2C0-1D2D3 1E4F0-1E4F9
1E5F1-1E5FA
"""
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def _expand(ranges: str) -> set[int]:
    codes: set[int] = set()
    for item in ranges.split():
        first, _, last = item.partition("-")
        codes.update(range(int(first, 16), int(last or first, 16) + 1))
    return codes


@functools.cache
def _classes() -> dict[str, str]:
    r"""``\p{L}`` and ``\p{N}`` as the inside of a character class."""
    codes = {"L": _expand(_NEW_LETTERS), "N": _expand(_NEW_NUMBERS)}
    for code in range(sys.maxunicode + 1):
        major = unicodedata.category(chr(code))[0]
        if major in codes:
            codes[major].add(code)
    classes = {}
    for major, members in codes.items():
        ordered = sorted(members)
        starts = [code for code in ordered if code - 1 not in members]
        ends = [code for code in ordered if code + 1 not in members]
        classes[major] = "".join(f"\\U{start:08x}-\\U{end:08x}" for start, end in zip(starts, ends))
    return classes


@functools.cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    r"""A pattern of this module, with ``\p{L}``, ``\p{N}``, ``\s`` and ``\S``, as Python's `re` takes it."""
    inside = {rf"\p{{{major}}}": ranges for major, ranges in _classes().items()} | {r"\s": _SPACE}
    parts = []
    in_class = False
    for token in re.findall(r"\\p\{[LN]\}|\\.|.", pattern):
        if token in inside:
            parts.append(inside[token] if in_class else f"[{inside[token]}]")
        elif token == r"\S":
            parts.append(f"[^{_SPACE}]")
        else:
            in_class = token == "[" or (in_class and token != "]")
            parts.append(token)
    return re.compile("".join(parts))


def split(pieces: Iterable[str], stages: Iterable[re.Pattern[str]]) -> Iterable[str]:
    """Each piece cut by the first pattern, what this gives by the second, and so on; nothing is lost."""
    for stage in stages:
        pieces = [word for piece in pieces for word in stage.findall(piece)]
    return pieces


def _byte_characters() -> str:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for U+0100 and on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
_TO_BYTE = {ord(character): byte for byte, character in enumerate(BYTE_CHARACTERS)}


def to_characters(raw: bytes) -> str:
    """Bytes as the printable characters that vocabulary files hold."""
    return raw.decode("latin-1").translate(_TO_CHARACTER)


def to_bytes(characters: str) -> bytes | None:
    """The inverse of `to_characters`; None if a character stands for no byte."""
    try:
        return bytes([_TO_BYTE[ord(character)] for character in characters])
    except KeyError:
        return None


_TO_CHARACTER = dict(enumerate(BYTE_CHARACTERS))
