"""Bytes of any length from one rank to another: first how many, then they themselves."""

from __future__ import annotations

import numpy as np

from .communicator import Communicator
from .place import on_device, on_host


def send_bytes(communicator: Communicator, data: bytes, dest: int) -> None:
    """Send ``data``, perhaps empty, to rank ``dest``, which calls ``recv_bytes``."""
    communicator.send(on_device(np.array([len(data)], np.int64), communicator.device), dest)
    if data:
        communicator.send(on_device(np.frombuffer(data, np.uint8), communicator.device), dest)


def recv_bytes(communicator: Communicator, src: int) -> bytes:
    """What rank ``src`` sends."""
    length = on_device(np.empty(1, np.int64), communicator.device)
    communicator.recv(length, src)
    data = on_device(np.empty(int(on_host(length)[0]), np.uint8), communicator.device)
    if data.numel():
        communicator.recv(data, src)
    return on_host(data).tobytes()
