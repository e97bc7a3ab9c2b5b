"""SGD, AdaGrad, LAMB and LARS: all parameters in one launch, or two where steps have the length of what they change;
and Muon: momentum whose matrices are made orthogonal before they are added.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ..autograd import no_grad
from ..dtypes import is_half
from ..errors import bad_value, check_bool, check_float, check_int
from ..grad_store import GradStore
from ..tensor import Tensor
from .adamw import ADAM_CHECKS
from .multi_tensor import Configured, UpdateBatch
from .optimizer import Optimizer, Update, check_share
from .optimizer_state import Checks


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

    _family = "sgd"
    config_type = SgdConfig
    checks: ClassVar[Checks] = {**dict.fromkeys(vars(SgdConfig()), check_float), "nesterov": check_bool}
    state_arrays: tuple[str, ...] = ("momentum_buffer",)

    def __init__(
        self, params: Any = None, lr: float = 0.01, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: float = 0.0, nesterov: bool = False,
    ) -> None:  # fmt: skip
        options = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, {"lr": lr, **options})

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the options, with plain numbers. Raises ValueError if one is unknown or out of range."""
        options = super().checked(options)
        if options["nesterov"] and (options["momentum"] == 0 or options["dampening"] != 0):
            given = f"momentum {options['momentum']} and dampening {options['dampening']}"
            raise bad_value(f"nesterov with {given}: it needs momentum > 0 and dampening = 0")
        return options

    def kinds_of(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """A buffer where there is momentum."""
        return self.state_arrays if options["momentum"] else ()

    def _row(self, group: dict[str, Any], t: int) -> tuple[float, ...]:
        momentum = group["momentum"]
        keep, take = (0.0, 1.0) if t == 1 else (momentum, 1.0 - group["dampening"])
        return group["lr"], group["weight_decay"], keep, take, momentum, float(group["nesterov"])


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

    _family = "adagrad"
    config_type = AdaGradConfig
    checks: ClassVar[Checks] = dict.fromkeys(vars(AdaGradConfig()), check_float)
    state_arrays: tuple[str, ...] = ("sum",)

    def __init__(
        self, params: Any = None, lr: float = 0.01, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10,
    ) -> None:  # fmt: skip
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
    def lars(cls) -> "LambConfig":
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

    _family = "lamb"
    elementwise = False
    config_type = LambConfig
    checks: ClassVar[Checks] = {**ADAM_CHECKS, "max_trust_ratio": _check_limit, "use_adam": check_bool}
    state_arrays: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Any = None, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
        weight_decay: float = 0.01, max_trust_ratio: float | None = 10.0, use_adam: bool = True,
    ) -> None:  # fmt: skip
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


NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315
"""Coefficients of the quintic that drives singular values from (0, 1] to about 1, between 0.7 and 1.2, in 5 steps."""


def orthogonalize(x: Tensor, steps: int = 5) -> Tensor:
    """About U V' of the singular value decomposition U S V' of a matrix, by Newton-Schulz iteration.

    ``x`` is a floating matrix of any shape; nothing is recorded for backward. The singular values of the
    result lie between about 0.7 and 1.2, except those that are 0 or very small beside the others.

    Raises ValueError for what is no matrix. Source: Jordan et al., "Muon: an optimizer for hidden layers in neural
    networks" (2024).
    """
    if x.ndim != 2:
        raise bad_value(f"orthogonalize takes a matrix, not shape {x.shape}")
    a, b, c = NEWTON_SCHULZ
    with no_grad():
        tall = x.shape[0] > x.shape[1]
        y = x.detach().T if tall else x.detach()
        y = y * (1.0 / (math.sqrt(x.device.kernels.grad_norm.sum_of_squares([x.data])) + 1e-7))
        for _ in range(steps):
            gram = y @ y.T
            y = a * y + (b * gram + c * (gram @ gram)) @ y
        return (y.T if tall else y).contiguous()


class Muon(Optimizer):
    """Muon, for the weight matrices of hidden layers. For a matrix p of shape (rows, columns) with gradient g:

        b <- momentum * b + g
        u  = orthogonalize(g + momentum * b)  with nesterov, else  orthogonalize(b)
        p <- p - lr * weight_decay * p
        p <- p - lr * sqrt(max(1, rows / columns)) * u

    It takes matrices only. Biases and norms, and by its author's advice also embeddings and the output layer, belong to
    an AdamW of their own: give each optimizer its parameters and call ``step`` of both. The buffer
    (``momentum_buffer``) has the dtype of the parameter.

    Raises ValueError for a parameter that is no matrix.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).
    """

    checks: ClassVar[Checks] = {**SGD.checks, "momentum": check_share, "ns_steps": partial(check_int, least=1)}
    elementwise = False
    state_arrays: tuple[str, ...] = ("momentum_buffer",)

    def __init__(
        self, params: Any = None, lr: float = 0.02, momentum: float = 0.95, nesterov: bool = True,
        weight_decay: float = 0.0, ns_steps: int = 5,
    ) -> None:  # fmt: skip
        options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "ns_steps": ns_steps}
        super().__init__(params, {"lr": lr, **options})

    def _check_param(self, i: int, name: str | None, p: Any) -> None:
        super()._check_param(i, name, p)
        if p.ndim != 2:
            label = i if name is None else name
            raise bad_value(f"parameter {label} of shape {p.shape} is no matrix; give it to an AdamW beside Muon")

    def update(self, grads: GradStore) -> None:
        """``step`` without counting it: for those who make one step in several parts, such as one bucket at a time."""
        updates = self._collect(grads)
        for update in updates:
            self._check_updatable(update.param)
        self._make_states(update.param for update in updates)
        states = [self._state_of(update.param) for update in updates]
        for update, state in zip(updates, states, strict=True):
            self._update_one(update, Tensor.wrap(state.arrays["momentum_buffer"], update.param.device))
            state.step += 1

    @no_grad()
    def _update_one(self, update: Update, buffer: Tensor) -> None:
        group, p = self.param_groups[update.group], update.param
        g, weight = (Tensor.wrap(a, p.device) for a in (update.grad, p.data))
        if is_half(p.dtype):  # computed in float32, rounded once
            g, weight = g.float(), weight.float()
        b = buffer.to(g.dtype) * group["momentum"] + g
        buffer.copy_(b)
        u = orthogonalize(g + b * group["momentum"] if group["nesterov"] else b, group["ns_steps"])
        rows, columns = p.shape
        length = group["lr"] * math.sqrt(max(1.0, rows / max(columns, 1)))
        p.copy_(weight * (1.0 - group["lr"] * group["weight_decay"]) - u * length)
