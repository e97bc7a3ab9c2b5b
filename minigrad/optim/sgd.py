"""SGD with momentum, all parameters in one launch."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import bad_value, check_bool, check_float
from .multi_tensor import Configured
from .optimizer import Checks


@dataclass(frozen=True)
class SgdConfig:
    """Options of SGD, as boostr has them."""

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False


class SGD(Configured[SgdConfig]):
    """Stochastic gradient descent with PyTorch's arithmetic. For a parameter p with gradient g:

        g <- g + weight_decay * p
        b <- momentum * b + (1 - dampening) * g       (in the parameter's first update b <- g)
        g <- g + momentum * b  with nesterov, else  g <- b
        p <- p - lr * g

    Without momentum the two lines in the middle are left out and there is no state but the count. A group whose
    momentum is turned on later starts from a buffer of zeros. The buffer (``momentum_buffer``) has the dtype of the
    parameter. A step bumps the parameters' versions.

    Raises ValueError for nesterov without momentum or with dampening, as PyTorch does.

    Source: Sutskever, Martens, Dahl & Hinton, "On the importance of initialization and momentum in deep learning"
    (2013).
    """

    _family = operator.attrgetter("sgd")
    config_type = SgdConfig
    checks: ClassVar[Checks] = {
        **dict.fromkeys(("lr", "momentum", "dampening", "weight_decay"), check_float),
        "nesterov": check_bool,
    }
    state_arrays: tuple[str, ...] = ("momentum_buffer",)

    def __init__(
        self,
        params: Any = None,
        lr: float = 0.01,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        options = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, {"lr": lr, **options})

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the options, with plain numbers. Raises ValueError if one is unknown or out of range."""
        options = super().checked(options)
        if options["nesterov"] and (options["momentum"] == 0 or options["dampening"] != 0):
            raise bad_value(
                f"nesterov with momentum {options['momentum']} and dampening {options['dampening']}: it needs "
                "momentum > 0 and dampening = 0"
            )
        return options

    def kinds_of(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """A buffer where there is momentum."""
        return self.state_arrays if options["momentum"] else ()

    def _row(self, group: dict[str, Any], t: int) -> tuple[float, ...]:
        momentum = group["momentum"]
        keep, take = (0.0, 1.0) if t == 1 else (momentum, 1.0 - group["dampening"])
        return group["lr"], group["weight_decay"], keep, take, momentum, float(group["nesterov"])
