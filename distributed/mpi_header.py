"""What ranks tell each other before an operation's payload, so that different calls are an error on every rank.

A header is 128 bytes. Its first part must be the same on all ranks; the rest describes the call in messages.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from minigrad.dtypes import SUPPORTED

from .calls import Call, ReduceOp

NAMES = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send",
    "recv",
    "split",
    "close",
)
OPS = tuple(ReduceOp)
_LAYOUT = struct.Struct("=16q")
SIZE = _LAYOUT.size
_DIMS = 6
AGREED = (8 + _DIMS) * 8  # bytes at the front that all ranks must have in common


class Header(NamedTuple):
    """A header read. ``number`` counts the communicator's collectives, ``sequence`` all operations of the rank."""

    number: int
    name: str
    call: str
    sequence: int
    step: int | None


def pack(number: int, call: Call) -> bytes:
    """The header of a call."""
    dtype, shape = call.dtype, call.shape
    root = call.peer if call.name == "broadcast" and call.peer is not None else -1
    count = -1
    if dtype is not None:
        array = call.recv if call.send is None else call.send
        count = array.size
    dims = (*shape[:_DIMS], *(0,) * (_DIMS - len(shape)))
    return _LAYOUT.pack(
        number,
        NAMES.index(call.name),
        -1 if dtype is None else SUPPORTED.index(dtype),
        count,
        -1 if call.op is None else OPS.index(call.op),
        root,
        -1 if call.step is None else call.step,
        len(shape),
        *dims,
        call.sequence,
        0,
    )


def read(data: bytes | bytearray | memoryview) -> Header:
    """What another rank called."""
    number, name, dtype, count, op, root, step, ndim, *dims, sequence, _ = _LAYOUT.unpack_from(data)
    words = NAMES[name] if 0 <= name < len(NAMES) else f"operation code {name}"
    if op >= 0:
        words += f"({OPS[op].value})"
    if dtype >= 0:
        shape = tuple(dims[:ndim]) if ndim <= _DIMS else f"{count} elements"
        words += f" of {shape} {SUPPORTED[dtype]}"
    if root >= 0:
        words += f" from rank {root}"
    if step >= 0:
        words += f" in step {step}"
    return Header(number, NAMES[name] if 0 <= name < len(NAMES) else "?", words, sequence, None if step < 0 else step)


def differences(headers: dict[int, Header]) -> str:
    """All ranks' calls in words: ``rank 0 called barrier (operation 7); rank 1 called ...``."""
    return "; ".join(
        f"rank {rank} called {header.call} (operation {header.sequence})" for rank, header in sorted(headers.items())
    )
