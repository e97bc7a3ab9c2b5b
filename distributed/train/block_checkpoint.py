"""Checkpoints of a BlockTrainer: a barrier, one copy by rank 0, and the hash of every rank's weights.

entrenar counts acknowledgements without asking whose they are, and its "BLAKE3" is a 64-bit hash stretched; here each
rank's SHA-256 is gathered, compared before anything is written, and compared again with what each rank has loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.nn import Module
from minigrad.serialization import CheckpointError
from minigrad.tensor import Tensor

from ..comm.communicator import Communicator
from ..comm.gather import all_gather_bytes
from ..comm.place import bytes_of, on_host
from .checkpoint import (
    load_distributed_checkpoint,
    random_state,
    restore_random_state,
    save_distributed_checkpoint,
)


def saved_buffers(model: Module) -> dict[str, Tensor]:
    """The buffers that the model's ``state_dict`` has, by name."""
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def weight_hash(model: Module) -> str:
    """SHA-256 of all parameters and saved buffers: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(bytes_of(on_host(tensor)).data)
    return digest.hexdigest()


def save_model(
    comm: Communicator,
    model: Module,
    folder: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    state: Mapping[str, Any],
    keep: int | None,
) -> Path:
    """Write the model, the trainer's ``arrays`` and ``state``, and what every rank needs to go on; a collective."""
    comm.barrier()
    state = {
        **state,
        "random": random_state(comm),
        "world_size": comm.world_size,
        "weight_hashes": [raw.decode() for raw in all_gather_bytes(comm, weight_hash(model).encode())],
    }
    tensors: dict[str, Mapping[str, Any]] = {}
    if comm.rank == 0:
        weights = {name: on_host(tensor) for name, tensor in model.state_dict().items()}
        tensors = {"model": weights, "trainer": arrays}
    return save_distributed_checkpoint(comm, folder, tensors, state, keep)


def load_model(
    comm: Communicator,
    model: Module,
    folder: str | os.PathLike[str],
    step: int | None,
    check: Callable[[Mapping[str, Any]], None],
    take_over: Callable[[Mapping[str, np.ndarray], Mapping[str, Any]], None],
) -> Mapping[str, Any]:
    """Read what ``save_model`` wrote, on all ranks: ``check(state)``, then the model's weights, then
    ``take_over(arrays, state)``. Returns the state. Raises CheckpointError on all ranks for what does not fit one.
    """
    checkpoint = load_distributed_checkpoint(comm, folder, step)
    state, error = checkpoint.state, ""
    try:
        check(state)
        model.load_state_dict(checkpoint.tensors["model"])
        take_over(checkpoint.tensors["trainer"], state)
        restore_random_state(comm, state["random"])
        found = weight_hash(model)
        if found != state["weight_hashes"][0]:
            raise ValueError(f"the weights' hash is {found[:16]}..., the saved one {state['weight_hashes'][0][:16]}...")
    except (KeyError, TypeError, ValueError) as reason:
        error = f"no {reason}" if isinstance(reason, KeyError) else str(reason)
    bad = [(rank, raw.decode()) for rank, raw in enumerate(all_gather_bytes(comm, error.encode())) if raw]
    if bad:
        rank, reason_there = bad[0]
        raise CheckpointError(f"{checkpoint.path} does not fit rank {rank}: {reason_there}", checkpoint.path)
    return state
