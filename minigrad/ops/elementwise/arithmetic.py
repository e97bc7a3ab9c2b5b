"""Arithmetic of two tensors, or of a tensor and a number."""

import math
from typing import Any, ClassVar

from ...autograd import Function


def zeros_like(kernels: Any, x: Any) -> Any:
    return kernels.zeros(x.shape, x.dtype)


class Arithmetic(Function):
    """Inputs are cast to their common dtype first."""

    promotes = True
    half_kernels: ClassVar[str | None] = "elementwise"


class Add(Arithmetic):
    """z = x + y;  dx = dz, dy = dz."""

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.elementwise.add(x, y)

    def backward(self, dz: Any) -> Any:
        return dz, dz


class Sub(Arithmetic):
    """z = x - y;  dx = dz, dy = -dz."""

    not_of_bool = "-"

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.elementwise.sub(x, y)

    def backward(self, dz: Any) -> Any:
        return dz, self.kernels.elementwise.neg(dz) if self.needs[1] else None


class Mul(Arithmetic):
    """z = x y;  dx = y dz, dy = x dz."""

    def forward(self, x: Any, y: Any) -> Any:
        need_x, need_y = self.needs
        self.saved = (x if need_y else None, y if need_x else None)
        return self.kernels.elementwise.mul(x, y)

    def backward(self, dz: Any) -> Any:
        x, y = self.saved
        mul = self.kernels.elementwise.mul
        return mul(dz, y) if self.needs[0] else None, mul(dz, x) if self.needs[1] else None


class Div(Arithmetic):
    """z = x / y;  dx = dz / y, dy = -(z / y) dz. Integers are divided as floats."""

    floats = True

    def forward(self, x: Any, y: Any) -> Any:
        k = self.kernels.elementwise
        z = k.div(x, y)
        self.saved = (y, z if self.needs[1] else None)
        return z

    def backward(self, dz: Any) -> Any:
        y, z = self.saved
        k = self.kernels.elementwise
        return k.div(dz, y) if self.needs[0] else None, k.fused(_of_divisor, y, z, dz) if self.needs[1] else None


def _of_divisor(k: Any, y: Any, z: Any, dz: Any) -> Any:
    # z / y first, as in PyTorch: where it overflows, or y is infinite, the order decides about NaN.
    return k.neg(k.mul(dz, k.div(z, y)))


class FloorDiv(Arithmetic):
    """z = floor(x / y); no gradient."""

    differentiable = False
    not_of_bool = "//"

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.elementwise.floor_div(x, y)


class Remainder(Arithmetic):
    """z = x - y floor(x / y), of the sign of y;  dx = dz, dy = -floor(x / y) dz."""

    half_kernels = None
    not_of_bool = "%"

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y) if self.needs[1] else ()
        return self.kernels.elementwise.remainder(x, y)

    def backward(self, dz: Any) -> Any:
        k = self.kernels.elementwise
        return dz, k.neg(k.mul(dz, self.quotient(k, *self.saved))) if self.needs[1] else None

    def quotient(self, k: Any, x: Any, y: Any) -> Any:
        return k.floor_div(x, y)


class FMod(Remainder):
    """z = x - y trunc(x / y), of the sign of x;  dx = dz, dy = -trunc(x / y) dz."""

    not_of_bool = "fmod"

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y) if self.needs[1] else ()
        return self.kernels.elementwise.fmod(x, y)

    def quotient(self, k: Any, x: Any, y: Any) -> Any:
        return k.trunc(k.div(x, y))


class Neg(Function):
    """y = -x;  dx = -dy."""

    half_kernels = "elementwise"
    not_of_bool = "-"

    def forward(self, x: Any) -> Any:
        return self.kernels.elementwise.neg(x)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.neg(dy)


class Abs(Function):
    """y = |x|;  dx = sign(x) dy, 0 at 0."""

    half_kernels = "elementwise"
    not_of_bool = "abs"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.abs(x)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.fused(_of_abs, dy, self.saved[0])


def _of_abs(k: Any, dy: Any, x: Any) -> Any:
    return k.mul(dy, k.sign(x))


class Lerp(Arithmetic):
    """z = x + w (y - x), from the nearer end: y - (1 - w) (y - x) for |w| >= 1/2.

    dx = (1 - w) dz, dy = w dz, dw = (y - x) dz.
    """

    half_kernels = None

    def forward(self, x: Any, y: Any, w: Any) -> Any:
        k = self.kernels.elementwise
        with self.kernels.quiet():  # infinite ends
            rest = 1 - w if isinstance(w, int | float) else k.sub(1, w)
            self.saved = (w, rest, k.sub(y, x) if self.needs[2] else None)
            if isinstance(w, int | float):
                return k.fused(_part_of_way, x, y, w) if abs(w) < 0.5 else k.fused(_part_of_way, y, x, rest)
            near = self.kernels.comparison.lt(k.abs(w), 0.5)
            return k.where(near, k.fused(_part_of_way, x, y, w), k.fused(_part_of_way, y, x, rest))

    def backward(self, dz: Any) -> Any:
        w, rest, distance = self.saved
        k = self.kernels.elementwise
        return k.mul(dz, rest), k.mul(dz, w), k.mul(dz, distance) if self.needs[2] else None


def _part_of_way(k: Any, x: Any, y: Any, w: Any) -> Any:
    return k.add(x, k.mul(k.sub(y, x), w))


class LogAddExp(Arithmetic):
    """z = log(exp(x) + exp(y)), without overflow;  dx = exp(x - z) dz, dy = exp(y - z) dz."""

    half_kernels = None

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y, self.kernels.elementwise.fused(_log_of_sum, x, y))
        return self.saved[2]

    def backward(self, dz: Any) -> Any:
        (x, y, z), k = self.saved, self.kernels.elementwise
        return k.mul(dz, k.exp(k.sub(x, z))), k.mul(dz, k.exp(k.sub(y, z)))


def _log_of_sum(k: Any, x: Any, y: Any) -> Any:
    distance = k.nan_to_num(k.abs(k.sub(x, y)), 0.0, math.inf, -math.inf)  # of equal infinities 0
    return k.add(k.maximum(x, y), k.log1p(k.exp(k.neg(distance))))


class Huber(Arithmetic):
    """z = d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2), of d = x - y;  dx = -dy = d dz, d cut at +-delta.

    Source: Huber, "Robust estimation of a location parameter" (1964).
    """

    floats = True

    def forward(self, x: Any, y: Any, *, delta: float) -> Any:
        self.saved = (x, y, -delta, delta)
        return self.kernels.elementwise.fused(_huber, x, y, delta)

    def backward(self, dz: Any) -> Any:
        dx = self.kernels.elementwise.fused(_of_huber, dz, *self.saved)
        return dx, self.kernels.elementwise.neg(dx) if self.needs[1] else None


def _huber(k: Any, x: Any, y: Any, delta: float) -> Any:
    distance = k.abs(k.sub(x, y))
    size = k.minimum(distance, delta)
    return k.mul(size, k.sub(distance, k.mul(size, 0.5)))


def _of_huber(k: Any, dz: Any, x: Any, y: Any, low: float, high: float) -> Any:
    return k.mul(dz, k.clamp(k.sub(x, y), low, high))


class BinaryCrossEntropy(Arithmetic):
    """z = -(y log x + (1 - y) log(1 - x));  dx = ((1 - y) / (1 - x) - y / x) dz, dy = (log(1 - x) - log x) dz.

    Logarithms are -100 at least, and have no slope there.
    """

    floats = True
    half_kernels = None

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y)
        return self.kernels.elementwise.fused(_entropy, x, y)

    def backward(self, dz: Any) -> Any:
        (x, y), k = self.saved, self.kernels
        log, log_of_rest = _logarithms(k.elementwise, x) if self.needs[1] else (0, 0)
        dy = k.elementwise.mul(dz, k.elementwise.sub(log_of_rest, log)) if self.needs[1] else None
        return k.activation.binary_cross_entropy_backward(dz, x, y), dy


def _logarithms(k: Any, x: Any) -> tuple[Any, Any]:
    return k.maximum(k.log(x), -100), k.maximum(k.log1p(k.neg(x)), -100)


def _entropy(k: Any, x: Any, y: Any) -> Any:
    log, log_of_rest = _logarithms(k, x)
    return k.neg(k.add(k.mul(y, log), k.mul(k.sub(1, y), log_of_rest)))
