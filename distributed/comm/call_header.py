"""What a rank is about to do, in 128 bytes: sent along with an operation, it lets the others see a disagreement.

A header is 15 integers of 64 bits, those first on which the ranks of a collective must agree, and a check sum (8
bytes), which tells a header from memory that it has not reached yet.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from minigrad.dtypes import SUPPORTED

from .calls import Call, CallKind, ReduceOp, in_words

_KINDS = tuple(CallKind)
_MESSAGE = {_KINDS.index(CallKind.SEND), _KINDS.index(CallKind.RECV)}
_OPS = tuple(ReduceOp)
_DIMS = 6  # of a shape with more, the number of elements alone is told in words
_LAYOUT = struct.Struct("=15q")
_AGREED = slice(0, (8 + _DIMS) * 8)
_SENT = slice(4 * 8, 7 * 8)  # what sender and receiver of a message agree on: tag, dtype, number of elements
_SUM_BYTES = 8
SIZE = _LAYOUT.size + _SUM_BYTES


class CallHeader(NamedTuple):
    """A header read: the operation's name, the call in words, and ``sequence``, which counts the rank's operations."""

    name: str
    call: str
    sequence: int


def pack(call: Call, number: int = 0, step: int | None = None) -> np.ndarray:
    """The header of a call: SIZE bytes, uint8. ``number`` and ``step`` are for engines whose ranks must agree on them:
    how many collectives the communicator has begun, and the trainer's step."""
    array, dtype, shape = call.array, call.dtype, call.shape
    # The peer of a message is another one at each end, so it is no part of what they agree on.
    chosen = call.tag if call.between_two else call.peer if call.kind is CallKind.BROADCAST else None
    body = _LAYOUT.pack(
        _KINDS.index(call.kind),
        number,
        -1 if step is None else step,
        -1 if call.op is None else _OPS.index(call.op),
        -1 if chosen is None else chosen,
        -1 if dtype is None else SUPPORTED.index(dtype),
        -1 if array is None else array.size,
        len(shape),
        *shape[:_DIMS],
        *(0,) * (_DIMS - len(shape)),
        call.sequence,
    )
    return np.frombuffer(body + _check_sum(body), np.uint8)


def whole(header: np.ndarray) -> bool:
    """Whether these are the bytes of a header, all of them."""
    data = header.tobytes()
    return _check_sum(data[: _LAYOUT.size]) == data[_LAYOUT.size :]


def agree(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two headers belong to one operation: the same collective, or the two ends of a message."""
    if a[_AGREED].tobytes() == b[_AGREED].tobytes():
        return True
    ends = {_LAYOUT.unpack_from(a.data)[0], _LAYOUT.unpack_from(b.data)[0]}
    return ends == _MESSAGE and a[_SENT].tobytes() == b[_SENT].tobytes()


def read(header: np.ndarray) -> CallHeader:
    """What a rank called."""
    code, _, step, op, chosen, dtype, count, ndim, *dims, sequence = _LAYOUT.unpack_from(header.data)
    name = str(_KINDS[code]) if 0 <= code < len(_KINDS) else f"operation code {code}"
    shape = tuple(dims[:ndim]) if ndim <= _DIMS else f"{count} elements"
    words = in_words(name, None if op < 0 else _OPS[op], shape, None if dtype < 0 else SUPPORTED[dtype], chosen)
    if code in _MESSAGE:
        words += f" with tag {chosen}"
    if step >= 0:
        words += f" in step {step}"
    return CallHeader(name, words, sequence)


def differences(headers: Mapping[int, np.ndarray]) -> str:
    """All ranks' calls in words: ``rank 0 called barrier (operation 7); rank 1 called ...``."""
    read_all = [(rank, read(header)) for rank, header in sorted(headers.items())]
    return "; ".join(f"rank {rank} called {header.call} (operation {header.sequence})" for rank, header in read_all)


def _check_sum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM_BYTES).digest()
