"""Functions of one number: smooth ones (and relu), then those that are piecewise constant."""

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

from ...autograd import Function
from .arithmetic import zeros_like


class FloatFunction(Function):
    """A function of real numbers: integer inputs are cast to the default floating dtype."""

    floats = True
    half_kernels: ClassVar[str | None] = "elementwise"


Expression = Callable[..., Any]  # of kernels and arrays


def of_x(value: Expression, keeps_x: bool = True, **members: Any) -> Callable[[Expression], Any]:
    """Makes dx = derivative(k, x, dy) the class, with its name and members, of y = value(kernels, x); it keeps x."""

    def forward(self: FloatFunction, x: Any) -> Any:
        y = value(self.kernels, x)
        self.saved = (x if keeps_x else y,)
        return y

    def made(derivative: Expression) -> type[FloatFunction]:
        def backward(self: FloatFunction, dy: Any) -> Any:
            return self.kernels.elementwise.fused(derivative, self.saved[0], dy)

        made = {"__module__": derivative.__module__, "forward": forward, "backward": backward}
        return type(derivative.__name__, (FloatFunction,), {"__doc__": derivative.__doc__} | made | members)

    return made


def of_formula(formula: Expression) -> Callable[[Expression], Any]:
    """``of_x`` for y = formula(k, x), a pass of its own."""
    return of_x(lambda kernels, x: kernels.elementwise.fused(formula, x))


of_y: Callable[..., Callable[[Expression], Any]] = functools.partial(of_x, keeps_x=False)
"""The same for dx = derivative(k, y, dy); it keeps y."""


@of_y(lambda kernels, x: kernels.elementwise.reciprocal(x), autocast="float32")
def Reciprocal(k: Any, y: Any, dy: Any) -> Any:
    """y = 1/x;  dx = -y^2 dy."""
    return k.neg(k.mul(dy, k.square(y)))


@of_y(lambda kernels, x: kernels.elementwise.exp(x), autocast="float32")
def Exp(k: Any, y: Any, dy: Any) -> Any:
    """y = e^x;  dx = y dy."""
    return k.mul(dy, y)


@of_y(lambda kernels, x: kernels.elementwise.exp2(x))
def Exp2(k: Any, y: Any, dy: Any) -> Any:
    """y = 2^x;  dx = log(2) y dy."""
    return k.mul(k.mul(dy, y), math.log(2))


@of_y(lambda kernels, x: kernels.elementwise.expm1(x), autocast="float32")
def Expm1(k: Any, y: Any, dy: Any) -> Any:
    """y = e^x - 1, exact for small x;  dx = (y + 1) dy."""
    return k.mul(dy, k.add(y, 1))


@of_x(lambda kernels, x: kernels.elementwise.log(x), autocast="float32")
def Log(k: Any, x: Any, dy: Any) -> Any:
    """y = log(x);  dx = dy / x."""
    return k.div(dy, x)


@of_x(lambda kernels, x: kernels.elementwise.log2(x), autocast="float32")
def Log2(k: Any, x: Any, dy: Any) -> Any:
    """y = log(x) / log(2);  dx = dy / (x log(2))."""
    return k.div(dy, k.mul(x, math.log(2)))


@of_x(lambda kernels, x: kernels.elementwise.log10(x), autocast="float32")
def Log10(k: Any, x: Any, dy: Any) -> Any:
    """y = log(x) / log(10);  dx = dy / (x log(10))."""
    return k.div(dy, k.mul(x, math.log(10)))


@of_x(lambda kernels, x: kernels.elementwise.log1p(x), autocast="float32")
def Log1p(k: Any, x: Any, dy: Any) -> Any:
    """y = log(1 + x), exact for small x;  dx = dy / (1 + x)."""
    return k.div(dy, k.add(x, 1))


@of_y(lambda kernels, x: kernels.elementwise.sqrt(x))
def Sqrt(k: Any, y: Any, dy: Any) -> Any:
    """y = sqrt(x);  dx = dy / (2 y)."""
    return k.div(dy, k.mul(y, 2))


@of_y(lambda kernels, x: kernels.elementwise.rsqrt(x), autocast="float32")
def Rsqrt(k: Any, y: Any, dy: Any) -> Any:
    """y = 1 / sqrt(x);  dx = -y^3 dy / 2."""
    return k.mul(k.mul(dy, k.cube(y)), -0.5)


@of_x(lambda kernels, x: kernels.elementwise.sin(x))
def Sin(k: Any, x: Any, dy: Any) -> Any:
    """y = sin(x);  dx = cos(x) dy."""
    return k.mul(dy, k.cos(x))


@of_x(lambda kernels, x: kernels.elementwise.cos(x))
def Cos(k: Any, x: Any, dy: Any) -> Any:
    """y = cos(x);  dx = -sin(x) dy."""
    return k.neg(k.mul(dy, k.sin(x)))


@of_y(lambda kernels, x: kernels.elementwise.tan(x), autocast="float32")
def Tan(k: Any, y: Any, dy: Any) -> Any:
    """y = tan(x);  dx = (1 + y^2) dy."""
    return k.mul(dy, k.add(k.square(y), 1))


@of_x(lambda kernels, x: kernels.elementwise.erf(x))
def Erf(k: Any, x: Any, dy: Any) -> Any:
    """y = 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x;  dx = 2 / sqrt(pi) e^(-x^2) dy."""
    return k.mul(dy, k.mul(k.exp(k.neg(k.square(x))), 2 / math.sqrt(math.pi)))


@of_y(lambda kernels, x: kernels.elementwise.tanh(x))
def Tanh(k: Any, y: Any, dy: Any) -> Any:
    """y = tanh(x);  dx = (1 - y^2) dy."""
    return k.mul(dy, k.sub(1, k.square(y)))


@of_y(lambda kernels, x: kernels.elementwise.sigmoid(x))
def Sigmoid(k: Any, y: Any, dy: Any) -> Any:
    """y = 1 / (1 + e^-x);  dx = y (1 - y) dy."""
    return k.mul(dy, k.mul(y, k.sub(1, y)))


@of_formula(lambda k, x: k.mul(x, k.sigmoid(x)))
def Silu(k: Any, x: Any, dy: Any) -> Any:
    """y = x s, s = sigmoid(x);  dx = s (1 + x (1 - s)) dy. Also called swish."""
    s = k.sigmoid(x)
    return k.mul(dy, k.mul(s, k.add(k.mul(x, k.sub(1, s)), 1)))


@of_y(lambda kernels, x: kernels.elementwise.relu(x), floats=False, not_of_bool="relu")
def Relu(k: Any, y: Any, dy: Any) -> Any:
    """y = max(x, 0);  dx = dy where y > 0 or NaN (so 0 at 0, where ``maximum(x, 0)`` would give half)."""
    return k.where(k.le(y, 0), 0, dy)


@of_x(lambda kernels, x: kernels.elementwise.abs(x), floats=False, not_of_bool="abs")
def Abs(k: Any, x: Any, dy: Any) -> Any:
    """y = |x|;  dx = sign(x) dy, 0 at 0."""
    return k.mul(dy, k.sign(x))


@of_x(lambda kernels, x: kernels.elementwise.square(x), autocast="float32", floats=False)
def Square(k: Any, x: Any, dy: Any) -> Any:
    """y = x^2;  dx = 2 x dy."""
    return k.mul(dy, k.mul(x, 2))


class StepFunction(Function):
    """A piecewise constant function: its gradient is zero wherever it has one."""

    half_kernels = "elementwise"

    def backward(self, dy: Any) -> Any:
        return zeros_like(self.kernels, dy)


def _step(name: str, formula: str, value: Expression) -> type[StepFunction]:
    """The class of y = value(k, x), of the elementwise kernels k."""

    def forward(self: StepFunction, x: Any) -> Any:
        return value(self.kernels.elementwise, x)

    members = {"__doc__": f"{formula}  dx = 0.", "__module__": __name__, "forward": forward}
    return type(name, (StepFunction,), members | {"not_of_bool": name.lower()})


Sign = _step("Sign", "y = -1, 0 or 1, the sign of x;", lambda k, x: k.sign(x))
Floor = _step("Floor", "y = the largest integer <= x;", lambda k, x: k.floor(x))
Ceil = _step("Ceil", "y = the smallest integer >= x;", lambda k, x: k.ceil(x))
Round = _step("Round", "y = the nearest integer, halves to even;", lambda k, x: k.round(x))
Trunc = _step("Trunc", "y = x without its fraction;", lambda k, x: k.trunc(x))
