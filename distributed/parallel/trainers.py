"""Tensor and pipeline parallelism: each rank updates its own part of the model, as one step of the whole.

The step is a Step. Only the gradients' norm, by which all ranks clip, and whether all of it is finite, are questions to
all ranks. atomr-accel-train has both trainers' names: its shards were sums of numbers without weights or gradients, its
pipeline had no micro-batches and no backward.
"""

import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from minigrad import GradStore, Tensor, empty, empty_like, zeros_like
from minigrad.errors import check_option
from minigrad.nn import Module
from minigrad.optim import GradAccumulator, LrSchedule
from minigrad.random import Generator, drawing_from

from ..comm.calls import Work
from ..comm.comm_errors import CommTimeoutError, PeerLostError
from ..comm.communicator import Communicator, CommunicatorGroup, all_gather_json, as_group, recv_bytes, send_bytes
from ..train import trainer_errors as errors
from ..train.buckets import DEFAULT_BUCKET_BYTES, all_reduce_hook
from ..train.grad_sync import Buckets, agree_on_settings, agree_on_values, digest_of, mean_over_ranks, mismatch
from ..train.parts import PartOfModelUpdater
from ..train.step import Named
from ..train.train_kinds import Batch, KindTrainer, StepStats, TrainerConfig, batch_arrays, mean_gradient
from .tensor_layers import SplitModule, vocab_parallel_cross_entropy


class PartOfModelTrainer(KindTrainer, ABC):
    """One rank of a trainer of which each rank has a part of the model.

    With a CommunicatorGroup the parts are those of all its dimensions: stages may have layers that are split, and
    gradients are averaged over the replicas, whose batches may differ.
    """

    _along: ClassVar[str]
    """The dimension of a CommunicatorGroup whose ranks this trainer joins."""
    shard: int = 0
    pipeline_schedule: str = ""
    split_classes: int | None = None
    """Over how many classes the model's outputs are split; None: they are whole."""

    def __init__(
        self,
        config: TrainerConfig,
        model: Module,
        communicator: Communicator | CommunicatorGroup,
        schedule: LrSchedule | None,
        seed: int,
    ) -> None:
        group = self._group = as_group(communicator, self._along)
        self._communicator: Communicator = getattr(group, self._along)
        self._replicas: int = group.data.world_size
        self.seed: int = seed
        with self._naming_the_lost():
            told = {"the trainer": type(self).__name__, "the configuration": config, "the seed": seed}
            agree_on_settings(group.world, {**told, "shard": self.shard, "pipeline_schedule": self.pipeline_schedule})
        super().__init__(config, model, schedule)
        self._device = next((p.device for _, p in self._named), self._communicator.device)
        layers = [module for module in model.modules() if isinstance(module, SplitModule)]
        parts = [getattr(layer, name) for layer in layers for name, dim in layer.split.items() if dim is not None]
        self._split = {part.id for part in parts if part is not None}
        self._step.updater = PartOfModelUpdater(group.model, self._counts)
        if self._replicas > 1:
            self._step.reducer = Buckets(group.data, DEFAULT_BUCKET_BYTES, all_reduce_hook)

    def _counts(self, p: Tensor) -> bool:
        """Whether this rank's gradient of a parameter counts in the norm of the whole model."""
        return self._group.tensor.rank == 0 or p.id in self._split

    def step(self, batch: Batch) -> StepStats:
        """One optimizer step of all ranks with the mean gradient of the batch; all get the same loss and norm.

        Raises, with no weight changed: ZeroSamplesError, NonFiniteLossError or NonFiniteGradientError on all ranks;
        CollectiveMismatchError if the ranks' batches differ; and the class's own error for a rank that is gone or
        silent. An exception out of the model is raised on its rank; to the others that rank is gone as soon as it
        leaves the communicator.
        """
        began = time.perf_counter()
        group = self._group
        group.world.step = self._communicator.step = self.global_step + 1
        draws = np.random.SeedSequence([self.seed, self.global_step, group.data.rank, group.pipeline.rank])
        with self._naming_the_lost():
            with drawing_from(Generator(int(draws.generate_state(1, np.uint64)[0]))):
                grads, loss, weight = self._gradients(batch)
            return StepStats.of(self._step.take(self._named, grads, loss, weight if self._replicas > 1 else 1.0), began)

    @abstractmethod
    def _gradients(self, batch: Batch) -> tuple[GradStore, float, float]:
        """The mean gradient of this rank's parameters, the mean loss, and what it is a mean over, the same on all ranks
        of a model.
        """

    def _same_batch(
        self, batch: Batch, facts: Callable[[np.ndarray, np.ndarray], dict[str, Any]]
    ) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """(features, labels) of the batch, and by rank ``facts`` of all ranks' batches, which are the same on all ranks
        of a model that have facts of that name."""
        problem: Exception | None = None
        x = y = np.zeros(0)
        try:
            x, y = batch_arrays(batch)
            mine = {"samples": len(x), **facts(x, y)}
        except errors.ZeroSamplesError:
            mine = {"samples": 0}  # the ranks find out together, below
        except (TypeError, ValueError, IndexError) as error:
            problem, mine = error, {"problem": f"{type(error).__name__}: {error}"}
        everyone = all_gather_json(self._group.world, mine)
        if problem is not None:
            raise problem
        here, size = self._group.world.rank, self._group.model.world_size
        for rank, other in enumerate(everyone):
            if other.get("samples") == 0:
                raise errors.ZeroSamplesError(f"trainer: zero samples on rank {rank}")
            ours = mine.keys() & other.keys() if rank // size == here // size else set()
            if "problem" in other or any(other[key] != mine[key] for key in ours):
                there = other.get("problem", f"{other.get('samples')} samples")
                text = f"the ranks' batches differ: {there} on rank {rank}, {mine['samples']} here, or other values"
                raise mismatch(self._group.world, text, "step", [rank])
        return x, y, everyone

    def _loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss; the outputs' classes may be split over the ranks."""
        kind, classes = self.config.loss, self.split_classes
        if classes is None:
            return kind(outputs, y)
        rows, weight = outputs.reshape(y.numel(), outputs.shape[-1]), kind.class_weights(outputs)
        return vocab_parallel_cross_entropy(rows, y.reshape(-1), classes, self._group.tensor, weight)

    def _check_weight(self, weight: float) -> None:
        """Raise ValueError for a batch without any weight, where no other replica can have some."""
        if not weight and self._replicas == 1:
            raise ValueError("the batch's labels have weight 0 together, so there is no mean; no weight was changed")

    @abstractmethod
    def _lost(self, ranks: tuple[int, ...], error: Exception) -> errors.TrainerError:
        """The error for ranks that are gone or silent."""

    @contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        try:
            yield
        except (PeerLostError, CommTimeoutError) as error:
            raise self._lost(error.ranks, error) from error


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
            raise errors.NoShardsError("TensorParallelTrainer: no shards: no layer of the model is split over ranks")
        if split_classes is not None and config.loss.name == "mse":
            raise ValueError(f"split_classes is {split_classes}, but the loss is mse, which needs whole outputs")
        super().__init__(config, model, communicator, schedule, seed)
        self.model: Module = model
        self.split_classes = split_classes
        self._whole: Named | None = [(name, p) for name, p in self._named if p.id not in self._split]  # until compared

    def _lost(self, ranks: tuple[int, ...], error: Exception) -> errors.ShardDroppedReplyError:
        text = f"TensorParallelTrainer: shard dropped reply: {error}; no weight was changed"
        return errors.ShardDroppedReplyError(text, ranks[0] if ranks else None)

    def _gradients(self, batch: Batch) -> tuple[GradStore, float, float]:
        if self._whole is not None:
            agree_on_values(self._communicator, self._whole)
            self._whole = None
        x, y, _ = self._same_batch(batch, lambda x, y: {"sha256": digest_of({"features": x, "labels": y})})
        self._check_weight(weight := self.config.loss.weight_of(y))
        size = self.config.batch_size_per_device
        step = mean_gradient(lambda x, y: self._loss(self.model(x), y), self.config.loss, x, y, size, self._device)
        return *step, weight


FORWARD, BACKWARD = 1, 2  # tags


class PipelineParallelTrainer(PartOfModelTrainer):
    """Trains a model whose stages are on the ranks of ``communicator``; rank r passes stage r.

    One forward, one backward (1F1B), here with 3 stages and 4 micro-batches; F and B are forward and backward:

        rank 0   F1 F2 F3          B1 F4    B2    B3    B4
        rank 1      F1 F2       B1 F3 B2 F4 B3       B4
        rank 2         F1    B1 F2 B2 F3 B3 F4 B4

    A stage keeps the activations of at most as many micro-batches as there are stages from it to the end, however many
    micro-batches there are. Source: Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (2021). With
    ``pipeline_schedule="gpipe"`` all forwards come before all backwards (Huang et al., "GPipe", 2019): the same bits in
    as much time, and the activations of all micro-batches at once. Of p stages and m micro-batches, each idles
    (p - 1) / (m + p - 1) of the time, if all take equally long.

    ::

        trainer = PipelineParallelTrainer(config, stages[comm.rank], comm)
        for x, y in batches:
            stats = trainer.step((x, y))

    Every rank calls ``step`` with the same batch; the first uses its features, the last its labels. It is cut into
    micro-batches of ``config.batch_size_per_device`` samples. The loss is the mean over all samples, and the update is
    that of the whole model with the whole batch; only layers that look at the batch (batch normalisation) see
    micro-batches. A stage takes and returns one tensor. Each parameter belongs to one stage: weights that are tied must
    be so within a stage.

    For a rank that is gone or silent the others raise StageDroppedReplyError, or FinalStageDroppedReplyError if it is
    the last. Of a silent rank, its neighbours' neighbours know only that the one before it is silent, too. Raises
    NoStagesError, on all ranks, if a rank passes None for its stage. With a CommunicatorGroup the stages are those of
    its ``pipeline``, and each rank of a model passes that replica's batch. Layers may be split over the group's
    ``tensor``. ``seed`` is that of dropout, which each replica and stage draws by itself.
    """

    _along = "pipeline"

    def __init__(
        self,
        config: TrainerConfig,
        stage: Module | None,
        communicator: Communicator | CommunicatorGroup,
        *,
        schedule: LrSchedule | None = None,
        pipeline_schedule: str = "1f1b",
        seed: int = 0,
    ) -> None:
        self.pipeline_schedule = pipeline_schedule
        super().__init__(config, Module() if stage is None else stage, communicator, schedule, seed)
        check_option("pipeline_schedule", pipeline_schedule, ("1f1b", "gpipe"))
        communicator = self._communicator
        with self._naming_the_lost():
            present = all_gather_json(communicator, stage is not None)
        if stage is None or False in present:
            missing = ", ".join(str(rank) for rank, has in enumerate(present) if not has)
            raise errors.NoStagesError(f"{type(self).__name__}: no stages on rank {missing} of {len(present)}")
        self.stage: Module = stage
        self.most_in_flight: int = 0
        """The largest number of micro-batches whose activations this rank held at once in the last step."""
        self._is_first, self._is_last = communicator.rank == 0, communicator.rank == communicator.world_size - 1

    def _lost(self, ranks: tuple[int, ...], error: Exception) -> errors.StageDroppedReplyError:
        last = self._communicator.world_size - 1
        kind, words = errors.StageDroppedReplyError, "stage dropped reply"
        if last in ranks:
            kind, words = errors.FinalStageDroppedReplyError, "final stage dropped reply"
        return kind(f"{type(self).__name__}: {words}: {error}; no weight was changed", ranks[0] if ranks else None)

    # ------------------------------------------------------------------ the schedule

    def _gradients(self, batch: Batch) -> tuple[GradStore, float, float]:
        parts, weights, total = self._micro_batches(batch)
        behind = self._communicator.world_size - 1 - self._communicator.rank  # stages
        if self.pipeline_schedule == "gpipe":
            behind = len(parts)
        held: deque[tuple[float, Tensor, Tensor]] = deque()
        sends: list[Work] = []  # awaited at the end: a stage that waited for its neighbour would stop the flow
        mean = GradAccumulator(len(parts))
        self.most_in_flight = 0
        for i, ((features, labels), weight) in enumerate(zip(parts, weights, strict=True)):
            x = self._to_device(features) if self._is_first else self._receive_activation()
            y = self.stage(x)
            if self._is_last:
                y = self._loss(y, self._to_device(labels))
            else:
                sends += self._send_activation(y)
            held.append((weight, x, y))
            self.most_in_flight = max(self.most_in_flight, len(held))
            if i >= behind:
                sends += self._backward(*held.popleft(), mean)
        while held:
            sends += self._backward(*held.popleft(), mean)
        for work in sends:
            work.wait()
        window = mean.flush()
        assert window is not None
        grads, loss = window
        mean_loss = mean_over_ranks(self._communicator, {"loss": loss}, 1.0 if self._is_last else 0.0)["loss"]
        return grads, mean_loss, total

    def _backward(self, weight: float, x: Tensor, y: Tensor, mean: GradAccumulator) -> list[Work]:
        """Backward of one micro-batch: adds its gradients to ``mean``, and sends that of ``x`` on."""
        grads = GradStore()
        if y.requires_grad:
            grads = y.backward() if self._is_last else y.backward(self._receive_gradient(y))
        dx = grads.remove(x)
        mean.add(grads, y.item() if self._is_last else 0.0, take=True, weight=weight)
        if self._is_first or not x.requires_grad:
            return []
        if dx is None:  # the stage made nothing of it
            dx = zeros_like(x.detach())
        return [self._communicator.send(dx, self._communicator.rank - 1, BACKWARD, async_op=True)]

    def _micro_batches(self, batch: Batch) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[float], float]:
        """The parts of the batch, what each counts in the mean, which the ranks agree on, and the whole weight."""
        size, weight_of = self.config.batch_size_per_device, self.config.loss.weight_of

        def facts(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
            used = {"features": x[: len(x) * self._is_first], "labels": y[: len(y) * self._is_last]}
            weights = [weight_of(y[i : i + size]) for i in range(0, len(y), size)]
            return {"weights": weights, f"used in stage {self._communicator.rank}": digest_of(used)}

        x, y, everyone = self._same_batch(batch, facts)
        parts = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
        weights = everyone[self._group.world.rank]["weights"]
        self._weight, self._rounds = sum(weights), max(len(one["weights"]) for one in everyone)  # of all replicas
        self._check_weight(total := self._weight)
        return parts, [weight / (total or 1.0) for weight in weights], total

    # ------------------------------------------------------------------ between neighbours

    def _to_device(self, array: np.ndarray) -> Tensor:
        return Tensor(array).to(self._device)

    def _send_activation(self, y: Tensor) -> list[Work]:
        """dtype, whether it needs a gradient, and shape; then the numbers."""
        comm, about = self._communicator, json.dumps([str(y.dtype), y.requires_grad, y.shape]).encode()
        begun = send_bytes(comm, about, comm.rank + 1, FORWARD, async_op=True)
        return [*begun, comm.send(y.detach().contiguous(), comm.rank + 1, FORWARD, async_op=True)]

    def _receive_activation(self) -> Tensor:
        comm, before = self._communicator, self._communicator.rank - 1
        dtype, needs_grad, shape = json.loads(recv_bytes(comm, before, FORWARD))
        x = empty(shape, dtype=np.dtype(dtype), device=self._device)
        comm.recv(x, before, FORWARD)
        return x.requires_grad_() if needs_grad else x

    def _receive_gradient(self, y: Tensor) -> Tensor:
        dy = empty_like(y.detach())
        self._communicator.recv(dy, self._communicator.rank + 1, BACKWARD)
        return dy
