"""LAMB and LARS: steps whose length is that of the tensor they change, all parameters in two launches."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import check_bool, check_float
from .adamw import ADAM_CHECKS
from .multi_tensor import Configured
from .optimizer import Checks


def _check_limit(name: str, value: Any) -> float | None:
    return None if value is None else check_float(name, value)


@dataclass(frozen=True)
class LambConfig:
    """Options of Lamb, as boostr has them; ``LambConfig.lars()`` are those of LARS, which
    ``Lamb.from_config(LambConfig.lars(), params)`` makes.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    max_trust_ratio: float | None = 10.0
    use_adam: bool = True

    @classmethod
    def lars(cls) -> LambConfig:
        """LARS with boostr's defaults."""
        return cls(lr=0.1, beta2=0.0, weight_decay=1e-4, use_adam=False)


class Lamb(Configured[LambConfig]):
    """LAMB: Adam's direction, and for each tensor a step of the length lr * norm(p). For a parameter p in its own t-th
    update, with gradient g:

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g * g
        u  = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * p
        p <- p - lr * min(norm(p) / norm(u), max_trust_ratio) * u

    With ``use_adam=False`` it is LARS, algorithm 1 of the paper, in which beta1 is the momentum and there is no v:

        m <- beta1 * m + (1 - beta1) * (g + weight_decay * p)
        p <- p - lr * min(norm(p) / norm(m), max_trust_ratio) * m

    Where a norm is 0 the ratio is 1. ``max_trust_ratio=None`` sets no limit. The norms are summed in float64, the
    state has the dtype of the parameter. A step bumps the parameters' versions.

    Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes" (2020); LARS is of
    You, Gitman & Ginsburg, "Large batch training of convolutional networks" (2017).
    """

    _family = operator.attrgetter("lamb")
    config_type = LambConfig
    checks: ClassVar[Checks] = {**ADAM_CHECKS, "max_trust_ratio": _check_limit, "use_adam": check_bool}
    state_arrays: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_trust_ratio: float | None = 10.0,
        use_adam: bool = True,
    ) -> None:
        options = {"max_trust_ratio": max_trust_ratio, "use_adam": use_adam}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, **options})

    def kinds_of(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Both moments, or the first alone for LARS."""
        return self.state_arrays if options["use_adam"] else self.state_arrays[:1]

    def _row(self, group: dict[str, Any], t: int) -> tuple[float, ...]:
        beta1, beta2 = group["betas"]
        limit = math.inf if group["max_trust_ratio"] is None else group["max_trust_ratio"]
        correction, root = 1.0 - beta1**t, math.sqrt(1.0 - beta2**t)
        return group["lr"], group["weight_decay"], beta1, beta2, correction, root, group["eps"], limit
