"""AmpTrainer: mixed precision on one rank or several (boostr's ``AmpTrainer``).

    weights float32 -> cast in the forward pass -> loss * scale -> backward in half -> gradients float32
    -> window, reduction over the ranks -> unscale in float32 -> overflow? leave the step out : clip, update, count

After the reduction all ranks hold the same bits. So what one rank overflowed is found by all, and their scales stay
equal without asking each other.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigrad import Tensor, TensorId, autocast
from minigrad.dtypes import bfloat16, float16, float32, is_half
from minigrad.errors import check_int
from minigrad.optim import GradScaler, LossScaleStrategy, LrSchedule, Optimizer

from ..comm.communicator import Communicator, NoOpCommunicator
from .buckets import DEFAULT_BUCKET_BYTES, CommHook, all_reduce_hook
from .config import TrainingConfig, check_kind
from .distributed_trainer import BucketedTrainer
from .step import Named, Params, Precision, State, named_params


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
    def bf16(cls) -> "MixedPrecisionConfig":
        """bfloat16, which has float32's range: no scaling."""
        return cls(bfloat16)

    @classmethod
    def fp16(cls) -> "MixedPrecisionConfig":
        """float16, with a scale that starts at 65536 and adapts."""
        return cls(float16, loss_scale=LossScaleStrategy.dynamic())


class Scaled(BucketedTrainer):
    """A BucketedTrainer that may scale its loss."""

    @property
    def scaler(self) -> GradScaler | None:
        """The loss's scaler; None without scaling."""
        return self._step.precision.scaler

    @property
    def skipped_steps(self) -> int:
        """Steps that were left out, because gradients overflowed."""
        return self._step.precision.skipped_steps

    def state_dict(self, params: Params, part: Callable[[Any], Any] | None = None) -> State:
        """As DistributedTrainer's; where the loss is scaled, with the scale and its counts."""
        arrays, meta = super().state_dict(params, part)
        if self.scaler is not None:
            meta.update(scaler=self.scaler.state_dict(), skipped_steps=self.skipped_steps)
        return arrays, meta

    def load_state_dict(self, params: Params, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """As DistributedTrainer's. Raises ValueError if one of the two has a scaler and the other none."""
        state: Mapping[str, Any] = meta if isinstance(meta, Mapping) else {}
        saved: Any = state.get("scaler")
        skipped = check_int("skipped_steps", state.get("skipped_steps", 0), 0)
        if (saved is None) != (self.scaler is None):
            raise ValueError(f"the state was saved {'without' if saved is None else 'with'} loss scaling")
        if self.scaler is not None:
            copy.copy(self.scaler).load_state_dict(saved)  # raises before anything has changed
        super().load_state_dict(params, arrays, meta)
        if self.scaler is not None:
            self.scaler.load_state_dict(saved)
        self._step.precision.skipped_steps = skipped


class MixedPrecision(Precision):
    """Loss scaling, master weights of one dtype, and the parameters that are used in that dtype all the same."""

    def __init__(self, config: MixedPrecisionConfig) -> None:
        super().__init__(config.loss_scale.to_grad_scaler())
        self.config = config
        self.fp32: set[int] = set()

    def check(self, named: Named) -> None:
        """ValueError for a trained parameter of another dtype than the master weights'."""
        master = self.config.master_dtype
        for name, p in named:
            if p.requires_grad and p.dtype != master:
                why = "master weights stay in it, and autocast casts them; convert the model with .to(minigrad.float32)"
                raise ValueError(f"parameter {name} is {p.dtype}, expected {master}: {why}")

    def settings(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        return {**super().settings(), "the precision": self.config, "the number of float32 overrides": len(self.fp32)}


class AmpTrainer(Scaled):
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
        return self._mixed.scale(loss)


def _number(param: Tensor | TensorId) -> int:
    return int(param) if isinstance(param, TensorId) else param._id
