"""AdaGrad, all parameters in one launch."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import check_float
from .multi_tensor import Configured, UpdateBatch
from .optimizer import Checks, Update


@dataclass(frozen=True)
class AdaGradConfig:
    """Options of AdaGrad, as boostr has them."""

    lr: float = 0.01
    eps: float = 1e-10
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    lr_decay: float = 0.0


class AdaGrad(Configured[AdaGradConfig]):
    """AdaGrad with PyTorch's arithmetic. For a parameter p with gradient g:

        g <- g + weight_decay * p
        s <- s + g * g                       s starts at initial_accumulator_value
        p <- p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)        at the t-th update of p

    The sums (``sum``) have the dtype of the parameter. A step bumps the parameters' versions.

    Source: Duchi, Hazan & Singer, "Adaptive subgradient methods for online learning and stochastic optimization"
    (2011).
    """

    _family = operator.attrgetter("adagrad")
    config_type = AdaGradConfig
    checks: ClassVar[Checks] = dict.fromkeys(vars(AdaGradConfig()), check_float)
    state_arrays: tuple[str, ...] = ("sum",)

    def __init__(
        self,
        params: Any = None,
        lr: float = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(params, vars(AdaGradConfig(lr, eps, weight_decay, initial_accumulator_value, lr_decay)))

    def _prepare(self, updates: list[Update], kinds: tuple[str, ...]) -> UpdateBatch:
        new = [update for update in updates if update.param._id not in self.state]
        self._make_states(update.param for update in new)
        for group, p, _ in new:
            value = self.param_groups[group]["initial_accumulator_value"]
            if value:
                p.device.kernels.elementwise.assign(self.state[p._id].arrays["sum"], value)
        return super()._prepare(updates, kinds)

    def _row(self, group: dict[str, Any], t: int) -> tuple[float, ...]:
        return group["lr"] / (1 + (t - 1) * group["lr_decay"]), group["weight_decay"], group["eps"]
