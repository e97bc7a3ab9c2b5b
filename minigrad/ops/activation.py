"""Activations with parameters or with a threshold; ReLU, SiLU, tanh and sigmoid are in ``elementwise``."""

from operator import attrgetter
from typing import Any

from .elementwise import Clamp, FloatFunction, OfFamily, of_formula


class LeakyRelu(OfFamily):
    """y = x where x > 0, else slope x;  dx = dy where x > 0, else slope dy."""

    value, derivative = attrgetter("activation.leaky_relu"), attrgetter("activation.leaky_relu_backward")


class Elu(OfFamily):
    """y = x where x > 0, else alpha (e^x - 1);  dx = dy where x > 0, else alpha e^x dy.

    Source: Clevert, Unterthiner & Hochreiter, "Fast and accurate deep network learning by exponential linear units"
    (2015).
    """

    value, derivative = attrgetter("activation.elu"), attrgetter("activation.elu_backward")


class Softplus(OfFamily):
    """y = log(1 + e^(beta x)) / beta, or x where beta x > threshold;  dx = dy / (1 + e^(-beta x)), or dy."""

    autocast = "float32"

    value, derivative = attrgetter("activation.softplus"), attrgetter("activation.softplus_backward")


def _tanh_of_softplus(k: Any, x: Any) -> Any:
    e = k.exp(k.minimum(x, 20))  # beyond, the result is 1
    n = k.mul(e, k.add(e, 2))
    return k.div(n, k.add(n, 2))


@of_formula(lambda k, x: k.mul(x, _tanh_of_softplus(k, x)))
def Mish(k: Any, x: Any, dy: Any) -> Any:
    """y = x t, t = tanh(log(1 + e^x));  dx = (t + x (1 - t^2) / (1 + e^-x)) dy.

    Source: Misra, "Mish: A self regularized non-monotonic activation function" (2019).
    """
    t = _tanh_of_softplus(k, x)
    return k.mul(dy, k.add(t, k.mul(k.mul(x, k.sigmoid(x)), k.sub(1, k.square(t)))))


ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805


@of_formula(lambda k, x: k.mul(k.where(k.gt(x, 0), x, k.mul(k.expm1(k.minimum(x, 0)), ALPHA)), SCALE))
def Selu(k: Any, x: Any, dy: Any) -> Any:
    """y = s x where x > 0, else s a (e^x - 1);  dx = s dy, or s a e^x dy (Klambauer et al. 2017)."""
    return k.mul(dy, k.mul(k.where(k.gt(x, 0), 1, k.mul(k.exp(k.minimum(x, 0)), ALPHA)), SCALE))


@of_formula(lambda k, x: k.div(x, k.add(k.abs(x), 1)))
def Softsign(k: Any, x: Any, dy: Any) -> Any:
    """y = x / (1 + |x|);  dx = (1 - sign(x) y) / (1 + |x|) dy."""
    below = k.add(k.abs(x), 1)
    return k.sub(k.div(dy, below), k.mul(k.mul(dy, k.div(k.div(x, below), below)), k.sign(x)))


@of_formula(lambda k, x: k.sub(x, k.tanh(x)))
def Tanhshrink(k: Any, x: Any, dy: Any) -> Any:
    """y = x - tanh(x);  dx = dy - (1 - tanh(x)^2) dy."""
    return k.sub(dy, k.mul(dy, k.sub(1, k.square(k.tanh(x)))))


class Glu(FloatFunction):
    """y = a sigmoid(b) of the halves a and b of x along an axis;  da = sigmoid(b) dy, db = (1 - sigmoid(b)) y dy."""

    def forward(self, x: Any, *, axis: int) -> Any:
        halves = self.kernels.movement.split(x, (x.shape[axis] // 2,) * 2, axis)
        self.saved = (axis, *halves)
        return self.kernels.elementwise.fused(_gated, *halves)

    def backward(self, dy: Any) -> Any:
        axis, a, b = self.saved
        fused = self.kernels.elementwise.fused
        return self.kernels.movement.cat((fused(_gated, dy, b), fused(_of_gate, dy, a, b)), axis)


def _gated(k: Any, a: Any, b: Any) -> Any:
    return k.mul(a, k.sigmoid(b))


def _of_gate(k: Any, dy: Any, a: Any, b: Any) -> Any:
    return k.mul(k.mul(dy, _gated(k, a, b)), k.sub(1, k.sigmoid(b)))


def _between(k: Any, dy: Any, x: Any, low: Any, high: Any) -> Any:
    return k.select(k.logical_not(k.logical_or(k.le(x, low), k.ge(x, high))), dy)


class Hardtanh(Clamp):
    """y = min(max(x, low), high);  dx = dy unless x <= low or x >= high (``Clamp`` counts the bounds in)."""

    formulas = (Clamp.formulas[0], _between, None, None)


class Hardsigmoid(OfFamily):
    """y = min(max(x + 3, 0), 6) / 6;  dx = dy / 6 where -3 < x < 3, else 0."""

    value, derivative = attrgetter("activation.hardsigmoid"), attrgetter("activation.hardsigmoid_backward")


class Hardswish(OfFamily):
    """y = x min(max(x + 3, 0), 6) / 6;  dx = 0 for x <= -3, (x / 3 + 1 / 2) dy below 3, then dy.

    Source: Howard et al., "Searching for MobileNetV3" (2019).
    """

    value, derivative = attrgetter("activation.hardswish"), attrgetter("activation.hardswish_backward")
