"""The replicas that one process has, each in a thread of its own: what connects them, and how they are averaged.

An average is weighted with the batches that each has done. A communicator of the CPU, or of the replicas' devices, adds
the same flat arrays in the same order. So both give the same bits (but NCCL's order is its own).
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad import Tensor, cat, maximum, no_grad
from minigrad.device import CPU, Device, DeviceError
from minigrad.dtypes import is_floating
from minigrad.grad_arithmetic import norm_of
from minigrad.nn import Module, Parameter

from ...comm.call_thread import in_threads
from ...comm.calls import DEFAULT_TIMEOUT, ReduceOp
from ...comm.combine import combine
from ...comm.communicator import Communicator
from ...comm.nccl.nccl import NcclCommunicator, check_device
from ...comm.place import copied, on_host
from ...comm.threads.thread import ThreadCommunicator
from ...train.step import Named

log: logging.Logger = logging.getLogger("minigrad.distributed")

Flats = dict[np.dtype[Any], Tensor]  # of one device, by dtype


def replica_communicators(devices: Sequence[Device], timeout: float = DEFAULT_TIMEOUT) -> list[Communicator]:
    """A communicator for each device, in order of rank; they are one group.

    On CPUs they are ThreadCommunicators. On GPUs they are NCCL's if NCCL can be loaded and no GPU is there twice, which
    it refuses. Otherwise, as in the simulator, ThreadCommunicators copy from GPU to GPU and combine with the library's
    own kernels; the reason is logged. Neither takes gradients through the memory of the host.

    Raises ValueError for CPUs together with GPUs, DeviceError for a GPU that is not there.
    """
    check_kinds(devices)
    if devices[0].type == "cpu":
        return list(ThreadCommunicator.group(len(devices), timeout))
    for device in devices:
        device.kernels_package()  # raises, if it is not there
    reason = _no_nccl(devices)
    if reason is None:
        return list(NcclCommunicator.group(devices, timeout=timeout))
    log.info("replicas on %s: no NCCL (%s); copies between GPUs and own kernels", ", ".join(map(str, devices)), reason)
    return list(ThreadCommunicator.group(len(devices), timeout, devices=devices))


def check_kinds(devices: Sequence[Device]) -> None:
    """Raise ValueError for CPUs together with GPUs."""
    if len({device.type for device in devices}) > 1:
        raise ValueError("NcclComms requires CUDA devices, got CPU; replicas are all on CPUs or all on GPUs")


def check_alike(models: Sequence[Module], devices: Sequence[Device]) -> tuple[list[Named], list[Named]]:
    """Each model's parameters, and each one's buffers. Raises ValueError, naming replica and tensor, unless they fit
    those of the first, are on their devices, and are the replica's own.
    """
    params: list[Named] = [[*model.named_parameters()] for model in models]
    buffers: list[Named] = [[*model.named_buffers()] for model in models]
    owners: dict[int, int] = {}
    for what, lists in (("parameter", params), ("buffer", buffers)):
        for rank, named in enumerate(lists):
            if len(named) != len(lists[0]):
                raise ValueError(f"Ddp: replica {rank} has {len(named)} {what}s, expected {len(lists[0])}")
            for (name, tensor), (first_name, first) in zip(named, lists[0], strict=True):
                label = f"Ddp: {what} {name} of replica {rank}"
                if tensor.device is not devices[rank]:
                    raise ValueError(f"{label} is on {tensor.device}, expected {devices[rank]}")
                if owners.setdefault(id(tensor), rank) != rank:
                    raise ValueError(f"{label} is that of replica {owners[id(tensor)]}; each replica needs its own")
                keys = ("shape", "dtype", "requires_grad")
                both = [(key, getattr(tensor, key), getattr(first, key)) for key in keys]
                for aspect, here, there in [("name", name, first_name), *both]:
                    if here != there:
                        raise ValueError(f"{label} has {aspect} {here}, expected {there}")
    return params, buffers


def close_all(communicators: Sequence[Communicator]) -> None:
    """Close the communicators of one group, all at once: NCCL's wait for each other."""
    jobs = in_threads("close", len(communicators), lambda rank: communicators[rank].close())
    for error in [job.exception() for job in jobs]:
        if error is not None:
            raise error


def _no_nccl(devices: Sequence[Device]) -> str | None:
    """Why NCCL cannot connect them; None if it can."""
    if devices[0].kernels_package().simulated():
        return "the simulator has none"
    if len(set(devices)) < len(devices):
        return "it takes one rank for each GPU"
    try:
        for device in devices:
            check_device(device)
    except DeviceError as error:
        return str(error)
    return None


def average(communicator: Communicator, tensors: Sequence[Tensor], weights: Sequence[int]) -> float:
    """Replace every replica's tensors by the mean Σ w_r x_r / Σ w_r; all get the same bits.

    Floating tensors (parameters, and buffers such as running means) are averaged, float16 and bfloat16 in float32.
    Integer and bool tensors (counters) become the largest. All replicas call it, with the same weights, at least one
    of them > 0. The sums are made where the communicator is: on the CPU, or on the replicas' GPUs.

    Returns how far the replica was from the mean: |x - mean| / |mean| over the floating tensors. Frozen Parameters
    stay as they are. Nothing is changed if the operation fails.
    """
    flats = pack(tensors, weights[communicator.rank] / sum(weights)) if tensors else {}
    for dtype, flat in flats.items():
        total = flat.to(communicator.device)
        communicator.all_reduce(total, _op(dtype))
        flats[dtype] = total.to(flat.device)
    return unpack(tensors, flats)


def weighted_mean(replicas: Sequence[Sequence[Tensor]], weights: Sequence[int]) -> list[Tensor]:
    """The mean as ``average`` makes it, in host memory, of tensors that nobody changes meanwhile; they stay as
    they are."""
    rows = [pack(tensors, weight / sum(weights)) for tensors, weight in zip(replicas, weights, strict=True)]
    result = [Tensor.wrap(copied(tensor), CPU) for tensor in replicas[0]]
    flats = {}
    for dtype in rows[0]:
        arrays = [on_host(row[dtype]) for row in rows]
        combine(_op(dtype), arrays, arrays[:1])
        flats[dtype] = Tensor.wrap(arrays[0], CPU)
    unpack(result, flats)
    return result


def catch_up(tensors: Sequence[Tensor], before: Sequence[Tensor], mean: Sequence[Tensor]) -> float:
    """Move a replica's tensors by what the mean differs from their values ``before``, of which it was made; both are in
    host memory. So nothing is lost that the replica has learnt since. Returns what ``average`` does.
    """
    flats, old, new = (pack(these, 1.0) for these in (tensors, before, mean))
    for dtype, now in flats.items():
        x, y = old[dtype].to(now.device), new[dtype].to(now.device)
        flats[dtype] = now + (y - x) if is_floating(dtype) else maximum(now, y)
    return unpack(tensors, flats)


def pack(tensors: Sequence[Tensor], share: float) -> Flats:
    """One flat array per dtype, floating ones times ``share``; in the order of ``tensors``, on their device."""
    parts: dict[np.dtype[Any], list[Tensor]] = {}
    for tensor in tensors:
        x = tensor.detach().reshape(-1)
        if x.is_floating_point():
            x = x.to(_wide(x.dtype)) * share
        parts.setdefault(x.dtype, []).append(x)
    return {dtype: cat(flat) for dtype, flat in parts.items()}


@no_grad()
def unpack(tensors: Sequence[Tensor], flats: Flats) -> float:
    """Write the flat arrays back; returns |before - after| / |after| of the floating tensors."""
    at = dict.fromkeys(flats, 0)
    moved, after = [], []
    for tensor in tensors:
        dtype = _wide(tensor.dtype) if tensor.is_floating_point() else tensor.dtype
        new = flats[dtype][at[dtype] : at[dtype] + tensor.numel()].reshape(tensor.shape)
        at[dtype] += tensor.numel()
        if isinstance(tensor, Parameter) and not tensor.requires_grad:
            continue  # rounding would change what is equal everywhere
        if tensor.is_floating_point():
            moved.append(tensor.detach().to(dtype) - new)
            after.append(new)
        tensor.copy_(new)
    distance, size = norm_of(moved), norm_of(after)
    return distance / size if size else distance


def _wide(dtype: Any) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.itemsize == 2 else np.dtype(dtype)


def _op(dtype: Any) -> ReduceOp:
    return ReduceOp.SUM if is_floating(dtype) else ReduceOp.MAX
