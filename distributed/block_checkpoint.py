"""Checkpoints of a BlockDistributedTrainer: a barrier, one copy by rank 0, and the hash of every rank's weights.

entrenar counts acknowledgements without asking whose they are, and its "BLAKE3" is a 64-bit hash stretched; here each
rank's SHA-256 is gathered, compared before anything is written, and compared again with what each rank has loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad.nn import Module
from minigrad.serialization import Checkpoint, CheckpointError
from minigrad.tensor import Tensor

from .checkpoint import load_distributed_checkpoint, random_state, restore_random_state, save_distributed_checkpoint
from .grad_sync import all_gather_bytes

if TYPE_CHECKING:
    from .block_trainer import BlockDistributedTrainer


def saved_buffers(model: Module) -> dict[str, Tensor]:
    """The buffers that the model's ``state_dict`` has, by name."""
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def weight_hash(model: Module) -> str:
    """SHA-256 of all parameters and saved buffers: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        array = np.ascontiguousarray(tensor.device.kernels.to_host(tensor.data))
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def save(
    trainer: BlockDistributedTrainer, folder: str | os.PathLike[str], extra: Mapping[str, Any], keep: int | None
) -> Path:
    """``BlockDistributedTrainer.save_checkpoint``."""
    comm, model = trainer.communicator, trainer.model
    arrays, meta = trainer.state_dict(model.named_parameters())  # refuses, on all ranks, within a window
    trainer.verify_replicas()
    comm.barrier()
    state = {
        "step": trainer.global_step,
        "trainer": meta,
        "random": random_state(comm),
        "world_size": comm.world_size,
        "weight_hashes": [raw.decode() for raw in all_gather_bytes(comm, weight_hash(model).encode())],
        "scaler": None if trainer.scaler is None else trainer.scaler.state_dict(),
        "skipped_steps": trainer.skipped_steps,
        "extra": dict(extra),
    }
    tensors: dict[str, Mapping[str, Any]] = {}
    if comm.rank == 0:
        weights = {name: np.asarray(t.device.kernels.to_host(t.data)) for name, t in model.state_dict().items()}
        tensors = {"model": weights, "trainer": arrays}
    return save_distributed_checkpoint(comm, folder, tensors, state, keep)


def load(trainer: BlockDistributedTrainer, folder: str | os.PathLike[str], step: int | None) -> dict[str, Any]:
    """``BlockDistributedTrainer.load_checkpoint``."""
    comm = trainer.communicator
    checkpoint = load_distributed_checkpoint(comm, folder, step)
    error = ""
    try:
        _take_over(trainer, checkpoint)
    except (KeyError, TypeError, ValueError) as reason:
        error = f"no {reason}" if isinstance(reason, KeyError) else str(reason)
    bad = [(rank, raw.decode()) for rank, raw in enumerate(all_gather_bytes(comm, error.encode())) if raw]
    if bad:
        rank, reason_there = bad[0]
        raise CheckpointError(f"{checkpoint.path} does not fit rank {rank}: {reason_there}", checkpoint.path)
    return dict(checkpoint.state["extra"])


def _take_over(trainer: BlockDistributedTrainer, checkpoint: Checkpoint) -> None:
    """Raises KeyError, TypeError or ValueError for what does not fit."""
    state, model = checkpoint.state, trainer.model
    if (state["scaler"] is None) != (trainer.scaler is None):
        raise ValueError(f"it was saved {'without' if state['scaler'] is None else 'with'} a scaler")
    model.load_state_dict(checkpoint.tensors["model"])
    trainer.load_state_dict(model.named_parameters(), checkpoint.tensors["trainer"], state["trainer"])
    if trainer.scaler is not None:
        trainer.scaler.load_state_dict(state["scaler"])
    trainer.skipped_steps = int(state["skipped_steps"])
    restore_random_state(trainer.communicator, state["random"])
    found = weight_hash(model)
    if found != state["weight_hashes"][0]:
        raise ValueError(f"the weights' hash is {found[:16]}..., the saved one {state['weight_hashes'][0][:16]}...")
