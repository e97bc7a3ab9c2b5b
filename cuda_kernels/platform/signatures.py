"""The words of a kernel's signature, and which arrays and numbers they accept.

A pointer is an element's name with a star. ``float32* float64* int64* int32* uint8* uint32* uint64*`` take arrays of
that dtype. ``bool*`` (bytes 0 and 1), ``float16*`` and ``bfloat16*`` take such arrays, and the kernel sees ``uint8``
and ``uint16``: the bits, which ``ptx.float16_to_float`` and its like convert. ``bits8* bits16* bits32* bits64*`` take
arrays of any dtype of that width, for kernels that only move values. A number is its dtype's name without a star.
``tensor_map`` takes a ``TensorMap``, whose 128 bytes are the parameter; the kernel sees their address, as uint64. These
words come first, because the bytes lie at multiples of 64. ``"float32* x2, int64"`` is float32* twice, and int64.
"""

import struct
from typing import Any

import numpy as np

from . import tensor_map

_BITS = {f"bits{n}": f"uint{n}" for n in (8, 16, 32, 64)}
_STORAGE = {"bool": "uint8", "float16": "uint16", "bfloat16": "uint16"} | _BITS
_ELEMENTS = ("float32", "float64", "int64", "int32", "uint8", "uint16", "uint32", "uint64")
TENSOR_MAP = "tensor_map"
_NUMBERS = {"int32": "i4x", "int64": "q", "uint32": "I4x", "uint64": "Q", "float32": "f4x", "float64": "d"}


def storage(word: str) -> str:
    """The dtype as which the kernel sees what ``word`` points to."""
    name = word.removesuffix("*")
    return _STORAGE.get(name, name)


def words(*texts: str) -> tuple[str, ...]:
    """The words of a signature."""
    found: list[str] = []
    for text in ", ".join(texts).split(", ") if texts else ():
        word, _, count = text.partition(" x")
        found += [word] * int(count or 1)
    return tuple(found)


def check(words: tuple[str, ...]) -> None:
    """Raise ValueError, naming the words that exist, for one that is none."""
    pointers = [*(f"{name}*" for name in _ELEMENTS), *(f"{name}*" for name in _STORAGE)]
    maps = words.count(TENSOR_MAP)
    if TENSOR_MAP in words[maps:]:
        raise ValueError(f"the words tensor_map come first in a kernel's signature; got {', '.join(words)}")
    for word in words[maps:]:
        if word not in _NUMBERS and word not in pointers:
            known = ", ".join([*_NUMBERS, *pointers, TENSOR_MAP])
            raise ValueError(f"{word!r} is no word of a kernel's signature; there are {known}")


def packing(words: tuple[str, ...]) -> str:
    """The ``struct`` format of a launch's arguments: a slot of 8 bytes for each, of 128 for a tensor map."""
    return "<" + "".join(_slot(word) for word in words)


def places(words: tuple[str, ...]) -> list[int]:
    """Where each argument begins among the bytes of ``packing``."""
    return [struct.calcsize(packing(words[:i])) for i in range(len(words))]


def _slot(word: str) -> str:
    if word == TENSOR_MAP:
        return f"{tensor_map.MAP_BYTES}s"
    return "Q" if word.endswith("*") else _NUMBERS[word]


def words_of(dtype: np.dtype[Any]) -> tuple[str, str]:
    """The pointer words that accept an array of this dtype."""
    return f"{dtype.name}*", f"bits{8 * dtype.itemsize}*"
