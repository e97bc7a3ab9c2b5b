"""AmpTrainer: mixed precision on one rank or several (boostr's ``AmpTrainer``).

    weights float32 -> cast in the forward pass -> loss * scale -> backward in half -> gradients float32
    -> window, reduction over the ranks -> unscale in float32 -> overflow? leave the step out : clip, update, count

Only two things are put into SimpleTrainer's step: ``backward`` starts with the scaled loss, and before the update the
reduced gradients are unscaled and looked at. After the reduction all ranks hold the same bits, so what one rank
overflowed is found by all, and their scales stay equal without asking each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigrad.dtypes import bfloat16, float16, float32, is_half
from minigrad.engine import BackwardHook
from minigrad.grad_store import GradStore, TensorId
from minigrad.mixed_precision import autocast
from minigrad.optim import GradScaler, LossScaleStrategy, LrSchedule, Optimizer
from minigrad.optim.grad_scaler import MIN_SCALE
from minigrad.tensor import Tensor

from .bucketed_trainer import BucketedTrainer
from .buckets import DEFAULT_BUCKET_BYTES, CommHook, all_reduce_hook
from .communicator import Communicator
from .noop import NoOpCommunicator
from .params import Named, Params, named_params
from .simple_trainer import TrainingConfig, TrainingMetrics, check_kind, merged


@dataclass(frozen=True)
class MixedPrecisionConfig:
    """The half dtype that is computed in, the dtype of weights and moments, and how the loss is scaled.

    ``bf16()`` and ``fp16()`` are the usual ones. Raises ValueError for a ``compute_dtype`` other than bfloat16 or
    float16, and a ``master_dtype`` other than float32.
    """

    compute_dtype: np.dtype[Any] = bfloat16
    master_dtype: np.dtype[Any] = float32
    loss_scale: LossScaleStrategy = field(default_factory=LossScaleStrategy.none)

    def __post_init__(self) -> None:
        if not is_half(np.dtype(self.compute_dtype)):
            raise ValueError(f"compute_dtype is {self.compute_dtype}, expected bfloat16 or float16")
        if np.dtype(self.master_dtype) != float32:
            raise ValueError(f"master_dtype is {self.master_dtype}, expected float32")
        if not isinstance(self.loss_scale, LossScaleStrategy):
            raise ValueError(f"loss_scale is {self.loss_scale!r}, expected a LossScaleStrategy, such as .fixed(1024.0)")

    @classmethod
    def bf16(cls) -> MixedPrecisionConfig:
        """bfloat16, which has float32's range: no scaling."""
        return cls(bfloat16)

    @classmethod
    def fp16(cls) -> MixedPrecisionConfig:
        """float16, with a scale that starts at 65536 and adapts."""
        return cls(float16, loss_scale=LossScaleStrategy.dynamic())


class AmpTrainer(BucketedTrainer):
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
        self.scaler: GradScaler | None = self.precision.loss_scale.to_grad_scaler()
        self.skipped_steps: int = 0
        self._fp32: set[int] = set()

    # ------------------------------------------------------------------ the forward pass

    def autocast(self, device_type: str | None = None) -> autocast:
        """The context of the forward pass, on "cpu" or "cuda" (default: the communicator's)."""
        device_type = self._communicator.device.type if device_type is None else device_type
        return autocast(device_type, self.precision.compute_dtype).keeping(self._fp32)

    def compute_params(self, params: Params) -> dict[TensorId, Tensor]:
        """Each parameter in the compute dtype, by the parameter's id, for a forward pass written with them.

        Gradients go through the casts to the parameters. Overridden parameters, and those of other dtypes than float32,
        are given as they are.
        """
        half = self.precision.compute_dtype
        return {
            p.id: p.to(half) if p.dtype == float32 and p._id not in self._fp32 else p for _, p in named_params(params)
        }

    def set_fp32_overrides(self, params: Iterable[Tensor | TensorId]) -> None:
        """From now on, operations that use one of these parameters compute in float32, and no others."""
        self._fp32 = {_number(p) for p in params}

    def add_fp32_override(self, param: Tensor | TensorId) -> None:
        """One more parameter that is used in float32."""
        self._fp32 = self._fp32 | {_number(param)}

    def remove_fp32_override(self, param: Tensor | TensorId) -> None:
        """Use this parameter in the compute dtype again."""
        self._fp32 = self._fp32 - {_number(param)}

    @property
    def master_params(self) -> dict[TensorId, Tensor]:
        """The float32 parameters that are updated, by id: the model's own, known from the first step on."""
        return {p.id: p for group in self._optimizer.param_groups for p in group["params"]}

    # ------------------------------------------------------------------ the scale

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with now; 1 without scaling."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss to call ``backward`` of; ``step`` divides its gradients by the scale again."""
        return loss if self.scaler is None else self.scaler.scale_loss(loss)

    def _backward(self, loss: Tensor, hook: BackwardHook | None = None) -> GradStore:
        return super()._backward(self.scale_loss(loss), hook)

    def _update(self, named: Named, parts: Iterable[GradStore], loss: float) -> TrainingMetrics | None:
        if self.scaler is None:
            return super()._update(named, parts, loss)
        grads = merged(parts)
        if self._recorder is not None:
            flags = self.scaler.unscale_on_device(grads)
            self._recorder.overflow = flags[0][1] if flags else None
            return super()._update(named, [grads], loss)
        finite = self.scaler.unscale_grads(grads)
        if not finite and not (self.scaler.adapts and self.scaler.get_scale() <= MIN_SCALE):
            self._overflowed()
            return None
        metrics = super()._update(named, [grads], loss)  # which refuses gradients that are not finite
        self.scaler.update_scale(overflow=False)
        return metrics

    def _overflowed(self) -> None:
        assert self.scaler is not None
        self.scaler.update_scale(overflow=True)
        self.skipped_steps += 1

    def _named(self, params: Params) -> Named:
        named, master = named_params(params), self.precision.master_dtype
        for name, p in named:
            if p.requires_grad and p.dtype != master:
                raise ValueError(
                    f"parameter {name} is {p.dtype}, expected {master}: master weights stay in it, and autocast casts "
                    "them; convert the model with .to(minigrad.float32)"
                )
        return super()._named(named)

    def _settings(self) -> dict[str, Any]:
        return {
            **super()._settings(),
            "the precision": self.precision,
            "the loss scale": None if self.scaler is None else self.scaler.state_dict(),
            "the number of float32 overrides": len(self._fp32),
        }

    # ------------------------------------------------------------------ saving and resuming

    def state_dict(self, params: Params) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """As DistributedTrainer's, with the scale, its count of good steps, and the steps left out."""
        arrays, meta = super().state_dict(params)
        meta["scaler"] = None if self.scaler is None else self.scaler.state_dict()
        meta["skipped_steps"] = self.skipped_steps
        return arrays, meta

    def load_state_dict(self, params: Params, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """As DistributedTrainer's. Raises ValueError if one of the two has a scaler and the other none."""
        if not isinstance(meta, Mapping) or "scaler" not in meta:
            raise ValueError("the saved trainer state has no 'scaler': it is not that of an AmpTrainer")
        saved, skipped = meta["scaler"], meta.get("skipped_steps")
        if (saved is None) != (self.scaler is None):
            raise ValueError(f"the state was saved {'without' if saved is None else 'with'} loss scaling")
        if type(skipped) is not int or skipped < 0:
            raise ValueError(f"skipped_steps is {skipped!r}, expected an integer >= 0")
        scaler = self.precision.loss_scale.to_grad_scaler()
        if scaler is not None:
            scaler.load_state_dict(saved)
        super().load_state_dict(params, arrays, meta)
        self.scaler, self.skipped_steps = scaler, skipped


def _number(param: Tensor | TensorId) -> int:
    return int(param) if isinstance(param, TensorId) else param._id
