"""BlockDistributedTrainer: data parallelism block by block (entrenar's ``DistributedCudaTrainer``).

    backward      [ head ][ block 2 ][ block 1 ][ block 0 ][ embedding ]
    all-reduce                     [ block 2 ][ block 1 ][ block 0 ][ head ][ final norm ][ embedding ]
    AdamW                                                                                              [ all ]

Accumulating, averaging, clipping, updating and counting are SimpleTrainer's; reducing beside backward is
BucketedTrainer's, with one bucket for each block.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from minigrad.autograd import no_grad
from minigrad.creation import full
from minigrad.dtypes import float64, is_floating
from minigrad.engine import BackwardHook
from minigrad.grad_store import GradStore
from minigrad.metrics_log import JsonLinesLog
from minigrad.nn import Module
from minigrad.optim import GradScaler, LrSchedule, NonFiniteGradientError, Optimizer
from minigrad.tensor import Tensor

from . import block_checkpoint
from .block_config import DistributedTrainConfig
from .block_grads import BlockGradientSet, BlockLayout, PerBlockGradientAccumulator, shard_batches
from .bucketed_trainer import BucketedTrainer
from .buckets import CommHook, GradientBucketManager, all_reduce_hook
from .calls import CommStats, ReduceOp
from .communicator import Communicator
from .grad_sync import Window, all_gather_bytes
from .params import Named
from .simple_trainer import TrainingConfig, TrainingMetrics, merged

__all__ = [
    "BlockDistributedTrainer",
    "BlockGradientSet",
    "DistributedTrainConfig",
    "NonFiniteBlockGradientError",
    "PerBlockGradientAccumulator",
    "shard_batches",
]

LossFn = Callable[..., Tensor]


class NonFiniteBlockGradientError(NonFiniteGradientError):
    """A gradient holds an infinity or NaN; no weight was changed, on any rank.

    ``step`` is the number of the step. ``where`` has, for each rank concerned, block -> names of parameters; rank None
    stands for the ranks' sum, where each rank's own gradient is finite.
    """

    def __init__(self, message: str, norm: float, step: int, where: Mapping[int | None, dict[str, list[str]]]) -> None:
        super().__init__(message, norm)
        self.step = step
        self.where: dict[int | None, dict[str, list[str]]] = dict(where)


class BlockDistributedTrainer(BucketedTrainer):
    """Trains a model on several ranks; the gradients of a block are sent when its backward has ended.

    ::

        trainer = BlockDistributedTrainer(model, communicator, TrainingConfig(learning_rate=3e-4))
        for x, y in this_ranks_batches:
            metrics = trainer.train_batch(x, y)

    To make one is a collective of all ranks, which takes rank 0's weights and buffers to the others. Means are taken
    over the samples of all ranks, whatever each one has. After a step, floating buffers that the model saves are the
    ranks' mean, weighted alike, and the others their maximum: statistics and counts of batches. A step that fails
    changes no weight and no buffer.

    Args:
        model: on the communicator's device.
        communicator: of threads, MPI or NCCL, or NoOpCommunicator; where gradients are reduced they never leave its
            device.
        training: learning rate, clipping, and micro-batches per step.
        config: checked against the communicator; None: what the communicator says.
        optimizer, schedule, hook: as DistributedTrainer's.
        loss_fn: called with the batch's tensors; None: ``model.loss``. Returns the mean over the batch's samples.
        blocks: name of the ModuleList that holds the blocks; None: the only one.
        scaler: for gradients that pass through float16; a step that overflows on any rank is left out on all.
        log: rank 0 appends a JSON line to this file every ``log_every`` steps, with the global loss, the gradient norm,
            tokens (elements of the batch's last array) per second of all ranks, and the seconds of communication
            and those in which a rank waited for it, the largest of any rank, since the line before.

    Raises ValueError for a configuration that contradicts the communicator.
    """

    def __init__(
        self,
        model: Module,
        communicator: Communicator,
        training: TrainingConfig | None = None,
        config: DistributedTrainConfig | None = None,
        optimizer: Optimizer | None = None,
        schedule: LrSchedule | None = None,
        *,
        loss_fn: LossFn | None = None,
        blocks: str | None = None,
        scaler: GradScaler | None = None,
        log: str | os.PathLike[str] | None = None,
        log_every: int = 1,
        hook: CommHook = all_reduce_hook,
    ) -> None:
        place = (communicator.rank, communicator.world_size)
        if config is None:
            config = DistributedTrainConfig(place[1], place[0], backend=communicator.device.type)
        if (config.rank, config.world_size, config.backend) != (*place, communicator.device.type):
            raise ValueError(
                f"the configuration is that of rank {config.rank} of {config.world_size} with backend "
                f"{config.backend!r}, the communicator's that of rank {place[0]} of {place[1]} on {communicator.device}"
            )
        if type(log_every) is not int or log_every < 1:
            raise ValueError(f"log_every is {log_every!r}, expected an integer >= 1")
        self.layout: BlockLayout = BlockLayout.of(model, blocks)
        super().__init__(training, communicator, optimizer, schedule, bucket_size_bytes=sys.maxsize, hook=hook)
        self.model = model
        self.dist_config: DistributedTrainConfig = config
        self.scaler = scaler
        self.skipped_steps: int = 0
        self._loss_fn: LossFn = model.loss if loss_fn is None else loss_fn
        self._names = {p.id: key for _, named in self.layout.groups for key, p in named}
        self._spoiled: set[int] = set()
        self._buffers_before: dict[str, Any] = {}
        self._weight, self._unit = 0.0, 0.0
        self._log_every = log_every if log is not None else 0
        self._log: JsonLinesLog | None = JsonLinesLog(log) if log is not None and config.is_coordinator else None
        self._tokens, self._since, self._stats_before = 0, time.perf_counter(), CommStats()
        self.broadcast_params([*model.named_parameters(), *self._buffers().items()])

    @property
    def is_coordinator(self) -> bool:
        """Whether this is rank 0."""
        return self.dist_config.is_coordinator

    # ------------------------------------------------------------------ steps

    def train_batch(self, *batch: Any, weight: float | None = None) -> TrainingMetrics | None:
        """Forward, backward, and with the window's last micro-batch the reduction and a step; a collective then.

        ``batch`` are tensors or arrays (B, ...) of this rank's samples, as the loss function takes them. B may differ
        from rank to rank; a rank that has no sample left passes arrays with B = 0, or nothing at all. ``weight`` is
        what the loss is a mean of, B by default. None until ``grad_accum_steps`` micro-batches are there, and for a
        step that was left out (``scaler``).

        Raises NonFiniteBlockGradientError on all ranks, naming rank, block, parameters and step; NonFiniteLossError;
        and what DistributedTrainer's ``step`` raises. The window is then dropped.
        """
        tensors = [self._tensor(one) for one in batch]
        sizes = {t.shape[0] if t.ndim else None for t in tensors} or {0}
        if len(sizes) != 1 or None in sizes:
            raise ValueError(
                f"a batch's arrays have one number of samples, not shapes {', '.join(str(t.shape) for t in tensors)}"
            )
        (samples,) = sizes
        weight = float(samples or 0) if weight is None else weight
        self._begin()
        self._weight += weight
        if self._communicator.world_size == 1 and weight:
            # Only ratios matter. Equally large micro-batches count 1 each, as SimpleTrainer's, and nothing is rounded.
            self._unit = self._unit or weight
            weight /= self._unit
        self._tokens += tensors[-1].numel() if tensors else 0
        params = list(self.model.named_parameters())

        def step() -> TrainingMetrics | None:
            if not samples:
                return self.step(params, GradStore(), 0.0, weight=0.0)
            return self.backward_and_step(self._loss_fn(*tensors), params, weight)

        return self._guarded(step)

    def finish_window(self) -> TrainingMetrics | None:
        """Make a step of the ranks' unfinished windows, at the end of the data; None if no rank has one."""
        self._begin()
        return self._guarded(lambda: self.flush(self.model.named_parameters()))

    def verify_replicas(self) -> None:
        """Contract C-DDP-001: all ranks' weights and saved buffers have the same bits. A collective, between steps.

        Raises ReplicaMismatchError on all ranks, naming the first tensor that differs and the ranks in the minority.
        """
        self.assert_replicas_identical([*self.model.named_parameters(), *self._buffers().items()])

    def _buffers(self) -> dict[str, Tensor]:
        return block_checkpoint.saved_buffers(self.model)

    def _begin(self) -> None:
        """Where a window begins, remember what a failure must bring back."""
        if self._accumulator.current_step == 0:
            self._buffers_before = {name: b.device.kernels.copy(b.data) for name, b in self._buffers().items()}
            self._weight = self._unit = 0.0

    def _guarded(self, step: Callable[[], TrainingMetrics | None]) -> TrainingMetrics | None:
        """``step``, and what belongs to its end: buffers averaged, or put back; the scale; the log."""
        self._spoiled.clear()
        try:
            metrics = step()
            if metrics is not None:
                self._average_buffers()
        except Exception as error:
            for name, buffer in self._buffers().items():
                buffer.device.kernels.elementwise.assign(buffer.data, self._buffers_before[name])
                buffer.bump_version()
            if self.scaler is None or not isinstance(error, NonFiniteGradientError) or self.scaler.get_scale() <= 1.0:
                raise
            self.scaler.update_scale(overflow=True)
            self.skipped_steps += 1
            return None
        if metrics is not None:
            if self.scaler is not None:
                self.scaler.update_scale(overflow=False)
            if self._log_every and metrics.step % self._log_every == 0:
                self._write_line(metrics)
        return metrics

    def _tensor(self, one: Any) -> Tensor:
        tensor = one if isinstance(one, Tensor) else Tensor(one)
        return tensor.to(device=self._communicator.device)

    def _backward(self, loss: Tensor, hook: BackwardHook | None = None) -> GradStore:
        if self.scaler is None:
            return super()._backward(loss, hook)
        return super()._backward(self.scaler.scale_loss(loss), hook)

    @no_grad()
    def _average_buffers(self) -> None:
        buffers = self._buffers()
        if self._communicator.world_size == 1 or not buffers:
            return
        device = self._communicator.device
        total = full((1,), self._weight, dtype=float64, device=device)
        self._communicator.all_reduce(total)
        for _, buffer in sorted(buffers.items()):
            if is_floating(buffer.dtype):
                mean = full(buffer.shape, 0.0, dtype=float64, device=device)
                if self._weight:  # a rank without samples may hold anything
                    mean = buffer.detach().to(float64) * self._weight
                self._communicator.all_reduce(mean)
                device.kernels.elementwise.assign(buffer.data, (mean / total).data)
                buffer.bump_version()
            else:
                self._communicator.all_reduce(buffer, ReduceOp.MAX)

    # ------------------------------------------------------------------ blocks

    def _new_accumulator(self) -> PerBlockGradientAccumulator:
        return PerBlockGradientAccumulator(self.layout, self.config.grad_accum_steps)

    def _new_buckets(self, trained: list[Tensor]) -> GradientBucketManager:
        wanted = {p.id for p in trained}
        groups = [[p for _, p in named if p.id in wanted] for _, named in self.layout.groups]
        return GradientBucketManager(
            trained, self._communicator, self._bucket_size_bytes, self._hook, groups=groups, inspect=self._inspect
        )

    def _inspect(self, grads: GradStore) -> None:
        """Note what is not finite in a block before it is sent: in the sum nobody can tell whose it was."""
        bad = set(BlockGradientSet("", {self._names[id]: grad for id, grad in grads.items()}).non_finite())
        self._spoiled.update(id for id in grads if self._names[id] in bad)

    def _non_finite(self, trained: list[Tensor]) -> list[bool]:
        return [p._id in self._spoiled for p in trained]

    def _check_windows(self, windows: list[Window]) -> None:
        assert self._agreed is not None
        names = [name for name, p in self._agreed[1] if p.requires_grad]
        bad = [
            (rank, {name for name, spoiled in zip(names, window.non_finite) if spoiled})
            for rank, window in enumerate(windows)
        ]
        if self.scaler is not None:
            super()._check_windows(windows)  # first: a loss that is not finite is no overflow of its gradients
        self._refuse([(rank, keys) for rank, keys in bad if keys])
        if self.scaler is None:
            super()._check_windows(windows)

    def _apply(self, named: Named, parts: Iterable[GradStore], lr: float | None) -> float | None:
        grads = merged(parts)
        if self.scaler is not None:
            self.scaler.unscale_(grads)
        try:
            return super()._apply(named, [grads], lr)
        except NonFiniteGradientError as error:
            bad = {key for one in self.layout.sets(grads) for key in one.non_finite()}
            self._refuse([(0 if self._communicator.world_size == 1 else None, bad)] if bad else [], error.norm)
            raise

    def _refuse(self, found: list[tuple[int | None, set[str]]], norm: float = float("nan")) -> None:
        """Raise for parameters whose gradients are not finite, by rank."""
        where = {
            rank: {
                group: bad for group, named in self.layout.groups if (bad := [key for key, _ in named if key in keys])
            }
            for rank, keys in found
        }
        if not where:
            return
        step = self._global_step + 1
        words = [
            ("the ranks' sum" if rank is None else f"rank {rank}")
            + ", "
            + ", ".join(f"{group} ({_some(keys)})" for group, keys in groups.items())
            for rank, groups in where.items()
        ]
        raise NonFiniteBlockGradientError(
            f"step {step}: gradients are infinite or NaN on {'; '.join(words)}; no weight was changed",
            norm,
            step,
            where,
        )

    def _settings(self) -> dict[str, Any]:
        return {
            **super()._settings(),
            "the blocks": self.layout.names,
            "log_every": self._log_every,
            "the loss scale": None if self.scaler is None else self.scaler.state_dict(),
        }

    # ------------------------------------------------------------------ log and checkpoints

    def _write_line(self, metrics: TrainingMetrics) -> None:
        stats, before = self._communicator.stats, self._stats_before
        mine = [self._tokens, stats.busy_s - before.busy_s, stats.waited_s - before.waited_s]
        everyone = [json.loads(raw) for raw in all_gather_bytes(self._communicator, json.dumps(mine).encode())]
        now = time.perf_counter()
        if self._log is not None:
            self._log.write(
                {
                    **vars(metrics),
                    "tokens_per_second": sum(tokens for tokens, _, _ in everyone) / (now - self._since),
                    "communication_seconds": max(busy for _, busy, _ in everyone),
                    "waited_seconds": max(waited for _, _, waited in everyone),
                    "world_size": self._communicator.world_size,
                    "skipped_steps": self.skipped_steps,
                }
            )
        self._tokens, self._since = 0, now
        self._stats_before = CommStats(stats.operations, stats.bytes_sent, stats.busy_s, stats.waited_s)

    def save_checkpoint(
        self, folder: str | os.PathLike[str], extra: Mapping[str, Any] | None = None, keep: int | None = 2
    ) -> Path:
        """Rank 0 writes weights, moments, step, random state, ``extra`` (JSON) and every rank's hash of its weights.

        A collective; returns when the checkpoint is safe. Raises ReplicaMismatchError on all ranks, and writes nothing,
        if their weights differ; CheckpointError on all ranks if it cannot be written.
        """
        if self._log is not None:
            self._log.sync()
        return block_checkpoint.save(self, folder, dict(extra or {}), keep)

    def load_checkpoint(self, folder: str | os.PathLike[str], step: int | None = None) -> dict[str, Any]:
        """Go on bit for bit from the newest checkpoint, or that of ``step``; returns what was saved as ``extra``.

        A collective; rank 0 reads for all. Each rank compares the hash of what it then holds. Raises CheckpointError on
        all ranks for a checkpoint that is missing, damaged or of another model.
        """
        extra = block_checkpoint.load(self, folder, step)
        if self._log is not None:
            self._log.truncate_after(self.global_step)
        self._agreed, self._tokens, self._since = None, 0, time.perf_counter()
        return extra

    def close(self) -> None:
        """Close the log; the communicator is whose who made it."""
        if self._log is not None:
            self._log.close()


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:2]) + (f" and {len(keys) - 2} more" if len(keys) > 2 else "")
