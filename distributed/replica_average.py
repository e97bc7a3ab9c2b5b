"""Averaging the tensors of several replicas, weighted with the batches that each has done: in host memory, or by a
communicator, on the replicas' devices. Both add the same flat arrays in the same order, so they give the same bits
where the communicator does (NCCL's order is its own).
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.device import CPU, Device
from minigrad.dtypes import is_floating
from minigrad.nn import Parameter
from minigrad.tensor import Tensor

from .calls import ReduceOp
from .combine import combine
from .communicator import Communicator

Flats = dict[np.dtype[Any], Any]  # raw arrays of one device


class ReplicaAverager(ABC):
    """Replaces every replica's tensors by the mean Σ w_r x_r / Σ w_r; all get the same bits.

    Floating tensors (parameters, and buffers such as running means) are averaged, float16 and bfloat16 in float32.
    Integer and bool tensors (counters) become the largest.
    """

    def average(self, rank: int, tensors: Sequence[Tensor], weights: Sequence[int]) -> float:
        """Replica ``rank``'s part; all replicas call it, with the same weights, at least one of them > 0.

        Returns how far the replica was from the mean: |x - mean| / |mean| over the floating tensors. Frozen Parameters
        stay as they are. Nothing is changed if the operation fails.
        """
        device = tensors[0].device if tensors else CPU
        return unpack(tensors, self._reduce(rank, pack(tensors, weights[rank] / sum(weights)), device))

    @abstractmethod
    def abort(self) -> None:
        """A replica has failed: let the others not wait for it."""

    @abstractmethod
    def _reduce(self, rank: int, flats: Flats, device: Device) -> Flats:
        """The sum over replicas of each floating array, the maximum of each other one; of and on ``device``."""


class HostAverager(ReplicaAverager):
    """Adds the arrays of all replicas up in one thread, in host memory, also those of GPUs (flodl's CPU backend).

    Raises threading.BrokenBarrierError if a replica has not come within ``timeout`` seconds.
    """

    def __init__(self, world: int, timeout: float) -> None:
        self._slots: list[Flats] = [{} for _ in range(world)]
        self._barrier = threading.Barrier(world, timeout=timeout)

    def abort(self) -> None:
        """Whoever waits raises threading.BrokenBarrierError."""
        self._barrier.abort()

    def _reduce(self, rank: int, flats: Flats, device: Device) -> Flats:
        self._slots[rank] = {dtype: device.kernels.to_host(flat) for dtype, flat in flats.items()}
        if self._barrier.wait() == 0:
            for dtype in flats:
                arrays = [slot[dtype] for slot in self._slots]
                combine(_op(dtype), arrays, arrays)
        self._barrier.wait()
        return {dtype: device.kernels.from_host(flat) for dtype, flat in self._slots[rank].items()}


class CommunicatorAverager(ReplicaAverager):
    """All-reduces the arrays; ``communicators`` are those of all replicas, in order of rank."""

    def __init__(self, communicators: Sequence[Communicator]) -> None:
        self._communicators = list(communicators)

    def abort(self) -> None:
        """The failed replica leaves its communicator, which tells the others."""

    def _reduce(self, rank: int, flats: Flats, device: Device) -> Flats:
        comm = self._communicators[rank]
        tensors = {dtype: Tensor.wrap(flat, device) for dtype, flat in flats.items()}
        for dtype, tensor in tensors.items():
            comm.all_reduce(tensor, _op(dtype))
        return {dtype: tensor.data for dtype, tensor in tensors.items()}


def weighted_mean(replicas: Sequence[Sequence[Tensor]], weights: Sequence[int]) -> list[Tensor]:
    """The mean as ``ReplicaAverager`` makes it, in host memory, of tensors that nobody changes meanwhile; they stay as
    they are."""
    rows = []
    for tensors, weight in zip(replicas, weights, strict=True):
        flats = pack(tensors, weight / sum(weights))
        rows.append({dtype: tensors[0].device.kernels.to_host(flat) for dtype, flat in flats.items()})
    result = [Tensor.wrap(on_host(tensor), CPU) for tensor in replicas[0]]
    for dtype in rows[0]:
        arrays = [row[dtype] for row in rows]
        combine(_op(dtype), arrays, arrays)
    unpack(result, rows[0])
    return result


def on_host(tensor: Tensor) -> np.ndarray:
    """A copy of the tensor's values."""
    kernels = tensor.device.kernels
    copy: np.ndarray = kernels.to_host(kernels.copy(tensor.data))
    return copy


def pack(tensors: Sequence[Tensor], share: float) -> Flats:
    """One flat array per dtype, floating ones times ``share``; in the order of ``tensors``, on their device."""
    parts: dict[np.dtype[Any], list[Any]] = {}
    for tensor in tensors:
        kernels = tensor.device.kernels
        x = tensor.data.reshape(-1)
        if is_floating(x.dtype):
            x = kernels.elementwise.mul(kernels.elementwise.cast(x, _wide(x.dtype)), share)
        parts.setdefault(x.dtype, []).append(x)
    return {dtype: tensors[0].device.kernels.movement.cat(tuple(arrays), 0) for dtype, arrays in parts.items()}


def unpack(tensors: Sequence[Tensor], flats: Flats) -> float:
    """Write the flat arrays back; returns |before - after| / |after| of the floating tensors."""
    at = dict.fromkeys(flats, 0)
    moved, after = [], []
    for tensor in tensors:
        kernels, x = tensor.device.kernels, tensor.data
        dtype = _wide(x.dtype) if is_floating(x.dtype) else x.dtype
        new = flats[dtype][at[dtype] : at[dtype] + x.size].reshape(x.shape)
        at[dtype] += x.size
        if isinstance(tensor, Parameter) and not tensor.requires_grad:
            continue  # rounding would change what is equal everywhere
        if is_floating(x.dtype):
            moved.append(kernels.elementwise.sub(kernels.elementwise.cast(x, dtype), new))
            after.append(new)
        kernels.elementwise.assign(x, new)
        tensor.bump_version()
    if not moved:
        return 0.0
    norms = tensors[0].device.kernels.grad_norm
    distance, size = norms.sum_of_squares(moved), norms.sum_of_squares(after)
    return math.sqrt(distance / size) if size else math.sqrt(distance)


def _wide(dtype: Any) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.itemsize == 2 else np.dtype(dtype)


def _op(dtype: Any) -> ReduceOp:
    return ReduceOp.SUM if is_floating(dtype) else ReduceOp.MAX
