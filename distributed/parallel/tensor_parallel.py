"""TensorParallelTrainer: every rank computes every sample, with its part of the layers (atomr-accel-train has the name;
its shards were sums of numbers without weights or gradients)."""

from __future__ import annotations

import numpy as np

from minigrad.grad_store import GradStore
from minigrad.nn import Module
from minigrad.optim import LrSchedule
from minigrad.random import Generator, drawing_from
from minigrad.tensor import Tensor

from ..comm.communicator import Communicator, CommunicatorGroup
from ..train.grad_sync import agree_on_values, digest_of
from ..train.params import Named
from ..train.train_kinds import Batch, TrainerConfig, mean_gradient
from ..train.trainer_errors import NoShardsError, ShardDroppedReplyError
from .part_of_model import PartOfModelTrainer
from .tensor_layers import SplitModule, vocab_parallel_cross_entropy


class TensorParallelTrainer(PartOfModelTrainer):
    """Trains a model some of whose layers are ``ColumnParallelLinear``, ``RowParallelLinear`` or
    ``VocabParallelEmbedding``; each rank passes its part.

    ::

        model = Sequential(ColumnParallelLinear(64, 256, comm, gather_output=False), GELU(),
                           RowParallelLinear(256, 64, comm, input_is_parallel=True))
        trainer = TensorParallelTrainer(config, model, comm)
        for x, y in batches:
            stats = trainer.step((x, y))

    Every rank calls ``step`` with the same batch, which goes through the model in parts of
    ``config.batch_size_per_device`` samples. All other parameters must have the same values on all ranks, which the
    first step compares, and then keep them, bit for bit: their gradients are made of numbers that all ranks have. Where
    the model's outputs are split over the ranks, because its last layer is column-parallel with
    ``gather_output=False``, say over how many ``split_classes``; the loss is then ``vocab_parallel_cross_entropy``.

    ``seed`` is that of dropout, which is the same on all ranks. For a rank that is gone or silent the others raise
    ShardDroppedReplyError. Raises NoShardsError for a model without a layer that is split; the first step
    ReplicaMismatchError, on all ranks, for other parameters that differ.
    """

    _along = "tensor"

    def __init__(
        self,
        config: TrainerConfig,
        model: Module,
        communicator: Communicator | CommunicatorGroup,
        *,
        split_classes: int | None = None,
        schedule: LrSchedule | None = None,
        seed: int = 0,
    ) -> None:
        if not any(isinstance(module, SplitModule) for module in model.modules()):
            raise NoShardsError("TensorParallelTrainer: no shards: the model has no layer that is split over the ranks")
        if split_classes is not None and config.loss.name == "mse":
            raise ValueError(f"split_classes is {split_classes}, but the loss is mse, which needs whole outputs")
        super().__init__(config, model, communicator, schedule)
        self.model: Module = model
        self.split_classes: int | None = split_classes
        self.seed: int = seed
        self._whole: Named | None = [(name, p) for name, p in self._named if p.id not in self._split]  # until compared

    def _lost(self, ranks: tuple[int, ...], error: Exception) -> ShardDroppedReplyError:
        return ShardDroppedReplyError(
            f"TensorParallelTrainer: shard dropped reply: {error}; no weight was changed", ranks[0] if ranks else None
        )

    def _gradients(self, batch: Batch) -> tuple[GradStore, float, float]:
        if self._whole is not None:
            agree_on_values(self._communicator, self._whole)
            self._whole = None
        x, y, _ = self._same_batch(batch, lambda x, y: {"sha256": digest_of({"features": x, "labels": y})})
        self._check_weight(weight := self.config.loss.weight_of(y))
        seed = int(np.random.SeedSequence([self.seed, self.global_step]).generate_state(1, np.uint64)[0])
        size = self.config.batch_size_per_device
        with drawing_from(Generator(seed)):
            return *mean_gradient(self._loss, self.config.loss, x, y, size, self._device), weight

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        outputs, kind = self.model(x), self.config.loss
        if self.split_classes is None:
            return kind(outputs, y)
        weight = kind.class_weights(outputs)
        rows = outputs.reshape(y.numel(), outputs.shape[-1])
        return vocab_parallel_cross_entropy(rows, y.reshape(-1), self.split_classes, self._communicator, weight)
