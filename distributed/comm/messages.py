"""Bytes of any length from one rank to another: short ones in one message, others in two."""

from __future__ import annotations

import numpy as np

from .communicator import Communicator
from .place import on_device, on_host

FIRST = 256  # bytes of the first message: the length in 8, then as much as fits


def send_bytes(communicator: Communicator, data: bytes, dest: int) -> None:
    """Send ``data``, perhaps empty, to rank ``dest``, which calls ``recv_bytes``."""
    whole = (len(data).to_bytes(8, "little") + data).ljust(FIRST, b"\0")
    for part in (whole[:FIRST], whole[FIRST:]):
        if part:
            communicator.send(on_device(np.frombuffer(part, np.uint8), communicator.device), dest)


def recv_bytes(communicator: Communicator, src: int) -> bytes:
    """What rank ``src`` sends."""
    first = _receive(communicator, src, FIRST)
    end = 8 + int.from_bytes(first[:8], "little")
    return first[8:end] if end <= FIRST else first[8:] + _receive(communicator, src, end - FIRST)


def _receive(communicator: Communicator, src: int, size: int) -> bytes:
    data = on_device(np.empty(size, np.uint8), communicator.device)
    communicator.recv(data, src)
    return on_host(data).tobytes()
