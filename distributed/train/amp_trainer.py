"""AmpTrainer: mixed precision on one rank or several (boostr's ``AmpTrainer``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minigrad.dtypes import float32
from minigrad.errors import check_int
from minigrad.grad_store import TensorId
from minigrad.mixed_precision import autocast
from minigrad.optim import LrSchedule, Optimizer
from minigrad.tensor import Tensor

from ..comm.communicator import Communicator
from ..comm.noop import NoOpCommunicator
from .buckets import DEFAULT_BUCKET_BYTES, CommHook, all_reduce_hook
from .config import TrainingConfig, check_kind
from .distributed_trainer import BucketedTrainer
from .params import Params, named_params
from .precision import MixedPrecision, MixedPrecisionConfig, Scaled


class AmpTrainer(Scaled, BucketedTrainer):
    """A BucketedTrainer whose forward pass computes in a half dtype; weights, gradients and moments stay float32.

    ::

        trainer = AmpTrainer(TrainingConfig(learning_rate=3e-4), MixedPrecisionConfig.fp16())
        for x, y in batches:
            with trainer.autocast():
                loss = model.loss(x, y)
            metrics = trainer.backward_and_step(loss, model.named_parameters())

    ``step(params, trainer.scale_loss(loss).backward(), loss.item())`` does the same by hand. A step whose gradients
    overflow on any rank is left out on all of them: it returns None, ``skipped_steps`` counts it, and neither weights
    nor moments, timestep, ``global_step`` or learning rate move. A ``dynamic`` scale then falls; it rises after
    ``growth_interval`` optimizer steps, however many micro-batches these have. Without scaling, or with a dynamic scale
    that has fallen to 1, such gradients raise NonFiniteGradientError. So does, always, a loss that is not finite: a
    smaller scale would not help the forward pass (NonFiniteLossError).

    Args:
        config: as SimpleTrainer's.
        precision: None: ``MixedPrecisionConfig.bf16()``.
        communicator: None: one rank.
        optimizer, schedule, bucket_size_bytes, hook: as DistributedTrainer's.

    Raises TypeError for arguments of another kind, and in ``step`` ValueError for a trained parameter that is not
    float32.
    """

    _example = "TrainingConfig(learning_rate=1e-3), MixedPrecisionConfig.bf16()"

    def __init__(
        self,
        config: TrainingConfig | None = None,
        precision: MixedPrecisionConfig | None = None,
        communicator: Communicator | None = None,
        optimizer: Optimizer | None = None,
        schedule: LrSchedule | None = None,
        *,
        bucket_size_bytes: int = DEFAULT_BUCKET_BYTES,
        hook: CommHook = all_reduce_hook,
    ) -> None:
        self.precision: MixedPrecisionConfig = MixedPrecisionConfig.bf16() if precision is None else precision
        check_kind(self, "precision", self.precision, MixedPrecisionConfig, self._example)
        communicator = NoOpCommunicator() if communicator is None else communicator
        super().__init__(config, communicator, optimizer, schedule, bucket_size_bytes=bucket_size_bytes, hook=hook)
        self._mixed = self._step.precision = MixedPrecision(self.precision)

    # ------------------------------------------------------------------ the forward pass

    def autocast(self, device_type: str | None = None) -> autocast:
        """The context of the forward pass, on "cpu" or "cuda" (default: both)."""
        return autocast(device_type, self.precision.compute_dtype).keeping(self._mixed.fp32)

    def compute_params(self, params: Params) -> dict[TensorId, Tensor]:
        """Each parameter in the compute dtype, by the parameter's id, for a forward pass written with them.

        Gradients go through the casts to the parameters. Overridden parameters, and those of other dtypes than float32,
        are given as they are.
        """
        half = self.precision.compute_dtype
        return {
            p.id: p.to(half) if p.dtype == float32 and p._id not in self._mixed.fp32 else p
            for _, p in named_params(params)
        }

    def set_fp32_overrides(self, params: Iterable[Tensor | TensorId]) -> None:
        """From now on, operations that use one of these parameters compute in float32, and no others."""
        self._mixed.fp32 = {_number(p) for p in params}

    def add_fp32_override(self, param: Tensor | TensorId) -> None:
        """One more parameter that is used in float32."""
        self._mixed.fp32 = self._mixed.fp32 | {_number(param)}

    def remove_fp32_override(self, param: Tensor | TensorId) -> None:
        """Use this parameter in the compute dtype again."""
        self._mixed.fp32 = self._mixed.fp32 - {_number(param)}

    @property
    def master_params(self) -> dict[TensorId, Tensor]:
        """The float32 parameters that are updated, by id: the model's own, known from the first step on."""
        return {p.id: p for group in self.optimizer.param_groups for p in group["params"]}

    # ------------------------------------------------------------------ the scale

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with now; 1 without scaling."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss to call ``backward`` of; ``step`` divides its gradients by the scale again."""
        return loss if self.scaler is None else self.scaler.scale_loss(loss)

    # ------------------------------------------------------------------ saving and resuming

    def state_dict(self, params: Params) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """As DistributedTrainer's, with the scale, its count of good steps, and the steps left out."""
        arrays, meta = super().state_dict(params)
        return arrays, {**meta, **self._scaling_state()}

    def load_state_dict(self, params: Params, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """As DistributedTrainer's. Raises ValueError if one of the two has a scaler and the other none."""
        if not isinstance(meta, Mapping) or "scaler" not in meta:
            raise ValueError("the saved trainer state has no 'scaler': it is not that of an AmpTrainer")
        saved, skipped = meta["scaler"], meta.get("skipped_steps")
        if (saved is None) != (self.scaler is None):
            raise ValueError(f"the state was saved {'without' if saved is None else 'with'} loss scaling")
        skipped = check_int("skipped_steps", skipped, 0)
        scaler = self.precision.loss_scale.to_grad_scaler()
        if scaler is not None:
            scaler.load_state_dict(saved)
        super().load_state_dict(params, arrays, meta)
        self._mixed.scaler, self._mixed.skipped_steps = scaler, skipped


def _number(param: Tensor | TensorId) -> int:
    return int(param) if isinstance(param, TensorId) else param._id
