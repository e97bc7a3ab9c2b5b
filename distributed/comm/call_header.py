"""What a rank is about to do, in 128 bytes: sent along with an operation, it lets the others see a disagreement.

A header is the call's number, a digest of what the ranks must agree on, the call in words, and a check sum. The words
are cut where they are too long. The check sum tells a header from memory that it has not reached yet.
"""

import hashlib
import struct
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .calls import Call, in_words

SIZE = 128
_BODY = struct.Struct("=q16s96s")  # number, digest, words
_AGREED = slice(8, 24)
_SUM_BYTES = SIZE - _BODY.size
_DIMS = 6  # of a shape with more, the number of elements alone is told in words


class CallHeader(NamedTuple):
    """A header read: the operation's name, the call in words, and ``sequence``, which counts the rank's operations."""

    name: str
    call: str
    sequence: int


def pack(call: Call, number: int = 0, step: int | None = None) -> np.ndarray:
    """The header of a call: SIZE bytes, uint8. ``number`` and ``step`` are for engines whose ranks must agree on them:
    how many collectives the communicator has begun, and the trainer's step."""
    shape = call.shape
    told = f"{call.array.size} elements" if len(shape) > _DIMS else shape
    words = in_words(call.kind.value, call.op, told, call.dtype, call.peer, call.of)
    agreed = f"{words} {number} {step} {shape}"
    if call.between_two:  # the name, the shape and the peer are others at each end
        words += f" with tag {call.tag}"
        agreed = f"{call.tag} {call.dtype} {call.array.size}"
    if step is not None:
        words += f" in step {step}"
    body = _BODY.pack(call.sequence, _digest(agreed.encode(), 16), f"{call.kind.value}\n{words}".encode())
    return np.frombuffer(body + _digest(body, _SUM_BYTES), np.uint8)


def whole(header: np.ndarray) -> bool:
    """Whether these are the bytes of a header, all of them."""
    data = header.tobytes()
    return _digest(data[: _BODY.size], _SUM_BYTES) == data[_BODY.size :]


def agree(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two headers belong to one operation: the same collective, or the two ends of a message."""
    return a[_AGREED].tobytes() == b[_AGREED].tobytes()


def odd(headers: Mapping[int, np.ndarray], own: int) -> list[int]:
    """The ranks whose call is not that of the most, or not that of ``own`` where no other has more."""
    alike = {rank: sum(agree(header, other) for other in headers.values()) for rank, header in headers.items()}
    right = headers[max(alike, key=lambda rank: (alike[rank], rank == own))]
    return [rank for rank, header in sorted(headers.items()) if not agree(header, right)]


def read(header: np.ndarray) -> CallHeader:
    """What a rank called."""
    sequence, _, text = _BODY.unpack_from(header.data)
    name, _, words = text.rstrip(b"\0").decode(errors="replace").partition("\n")
    return CallHeader(name, words, sequence)


def differences(headers: Mapping[int, np.ndarray]) -> str:
    """All ranks' calls in words: ``rank 0 called barrier (operation 7); rank 1 called ...``."""
    read_all = [(rank, read(header)) for rank, header in sorted(headers.items())]
    return "; ".join(f"rank {rank} called {header.call} (operation {header.sequence})" for rank, header in read_all)


def _digest(data: bytes, size: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size).digest()
