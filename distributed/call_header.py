"""What a rank is about to do, in 128 bytes: sent along with an operation, it lets the others see a disagreement.

A header is 16 bytes of a hash of the whole description, its first 96 bytes to be read by people, and a check sum. The
check sum tells a header from memory that it has not reached yet.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from .communicator import Call

SIZE = 128
_HASH, _TEXT = 16, 96


def describe(call: Call) -> str:
    """All that sender and receivers must agree on, in words."""
    if call.name in ("send", "recv"):
        return f"a message of {math.prod(call.shape)} {call.dtype} with tag {call.tag}"
    return str(call)


def pack(call: Call) -> np.ndarray:
    """The call's header: SIZE bytes, uint8."""
    text = describe(call).encode()
    body = _hash(text) + text[:_TEXT].ljust(_TEXT, b"\0")
    return np.frombuffer(body + _hash(body), np.uint8)


def whole(header: np.ndarray) -> bool:
    """Whether these are the bytes of a header, all of them."""
    data = header.tobytes()
    return _hash(data[: _HASH + _TEXT]) == data[_HASH + _TEXT :]


def text(header: np.ndarray) -> str:
    """The description, as far as it fits."""
    return header.tobytes()[_HASH : _HASH + _TEXT].rstrip(b"\0").decode(errors="replace")


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH).digest()
