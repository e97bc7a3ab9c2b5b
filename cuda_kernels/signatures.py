"""The words of a kernel's signature, and which arrays and numbers they accept.

A pointer is an element's name with a star. ``float32* float64* int64* int32* uint8* uint32* uint64*`` take arrays of
that dtype. ``bool*`` (bytes 0 and 1), ``float16*`` and ``bfloat16*`` take such arrays, and the kernel sees ``uint8``
and ``uint16``: the bits, which ``ptx.float16_to_float`` and its like convert. ``bits8* bits16* bits32* bits64*`` take
arrays of any dtype of that width, for kernels that only move values. A number is its dtype's name without a star.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_STORAGE = {
    "bool": "uint8",
    "float16": "uint16",
    "bfloat16": "uint16",
    "bits8": "uint8",
    "bits16": "uint16",
    "bits32": "uint32",
    "bits64": "uint64",
}
_ELEMENTS = ("float32", "float64", "int64", "int32", "uint8", "uint16", "uint32", "uint64")
_NUMBERS = {"int32": "i4x", "int64": "q", "uint32": "I4x", "uint64": "Q", "float32": "f4x", "float64": "d"}


def storage(word: str) -> str:
    """The dtype as which the kernel sees what ``word`` points to."""
    name = word.removesuffix("*")
    return _STORAGE.get(name, name)


def check(words: tuple[str, ...]) -> None:
    """Raise ValueError, naming the words that exist, for one that is none."""
    pointers = [*(f"{name}*" for name in _ELEMENTS), *(f"{name}*" for name in _STORAGE)]
    for word in words:
        if word not in _NUMBERS and word not in pointers:
            known = ", ".join([*_NUMBERS, *pointers])
            raise ValueError(f"{word!r} is no word of a kernel's signature; there are {known}")


def packing(words: tuple[str, ...]) -> str:
    """The ``struct`` format of a launch's arguments: a slot of 8 bytes for each."""
    return "<" + "".join("Q" if word.endswith("*") else _NUMBERS[word] for word in words)


def words_of(dtype: np.dtype[Any]) -> tuple[str, str]:
    """The pointer words that accept an array of this dtype."""
    return f"{dtype.name}*", f"bits{8 * dtype.itemsize}*"
