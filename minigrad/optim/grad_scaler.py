"""GradScaler: a factor on the loss that keeps small gradients within float16 (PyTorch's, boostr's names)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..device import Device
from ..errors import located
from ..grad_store import GradStore
from .clip import by_device
from .optimizer import check_range

MIN_SCALE = 1.0


class GradScaler:
    """The scale of a loss whose gradients pass through float16, adapted to what they bear.

    ``backward`` starts with ``scale`` instead of 1; ``unscale_`` divides the gradients by it again. A step whose
    gradients overflowed is left out, and the scale multiplied by ``backoff_factor``; after ``growth_interval`` steps
    without one it is multiplied by ``growth_factor``.

    Parameters should be float32 and cast in the forward pass: gradients unscaled in float16 lose what scaling gained.

    Raises ValueError for options out of range. Source: Micikevicius et al., "Mixed precision training" (2018).
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self._scale = check_range(init_scale, "init_scale", MIN_SCALE)
        self.growth_factor: float = check_range(growth_factor, "growth_factor", 1.0)
        self.backoff_factor: float = check_range(backoff_factor, "backoff_factor", 0.0, 1.0)
        if type(growth_interval) is not int or growth_interval < 1:
            raise located(ValueError(f"growth_interval is {growth_interval!r}, expected an integer >= 1"))
        self.growth_interval = growth_interval
        self._good_steps = 0
        self._found: list[tuple[Device, Any]] = []  # flags, where the gradients are

    @property
    def scale(self) -> float:
        """What the loss is multiplied with now."""
        return self._scale

    def unscale_(self, grads: GradStore) -> None:
        """Divide all gradients by the scale, in place; ``found_inf`` tells whether one was infinite or NaN."""
        self._found = [
            (device, device.kernels.grad_norm.unscale_(arrays, 1.0 / self._scale))
            for device, arrays in by_device(grads.values()).items()
        ]

    @property
    def found_inf(self) -> bool:
        """Whether a gradient of the last ``unscale_`` was infinite or NaN. Asking waits for a GPU's answer."""
        return any(bool(device.kernels.to_host(found)) for device, found in self._found)

    def update(self, overflow: bool) -> None:
        """Adapt the scale after a step that was made, or left out because of an ``overflow``."""
        if overflow:
            self._scale, self._good_steps = max(MIN_SCALE, self._scale * self.backoff_factor), 0
            return
        self._good_steps += 1
        if self._good_steps == self.growth_interval:
            self._scale, self._good_steps = self._scale * self.growth_factor, 0

    def state_dict(self) -> dict[str, Any]:
        """Scale and count, as JSON values."""
        return {"scale": self._scale, "good_steps": self._good_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict``; ValueError for what is none."""
        count = state.get("good_steps")
        if type(count) is not int or not 0 <= count < self.growth_interval:
            raise located(ValueError(f"good_steps is {count!r}, expected an integer below {self.growth_interval}"))
        self._scale, self._good_steps = check_range(state.get("scale"), "scale", MIN_SCALE), count
