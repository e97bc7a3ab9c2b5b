"""Formulas of two tensors: what lies between them, and how far apart they are."""

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, ClassVar

from .arithmetic import Arithmetic


class OfTensors(Arithmetic):
    """A formula of tensors, and those of their gradients, from dz and the tensors; each is one pass."""

    formulas: ClassVar[tuple[Callable[..., Any] | None, ...]]

    def forward(self, *inputs: Any) -> Any:
        self.saved = inputs
        return self.kernels.elementwise.fused(self.formulas[0], *inputs)

    def backward(self, dz: Any) -> Any:
        fused, wanted = self.kernels.elementwise.fused, zip_longest(self.formulas[1:], self.needs)
        return tuple([fused(formula, dz, *self.saved) if needed else None for formula, needed in wanted])


def _part_of_way(k: Any, x: Any, y: Any, w: Any) -> Any:
    return k.add(x, k.mul(k.sub(y, x), w))


def _of_way(k: Any, x: Any, y: Any, w: Any) -> Any:
    return k.where(k.lt(k.abs(w), 0.5), _part_of_way(k, x, y, w), _part_of_way(k, y, x, k.sub(1, w)))


class Lerp(OfTensors):
    """z = x + w (y - x), from the nearer end: y - (1 - w) (y - x) for |w| >= 1/2.

    dx = (1 - w) dz, dy = w dz, dw = (y - x) dz.
    """

    formulas = (
        _of_way,
        lambda k, dz, x, y, w: k.mul(dz, k.sub(1, w)),
        lambda k, dz, x, y, w: k.mul(dz, w),
        lambda k, dz, x, y, w: k.mul(dz, k.sub(y, x)),
    )

    def forward(self, x: Any, y: Any, w: Any) -> Any:
        if not isinstance(w, int | float):
            return super().forward(x, y, w)
        self.saved = (w, 1 - w)
        ends = (x, y, w) if abs(w) < 0.5 else (y, x, 1 - w)
        return self.kernels.elementwise.fused(_part_of_way, *ends)

    def backward(self, dz: Any) -> Any:
        if not isinstance(self.saved[0], int | float):
            return super().backward(dz)
        mul = self.kernels.elementwise.mul
        return mul(dz, self.saved[1]), mul(dz, self.saved[0]), None


class LogAddExp(OfTensors):
    """z = log(exp(x) + exp(y)), without overflow;  dx = sigmoid(x - y) dz, dy = sigmoid(y - x) dz."""

    formulas = (
        lambda k, x, y: _log_of_sum(k, x, y),
        lambda k, dz, x, y: k.mul(dz, k.sigmoid(k.sub(x, y))),
        lambda k, dz, x, y: k.mul(dz, k.sigmoid(k.sub(y, x))),
    )


def _log_of_sum(k: Any, x: Any, y: Any) -> Any:
    distance = k.nan_to_num(k.abs(k.sub(x, y)), 0.0, math.inf, -math.inf)  # of equal infinities 0
    return k.add(k.maximum(x, y), k.log1p(k.exp(k.neg(distance))))


class SquaredDistance(OfTensors):
    """z = (x - y)^2;  dx = -dy = 2 (x - y) dz."""

    not_of_bool = "-"
    formulas = (
        lambda k, x, y: k.square(k.sub(x, y)),
        lambda k, dz, x, y: k.mul(k.mul(k.sub(x, y), 2), dz),
        lambda k, dz, x, y: k.mul(k.mul(k.sub(y, x), 2), dz),
    )


class DivergenceOfLog(OfTensors):
    """z = y log(y) - y x;  dx = -y dz, dy = (log(y) + 1 - x) dz, with 0 for y log(y) and log(y) + 1 where y = 0."""

    floats = True
    formulas = (
        lambda k, x, y: k.sub(k.mul(y, k.log(_but_zero(k, y, y, 1))), k.mul(y, x)),
        lambda k, dz, x, y: k.neg(k.mul(dz, y)),
        lambda k, dz, x, y: k.mul(dz, k.sub(_but_zero(k, y, k.add(k.log(y), 1), 0), x)),
    )


def _but_zero(k: Any, y: Any, x: Any, there: float) -> Any:
    return k.where(k.eq(y, 0), there, x)


class BinaryCrossEntropyOfLogits(OfTensors):
    """z = -(p log s + (1 - y) log(1 - s)) with s = sigmoid(x), of x, p and y;  dx = ((1 - y) s - p (1 - s)) dz."""

    formulas = (
        lambda k, x, p, y: k.neg(k.add(k.mul(p, log_sigmoid(k, x)), k.mul(k.sub(1, y), log_sigmoid(k, k.neg(x))))),
        lambda k, dz, x, p, y: k.mul(dz, k.sub(k.mul(k.sub(1, y), k.sigmoid(x)), k.mul(p, k.sigmoid(k.neg(x))))),
        lambda k, dz, x, p, y: k.neg(k.mul(dz, log_sigmoid(k, x))),
        lambda k, dz, x, p, y: k.mul(dz, log_sigmoid(k, k.neg(x))),
    )


def log_sigmoid(k: Any, x: Any) -> Any:
    """log(1 / (1 + e^-x)), which neither overflows nor cancels."""
    return k.sub(k.minimum(x, 0), k.log1p(k.exp(k.neg(k.abs(x)))))


class Huber(OfTensors):
    """z = d^2 / 2 for |d| <= c, else c (|d| - c / 2), of d = x - y and a number c;  dx = -dy = d dz, d cut at +-c.

    Source: Huber, "Robust estimation of a location parameter" (1964).
    """

    floats = True
    formulas = (
        lambda k, x, y, c: _huber(k, k.abs(k.sub(x, y)), c),
        lambda k, dz, x, y, c: k.mul(dz, _cut(k, k.sub(x, y), c)),
        lambda k, dz, x, y, c: k.mul(dz, _cut(k, k.sub(y, x), c)),
    )


def _cut(k: Any, x: Any, c: float) -> Any:
    return k.mul(k.sign(x), k.minimum(k.abs(x), c))


def _huber(k: Any, distance: Any, c: float) -> Any:
    size = k.minimum(distance, c)
    return k.mul(size, k.sub(distance, k.mul(size, 0.5)))


class BinaryCrossEntropy(OfTensors):
    """z = -(y log x + (1 - y) log(1 - x));  dx = ((1 - y) / (1 - x) - y / x) dz, dy = (log(1 - x) - log x) dz.

    Logarithms are -100 at least, and have no slope there.
    """

    floats = True
    half_kernels = None
    formulas = (
        lambda k, x, y: k.neg(k.add(k.mul(y, _log(k, x)), k.mul(k.sub(1, y), _log_of_rest(k, x)))),
        lambda k, dz, x, y: k.mul(dz, k.sub(_over(k, k.sub(1, y), k.sub(1, x)), _over(k, y, x))),
        lambda k, dz, x, y: k.mul(dz, k.sub(_log_of_rest(k, x), _log(k, x))),
    )


def _log(k: Any, x: Any) -> Any:
    return k.maximum(k.log(x), -100)


def _log_of_rest(k: Any, x: Any) -> Any:
    return k.maximum(k.log1p(k.neg(x)), -100)


def _over(k: Any, x: Any, y: Any) -> Any:
    return k.where(k.gt(y, math.exp(-100)), k.div(x, y), 0)
