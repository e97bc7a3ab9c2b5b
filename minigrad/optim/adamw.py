"""AdamW: Adam with decoupled weight decay, all parameters in one launch; and Adam, by the same kernel."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import check_float
from .multi_tensor import Configured, MultiTensorOptimizer
from .optimizer import check_betas
from .optimizer_state import Checks

ADAM_CHECKS: Checks = {**dict.fromkeys(("lr", "eps", "weight_decay"), check_float), "betas": check_betas}


@dataclass(frozen=True)
class AdamWConfig:
    """Options of AdamW, as boostr has them."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01


class AdamW(Configured[AdamWConfig]):
    """AdamW with PyTorch's arithmetic. For a parameter p with gradient g in its own t-th update:

        p <- p - lr * weight_decay * p
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g * g
        p <- p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    ``t`` counts the updates of that parameter alone, so one that was frozen at first is corrected by its own count;
    ``timestep`` counts the calls of ``step``. The moments m and v (``exp_avg``, ``exp_avg_sq``) have the dtype of the
    parameter. They are made at its first update, as views of one flat array for all parameters that are new then. A
    step bumps the parameters' versions.

    With ``master_weights`` float16 and bfloat16 parameters have float32 moments and a float32 copy, the ``master``.
    The master is updated and saved, and the parameter is the master rounded. Where the program changes a parameter, its
    master begins anew from it. For float32 and float64 parameters the option changes nothing, so that models of mixed
    dtypes, and one program for all dtypes, can have it.

    Source: Loshchilov & Hutter, "Decoupled weight decay regularization" (2019).
    """

    _family = "adamw"
    config_type = AdamWConfig
    checks: ClassVar[Checks] = ADAM_CHECKS
    state_arrays: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Any = None, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, *, master_weights: bool = False,
    ) -> None:  # fmt: skip
        if master_weights:
            self.extra_arrays: tuple[str, ...] = ("master",)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _row(self, group: dict[str, Any], t: int) -> tuple[float, ...]:
        return adam_row(group, t, 1.0 - group["lr"] * group["weight_decay"])


class Adam(MultiTensorOptimizer):
    """Adam with PyTorch's arithmetic: AdamW, except that the decay is part of the gradient and so of the moments.

        g <- g + weight_decay * p
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g * g
        p <- p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    Counts, state and versions are as in AdamW.

    Source: Kingma & Ba, "Adam: a method for stochastic optimization" (2015).
    """

    _family = "adamw"
    checks: ClassVar[Checks] = ADAM_CHECKS
    state_arrays: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Any = None, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _row(self, group: dict[str, Any], t: int) -> tuple[float, ...]:
        return *adam_row(group, t, 1.0), group["weight_decay"]


def adam_row(group: Mapping[str, Any], t: int, decay: float) -> tuple[float, ...]:
    """A row of the kernel's ``SCALARS``, in double precision as PyTorch computes it."""
    lr, (beta1, beta2) = group["lr"], group["betas"]
    step_size, root = lr / (1.0 - beta1**t), math.sqrt(1.0 - beta2**t)
    return decay, 1.0 - beta1, beta2, 1.0 - beta2, step_size, root, group["eps"]
