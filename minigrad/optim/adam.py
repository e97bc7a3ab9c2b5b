"""Adam with coupled (L2) weight decay, all parameters in one launch of AdamW's kernel."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

from .adamw import ADAM_CHECKS, adam_row
from .multi_tensor import MultiTensorOptimizer
from .optimizer import Checks


class Adam(MultiTensorOptimizer):
    """Adam with PyTorch's arithmetic: AdamW, except that the decay is part of the gradient and so of the moments.

        g <- g + weight_decay * p
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g * g
        p <- p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    Counts, state and versions are as in AdamW.

    Source: Kingma & Ba, "Adam: a method for stochastic optimization" (2015).
    """

    family = operator.attrgetter("adamw")
    checks: ClassVar[Checks] = ADAM_CHECKS
    state_arrays: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _row(self, group: dict[str, Any], t: int) -> tuple[float, ...]:
        return *adam_row(group, t, 1.0), group["weight_decay"]
