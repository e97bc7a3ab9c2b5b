"""Functions of one number: smooth ones (and relu), then those that are piecewise constant."""

from __future__ import annotations

import math
from typing import Any

from ...autograd import Function
from .arithmetic import refuse_bool, zeros_like


class FloatFunction(Function):
    """A function of real numbers: integer inputs are cast to the default floating dtype."""

    __slots__ = ()
    floats = True


class Reciprocal(FloatFunction):
    """y = 1/x;  dx = -y^2 dy."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        y = self.kernels.elementwise.reciprocal(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.neg(k.mul(dy, k.square(self.saved[0])))


class Exp(FloatFunction):
    """y = e^x;  dx = y dy."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        y = self.kernels.elementwise.exp(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.mul(dy, self.saved[0])


class Exp2(FloatFunction):
    """y = 2^x;  dx = log(2) y dy."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        y = self.kernels.elementwise.exp2(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.mul(k.mul(dy, self.saved[0]), math.log(2))


class Log(FloatFunction):
    """y = log(x);  dx = dy / x."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.log(x)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.div(dy, self.saved[0])


class Log2(FloatFunction):
    """y = log(x) / log(2);  dx = dy / (x log(2))."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.log2(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.div(dy, k.mul(self.saved[0], math.log(2)))


class Log10(FloatFunction):
    """y = log(x) / log(10);  dx = dy / (x log(10))."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.log10(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.div(dy, k.mul(self.saved[0], math.log(10)))


class Log1p(FloatFunction):
    """y = log(1 + x), exact for small x;  dx = dy / (1 + x)."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.log1p(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.div(dy, k.add(self.saved[0], 1))


class Expm1(FloatFunction):
    """y = e^x - 1, exact for small x;  dx = (y + 1) dy."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        y = self.kernels.elementwise.expm1(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.mul(dy, k.add(self.saved[0], 1))


class Sqrt(FloatFunction):
    """y = sqrt(x);  dx = dy / (2 y)."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        y = self.kernels.elementwise.sqrt(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.div(dy, k.mul(self.saved[0], 2))


class Rsqrt(FloatFunction):
    """y = 1 / sqrt(x);  dx = -y^3 dy / 2."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        y = self.kernels.elementwise.rsqrt(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        (y,) = self.saved
        k = self.kernels.elementwise
        return k.mul(k.mul(dy, k.mul(k.square(y), y)), -0.5)


class Sin(FloatFunction):
    """y = sin(x);  dx = cos(x) dy."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.sin(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.mul(dy, k.cos(self.saved[0]))


class Cos(FloatFunction):
    """y = cos(x);  dx = -sin(x) dy."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.cos(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.neg(k.mul(dy, k.sin(self.saved[0])))


class Tan(FloatFunction):
    """y = tan(x);  dx = (1 + y^2) dy."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        y = self.kernels.elementwise.tan(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.mul(dy, k.add(k.square(self.saved[0]), 1))


class Erf(FloatFunction):
    """y = 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x;  dx = 2 / sqrt(pi) e^(-x^2) dy."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.erf(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.mul(dy, k.mul(k.exp(k.neg(k.square(self.saved[0]))), 2 / math.sqrt(math.pi)))


class Tanh(FloatFunction):
    """y = tanh(x);  dx = (1 - y^2) dy."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        y = self.kernels.elementwise.tanh(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.mul(dy, k.sub(1, k.square(self.saved[0])))


class Sigmoid(FloatFunction):
    """y = 1 / (1 + e^-x);  dx = y (1 - y) dy."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        y = self.kernels.elementwise.sigmoid(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        (y,) = self.saved
        k = self.kernels.elementwise
        return k.mul(dy, k.mul(y, k.sub(1, y)))


class Silu(FloatFunction):
    """y = x s, s = sigmoid(x);  dx = s (1 + x (1 - s)) dy. Also called swish."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        k = self.kernels.elementwise
        s = k.sigmoid(x)
        self.saved = (x, s)
        with self.kernels.quiet():  # -inf gives NaN
            return k.mul(x, s)

    def backward(self, dy: Any) -> Any:
        x, s = self.saved
        k = self.kernels.elementwise
        return k.mul(dy, k.mul(s, k.add(k.mul(x, k.sub(1, s)), 1)))


class Relu(Function):
    """y = max(x, 0);  dx = dy where y > 0 or NaN (so 0 at 0, where ``maximum(x, 0)`` would give half)."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        refuse_bool("relu", x)
        y = self.kernels.elementwise.relu(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        c = self.kernels.comparison
        return self.kernels.elementwise.select(c.logical_not(c.le(self.saved[0], 0)), dy)  # not y > 0: NaN passes dy on


class StepFunction(Function):
    """A piecewise constant function: its gradient is zero wherever it has one."""

    __slots__ = ()

    def backward(self, dy: Any) -> Any:
        return zeros_like(self.kernels, dy)


class Sign(StepFunction):
    """y = -1, 0 or 1, the sign of x;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        return self.kernels.elementwise.sign(x)


class Floor(StepFunction):
    """y = the largest integer <= x;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        refuse_bool("floor", x)
        return self.kernels.elementwise.floor(x)


class Ceil(StepFunction):
    """y = the smallest integer >= x;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        refuse_bool("ceil", x)
        return self.kernels.elementwise.ceil(x)


class Round(StepFunction):
    """y = the nearest integer, halves to even;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        refuse_bool("round", x)
        return self.kernels.elementwise.round(x)


class Trunc(StepFunction):
    """y = x without its fraction;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        refuse_bool("trunc", x)
        return self.kernels.elementwise.trunc(x)
