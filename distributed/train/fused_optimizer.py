"""FusedDistributedOptimizer: the all-reduce runs while the optimizer updates (boostr's ``FusedDistributedOptimizer``).

    all-reduce   [ bucket 0 ][ bucket 1 ][ bucket 2 ]
    AdamW                    [ bucket 0 ][ bucket 1 ][ bucket 2 ]

All buckets belong to one step of the optimizer, with one timestep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from minigrad.dtypes import finfo
from minigrad.grad_store import GradStore, TensorId
from minigrad.optim import AdamW, AdamWConfig, LrSchedule, NonFiniteGradientError
from minigrad.tensor import Tensor

from ..comm.communicator import Communicator
from .buckets import DEFAULT_BUCKET_BYTES, CommHook, GradientBucketManager, all_reduce_hook
from .config import TrainingConfig, TrainingMetrics, check_kind
from .distributed_trainer import DistributedTrainer
from .grad_sync import Window
from .params import Named, Params
from .reducers import Buckets
from .step import Step, Updater


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
    norm: float = 0.0

    def send(self, step: Step, manager: GradientBucketManager, sums: dict[TensorId, Tensor]) -> None:
        """Look at the norm of this rank's sums first. With clipping, that checks the sum over the ranks itself."""
        arrays = [grad.data for grad in reversed(sums.values())]
        wanted = arrays and step.config.max_grad_norm is None
        kernels = self.communicator.device.kernels
        self.norm = math.sqrt(kernels.grad_norm.sum_of_squares(arrays)) if wanted else 0.0
        super().send(step, manager, sums)

    def completed(self, window: Window, trained: list[Tensor]) -> Window:
        """With the norm."""
        return replace(window, norm=self.norm)

    def check(self, step: Step, windows: list[Window]) -> None:
        """No element of any partial sum of the ranks' gradients is larger than the sum of their norms."""
        super().check(step, windows)
        norms = [window.norm for window in windows]
        dtypes = {p.dtype for group in step.optimizer.param_groups for p in group["params"]}
        largest = min((float(finfo(dtype).max) / 2 for dtype in dtypes), default=math.inf)  # half: room for rounding
        if not sum(norms) < largest:
            bad = [f"{norm} on rank {rank}" for rank, norm in enumerate(norms) if not math.isfinite(norm)]
            raise NonFiniteGradientError(
                f"step {step.global_step + 1}: the gradient norm is "
                f"{', '.join(bad) or f'{sum(norms)} over all ranks'}; no weight was changed",
                sum(norms),
            )


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
        within = self._step.accumulator.current_step > 0
        self._without_loss = loss_value is None or (self._without_loss and within)
        return self._shown(super().step(params, grads, 0.0 if loss_value is None else loss_value, weight))

    def flush(self, params: Params) -> TrainingMetrics | None:
        """As DistributedTrainer's."""
        return self._shown(super().flush(params))

    def _shown(self, metrics: TrainingMetrics | None) -> TrainingMetrics | None:
        return replace(metrics, loss=math.nan) if metrics is not None and self._without_loss else metrics
