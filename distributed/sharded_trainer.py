"""What pipeline and tensor parallelism share: each rank updates its own part of the model, as one step of the whole.

The step stays SimpleTrainer's. Only the gradients' norm, by which all ranks clip, and whether all of it is finite, are
questions to all ranks.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.grad_store import GradStore
from minigrad.nn import Module
from minigrad.optim import LrSchedule, NonFiniteGradientError, Optimizer, clip_grads_with_norm, grad_norm
from minigrad.tensor import Tensor

from .comm_errors import CommTimeoutError, PeerLostError
from .communicator import Communicator
from .grad_sync import agree_on_settings, all_gather_bytes
from .simple_trainer import SimpleTrainer, TrainingConfig
from .train_kinds import Batch, StepStats, TrainerConfig
from .trainer_errors import TrainerError


class ShardedTrainer(SimpleTrainer):
    """A SimpleTrainer of one rank that has some of the model's parameters; all ranks call ``step`` together.

    ``owned(p)`` says whether this rank's gradient of ``p`` counts in the norm: for each number of the model exactly one
    rank must say so.
    """

    def __init__(
        self,
        config: TrainingConfig,
        communicator: Communicator,
        optimizer: Optimizer,
        owned: Callable[[Tensor], bool],
        schedule: LrSchedule | None = None,
    ) -> None:
        super().__init__(config, optimizer, schedule)
        self._communicator, self._owned = communicator, owned

    def _clip(self, grads: GradStore, max_norm: float, params: list[Tensor]) -> float:
        if self._communicator.world_size == 1:
            return super()._clip(grads, max_norm, params)
        mine = np.float64(grad_norm(grads, [p for p in params if self._owned(p)]))
        parts = all_gather_bytes(self._communicator, mine.tobytes())
        norms = [float(np.frombuffer(part, np.float64)[0]) for part in parts]
        norm = math.hypot(*norms)
        if not math.isfinite(norm):
            bad = [f"{value} on rank {rank}" for rank, value in enumerate(norms) if not math.isfinite(value)]
            raise NonFiniteGradientError(
                f"the gradient norm is {', '.join(bad) or 'too large for a float64'}; no weight was changed", norm
            )
        clip_grads_with_norm(grads, max_norm, norm, params)
        return norm


class PartTrainer(ABC):
    """One rank of a trainer of which each rank has a part of the model."""

    def __init__(
        self,
        config: TrainerConfig,
        model: Module,
        communicator: Communicator,
        owned: Callable[[Tensor], bool],
        schedule: LrSchedule | None,
    ) -> None:
        self.config: TrainerConfig = config
        self._communicator = communicator
        with self._naming_the_lost():
            agree_on_settings(communicator, {"the trainer": type(self).__name__, "the configuration": config})
        self._named = list(model.named_parameters())
        optimizer = config.optimizer.build([(name, p) for name, p in self._named if p.requires_grad])
        training = TrainingConfig(max_grad_norm=config.max_grad_norm)
        self._trainer = ShardedTrainer(training, communicator, optimizer, owned, schedule)

    @property
    def global_step(self) -> int:
        """Steps made so far."""
        return self._trainer.global_step

    def step(self, batch: Batch) -> StepStats:
        """One optimizer step of all ranks with the mean gradient of the batch; all get the same loss and norm.

        Raises, with no weight changed: ZeroSamplesError, NonFiniteLossError or NonFiniteGradientError on all ranks;
        CollectiveMismatchError if the ranks' batches differ; and the class's own error for a rank that is gone or
        silent. An exception out of the model is raised on its rank; to the others that rank is gone as soon as it
        leaves the communicator.
        """
        began = time.perf_counter()
        self._communicator.step = self.global_step + 1
        with self._naming_the_lost():
            metrics = self._trainer.step(self._named, *self._gradients(batch))
        assert metrics is not None
        assert metrics.grad_norm is not None
        return StepStats(metrics.loss, metrics.grad_norm, int((time.perf_counter() - began) * 1e6))

    @abstractmethod
    def _gradients(self, batch: Batch) -> tuple[GradStore, float]:
        """The mean gradient of this rank's parameters, and the mean loss, the same on all ranks."""

    @abstractmethod
    def _lost(self, ranks: tuple[int, ...], error: Exception) -> TrainerError:
        """The error for ranks that are gone or silent."""

    @contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        try:
            yield
        except (PeerLostError, CommTimeoutError) as error:
            raise self._lost(error.ranks, error) from error

    def state_dict(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What an exact resume of this rank needs beside its part of the model."""
        return self._trainer.state_dict(self._named)

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned on this rank."""
        self._trainer.load_state_dict(self._named, arrays, meta)
