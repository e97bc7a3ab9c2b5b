"""What a rank is about to do, in 128 bytes: sent along with an operation, it lets the others see a disagreement.

A header is a hash of all that must agree (16 bytes), the operation in words for people (96), and a check sum (16),
which tells a header from memory that it has not reached yet.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from .calls import Call

SIZE = 128
_HASH, _TEXT = 16, 96


def describe(call: Call) -> str:
    """The operation in words."""
    return f"{call} with tag {call.tag}" if call.name in ("send", "recv") else str(call)


def pack(call: Call) -> np.ndarray:
    """The call's header: SIZE bytes, uint8."""
    agreed = describe(call)
    if call.name in ("send", "recv"):  # two ends of one message, whose shapes may differ
        agreed = f"message of {math.prod(call.shape)} {call.dtype} with tag {call.tag}"
    body = _hash(agreed.encode()) + describe(call).encode()[:_TEXT].ljust(_TEXT, b"\0")
    return np.frombuffer(body + _hash(body), np.uint8)


def whole(header: np.ndarray) -> bool:
    """Whether these are the bytes of a header, all of them."""
    data = header.tobytes()
    return _hash(data[: _HASH + _TEXT]) == data[_HASH + _TEXT :]


def agree(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two headers belong to one operation."""
    return a[:_HASH].tobytes() == b[:_HASH].tobytes()


def text(header: np.ndarray) -> str:
    """The operation in words, as far as they fit."""
    return header.tobytes()[_HASH : _HASH + _TEXT].rstrip(b"\0").decode(errors="replace")


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH).digest()
