"""What connects the replicas that one process has, each in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from minigrad.device import Device, DeviceError
from minigrad.nn import Module

from ...comm.communicator import Communicator
from ...comm.deadlines import DEFAULT_TIMEOUT
from ...comm.nccl.nccl import NcclCommunicator, check_device
from ...comm.threads.thread import ThreadCommunicator
from ...train.params import Named

log: logging.Logger = logging.getLogger("minigrad.distributed")


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
    for what, lists in (("parameters", params), ("buffers", buffers)):
        for rank, named in enumerate(lists):
            if len(named) != len(lists[0]):
                raise ValueError(f"Ddp: replica {rank} has {len(named)} {what}, expected {len(lists[0])}")
    owners: dict[int, int] = {}
    for what, lists in (("parameter", params), ("buffer", buffers)):
        for rank, named in enumerate(lists):
            for (name, tensor), (first_name, first) in zip(named, lists[0], strict=True):
                label = f"Ddp: {what} {name} of replica {rank}"
                if tensor.device is not devices[rank]:
                    raise ValueError(f"{label} is on {tensor.device}, expected {devices[rank]}")
                if owners.setdefault(id(tensor), rank) != rank:
                    raise ValueError(f"{label} is that of replica {owners[id(tensor)]}; each replica needs its own")
                for aspect, here, there in (
                    ("name", name, first_name),
                    ("shape", tensor.shape, first.shape),
                    ("dtype", tensor.dtype, first.dtype),
                    ("requires_grad", tensor.requires_grad, first.requires_grad),
                ):
                    if here != there:
                        raise ValueError(f"{label} has {aspect} {here}, expected {there}")
    return params, buffers


def close_all(communicators: Sequence[Communicator]) -> None:
    """Close the communicators of one group, all at once: NCCL's wait for each other."""
    if not communicators:
        return
    with ThreadPoolExecutor(len(communicators)) as pool:
        ended = [pool.submit(communicator.close) for communicator in communicators]
    for future in ended:
        future.result()


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
