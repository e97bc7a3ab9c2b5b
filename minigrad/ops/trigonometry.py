"""Inverse trigonometric and hyperbolic functions. (Sine, cosine, tangent and tanh are among the elementwise ones.)"""

from typing import Any

from .elementwise import OfTensors, of_x


@of_x(lambda kernels, x: kernels.trigonometry.sinh(x), autocast="float32")
def Sinh(k: Any, x: Any, dy: Any) -> Any:
    """y = (e^x - e^-x) / 2;  dx = cosh(x) dy."""
    return k.mul(dy, k.cosh(x))


@of_x(lambda kernels, x: kernels.trigonometry.cosh(x), autocast="float32")
def Cosh(k: Any, x: Any, dy: Any) -> Any:
    """y = (e^x + e^-x) / 2;  dx = sinh(x) dy."""
    return k.mul(dy, k.sinh(x))


@of_x(lambda kernels, x: kernels.trigonometry.asin(x), autocast="float32")
def Asin(k: Any, x: Any, dy: Any) -> Any:
    """sin(y) = x;  dx = dy / sqrt((1 - x) (1 + x))."""
    return _over_root(k, x, dy)


@of_x(lambda kernels, x: kernels.trigonometry.acos(x), autocast="float32")
def Acos(k: Any, x: Any, dy: Any) -> Any:
    """cos(y) = x;  dx = -dy / sqrt((1 - x) (1 + x))."""
    return k.neg(_over_root(k, x, dy))


def _over_root(k: Any, x: Any, dy: Any) -> Any:
    return k.mul(dy, k.rsqrt(k.mul(k.sub(1, x), k.add(x, 1))))


@of_x(lambda kernels, x: kernels.trigonometry.atan(x))
def Atan(k: Any, x: Any, dy: Any) -> Any:
    """tan(y) = x;  dx = dy / (1 + x^2)."""
    return k.div(dy, k.add(k.square(x), 1))


@of_x(lambda kernels, x: kernels.trigonometry.asinh(x))
def Asinh(k: Any, x: Any, dy: Any) -> Any:
    """sinh(y) = x;  dx = dy / sqrt(x^2 + 1)."""
    return k.mul(dy, k.rsqrt(k.add(k.square(x), 1)))


@of_x(lambda kernels, x: kernels.trigonometry.acosh(x))
def Acosh(k: Any, x: Any, dy: Any) -> Any:
    """cosh(y) = x;  dx = dy / sqrt((x - 1) (x + 1))."""
    return k.mul(dy, k.rsqrt(k.add(k.mul(k.sub(x, 1), k.add(x, 1)), 0)))  # + 0, because -0 has the root -inf


@of_x(lambda kernels, x: kernels.trigonometry.atanh(x))
def Atanh(k: Any, x: Any, dy: Any) -> Any:
    """tanh(y) = x;  dx = dy / ((1 - x) (1 + x))."""
    return k.div(dy, k.mul(k.sub(1, x), k.add(x, 1)))


def _over_square(k: Any, dz: Any, x: Any, y: Any) -> Any:
    square = k.add(k.square(x), k.square(y))
    return k.mul(dz, k.select(k.ne(square, 0), k.reciprocal(square)))


class Atan2(OfTensors):
    """z = the angle of the point (y, x);  dx = y dz / (x^2 + y^2), dy = -x dz / (x^2 + y^2), both 0 at the origin."""

    floats = True
    formulas = (
        lambda k, x, y: k.atan2(x, y),
        lambda k, dz, x, y: _over_square(k, k.mul(dz, y), x, y),
        lambda k, dz, x, y: k.neg(_over_square(k, k.mul(dz, x), x, y)),
    )
