"""Inverse trigonometric and hyperbolic functions. (Sine, cosine, tangent and tanh are among the elementwise ones.)"""

from __future__ import annotations

from typing import Any

from .elementwise import Arithmetic, FloatFunction


class Sinh(FloatFunction):
    """y = (e^x - e^-x) / 2;  dx = cosh(x) dy."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.trigonometry.sinh(x)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.mul(dy, self.kernels.trigonometry.cosh(self.saved[0]))


class Cosh(FloatFunction):
    """y = (e^x + e^-x) / 2;  dx = sinh(x) dy."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.trigonometry.cosh(x)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.mul(dy, self.kernels.trigonometry.sinh(self.saved[0]))


class Asin(FloatFunction):
    """sin(y) = x;  dx = dy / sqrt((1 - x) (1 + x))."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.trigonometry.asin(x)

    def backward(self, dy: Any) -> Any:
        return _over_root(self.kernels, dy, self.saved[0])


class Acos(FloatFunction):
    """cos(y) = x;  dx = -dy / sqrt((1 - x) (1 + x))."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.trigonometry.acos(x)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.neg(_over_root(self.kernels, dy, self.saved[0]))


def _over_root(kernels: Any, dy: Any, x: Any) -> Any:
    k = kernels.elementwise
    return k.mul(dy, k.rsqrt(k.mul(k.sub(1, x), k.add(x, 1))))


class Atan(FloatFunction):
    """tan(y) = x;  dx = dy / (1 + x^2)."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.trigonometry.atan(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.div(dy, k.add(k.square(self.saved[0]), 1))


class Atan2(Arithmetic):
    """z = the angle of the point (y, x);  dx = y dz / (x^2 + y^2), dy = -x dz / (x^2 + y^2), both 0 at the origin."""

    __slots__ = ()
    floats = True

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y)
        return self.kernels.trigonometry.atan2(x, y)

    def backward(self, dz: Any) -> Any:
        x, y = self.saved
        k = self.kernels.elementwise
        square = k.add(k.square(x), k.square(y))
        inverse = k.select(self.kernels.comparison.ne(square, 0), k.reciprocal(square))
        return k.mul(k.mul(dz, y), inverse), k.neg(k.mul(k.mul(dz, x), inverse))


class Asinh(FloatFunction):
    """sinh(y) = x;  dx = dy / sqrt(x^2 + 1)."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.trigonometry.asinh(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.mul(dy, k.rsqrt(k.add(k.square(self.saved[0]), 1)))


class Acosh(FloatFunction):
    """cosh(y) = x;  dx = dy / sqrt((x - 1) (x + 1))."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.trigonometry.acosh(x)

    def backward(self, dy: Any) -> Any:
        (x,) = self.saved
        k = self.kernels.elementwise
        return k.mul(dy, k.rsqrt(k.add(k.mul(k.sub(x, 1), k.add(x, 1)), 0)))  # + 0, because -0 has the root -inf


class Atanh(FloatFunction):
    """tanh(y) = x;  dx = dy / ((1 - x) (1 + x))."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.trigonometry.atanh(x)

    def backward(self, dy: Any) -> Any:
        (x,) = self.saved
        k = self.kernels.elementwise
        return k.div(dy, k.mul(k.sub(1, x), k.add(x, 1)))
