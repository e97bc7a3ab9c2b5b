"""AdamW: Adam with decoupled weight decay, all parameters in one launch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..grad_store import GradStore
from .optimizer import Named, Optimizer, ParamState, Update, check_range


@dataclass(frozen=True)
class AdamWConfig:
    """Options of AdamW, as boostr has them."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01


class AdamW(Optimizer):
    """AdamW with PyTorch's arithmetic. For a parameter p with gradient g in its own t-th update:

        p <- p - lr * weight_decay * p
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g * g
        p <- p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    ``t`` counts the updates of that parameter alone, so one that was frozen at first is corrected by its own count;
    ``timestep`` counts the calls of ``step``. The moments m and v (``exp_avg``, ``exp_avg_sq``) have the dtype of the
    parameter, float32 or float64, and are made at its first update, as views of one flat array for all parameters that
    are new then. A step bumps the parameters' versions.

    Source: Loshchilov & Hutter, "Decoupled weight decay regularization" (2019).
    """

    state_arrays = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any = (),
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        self._tables: dict[tuple[int, ...], tuple[list[Any], list[ParamState], Any]] = {}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @classmethod
    def from_config(cls, config: AdamWConfig, params: Iterable[Named] = ()) -> AdamW:
        """An AdamW with these options."""
        return cls(params, config.lr, (config.beta1, config.beta2), config.eps, config.weight_decay)

    @property
    def config(self) -> AdamWConfig:
        """The options of groups that name no others."""
        beta1, beta2 = self.defaults["betas"]
        return AdamWConfig(self.defaults["lr"], beta1, beta2, self.defaults["eps"], self.defaults["weight_decay"])

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the options, with plain numbers. Raises ValueError if one is unknown or out of range."""
        options = super().checked(options)
        betas = options["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ValueError(f"betas is {betas!r}, expected two numbers, such as (0.9, 0.999)")
        options["betas"] = tuple(check_range(beta, f"betas[{i}]", 0.0, 1.0) for i, beta in enumerate(betas))
        for name in ("eps", "weight_decay"):
            options[name] = check_range(options[name], name, 0.0)
        return options

    def update(self, grads: GradStore) -> None:
        """``step`` without counting it: for those who make one step in several parts, such as one bucket at a time."""
        batches: dict[Any, list[Update]] = {}
        for update in self._collect(grads):
            p = update.param
            if p.data.dtype.char not in "fd":
                raise TypeError(
                    f"parameter {self.name_of(p)} is {p.dtype}; AdamW updates float32 and float64 parameters, "
                    "whose moments have the same dtype: keep the weights in one of these"
                )
            if not p.data.flags.c_contiguous:
                raise ValueError(
                    f"parameter {self.name_of(p)} of shape {p.shape} is not contiguous, so it cannot be updated in "
                    "place; make it from a .contiguous() tensor"
                )
            batches.setdefault((p.device, p.data.dtype), []).append(update)
        prepared = [(batch, *self._prepare(batch)) for batch in batches.values()]
        for batch, states, table in prepared:
            kernels = batch[0].param.device.kernels
            kernels.adamw.step(table, [update.grad for update in batch], self._scalars(batch, states))
            for update, state in zip(batch, states, strict=True):
                state.step += 1
                update.param.bump_version()

    def _prepare(self, batch: list[Update]) -> tuple[list[ParamState], Any]:
        """The states and the kernel's table of addresses of these parameters, kept while their memory is the same."""
        key = tuple([update.param._id for update in batch])
        params = [update.param.data for update in batch]
        known = self._tables.get(key)
        if known is not None:
            same = [
                p is cached and self.state.get(number) is state
                for number, p, cached, state in zip(key, params, known[0], known[1], strict=True)
            ]
            if False not in same:
                return known[1], known[2]
        self._make_states(update.param for update in batch)
        states = [self._state_of(update.param) for update in batch]
        exp_avg, exp_avg_sq = ([state.arrays[name] for state in states] for name in self.state_arrays)
        table = batch[0].param.device.kernels.adamw.Table(params, exp_avg, exp_avg_sq)
        if len(self._tables) >= 64:  # the set of parameters that have gradients keeps changing
            self._tables.clear()
        self._tables[key] = params, states, table
        return states, table

    def _scalars(self, batch: list[Update], states: list[ParamState]) -> np.ndarray:
        """float64 (number of parameters, 7): each parameter's scalars for its coming update."""
        rows: dict[tuple[int, int], tuple[float, ...]] = {}
        scalars = []
        for update, state in zip(batch, states, strict=True):
            key = update.group, state.step + 1
            row = rows.get(key)
            if row is None:
                row = rows[key] = _row(self.param_groups[update.group], key[1])
            scalars.append(row)
        return np.array(scalars, np.float64)

    def reset(self) -> None:
        """Forget the moments and all counts; groups and options stay."""
        super().reset()
        self._tables.clear()


def _row(group: dict[str, Any], t: int) -> tuple[float, ...]:
    """A row of the kernel's ``SCALARS``, in double precision as PyTorch computes it."""
    lr, (beta1, beta2) = group["lr"], group["betas"]
    decay = 1.0 - lr * group["weight_decay"]
    step_size, root = lr / (1.0 - beta1**t), math.sqrt(1.0 - beta2**t)
    return decay, 1.0 - beta1, beta2, 1.0 - beta2, step_size, root, group["eps"]
