"""Activations with parameters or with a threshold; ReLU, SiLU, tanh and sigmoid are in ``elementwise``."""

from typing import Any

from .elementwise import Clamp, FloatFunction


class LeakyRelu(FloatFunction):
    """y = x where x > 0, else slope x;  dx = dy where x > 0, else slope dy."""

    def forward(self, x: Any, *, slope: float) -> Any:
        self.saved = (x, slope)
        return self.kernels.activation.leaky_relu(x, slope)

    def backward(self, dy: Any) -> Any:
        return self.kernels.activation.leaky_relu_backward(dy, *self.saved)


class Elu(FloatFunction):
    """y = x where x > 0, else alpha (e^x - 1);  dx = dy where x > 0, else alpha e^x dy.

    Source: Clevert, Unterthiner & Hochreiter, "Fast and accurate deep network learning by exponential linear units"
    (2015).
    """

    def forward(self, x: Any, *, alpha: float) -> Any:
        self.saved = (x, alpha)
        return self.kernels.activation.elu(x, alpha)

    def backward(self, dy: Any) -> Any:
        return self.kernels.activation.elu_backward(dy, *self.saved)


class Softplus(FloatFunction):
    """y = log(1 + e^(beta x)) / beta, or x where beta x > threshold;  dx = dy / (1 + e^(-beta x)), or dy."""

    autocast = "float32"

    def forward(self, x: Any, *, beta: float, threshold: float) -> Any:
        self.saved = (x, beta, threshold)
        return self.kernels.activation.softplus(x, beta, threshold)

    def backward(self, dy: Any) -> Any:
        return self.kernels.activation.softplus_backward(dy, *self.saved)


class Mish(FloatFunction):
    """y = x t, t = tanh(log(1 + e^x));  dx = (t + x (1 - t^2) / (1 + e^-x)) dy.

    Source: Misra, "Mish: A self regularized non-monotonic activation function" (2019).
    """

    def forward(self, x: Any) -> Any:
        k = self.kernels.elementwise
        t = k.tanh(self.kernels.activation.softplus(x, 1.0, 20.0))
        self.saved = (x, t)
        with self.kernels.quiet():  # -inf gives NaN
            return k.mul(x, t)

    def backward(self, dy: Any) -> Any:
        x, t = self.saved
        return self.kernels.elementwise.fused(_mish, dy, x, t)


def _mish(k: Any, dy: Any, x: Any, t: Any) -> Any:
    return k.mul(dy, k.add(t, k.mul(k.mul(x, k.sigmoid(x)), k.sub(1, k.square(t)))))


class Hardtanh(Clamp):
    """y = min(max(x, low), high);  dx = dy where low < x < high (``Clamp`` counts the bounds in)."""

    def backward(self, dy: Any) -> Any:
        x, low, high = self.saved
        c = self.kernels.comparison
        return self.kernels.elementwise.select(c.logical_and(c.gt(x, low), c.lt(x, high)), dy), None, None


class Hardswish(FloatFunction):
    """y = x min(max(x + 3, 0), 6) / 6;  dx = 0 for x <= -3, (x / 3 + 1 / 2) dy below 3, then dy.

    Source: Howard et al., "Searching for MobileNetV3" (2019).
    """

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        with self.kernels.quiet():  # -inf gives NaN
            return self.kernels.elementwise.fused(_hardswish, x)

    def backward(self, dy: Any) -> Any:
        (x,) = self.saved
        k, c = self.kernels.elementwise, self.kernels.comparison
        slope = k.where(c.lt(x, 3), k.add(k.div(x, 3), 0.5), self.kernels.full((), 1, x.dtype))
        return k.select(c.gt(x, -3), k.mul(dy, slope))


def _hardswish(k: Any, x: Any) -> Any:
    return k.div(k.mul(x, k.clamp(k.add(x, 3), 0, 6)), 6)
