"""Formulas of two tensors: what lies between them, and how far apart they are."""

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np

from ...dtypes import is_half
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
        if getattr(w, "dtype", None) is not None:
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


class Loss(OfTensors):
    """A formula whose values are float32 of half floats, too: rounded values would be summed."""

    half: Any

    def forward(self, *inputs: Any) -> Any:
        self.saved, self.half = inputs, None
        return self.kernels.elementwise.fused(self.formulas[0], *inputs, *[np.float32(1)] * is_half(inputs[0].dtype))


def _of_distance(value: Callable[..., Any], slope: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """The formulas of a function of d = x - y, and perhaps numbers, and its slope, which is odd."""
    return (
        lambda k, x, y, *rest: value(k, k.sub(x, y), *rest),
        lambda k, dz, x, y, *rest: k.mul(dz, slope(k, k.sub(x, y), *rest)),
        lambda k, dz, x, y, *rest: k.mul(dz, slope(k, k.sub(y, x), *rest)),
    )


class Distance(Loss):
    """z = |x - y|;  dx = -dy = sign(x - y) dz."""

    not_of_bool = "-"
    formulas = _of_distance(lambda k, d, *_: k.abs(d), lambda k, d: k.sign(d))


class SquaredDistance(Loss):
    """z = (x - y)^2;  dx = -dy = 2 (x - y) dz."""

    not_of_bool = "-"
    formulas = _of_distance(lambda k, d, *_: k.square(d), lambda k, d: k.mul(d, 2))


class Huber(Loss):
    """z = d^2 / 2 for |d| <= c, else c (|d| - c / 2), of d = x - y and a number c;  dx = -dy = d dz, d cut at +-c.

    Source: Huber, "Robust estimation of a location parameter" (1964).
    """

    floats = True
    formulas = _of_distance(
        lambda k, d, c, *_: k.mul(k.minimum(k.abs(d), c), k.sub(k.abs(d), k.mul(k.minimum(k.abs(d), c), 0.5))),
        lambda k, d, c: k.mul(k.sign(d), k.minimum(k.abs(d), c)),
    )


class DivergenceOfLog(Loss):
    """z = y log(y) - y x;  dx = -y dz, dy = (log(y) + 1 - x) dz, with 0 for y log(y) and log(y) + 1 where y = 0."""

    floats = True
    formulas = (
        lambda k, x, y, *_: k.sub(k.mul(y, k.log(k.where(k.eq(y, 0), 1, y))), k.mul(y, x)),
        lambda k, dz, x, y: k.neg(k.mul(dz, y)),
        lambda k, dz, x, y: k.mul(dz, k.sub(k.where(k.eq(y, 0), 0, k.add(k.log(y), 1)), x)),
    )


class BinaryCrossEntropyOfLogits(Loss):
    """z = -(p log s + (1 - y) log(1 - s)) with s = sigmoid(x), of x, p and y;  dx = ((1 - y) s - p (1 - s)) dz."""

    formulas = (
        lambda k, x, p, y, *_: k.neg(k.add(k.mul(p, log_sigmoid(k, x)), k.mul(k.sub(1, y), log_sigmoid(k, k.neg(x))))),
        lambda k, dz, x, p, y: k.mul(dz, k.sub(k.mul(k.sub(1, y), k.sigmoid(x)), k.mul(p, k.sigmoid(k.neg(x))))),
        lambda k, dz, x, p, y: k.neg(k.mul(dz, log_sigmoid(k, x))),
        lambda k, dz, x, p, y: k.mul(dz, log_sigmoid(k, k.neg(x))),
    )


def log_sigmoid(k: Any, x: Any) -> Any:
    """log(1 / (1 + e^-x)), which neither overflows nor cancels."""
    return k.sub(k.minimum(x, 0), k.log1p(k.exp(k.neg(k.abs(x)))))


class BinaryCrossEntropy(Loss):
    """z = -(y log x + (1 - y) log(1 - x));  dx = ((1 - y) / (1 - x) - y / x) dz, dy = (log(1 - x) - log x) dz.

    Logarithms are -100 at least, and have no slope there.
    """

    floats = True
    formulas = (
        lambda k, x, y, *_: k.neg(k.add(k.mul(y, _log(k, x)), k.mul(k.sub(1, y), _log_of_rest(k, x)))),
        lambda k, dz, x, y: k.mul(dz, k.sub(_over(k, k.sub(1, y), k.sub(1, x)), _over(k, y, x))),
        lambda k, dz, x, y: k.mul(dz, k.sub(_log_of_rest(k, x), _log(k, x))),
    )


def _log(k: Any, x: Any) -> Any:
    return k.maximum(k.log(x), -100)


def _log_of_rest(k: Any, x: Any) -> Any:
    return k.maximum(k.log1p(k.neg(x)), -100)


def _over(k: Any, x: Any, y: Any) -> Any:
    return k.where(k.gt(y, math.exp(-100)), k.div(x, y), 0)
