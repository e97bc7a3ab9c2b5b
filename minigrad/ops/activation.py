"""Activations with parameters or with a threshold; ReLU, SiLU, tanh and sigmoid are in ``elementwise``."""

from typing import Any

from .elementwise import Clamp, FloatFunction, OfTensors, log_sigmoid, of_formula


class LeakyRelu(OfTensors):
    """y = x where x > 0, else slope x;  dx = dy where x > 0, else slope dy."""

    floats = True
    formulas = (
        lambda k, x, slope: k.where(k.gt(x, 0), x, k.mul(x, slope)),
        lambda k, dy, x, slope: k.where(k.gt(x, 0), dy, k.mul(dy, slope)),
    )


class Elu(OfTensors):
    """y = x where x > 0, else alpha (e^x - 1);  dx = dy where x > 0, else alpha e^x dy.

    Source: Clevert, Unterthiner & Hochreiter, "Fast and accurate deep network learning by exponential linear units"
    (2015).
    """

    floats = True
    formulas = (
        lambda k, x, alpha: k.where(k.gt(x, 0), x, k.mul(k.expm1(k.minimum(x, 0)), alpha)),
        lambda k, dy, x, alpha: k.mul(dy, k.where(k.gt(x, 0), 1, k.mul(k.exp(k.minimum(x, 0)), alpha))),
    )


class Softplus(OfTensors):
    """y = log(1 + e^(beta x)) / beta, or x where beta x > threshold;  dx = dy / (1 + e^(-beta x)), or dy."""

    autocast = "float32"
    floats = True
    formulas = (
        lambda k, x, beta, most: k.where(k.gt(k.mul(x, beta), most), x, k.div(_softplus(k, k.mul(x, beta)), beta)),
        lambda k, dy, x, beta, most: k.where(k.gt(k.mul(x, beta), most), dy, k.mul(dy, _slope(k, k.mul(x, beta)))),
    )


def _softplus(k: Any, x: Any) -> Any:
    return k.neg(log_sigmoid(k, k.neg(x)))


def _slope(k: Any, x: Any) -> Any:  # a sigmoid that has digits where its reciprocal is infinite
    decay = k.exp(k.neg(k.abs(x)))
    return k.div(k.where(k.lt(x, 0), decay, 1), k.add(decay, 1))


@of_formula(lambda k, x: log_sigmoid(k, x))
def LogSigmoid(k: Any, x: Any, dy: Any) -> Any:
    """y = log(1 / (1 + e^-x));  dx = dy / (1 + e^x)."""
    return k.mul(dy, _slope(k, k.neg(x)))


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


@of_formula(lambda k, x: k.div(k.clamp(k.add(x, 3), 0, 6), 6))
def Hardsigmoid(k: Any, x: Any, dy: Any) -> Any:
    """y = min(max(x + 3, 0), 6) / 6;  dx = dy / 6 where -3 < x < 3, else 0."""
    return k.where(k.lt(k.abs(x), 3), k.div(dy, 6), 0)


@of_formula(lambda k, x: k.div(k.mul(x, k.clamp(k.add(x, 3), 0, 6)), 6))
def Hardswish(k: Any, x: Any, dy: Any) -> Any:
    """y = x min(max(x + 3, 0), 6) / 6;  dx = 0 for x <= -3, (x / 3 + 1 / 2) dy below 3, then dy.

    Source: Howard et al., "Searching for MobileNetV3" (2019).
    """
    return k.where(k.gt(x, -3), k.mul(dy, k.where(k.lt(x, 3), k.add(k.div(x, 3), 0.5), 1)), 0)
