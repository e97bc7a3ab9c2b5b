"""Activations with parameters or with a threshold; ReLU, SiLU, tanh and sigmoid are in ``elementwise``."""

from operator import attrgetter
from typing import Any

from .elementwise import Clamp, FloatFunction, OfFamily


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


class Mish(FloatFunction):
    """y = x t, t = tanh(log(1 + e^x));  dx = (t + x (1 - t^2) / (1 + e^-x)) dy.

    Source: Misra, "Mish: A self regularized non-monotonic activation function" (2019).
    """

    half_kernels = None

    def forward(self, x: Any) -> Any:
        t = self.kernels.elementwise.tanh(self.kernels.activation.softplus(x, 1.0, 20.0))
        self.saved = (x, t)
        with self.kernels.quiet():  # -inf gives NaN
            return self.kernels.elementwise.mul(x, t)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.fused(_mish, dy, *self.saved)


def _mish(k: Any, dy: Any, x: Any, t: Any) -> Any:
    return k.mul(dy, k.add(t, k.mul(k.mul(x, k.sigmoid(x)), k.sub(1, k.square(t)))))


class Hardtanh(Clamp):
    """y = min(max(x, low), high);  dx = dy where low < x < high (``Clamp`` counts the bounds in)."""

    def backward(self, dy: Any) -> Any:
        x, low, high = self.saved
        c = self.kernels.comparison
        return self.kernels.elementwise.select(c.logical_and(c.gt(x, low), c.lt(x, high)), dy), None, None


class Hardsigmoid(OfFamily):
    """y = min(max(x + 3, 0), 6) / 6;  dx = dy / 6 where -3 < x < 3, else 0."""

    value, derivative = attrgetter("activation.hardsigmoid"), attrgetter("activation.hardsigmoid_backward")


class Hardswish(OfFamily):
    """y = x min(max(x + 3, 0), 6) / 6;  dx = 0 for x <= -3, (x / 3 + 1 / 2) dy below 3, then dy.

    Source: Howard et al., "Searching for MobileNetV3" (2019).
    """

    value, derivative = attrgetter("activation.hardswish"), attrgetter("activation.hardswish_backward")
