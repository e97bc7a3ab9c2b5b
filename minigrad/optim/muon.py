"""Muon: momentum whose matrices are made orthogonal before they are added."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

from ..autograd import no_grad
from ..dtypes import is_half
from ..errors import bad_value, check_bool, check_float, check_int
from ..grad_store import GradStore
from ..tensor import Tensor
from .optimizer import Checks, Optimizer, Update, check_share

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

    checks: ClassVar[Checks] = {
        **dict.fromkeys(("lr", "weight_decay"), check_float),
        "momentum": check_share,
        "nesterov": check_bool,
        "ns_steps": functools.partial(check_int, least=1),
    }
    state_arrays: tuple[str, ...] = ("momentum_buffer",)

    def __init__(
        self,
        params: Any = None,
        lr: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        ns_steps: int = 5,
    ) -> None:
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
