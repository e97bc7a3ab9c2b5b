"""FusedDistributedOptimizer: the all-reduce runs while the optimizer updates (boostr's ``FusedDistributedOptimizer``).

    all-reduce   [ bucket 0 ][ bucket 1 ][ bucket 2 ]
    AdamW                    [ bucket 0 ][ bucket 1 ][ bucket 2 ]

All buckets belong to one step of the optimizer, with one timestep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from minigrad.dtypes import finfo
from minigrad.grad_store import GradStore
from minigrad.optim import AdamW, AdamWConfig, LrSchedule, NonFiniteGradientError
from minigrad.tensor import Tensor

from .buckets import DEFAULT_BUCKET_BYTES, CommHook, all_reduce_hook
from .communicator import Communicator
from .distributed_trainer import DistributedTrainer
from .grad_sync import Window
from .params import Named, Params
from .simple_trainer import TrainingConfig, TrainingMetrics, check_kind


@dataclass(frozen=True)
class FusedOptimizerConfig:
    """Options of FusedDistributedOptimizer; the first two and their defaults are boostr's.

    With a ``max_grad_norm`` the update has to wait for the norm of all buckets, so nothing overlaps.
    """

    adamw: AdamWConfig = field(default_factory=AdamWConfig)
    bucket_size_bytes: int = DEFAULT_BUCKET_BYTES
    max_grad_norm: float | None = None
    grad_accum_steps: int = 1


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
        self._own_optimizer = True
        self._without_loss = False

    @property
    def timestep(self) -> int:
        """Steps of the optimizer so far, also of those without any gradient."""
        return self._optimizer.timestep

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next step on (a schedule overrides it)."""
        self._optimizer.set_lr(lr)

    def step(
        self, params: Params, grads: GradStore, loss_value: float | None = None, weight: float = 1.0
    ) -> TrainingMetrics | None:
        """As DistributedTrainer's; the loss may be left out, as in boostr: that of the metrics is then NaN."""
        self._without_loss = loss_value is None or (self._without_loss and self._accumulator.current_step > 0)
        return super().step(params, grads, 0.0 if loss_value is None else loss_value, weight)

    def _local_norm(self, grads: list[Tensor]) -> float:
        if self.config.max_grad_norm is not None:
            return 0.0  # clipping checks the sum itself
        arrays = [grad.data for grad in grads]
        return math.sqrt(grads[0].device.kernels.grad_norm.sum_of_squares(arrays)) if grads else 0.0

    def _check_windows(self, windows: list[Window]) -> None:
        super()._check_windows(windows)
        norms = [window.norm for window in windows]
        # No element of any partial sum of the ranks' gradients is larger than the sum of their norms.
        if not sum(norms) < self._largest():
            bad = [f"{norm} on rank {rank}" for rank, norm in enumerate(norms) if not math.isfinite(norm)]
            raise NonFiniteGradientError(
                f"step {self._global_step + 1}: the gradient norm is {', '.join(bad) or f'{sum(norms)} over all ranks'}"
                "; no weight was changed",
                sum(norms),
            )

    def _largest(self) -> float:
        """What no sum may reach: half of the largest number of the gradients' narrowest dtype, to leave room for
        rounding."""
        dtypes = {p.dtype for group in self._optimizer.param_groups for p in group["params"]}
        return min((float(finfo(dtype).max) / 2 for dtype in dtypes), default=math.inf)

    def _update(self, named: Named, parts: Iterable[GradStore], loss: float) -> TrainingMetrics | None:
        return super()._update(named, parts, math.nan if self._without_loss else loss)

    def _apply(self, named: Named, parts: Iterable[GradStore], lr: float | None) -> float | None:
        if self.config.max_grad_norm is not None or self._communicator.world_size == 1:
            return super()._apply(named, parts, lr)
        if lr is not None:
            self._optimizer.set_lr(lr)
        for part in parts:
            self._optimizer.update(part)
        self._optimizer.timestep += 1
        return None
