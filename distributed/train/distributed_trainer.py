"""boostr's trainers of several ranks, each with its own share of every batch: a Step with reducers of several ranks.

DistributedTrainer reduces after backward, BucketedTrainer while backward still computes, and FusedDistributedOptimizer
while the optimizer updates:

    all-reduce   [ bucket 0 ][ bucket 1 ][ bucket 2 ]
    AdamW                    [ bucket 0 ][ bucket 1 ][ bucket 2 ]

All buckets belong to one step of the optimizer, with one timestep.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from minigrad import GradStore, Tensor, TensorId, finfo
from minigrad.grad_arithmetic import norm_of
from minigrad.optim import AdamW, AdamWConfig, LrSchedule, NonFiniteGradientError, Optimizer

from ..comm.communicator import Communicator
from .buckets import DEFAULT_BUCKET_BYTES, CommHook, GradientBucketManager, all_reduce_hook
from .config import TrainingConfig, TrainingMetrics, check_kind
from .grad_sync import Buckets, Overlapped, Window, assert_replicas_identical, broadcast_params, not_finite
from .reducers import Trees
from .simple_trainer import SimpleTrainer
from .step import Loss, Named, Params, State, Step, Updater, named_params


class DistributedTrainer(SimpleTrainer):
    """Turns the gradients of all ranks' micro-batches into optimizer steps.

    ::

        trainer = DistributedTrainer(TrainingConfig(learning_rate=3e-4), communicator)
        trainer.broadcast_params(model.named_parameters())
        for x, y in this_ranks_share:
            loss = model.loss(x, y)
            metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item(), weight=len(x))

    Every rank calls the same methods in the same order, with the same parameters: that is checked before the first
    step, as is that their values agree. A parameter that has no gradient on this rank counts as zeros here; one that
    has none on any rank is left alone. In a world of one rank it is a SimpleTrainer, bit for bit.

    ``bucket_size_bytes`` is the size of the flat buffers that are reduced at once. ``hook`` averages one of them (see
    ``CommHook``; ``BFloat16Compression`` halves what is sent).

    A rank that has no samples left passes ``step`` an empty GradStore, a loss of 0 and a weight of 0. The metrics' loss
    is the mean over the samples of all ranks. Beside SimpleTrainer's errors, ``step`` raises those of communication. A
    loss or gradient that is not finite on one rank raises on all of them, at the end of the window; no weight is
    changed and the window is dropped.

    ``communicator`` connects the ranks, of which this is number ``rank`` of ``world_size``. Raises TypeError for a
    configuration or a communicator of another kind.
    """

    _example = "TrainingConfig(learning_rate=1e-3), init_process_group()"
    _reducer = Buckets

    def __init__(
        self,
        config: TrainingConfig | None,
        communicator: Communicator,
        optimizer: Optimizer | None = None,
        schedule: LrSchedule | None = None,
        *,
        bucket_size_bytes: int = DEFAULT_BUCKET_BYTES,
        hook: CommHook = all_reduce_hook,
    ) -> None:
        super().__init__(config, optimizer, schedule)
        check_kind(self, "communicator", communicator, Communicator, self._example)
        GradientBucketManager([], communicator, bucket_size_bytes, hook)  # checks them
        self.communicator: Final[Communicator] = communicator
        self.rank: Final[int] = communicator.rank
        self.world_size: Final[int] = communicator.world_size
        if self.config.reproducible and hook is not all_reduce_hook:
            raise ValueError("reproducible=True adds gradients up by itself: leave the hook out")
        self._step.accumulator = self.config.accumulator(self.rank)
        self._step.accumulator.key_draws(0)
        if self.world_size > 1:
            kind = Trees if self.config.reproducible else self._reducer
            self._step.reducer = kind(communicator, bucket_size_bytes, hook)

    @property
    def num_buckets(self) -> int:
        """Flat buffers that a step reduces; 0 before the first step, and in a world of one rank."""
        return self._step.reducer.num_buckets

    def broadcast_params(self, params: Params, root: int = 0) -> None:
        """Give every rank the values that rank ``root`` has; call it before the first step, for buffers as well."""
        broadcast_params(self.communicator, params, root)

    def assert_replicas_identical(self, params: Params) -> None:
        """Raise ReplicaMismatchError, on every rank, unless all ranks' tensors, and what the optimizer keeps of them,
        have the same bits; but for those of which a rank has a share. A collective."""
        self.communicator.step, reducer = self.global_step, self._step.reducer
        if isinstance(reducer, Buckets):
            assert_replicas_identical(self.communicator, reducer.held(self._step, named_params(params)))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, micro-batches only join the window; the first one after it may finish that (PyTorch's
        ``no_sync``). All ranks must do the same. Raises ValueError under ``reproducible=True``.
        """
        if self.config.reproducible:
            raise ValueError("reproducible=True numbers grad_accum_steps micro-batches of each rank: no_sync adds more")
        before, self._step.holding = self._step.holding, True
        try:
            yield
        finally:
            self._step.holding = before

    def state_dict(self, params: Params, part: Callable[[Any], Any] | None = None) -> State:
        """What an exact resume needs beside the weights: the same on all ranks, so that one of them may save it.

        Raises RuntimeError within a window of micro-batches, which every rank has another part of.
        """
        count = self._step.accumulator.current_step
        if self.communicator.world_size > 1 and count:
            text = f"the window has {count} of {self.config.grad_accum_steps} micro-batches, and each rank has its own"
            raise RuntimeError(f"{text}; save after a step that returned metrics, or call flush first")
        return super().state_dict(params, part)


class BucketedTrainer(DistributedTrainer):
    """A DistributedTrainer that sends a bucket as soon as it is full, in ``backward_and_step``.

    ::

        metrics = trainer.backward_and_step(model.loss(x, y), model.named_parameters())

    In the last micro-batch of a window the gradients are sent while backward still computes. ``step`` with gradients
    that are already there works as well, without the overlap.
    """

    _reducer = Overlapped


@dataclass(frozen=True)
class FusedOptimizerConfig:
    """Options of FusedDistributedOptimizer; the first two and their defaults are boostr's.

    With a ``max_grad_norm`` the update has to wait for the norm of all buckets, so nothing overlaps.
    """

    adamw: AdamWConfig = field(default_factory=AdamWConfig)
    bucket_size_bytes: int = DEFAULT_BUCKET_BYTES
    max_grad_norm: float | None = None
    grad_accum_steps: int = 1


class BoundedBuckets(Buckets):
    """Buckets whose ranks make sure in advance that no sum of their gradients can be infinite or NaN."""

    capturable = False

    def send(self, step: Step, manager: GradientBucketManager, sums: dict[TensorId, Tensor]) -> float:
        """Look at the norm of this rank's sums first. With clipping, that checks the sum over the ranks itself."""
        norm = norm_of([*reversed(sums.values())]) if step.config.max_grad_norm is None else 0.0
        super().send(step, manager, sums)
        return norm

    def check(self, step: Step, trained: list[Tensor], windows: list[Window]) -> None:
        """No element of any partial sum of the ranks' gradients is larger than the sum of their norms."""
        super().check(step, trained, windows)
        norms = [window.norm for window in windows]
        dtypes = {p.dtype for group in step.optimizer.param_groups for p in group["params"]}
        largest = min((float(finfo(dtype).max) / 2 for dtype in dtypes), default=math.inf)  # half: room for rounding
        if not sum(norms) < largest:
            norm = not_finite(norms) or f"{sum(norms)} over all ranks"
            text = f"step {step.global_step + 1}: the gradient norm is {norm}; no weight was changed"
            raise NonFiniteGradientError(text, sum(norms))


class BucketUpdater(Updater):
    """Updates the parameters of a bucket as soon as it has arrived, where nothing is clipped."""

    def clip_and_update(self, step: Step, named: Named, parts: Iterable[GradStore]) -> float | None:
        """All parts are one step of the optimizer."""
        if step.config.max_grad_norm is not None or step.reducer.world_size == 1:
            return super().clip_and_update(step, named, parts)
        step.set_scheduled_lr()
        for part in parts:
            step.optimizer.update(part)
        step.optimizer.timestep += 1
        return None


class FusedDistributedOptimizer(DistributedTrainer):
    """AdamW on several ranks, which updates one bucket's parameters while the next bucket is being reduced.

    ::

        optimizer = FusedDistributedOptimizer(FusedOptimizerConfig(AdamWConfig(lr=3e-4)), communicator)
        optimizer.broadcast_params(model.named_parameters())
        loss = model.loss(x, y)
        metrics = optimizer.step(model.named_parameters(), loss.backward(), loss.item())

    It accumulates, clips, follows a schedule and reports as DistributedTrainer does. In a world of one rank it is plain
    AdamW. Without clipping, the ranks make sure that no sum of their gradients can be infinite or NaN before anything
    is updated; if communication itself fails between two buckets, some parameters have been updated and others not:
    resume from a checkpoint.

    Its configuration is a FusedOptimizerConfig; anything else, TrainingConfig included, raises TypeError.
    """

    _example = "FusedOptimizerConfig(AdamWConfig(lr=1e-3)), init_process_group()"
    _reducer = BoundedBuckets

    def __init__(
        self,
        config: FusedOptimizerConfig | None,
        communicator: Communicator,
        schedule: LrSchedule | None = None,
        *,
        hook: CommHook = all_reduce_hook,
    ) -> None:
        fused = FusedOptimizerConfig() if config is None else config
        check_kind(self, "config", fused, FusedOptimizerConfig, self._example)
        super().__init__(
            TrainingConfig(fused.adamw.lr, fused.adamw.weight_decay, fused.max_grad_norm, fused.grad_accum_steps),
            communicator,
            AdamW.from_config(fused.adamw),
            schedule,
            bucket_size_bytes=fused.bucket_size_bytes,
            hook=hook,
        )
        self._step.own_optimizer = True
        self._step.updater = BucketUpdater()
        self._without_loss = False

    @property
    def timestep(self) -> int:
        """Steps of the optimizer so far, also of those without any gradient."""
        return self.optimizer.timestep

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next step on (a schedule overrides it)."""
        self.optimizer.set_lr(lr)

    def step(
        self, params: Params, grads: GradStore, loss_value: float | None = None, weight: float = 1.0
    ) -> TrainingMetrics | None:
        """As DistributedTrainer's; the loss may be left out, as in boostr: that of the metrics is then NaN."""
        return self._shown(loss_value is None, super().step, params, grads, loss_value or 0.0, weight)

    def backward_and_step(self, loss: Loss, params: Params, weight: float = 1.0) -> TrainingMetrics | None:
        """As DistributedTrainer's."""
        return self._shown(False, super().backward_and_step, loss, params, weight)

    def flush(self, params: Params) -> TrainingMetrics | None:
        """As DistributedTrainer's."""
        return self._shown(False, super().flush, params)

    def _shown(self, without_loss: bool, made: Callable[..., Any], *arguments: Any) -> TrainingMetrics | None:
        """What this call gives; its loss is NaN where a micro-batch of the window is without one."""
        self._without_loss = without_loss or (self._without_loss and self._step.accumulator.current_step > 0)
        metrics: TrainingMetrics | None = made(*arguments)
        return replace(metrics, loss=math.nan) if metrics is not None and self._without_loss else metrics
