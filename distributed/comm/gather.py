"""Bytes of any length, JSON and parts of arrays between ranks, by a Communicator's calls of equal sizes."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from minigrad.tensor import Tensor

from .communicator import Communicator
from .place import device_of, on_device, on_host

FIRST = 256  # bytes of the first message: the length in 8, then as much as fits


def all_gather_rows(communicator: Communicator, array: np.ndarray) -> np.ndarray:
    """Every rank's array (n,), in order of rank: (world_size, n). Size and dtype are the same on all ranks."""
    device, ranks = communicator.device, communicator.world_size
    recv = Tensor.wrap(device.kernels.empty((ranks * array.size,), array.dtype), device)
    communicator.all_gather(on_device(array, device), recv)
    return on_host(recv).reshape(ranks, array.size)


def all_gather_bytes(communicator: Communicator, data: bytes) -> list[bytes]:
    """Every rank's ``data``, in order of rank; lengths may differ. A collective of all ranks."""
    lengths = all_gather_rows(communicator, np.array([len(data)], np.int64))[:, 0].tolist()
    padded = np.zeros(max(lengths), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    rows = all_gather_rows(communicator, padded)
    return [row[:length].tobytes() for row, length in zip(rows, lengths)]


def all_gather_json(communicator: Communicator, value: Any) -> list[Any]:
    """Every rank's JSON value, in order of rank. A collective of all ranks."""
    return [json.loads(raw) for raw in all_gather_bytes(communicator, json.dumps(value).encode())]


def part_of(n: int, communicator: Communicator) -> tuple[int, int]:
    """(begin, end) of this rank's part of n things: ceil(n / ranks) each, the last parts shorter or empty."""
    size = math.ceil(n / communicator.world_size)
    return min(communicator.rank * size, n), min((communicator.rank + 1) * size, n)


def all_gather_columns(communicator: Communicator, part: Any, n: int) -> Any:
    """All ranks' raw arrays (..., n_r), cut as ``part_of`` says, side by side: (..., n)."""
    ranks, device = communicator.world_size, device_of(part)
    k = device.kernels
    send = k.zeros((*part.shape[:-1], math.ceil(n / ranks)), part.dtype)
    k.elementwise.assign(send[..., : part.shape[-1]], part)
    parts = k.empty((ranks, *send.shape), part.dtype)
    communicator.all_gather(Tensor.wrap(send, device), Tensor.wrap(parts, device))
    return k.contiguous(k.movement.cat(tuple(parts[rank] for rank in range(ranks)), -1)[..., :n])


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
