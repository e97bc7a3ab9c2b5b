"""What pipeline and tensor parallelism share: each rank updates its own part of the model, as one step of the whole.

The step is a Step. Only the gradients' norm, by which all ranks clip, and whether all of it is finite, are questions to
all ranks.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from minigrad.grad_store import GradStore
from minigrad.nn import Module
from minigrad.optim import LrSchedule, NonFiniteGradientError, clip_grads_with_norm, grad_norm
from minigrad.tensor import Tensor

from ..comm.comm_errors import CommTimeoutError, PeerLostError
from ..comm.communicator import Communicator, CommunicatorGroup
from ..comm.gather import all_gather_json, all_gather_rows
from ..train.buckets import DEFAULT_BUCKET_BYTES, all_reduce_hook
from ..train.grad_sync import agree_on_settings, mismatch
from ..train.reducers import Buckets
from ..train.step import Step, Updater
from ..train.train_kinds import Batch, KindTrainer, StepStats, TrainerConfig, batch_arrays
from ..train.trainer_errors import TrainerError, ZeroSamplesError
from .tensor_layers import SplitModule


class PartOfModelUpdater(Updater):
    """Clips by the norm of the whole model, of which each rank has some parameters; all ranks step together.

    ``owned(p)`` says whether this rank's gradient of ``p`` counts in the norm: for each number of the model exactly one
    rank must say so.
    """

    def __init__(self, communicator: Communicator, owned: Callable[[Tensor], bool]) -> None:
        self._communicator, self._owned = communicator, owned

    def clip(self, step: Step, grads: GradStore, max_norm: float, params: list[Tensor]) -> float:
        """Clip to the norm over all ranks, and return it."""
        if self._communicator.world_size == 1:
            return super().clip(step, grads, max_norm, params)
        mine = grad_norm(grads, [p for p in params if self._owned(p)])
        norms = all_gather_rows(self._communicator, np.array([mine]))[:, 0].tolist()
        norm = math.hypot(*norms)
        if not math.isfinite(norm):
            bad = [f"{value} on rank {rank}" for rank, value in enumerate(norms) if not math.isfinite(value)]
            raise NonFiniteGradientError(
                f"the gradient norm is {', '.join(bad) or 'too large for a float64'}; no weight was changed", norm
            )
        clip_grads_with_norm(grads, max_norm, norm, params)
        return norm


class PartOfModelTrainer(KindTrainer, ABC):
    """One rank of a trainer of which each rank has a part of the model.

    With a CommunicatorGroup the parts are those of all its dimensions: stages may have layers that are split, and
    gradients are averaged over the replicas, whose batches may differ.
    """

    _along: ClassVar[str]
    """The dimension of a CommunicatorGroup whose ranks this trainer joins."""

    def __init__(
        self,
        config: TrainerConfig,
        model: Module,
        communicator: Communicator | CommunicatorGroup,
        schedule: LrSchedule | None,
    ) -> None:
        data: Communicator | None = None
        if isinstance(communicator, CommunicatorGroup):
            self._communicator: Communicator = getattr(communicator, self._along)
            world, whole, data = communicator.world, communicator.model, communicator.data
        else:
            world = whole = self._communicator = communicator
        self._replicas = 1 if data is None else data.world_size
        with self._naming_the_lost():
            agree_on_settings(world, {"the trainer": type(self).__name__, "the configuration": config})
        super().__init__(config, model, schedule)
        self._device = next((p.device for _, p in self._named), self._communicator.device)
        layers = [module for module in model.modules() if isinstance(module, SplitModule)]
        parts = [getattr(layer, name) for layer in layers for name, dim in layer.split.items() if dim is not None]
        self._split = {part.id for part in parts if part is not None}
        first = not layers or layers[0].communicator.rank == 0
        self._step.updater = PartOfModelUpdater(whole, lambda p: first or p.id in self._split)
        if data is not None and self._replicas > 1:
            self._step.reducer = Buckets(data, DEFAULT_BUCKET_BYTES, all_reduce_hook)

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
            grads, loss, weight = self._gradients(batch)
            return StepStats.of(self._step.take(self._named, grads, loss, weight if self._replicas > 1 else 1.0), began)

    @abstractmethod
    def _gradients(self, batch: Batch) -> tuple[GradStore, float, float]:
        """The mean gradient of this rank's parameters, the mean loss, and what it is a mean over, the same on all ranks
        of a model.
        """

    def _same_batch(
        self, batch: Batch, facts: Callable[[np.ndarray, np.ndarray], dict[str, Any]]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """(features, labels) of the batch, and ``facts`` of them, which are the same on all ranks."""
        problem: Exception | None = None
        x = y = np.zeros(0)
        try:
            x, y = batch_arrays(batch)
            mine = {"samples": len(x), **facts(x, y)}
        except ZeroSamplesError:
            mine = {"samples": 0}  # the ranks find out together, below
        except (TypeError, ValueError, IndexError) as error:
            problem, mine = error, {"problem": f"{type(error).__name__}: {error}"}
        everyone = all_gather_json(self._communicator, mine)
        if problem is not None:
            raise problem
        for rank, other in enumerate(everyone):
            if other.get("samples") == 0:
                raise ZeroSamplesError(f"trainer: zero samples on rank {rank}")
            if other != mine:
                there = other.get("problem", f"{other.get('samples')} samples")
                text = f"the ranks' batches differ: {there} on rank {rank}, {mine['samples']} here, or other values"
                raise mismatch(self._communicator, text, "step", [rank])
        return x, y, mine

    def _check_weight(self, weight: float) -> None:
        """Raise ValueError for a batch without any weight, where no other replica can have some."""
        if not weight and self._replicas == 1:
            raise ValueError("the batch's labels have weight 0 together, so there is no mean; no weight was changed")

    @abstractmethod
    def _lost(self, ranks: tuple[int, ...], error: Exception) -> TrainerError:
        """The error for ranks that are gone or silent."""

    @contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        try:
            yield
        except (PeerLostError, CommTimeoutError) as error:
            raise self._lost(error.ranks, error) from error
