"""Losses of single elements that would be several operations otherwise."""

from __future__ import annotations

from typing import Any

from .elementwise import Arithmetic


class Huber(Arithmetic):
    """z = d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2), of d = x - y;  dx = -dy = d dz, d cut at +-delta.

    Source: Huber, "Robust estimation of a location parameter" (1964).
    """

    __slots__ = ()
    floats = True

    def forward(self, x: Any, y: Any, *, delta: float) -> Any:
        k = self.kernels.elementwise
        distance = k.sub(x, y)
        cut = k.clamp(distance, -delta, delta)
        self.saved = (cut,)
        return k.mul(k.abs(cut), k.sub(k.abs(distance), k.mul(k.abs(cut), 0.5)))

    def backward(self, dz: Any) -> Any:
        dx = self.kernels.elementwise.mul(dz, self.saved[0])
        return dx, self.kernels.elementwise.neg(dx) if self.needs[1] else None
