"""BlockDistributedTrainer: a model trained block by block on several ranks, with its buffers, log and checkpoints
(entrenar's ``DistributedCudaTrainer``).

entrenar counts acknowledgements of a checkpoint without asking whose they are, and its "BLAKE3" is a 64-bit hash
stretched. Here each rank's SHA-256 is gathered, and compared with what each rank has loaded.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minigrad import GradStore, Tensor, full, no_grad
from minigrad.dtypes import float64, is_floating
from minigrad.errors import check_int
from minigrad.files.durable import StrPath
from minigrad.metrics_log import JsonLinesLog, about_run, moment
from minigrad.nn import Module
from minigrad.optim import GradScaler, LrSchedule, NonFiniteGradientError, Optimizer
from minigrad.serialization import Checkpoint, CheckpointError, save_checkpoint

from ..comm.calls import CommStats, ReduceOp
from ..comm.communicator import Communicator, NoOpCommunicator, all_gather_json
from ..comm.place import on_host
from ..job.rendezvous import DistributedTrainConfig
from .amp_trainer import Scaled
from .blocks import BlockBuckets, BlockLayout, BlockUpdater
from .buckets import CommHook, all_reduce_hook
from .checkpoint import by_rank_0, load_distributed_checkpoint, random_state, restore_random_state
from .config import TrainingConfig, TrainingMetrics
from .grad_sync import digest_of
from .step import Precision


class BlockDistributedTrainer(Scaled):
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
        log: rank 0 appends a JSON line to this file every ``log_every`` steps. It has the global loss, the gradient
            norm, and the tokens (elements of the batch's last array) per second of all ranks. It also has two times
            since the line before, each the largest of any rank: the seconds of communication, and those in which a rank
            waited for it.
        max_steps: what ``reached_max_steps`` compares with; None: never reached.

    ``is_coordinator`` says whether this is rank 0. Raises ValueError for a configuration that contradicts the
    communicator.
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
        loss_fn: Callable[..., Tensor] | None = None,
        blocks: str | None = None,
        scaler: GradScaler | None = None,
        log: StrPath | None = None,
        log_every: int = 1,
        max_steps: int | None = None,
        hook: CommHook = all_reduce_hook,
    ) -> None:
        if training is not None and training.reproducible:
            raise ValueError("reproducible=True needs DistributedTrainer, BucketedTrainer or AmpTrainer, not blocks")
        super().__init__(training, communicator, optimizer, schedule, hook=hook)
        place = (communicator.rank, communicator.world_size)
        config = config or DistributedTrainConfig(place[1], place[0], backend=communicator.device.type)
        if (config.rank, config.world_size, config.backend) != (*place, communicator.device.type):
            given = f"rank {config.rank} of {config.world_size} with backend {config.backend!r}"
            wanted = f"rank {place[0]} of {place[1]} on {communicator.device}"
            raise ValueError(f"the configuration is that of {given}, the communicator's that of {wanted}")
        self.model = model
        self.layout: BlockLayout = BlockLayout.of(model, blocks)
        self.max_steps: int | None = None if max_steps is None else check_int("max_steps", max_steps, 1)
        self.dist_config: DistributedTrainConfig = config
        self.is_coordinator: bool = config.is_coordinator
        self._loss_fn = loss_fn
        self.log: StepLog = StepLog(communicator, log, log_every)
        self._step.precision = Precision(scaler, names_overflow=True)
        self._step.updater = BlockUpdater(self.layout)
        if communicator.world_size > 1:
            self._step.reducer = BlockBuckets(communicator, hook, self.layout, {"log_every": self.log.every})
        self._device = next(model.parameters()).device  # a world of one has the model where it is
        self._buffers_before: dict[str, Tensor] = {}
        self._untouched = self._buffers_before  # the same until a micro-batch of the window is computed, then empty
        self._weight, self._unit = 0.0, 0.0
        self.broadcast_params(self._replicated())

    @property
    def reached_max_steps(self) -> bool:
        """Whether ``max_steps`` steps have been made."""
        return self.max_steps is not None and self.global_step >= self.max_steps

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
        tensors = [(one if isinstance(one, Tensor) else Tensor(one)).to(device=self._device) for one in batch]
        sizes = {t.shape[0] if t.ndim else None for t in tensors} or {0}
        if len(sizes) != 1 or None in sizes:
            raise ValueError(
                f"a batch's arrays have one number of samples, not shapes {', '.join(str(t.shape) for t in tensors)}"
            )
        (samples,) = sizes
        weight = float(samples or 0) if weight is None else weight
        self._begin()
        self._weight += weight
        if self.communicator.world_size == 1 and weight:
            # Only ratios matter. Equally large micro-batches count 1 each, as SimpleTrainer's, and nothing is rounded.
            self._unit = self._unit or weight
            weight /= self._unit
        self.log.tokens += tensors[-1].numel() if tensors else 0
        params = list(self.model.named_parameters())
        before = self._untouched if self.config.recheck else {}

        def loss() -> Tensor:
            self._set_buffers(before)  # also when the window is computed again
            self._untouched = {}
            return (self._loss_fn or self.model.loss)(*tensors)

        def step() -> TrainingMetrics | None:
            if not samples:
                return self.step(params, GradStore(), 0.0, weight=0.0)
            return self.backward_and_step(loss, params, weight)

        return self._guarded(step)

    def finish_window(self) -> TrainingMetrics | None:
        """Make a step of the ranks' unfinished windows, at the end of the data; None if no rank has one."""
        self._begin()
        return self._guarded(lambda: self.flush(self.model.named_parameters()))

    def verify_replicas(self) -> None:
        """Contract C-DDP-001: all ranks' weights, moments and saved buffers have the same bits.

        A collective, between steps. Raises ReplicaMismatchError on all ranks, naming the first tensor that differs and
        the ranks in the minority.
        """
        self.assert_replicas_identical(self._replicated())

    def _begin(self) -> None:
        """Where a window begins, remember what a failure must bring back."""
        if self._step.accumulator.current_step == 0:
            self._buffers_before = self._untouched = self._buffers()
            self._weight = self._unit = 0.0

    def _guarded(self, step: Callable[[], TrainingMetrics | None]) -> TrainingMetrics | None:
        """``step``, and what belongs to its end: buffers averaged, or put back; the log."""
        try:
            metrics = step()
            if metrics is not None:
                self._average_buffers()
        except Exception as error:
            self._set_buffers(self._buffers_before)
            self._untouched = self._buffers_before
            if not isinstance(error, NonFiniteGradientError) or not self._step.precision.leave_out():
                raise
            return None
        if metrics is not None:
            self.log.after(metrics, self.skipped_steps)
        return metrics

    def _buffers(self) -> dict[str, Tensor]:
        return {name: b.clone() for name, b in self._saved_buffers().items()}

    def _set_buffers(self, values: Mapping[str, Tensor]) -> None:
        for name, buffer in (self._saved_buffers() if values else {}).items():
            buffer.copy_(values[name])

    @no_grad()
    def _average_buffers(self) -> None:
        buffers = self._saved_buffers()
        if self.communicator.world_size == 1 or not buffers:
            return
        device = self.communicator.device
        total = full((1,), self._weight, dtype=float64, device=device)
        self.communicator.all_reduce(total)
        for _, buffer in sorted(buffers.items()):
            if is_floating(buffer.dtype):
                mean = full(buffer.shape, 0.0, dtype=float64, device=device)
                if self._weight:  # a rank without samples may hold anything
                    mean = buffer.detach().to(float64) * self._weight
                self.communicator.all_reduce(mean)
                buffer.copy_(mean / total)
            else:
                self.communicator.all_reduce(buffer, ReduceOp.MAX)

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(
        self, folder: StrPath, extra: Mapping[str, Any] | None = None, keep: int | None = 2, *, alone: bool = False
    ) -> Path:
        """Rank 0 writes weights, moments, step, random state, ``extra`` (JSON) and every rank's hash of its weights.

        A collective; returns when the checkpoint is safe. Raises ReplicaMismatchError on all ranks, and writes nothing,
        if their weights differ; CheckpointError on all ranks if it cannot be written. ``alone``: this rank writes, for
        it has lost others; an unfinished window is dropped.
        """
        if alone:
            self._step.accumulator.reset()
        arrays, meta = self.state_dict(self.model.named_parameters())  # refuses, on all ranks, within a window
        if not alone:
            self.verify_replicas()
        comm = NoOpCommunicator() if alone else self.communicator
        comm.barrier()
        weights = self._weights()
        state = {
            "step": self.global_step,
            "trainer": meta,
            "extra": dict(extra or {}),
            "random": random_state(comm),
            "world_size": comm.world_size,
            "weight_hashes": all_gather_json(comm, digest_of(weights)),
        }

        def write() -> str:
            self.log.sync()
            return str(save_checkpoint(folder, {"model": weights, "trainer": arrays}, state, keep))

        return Path(by_rank_0(comm, write, "save", folder))

    def load_checkpoint(self, folder: StrPath, step: int | None = None) -> dict[str, Any]:
        """Go on bit for bit from the newest checkpoint, or that of ``step``; returns what was saved as ``extra``.

        A collective; rank 0 reads for all. Each rank compares the hash of what it then holds. Raises CheckpointError on
        all ranks for a checkpoint that is missing, damaged or of another model.
        """
        checkpoint, error = load_distributed_checkpoint(self.communicator, folder, step), ""
        try:
            self._take_over(checkpoint)
        except (KeyError, TypeError, ValueError) as reason:
            error = f"no {reason}" if isinstance(reason, KeyError) else str(reason)
        for rank, text in enumerate(all_gather_json(self.communicator, error)):
            if text:
                raise CheckpointError(f"{checkpoint.path} does not fit rank {rank}: {text}", checkpoint.path)
        self.log.resume_after(self.global_step)
        return dict(checkpoint.state["extra"])

    def _take_over(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        self.model.load_state_dict(checkpoint.tensors["model"])
        meta = {**state, **state["trainer"]}  # older checkpoints have the scaler beside the trainer
        self.load_state_dict(self.model.named_parameters(), checkpoint.tensors["trainer"], meta)
        restore_random_state(self.communicator, state["random"])
        found, saved = digest_of(self._weights()), state["weight_hashes"][0]
        if found != saved:
            raise ValueError(f"the weights' hash is {found[:16]}..., the saved one {saved[:16]}...")

    def _weights(self) -> dict[str, np.ndarray]:
        return {name: on_host(tensor) for name, tensor in self.model.state_dict().items()}

    def _saved_buffers(self) -> dict[str, Tensor]:
        """The buffers that the model's ``state_dict`` has, by name."""
        saved = self.model.state_dict().keys()
        return {name: buffer for name, buffer in self.model.named_buffers() if name in saved}

    def _replicated(self) -> list[tuple[str, Tensor]]:
        """What has the same bits on all ranks."""
        return [*self.model.named_parameters(), *self._saved_buffers().items()]

    def close(self) -> None:
        """Close the log. The communicator stays open: its owner closes it."""
        self.log.close()


class StepLog:
    """Appends a line to ``path`` every ``every`` steps; nothing without a path.

    A line has the metrics, its time, the memory of rank 0, and the tokens per second of all ranks. It also has two
    times since the line before, each the largest of any rank: the seconds of communication, and those in which a rank
    waited for it. The waiting is there by rank, too. Raises ValueError for an ``every`` below 1.
    """

    def __init__(self, communicator: Communicator, path: StrPath | None, every: int = 1) -> None:
        check_int("log_every", every, 1)
        self._communicator = communicator
        self.every: int = every if path is not None else 0
        self._file = JsonLinesLog(path) if path is not None and communicator.rank == 0 else None
        self._before = CommStats()
        self._begin()

    def _begin(self) -> None:
        self.tokens: int = 0
        """Elements of the batches since the last line, for the caller to count."""
        self._since = time.perf_counter()

    def after(self, metrics: TrainingMetrics, skipped_steps: int) -> None:
        """Write a line if one is due; then a collective of all ranks."""
        if not self.every or metrics.step % self.every:
            return
        comm, stats, before = self._communicator, self._communicator.stats, self._before
        mine = [self.tokens, stats.busy_s - before.busy_s, stats.waited_s - before.waited_s]
        everyone = all_gather_json(comm, mine)
        if self._file is not None:
            line = {
                **vars(metrics),
                **moment(comm.device),
                "tokens_per_second": sum(tokens for tokens, _, _ in everyone) / (time.perf_counter() - self._since),
                "communication_seconds": max(busy for _, busy, _ in everyone),
                "waited_seconds": max(waited for _, _, waited in everyone),
                "waited_by_rank": [waited for _, _, waited in everyone],
                "world_size": comm.world_size,
                "skipped_steps": skipped_steps,
            }
            self._file.write(line)
        self._begin()
        self._before = CommStats(stats.operations, stats.bytes_sent, stats.busy_s, stats.waited_s)

    def begin(self, steps: int, tokens_per_step: int, **about: Any) -> None:
        """Write how long the run is, and who writes it: a line without a step."""
        if self._file is not None:
            self._file.write(about_run(steps, tokens_per_step, ranks=self._communicator.world_size, **about))

    def sync(self) -> None:
        """Until what was written is safe."""
        if self._file is not None:
            self._file.sync()

    def resume_after(self, step: int) -> None:
        """Remove the lines of later steps."""
        if self._file is not None:
            self._file.truncate_after(step)
        self._begin()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
