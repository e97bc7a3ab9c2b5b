"""Formulas of two tensors: what lies between them, and how far apart they are."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

from .arithmetic import Arithmetic


class Lerp(Arithmetic):
    """z = x + w (y - x), from the nearer end: y - (1 - w) (y - x) for |w| >= 1/2.

    dx = (1 - w) dz, dy = w dz, dw = (y - x) dz.
    """

    half_kernels = None

    def forward(self, x: Any, y: Any, w: Any) -> Any:
        k = self.kernels.elementwise
        with self.kernels.quiet():  # infinite ends
            rest = 1 - w if isinstance(w, int | float) else k.sub(1, w)
            self.saved = (w, rest, k.sub(y, x) if self.needs[2] else None)
            if isinstance(w, int | float):
                return k.fused(_part_of_way, x, y, w) if abs(w) < 0.5 else k.fused(_part_of_way, y, x, rest)
            near = self.kernels.comparison.lt(k.abs(w), 0.5)
            return k.where(near, k.fused(_part_of_way, x, y, w), k.fused(_part_of_way, y, x, rest))

    def backward(self, dz: Any) -> Any:
        w, rest, distance = self.saved
        k = self.kernels.elementwise
        return k.mul(dz, rest), k.mul(dz, w), k.mul(dz, distance) if self.needs[2] else None


def _part_of_way(k: Any, x: Any, y: Any, w: Any) -> Any:
    return k.add(x, k.mul(k.sub(y, x), w))


class OfTwo(Arithmetic):
    """A formula of two tensors, and those of dx and dy, from dz and the tensors; each is one pass."""

    formulas: ClassVar[tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]]

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y)
        return self.kernels.elementwise.fused(self.formulas[0], x, y)

    def backward(self, dz: Any) -> Any:
        fused, wanted = self.kernels.elementwise.fused, zip(self.formulas[1:], self.needs)
        return tuple([fused(formula, dz, *self.saved) if needed else None for formula, needed in wanted])


class LogAddExp(OfTwo):
    """z = log(exp(x) + exp(y)), without overflow;  dx = sigmoid(x - y) dz, dy = sigmoid(y - x) dz."""

    half_kernels = None
    formulas = (
        lambda k, x, y: _log_of_sum(k, x, y),
        lambda k, dz, x, y: k.mul(dz, k.sigmoid(k.sub(x, y))),
        lambda k, dz, x, y: k.mul(dz, k.sigmoid(k.sub(y, x))),
    )


def _log_of_sum(k: Any, x: Any, y: Any) -> Any:
    distance = k.nan_to_num(k.abs(k.sub(x, y)), 0.0, math.inf, -math.inf)  # of equal infinities 0
    return k.add(k.maximum(x, y), k.log1p(k.exp(k.neg(distance))))


class SquaredDistance(OfTwo):
    """z = (x - y)^2;  dx = -dy = 2 (x - y) dz."""

    not_of_bool = "-"
    formulas = (
        lambda k, x, y: k.square(k.sub(x, y)),
        lambda k, dz, x, y: k.mul(k.mul(k.sub(x, y), 2), dz),
        lambda k, dz, x, y: k.mul(k.mul(k.sub(y, x), 2), dz),
    )


class Gate(OfTwo):
    """z = x sigmoid(y);  dx = sigmoid(y) dz, dy = (1 - sigmoid(y)) z dz."""

    formulas = (
        lambda k, x, y: k.mul(x, k.sigmoid(y)),
        lambda k, dz, x, y: k.mul(dz, k.sigmoid(y)),
        lambda k, dz, x, y: k.mul(k.mul(dz, k.mul(x, k.sigmoid(y))), k.sub(1, k.sigmoid(y))),
    )


class Huber(Arithmetic):
    """z = d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2), of d = x - y;  dx = -dy = d dz, d cut at +-delta.

    Source: Huber, "Robust estimation of a location parameter" (1964).
    """

    floats = True

    def forward(self, x: Any, y: Any, *, delta: float) -> Any:
        self.saved = (x, y, -delta, delta)
        return self.kernels.elementwise.fused(_huber, x, y, delta)

    def backward(self, dz: Any) -> Any:
        dx = self.kernels.elementwise.fused(_of_huber, dz, *self.saved)
        return dx, self.kernels.elementwise.neg(dx) if self.needs[1] else None


def _huber(k: Any, x: Any, y: Any, delta: float) -> Any:
    distance = k.abs(k.sub(x, y))
    size = k.minimum(distance, delta)
    return k.mul(size, k.sub(distance, k.mul(size, 0.5)))


def _of_huber(k: Any, dz: Any, x: Any, y: Any, low: float, high: float) -> Any:
    return k.mul(dz, k.clamp(k.sub(x, y), low, high))


class BinaryCrossEntropy(Arithmetic):
    """z = -(y log x + (1 - y) log(1 - x));  dx = ((1 - y) / (1 - x) - y / x) dz, dy = (log(1 - x) - log x) dz.

    Logarithms are -100 at least, and have no slope there.
    """

    floats = True
    half_kernels = None

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y)
        return self.kernels.elementwise.fused(_entropy, x, y)

    def backward(self, dz: Any) -> Any:
        (x, y), k = self.saved, self.kernels
        log, log_of_rest = _logarithms(k.elementwise, x) if self.needs[1] else (0, 0)
        dy = k.elementwise.mul(dz, k.elementwise.sub(log_of_rest, log)) if self.needs[1] else None
        return k.activation.binary_cross_entropy_backward(dz, x, y), dy


def _logarithms(k: Any, x: Any) -> tuple[Any, Any]:
    return k.maximum(k.log(x), -100), k.maximum(k.log1p(k.neg(x)), -100)


def _entropy(k: Any, x: Any, y: Any) -> Any:
    log, log_of_rest = _logarithms(k, x)
    return k.neg(k.add(k.mul(y, log), k.mul(k.sub(1, y), log_of_rest)))
