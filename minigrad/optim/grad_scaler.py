"""GradScaler: a factor on the loss that keeps small gradients within float16 (PyTorch's, boostr's names)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from ..device import Device
from ..dtypes import finfo, float16, float32, is_half
from ..errors import bad_state, bad_value, check_float, check_int, check_option
from ..grad_arithmetic import by_device
from ..grad_store import GradStore, check_grads
from ..modes import current_graph
from ..tensor import Tensor
from .optimizer import Optimizer

MIN_SCALE = 1.0
USAGE = "grads = scaler.scale(loss).backward(); scaler.unscale_(grads); scaler.step(optimizer, grads)"
MAX_SCALE = float(finfo(float32).max)


@dataclass(frozen=True)
class LossScaleStrategy:
    """How the loss is scaled: not at all, by a fixed factor, or by one that adapts (boostr's ``LossScaleStrategy``).

    Made by ``none()``, ``fixed(scale)`` and ``dynamic(...)``. Raises ValueError for values out of range.
    """

    kind: Literal["none", "fixed", "dynamic"]
    initial_scale: float = 1.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        check_option("kind", self.kind, ("none", "fixed", "dynamic"))
        check_float("initial_scale", self.initial_scale, MIN_SCALE)
        GradScaler(1.0, self.growth_factor, self.backoff_factor, self.growth_interval)  # checks these

    @classmethod
    def none(cls) -> LossScaleStrategy:
        """No scaling: enough for bfloat16, which has float32's range."""
        return cls("none")

    @classmethod
    def fixed(cls, scale: float) -> LossScaleStrategy:
        """Always this factor. A step that overflows is left out."""
        return cls("fixed", scale)

    @classmethod
    def dynamic(
        cls,
        initial_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> LossScaleStrategy:
        """A factor that grows until steps overflow; see GradScaler."""
        return cls("dynamic", initial_scale, growth_factor, backoff_factor, growth_interval)

    def to_grad_scaler(self) -> GradScaler | None:
        """A new scaler of this strategy; None if there is none."""
        if self.kind == "none":
            return None
        scaler = GradScaler(self.initial_scale, self.growth_factor, self.backoff_factor, self.growth_interval)
        scaler._adapts = self.kind == "dynamic"
        return scaler


class GradScaler:
    """The scale of a loss whose gradients pass through float16, adapted to what they bear.

    ::

        scaler = GradScaler()
        for x, y in batches:
            with minigrad.autocast("cuda", minigrad.float16):
                loss = model.loss(x, y)
            scaler.step(optimizer, scaler.scale(loss).backward())
            scaler.update()

    ``backward`` starts with the scale instead of 1; ``unscale_`` divides the gradients by it again. A step whose
    gradients overflowed is left out, and the scale multiplied by ``backoff_factor``; after ``growth_interval`` steps
    without one it is multiplied by ``growth_factor``. It stays within 1 and what float32 holds.

    Parameters are float32 and cast in the forward pass (``autocast``): gradients unscaled in float16 lose what scaling
    gained. With ``enabled=False`` nothing is scaled and no step left out.

    Raises ValueError for options out of range. Source: Micikevicius et al., "Mixed precision training" (2018).
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self.set_growth_factor(growth_factor)
        self.set_backoff_factor(backoff_factor)
        self.set_growth_interval(growth_interval)
        self._scale = check_float("init_scale", init_scale, MIN_SCALE)
        self._enabled, self._adapts = bool(enabled), True
        self._good_steps = 0
        # Since the last update: which gradients were unscaled, and the flags that tell whether they were finite.
        self._unscaled: list[tuple[GradStore, list[tuple[Device, Any]]]] = []

    @classmethod
    def fixed(cls, scale: float) -> GradScaler:
        """A scaler whose scale stays; it only leaves out the steps that overflow."""
        scaler = cls(scale)
        scaler._adapts = False
        return scaler

    def __repr__(self) -> str:
        return f"GradScaler({'' if self._adapts else 'fixed, '}{self.get_scale():g})"

    def is_enabled(self) -> bool:
        """Whether it scales."""
        return self._enabled

    @property
    def adapts(self) -> bool:
        """Whether overflows change the scale: not that of a ``fixed`` scaler."""
        return self._enabled and self._adapts

    def get_scale(self) -> float:
        """What the loss is multiplied with now; 1 if the scaler is disabled."""
        return self._scale if self._enabled else 1.0

    # ------------------------------------------------------------------ a step

    @overload
    def scale(self) -> float: ...
    @overload
    def scale(self, outputs: Tensor) -> Tensor: ...
    @overload
    def scale(self, outputs: list[Tensor] | tuple[Tensor, ...]) -> list[Tensor]: ...

    def scale(self, outputs: Tensor | list[Tensor] | tuple[Tensor, ...] | None = None) -> float | Tensor | list[Tensor]:
        """The loss (or several), multiplied; without one, the scale (boostr's ``scale``).

        A float16 or bfloat16 loss becomes float32 first: times 65536, the 1.0 of float16 would be infinite.
        """
        if outputs is None:
            return self.get_scale()
        if isinstance(outputs, list | tuple):
            return [self.scale(x) for x in outputs]
        if not self._enabled:
            return outputs
        wide = outputs.float() if is_half(outputs.dtype) else outputs
        graph = current_graph()
        return wide * (self._scale if graph is None else graph.number(lambda: np.array(self._scale, wide.dtype)))

    def scale_loss(self, loss: Tensor) -> Tensor:
        """``scale(loss)`` (boostr)."""
        return self.scale(loss)

    def unscale_(self, grads: GradStore) -> None:
        """Divide all gradients by the scale, in place; ``found_inf`` tells whether one was infinite or NaN.

        Raises ValueError for float16 gradients, and RuntimeError for gradients unscaled since the last ``update``.
        """
        check_grads("unscale_", grads, USAGE)
        if not self._enabled:
            return
        if any(store is grads for store, _ in self._unscaled):
            raise bad_state("unscale_: these gradients have been unscaled already; call update() per step")
        self._unscaled.append((grads, self.unscale_on_device(grads)))

    def unscale_on_device(self, grads: GradStore) -> list[tuple[Device, Any]]:
        """``unscale_`` whose answer stays where it is: for each device of gradients, int32 (), whether one of them was
        infinite or NaN. Nothing is noted for ``update``. ValueError for float16 gradients.
        """
        bad = next((grad for grad in grads.values() if grad.dtype == float16), None)
        if bad is not None:
            lost = "is float16, in which what scaling gained is lost"
            remedy = "keep parameters in float32 and compute under autocast"
            raise bad_value(f"unscale_: a gradient of shape {bad.shape} {lost}; {remedy}")
        graph = current_graph()
        inverse: Any = 1.0 / self._scale if graph is None else graph.varying(lambda: np.array([1.0 / self._scale]))
        places = by_device(grads.values()).items()
        flags = [(device, device.kernels.grad_norm.unscale_(arrays, inverse)) for device, arrays in places]
        for grad in grads.values():
            grad.bump_version()
        return flags

    def unscale_grads(self, grads: GradStore) -> bool:
        """``unscale_``; returns whether all gradients are finite (boostr's ``Ok``, else ``Overflow``)."""
        self.unscale_(grads)
        return not self.found_inf

    @property
    def found_inf(self) -> bool:
        """Whether a gradient of the last ``unscale_`` was infinite or NaN. Asking waits for a GPU's answer."""
        return bool(self._unscaled) and _overflowed(self._unscaled[-1][1])

    def step(self, optimizer: Optimizer, grads: GradStore | None = None) -> bool:
        """``optimizer.step(grads)``, but not if a gradient overflowed; returns whether it was made.

        Gradients that were not unscaled yet (to clip them, say) are unscaled here. TypeError without gradients.
        """
        grads = check_grads("scaler.step", grads, USAGE)
        if self._enabled:
            if not any(store is grads for store, _ in self._unscaled):
                self.unscale_(grads)
            if any(store is grads and _overflowed(flags) for store, flags in self._unscaled):
                return False
        optimizer.step(grads)
        return True

    def update(self, new_scale: float | None = None) -> None:
        """End a step: adapt the scale to what ``unscale_`` found since the last time, or set it.

        Raises RuntimeError if nothing was unscaled.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = check_float("new_scale", new_scale, MIN_SCALE)
            self._unscaled.clear()
            return
        if not self._unscaled:
            raise bad_state("update: no gradients were unscaled since the last one; call step or unscale_")
        self.update_scale(any(_overflowed(flags) for _, flags in self._unscaled))

    def update_scale(self, overflow: bool) -> None:
        """Adapt the scale after a step that was made, or left out because of an ``overflow`` (boostr)."""
        self._unscaled.clear()
        if not self.adapts:
            return
        if overflow:
            self._scale, self._good_steps = max(MIN_SCALE, self._scale * self.backoff_factor), 0
            return
        self._good_steps += 1
        if self._good_steps >= self.growth_interval:
            grown = self._scale * self.growth_factor
            self._scale, self._good_steps = grown if grown <= MAX_SCALE else self._scale, 0

    # ------------------------------------------------------------------ options and state

    def get_growth_factor(self) -> float:
        """The factor after ``growth_interval`` good steps."""
        return self.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Use this factor from now on."""
        self.growth_factor: float = check_float("growth_factor", new_factor, 1.0)

    def get_backoff_factor(self) -> float:
        """The factor after an overflow."""
        return self.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Use this factor from now on."""
        self.backoff_factor: float = check_float("backoff_factor", new_factor, below=1.0)

    def get_growth_interval(self) -> int:
        """Good steps before the scale grows."""
        return self.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Use this interval from now on."""
        self.growth_interval: int = check_int("growth_interval", new_interval, 1)

    def state_dict(self) -> dict[str, Any]:
        """Scale and count, as JSON values."""
        return {"scale": self._scale, "good_steps": self._good_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict``; ValueError for what is none, and for another scale than a fixed one."""
        count = check_int("good_steps", state.get("good_steps"), 0, self.growth_interval - 1)
        scale = check_float("scale", state.get("scale"), MIN_SCALE)
        if not self._adapts and scale != self._scale:
            raise bad_value(f"the saved scale is {scale:g}, this scaler's is fixed at {self._scale:g}")
        self._scale, self._good_steps = scale, count
        self._unscaled.clear()


def _overflowed(flags: list[tuple[Device, Any]]) -> bool:
    return any(bool(device.kernels.to_host(found)) for device, found in flags)
