"""PipelineParallelTrainer: each rank has one stage of the model, and micro-batches flow through them.

One forward, one backward (1F1B), here with 3 stages and 4 micro-batches; F and B are forward and backward:

    rank 0   F1 F2 F3          B1 F4    B2    B3    B4
    rank 1      F1 F2       B1 F3 B2 F4 B3       B4
    rank 2         F1    B1 F2 B2 F3 B3 F4 B4

A stage keeps the activations of at most as many micro-batches as there are stages from it to the end, however many
micro-batches there are. Source: Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (2021);
atomr-accel-train has the name, without micro-batches and without backward.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from minigrad.dtypes import SUPPORTED
from minigrad.grad_store import GradStore
from minigrad.nn import Module
from minigrad.optim import GradAccumulator, LrSchedule
from minigrad.tensor import Tensor

from ..comm.calls import Work
from ..comm.communicator import Communicator, CommunicatorGroup
from ..comm.gather import all_gather_bytes
from ..train.grad_sync import mean_over_ranks
from ..train.train_kinds import Batch, TrainerConfig
from ..train.trainer_errors import FinalStageDroppedReplyError, NoStagesError, StageDroppedReplyError
from .part_of_model import PartOfModelTrainer

FORWARD, BACKWARD = 1, 2  # tags
MAX_DIMENSIONS = 8  # of what a stage passes on
DTYPES = [np.dtype(dtype) for dtype in SUPPORTED]


class PipelineParallelTrainer(PartOfModelTrainer):
    """Trains a model whose stages are on the ranks of ``communicator``; rank r passes stage r.

    ::

        trainer = PipelineParallelTrainer(config, stages[comm.rank], comm)
        for x, y in batches:
            stats = trainer.step((x, y))

    Every rank calls ``step`` with the same batch; the first uses its features, the last its labels. It is cut into
    micro-batches of ``config.batch_size_per_device`` samples. The loss is the mean over all samples, and the update is
    that of the whole model with the whole batch; only layers that look at the batch (batch normalisation) see
    micro-batches. A stage takes and returns one tensor of at most 8 dimensions. Each parameter belongs to one stage:
    weights that are tied must be so within a stage.

    For a rank that is gone or silent the others raise StageDroppedReplyError, or FinalStageDroppedReplyError if it is
    the last. (Of a silent rank, its neighbours' neighbours know only that the one before it is silent, too.)
    Raises NoStagesError, on all ranks, if a rank passes None for its stage. With a CommunicatorGroup the stages are
    those of its ``pipeline``, each rank of a model passes that replica's batch, and layers may be split over its
    ``tensor``.
    """

    _along = "pipeline"

    def __init__(
        self,
        config: TrainerConfig,
        stage: Module | None,
        communicator: Communicator | CommunicatorGroup,
        *,
        schedule: LrSchedule | None = None,
    ) -> None:
        super().__init__(config, Module() if stage is None else stage, communicator, schedule)
        communicator = self._communicator
        with self._naming_the_lost():
            present = all_gather_bytes(communicator, b"no" if stage is None else b"yes")
        if stage is None or b"no" in present:
            missing = ", ".join(str(rank) for rank, answer in enumerate(present) if answer == b"no")
            raise NoStagesError(f"PipelineParallelTrainer: no stages on rank {missing} of {len(present)}")
        self.stage: Module = stage
        self.most_in_flight: int = 0
        """The largest number of micro-batches whose activations this rank held at once in the last step."""
        self._is_first, self._is_last = communicator.rank == 0, communicator.rank == communicator.world_size - 1

    def _lost(self, ranks: tuple[int, ...], error: Exception) -> StageDroppedReplyError:
        last = self._communicator.world_size - 1
        kind, words = StageDroppedReplyError, "stage dropped reply"
        if last in ranks:
            kind, words = FinalStageDroppedReplyError, "final stage dropped reply"
        return kind(f"PipelineParallelTrainer: {words}: {error}; no weight was changed", ranks[0] if ranks else None)

    # ------------------------------------------------------------------ the schedule

    def _gradients(self, batch: Batch) -> tuple[GradStore, float, float]:
        parts, weights, total = self._micro_batches(batch)
        behind = self._communicator.world_size - 1 - self._communicator.rank  # stages
        held: deque[tuple[float, Tensor, Tensor]] = deque()
        sends: list[Work] = []  # awaited at the end: a stage that waited for its neighbour would stop the flow
        mean = GradAccumulator(len(parts))
        self.most_in_flight = 0
        for i, ((features, labels), weight) in enumerate(zip(parts, weights, strict=True)):
            x = self._tensor(features) if self._is_first else self._receive_activation()
            y = self.stage(x)
            if self._is_last:
                y = self.config.loss(y, self._tensor(labels))
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
            dx = Tensor.wrap(x.device.kernels.zeros(x.shape, x.dtype), x.device)
        return [self._communicator.send(dx, self._communicator.rank - 1, BACKWARD, async_op=True)]

    def _micro_batches(self, batch: Batch) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[float], float]:
        """The parts of the batch, what each counts in the mean, which the ranks agree on, and the whole weight."""
        size, weight_of = self.config.batch_size_per_device, self.config.loss.weight_of
        x, y, facts = self._same_batch(
            batch, lambda x, y: {"weights": [weight_of(y[i : i + size]) for i in range(0, len(y), size)]}
        )
        parts = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
        weights = facts["weights"]
        self._check_weight(total := sum(weights))
        return parts, [weight / (total or 1.0) for weight in weights], total

    # ------------------------------------------------------------------ between neighbours

    def _tensor(self, array: np.ndarray) -> Tensor:
        return Tensor(array).to(self._device)

    def _send_activation(self, y: Tensor) -> list[Work]:
        """dtype, whether it needs a gradient, and shape; then the numbers."""
        if y.ndim > MAX_DIMENSIONS:
            raise ValueError(f"a stage returned shape {y.shape}; at most {MAX_DIMENSIONS} dimensions can be passed on")
        about = [DTYPES.index(y.dtype), int(y.requires_grad), y.ndim, *y.shape, *[0] * (MAX_DIMENSIONS - y.ndim)]
        header = self._tensor(np.array(about, np.int64))
        behind = self._communicator.rank + 1
        return [self._communicator.send(t, behind, FORWARD, async_op=True) for t in (header, y.detach().contiguous())]

    def _receive_activation(self) -> Tensor:
        header = self._tensor(np.zeros(3 + MAX_DIMENSIONS, np.int64))
        before = self._communicator.rank - 1
        self._communicator.recv(header, before, FORWARD)
        code, needs_grad, ndim, *sizes = (int(n) for n in header.tolist())
        x = Tensor.wrap(self._device.kernels.empty(tuple(sizes[:ndim]), DTYPES[code]), self._device)
        self._communicator.recv(x, before, FORWARD)
        return x.requires_grad_() if needs_grad else x

    def _receive_gradient(self, y: Tensor) -> Tensor:
        dy = Tensor.wrap(y.device.kernels.empty(y.shape, y.dtype), y.device)
        self._communicator.recv(dy, self._communicator.rank + 1, BACKWARD)
        return dy
