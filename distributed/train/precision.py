"""Mixed precision as a member of a Step.

    weights float32 -> cast in the forward pass -> loss * scale -> backward in half -> gradients float32
    -> window, reduction over the ranks -> unscale in float32 -> overflow? leave the step out : clip, update, count

After the reduction all ranks hold the same bits, so what one rank overflowed is found by all, and their scales stay
equal without asking each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigrad.dtypes import bfloat16, float16, float32, is_half
from minigrad.optim import GradScaler, LossScaleStrategy

from .params import Named
from .step import Precision, Step


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


class Scaled:
    """What a trainer shows of its loss scaling."""

    _step: Step

    @property
    def scaler(self) -> GradScaler | None:
        """The loss's scaler; None without scaling."""
        return self._step.precision.scaler

    @property
    def skipped_steps(self) -> int:
        """Steps that were left out, because gradients overflowed."""
        return self._step.precision.skipped_steps

    def _scaling_state(self) -> dict[str, Any]:
        scaler = None if self.scaler is None else self.scaler.state_dict()
        return {"scaler": scaler, "skipped_steps": self.skipped_steps}


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
                raise ValueError(
                    f"parameter {name} is {p.dtype}, expected {master}: master weights stay in it, and autocast casts "
                    "them; convert the model with .to(minigrad.float32)"
                )

    def settings(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name."""
        return {
            **super().settings(),
            "the precision": self.config,
            "the number of float32 overrides": len(self.fp32),
        }
