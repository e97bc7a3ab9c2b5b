"""What a ``DdpBuilder`` run leaves behind: weights, and all that continuing it bit for bit needs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minigrad import Tensor
from minigrad.errors import check_int, check_option
from minigrad.nn import Module
from minigrad.serialization import CheckpointError, load_checkpoint, save_checkpoint

FORMAT = "minigrad replicas"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class RunReport:
    """How a run went; lists in order of rank, times in milliseconds. ``count_history`` are the batches that each
    replica did before each average. ``counts`` is what ElChe last wanted of each (1 with policy SYNC). ``aborted`` is
    the number of averages that were given up because a replica was late."""

    batches: list[int]
    compute_ms: list[float]
    waited_ms: list[float]
    averages: int
    aborted: int
    count_history: list[list[int]]
    counts: list[int]


@dataclass(frozen=True)
class TrainedState:
    """The average of the replicas, in host memory (flodl's ``TrainedState``).

    ``epoch`` epochs are done, ``batches`` by all replicas together. ``replicas`` are the states of the replicas'
    trainers in order of rank, empty where a replica was lost; then ``failures`` tells why, by rank.
    """

    params: Arrays
    buffers: Arrays
    epoch: int
    batches: int
    sampler: dict[str, int | bool]
    replicas: list[tuple[Arrays, dict[str, Any]]] = field(default_factory=list)
    failures: dict[int, BaseException] = field(default_factory=dict)
    report: RunReport | None = None

    def load_into(self, model: Module) -> None:
        """Copy parameters and buffers into a model, also those that its ``state_dict`` leaves out. Raises ValueError,
        before anything is changed, unless names and shapes are the same."""
        given = {**self.params, **self.buffers}
        unsaved = [(name, b) for name, b in model.named_buffers() if name not in model.state_dict() and name in given]
        values = [given.pop(name) for name, _ in unsaved]
        model.load_state_dict(given)
        for (_, buffer), value in zip(unsaved, values):
            buffer.copy_(value)

    def save(self, folder: str | os.PathLike[str], keep: int | None = 2) -> Path:
        """Write it as a checkpoint, which appears whole or not at all; see ``minigrad.serialization``."""
        tensors: dict[str, Mapping[str, np.ndarray]] = {"params": self.params, "buffers": self.buffers}
        tensors.update({f"replica-{rank}": arrays for rank, (arrays, _) in enumerate(self.replicas)})
        progress = {"step": self.batches, "epoch": self.epoch, "sampler": self.sampler}
        state = {"format": FORMAT, **progress, "replicas": [meta for _, meta in self.replicas]}
        return save_checkpoint(folder, tensors, state, keep)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], step: int | None = None) -> "TrainedState":
        """Read what ``save`` wrote, verified. Raises CheckpointError for anything else."""
        saved = load_checkpoint(folder, step)
        state, files = saved.state, dict(saved.tensors)
        try:
            check_option("format", state["format"], [FORMAT])
            params, buffers, epoch = files.pop("params"), files.pop("buffers"), check_int("epoch", state["epoch"], 0)
            replicas = [(files.pop(f"replica-{rank}"), dict(meta)) for rank, meta in enumerate(state["replicas"])]
            return cls(params, buffers, epoch, saved.step, dict(state["sampler"]), replicas)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{saved.path} is no checkpoint of replicas ({error})", saved.path) from error


def tensors_of(model: Module) -> list[tuple[str, Tensor]]:
    """Parameters, then buffers, by name; what replicas have in common."""
    return [*model.named_parameters(), *model.named_buffers()]
