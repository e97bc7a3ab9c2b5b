"""Arithmetic of two tensors, or of a tensor and a number."""

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


def _of_quotient(k: Any, dz: Any, x: Any, y: Any) -> Any:
    return k.neg(k.mul(dz, k.floor_div(x, y)))


def _of_whole_quotient(k: Any, dz: Any, x: Any, y: Any) -> Any:
    return k.neg(k.mul(dz, k.trunc(k.div(x, y))))


class Remainder(Arithmetic):
    """z = x - y floor(x / y), of the sign of y;  dx = dz, dy = -floor(x / y) dz."""

    not_of_bool = "%"
    kernel: ClassVar[tuple[str, Any]] = "remainder", _of_quotient

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y) if self.needs[1] else ()
        return getattr(self.kernels.elementwise, self.kernel[0])(x, y)

    def backward(self, dz: Any) -> Any:
        return dz, self.kernels.elementwise.fused(self.kernel[1], dz, *self.saved) if self.needs[1] else None


class FMod(Remainder):
    """z = x - y trunc(x / y), of the sign of x;  dx = dz, dy = -trunc(x / y) dz."""

    not_of_bool = "fmod"
    kernel = "fmod", _of_whole_quotient


class FloorDiv(Remainder):
    """z = floor(x / y); no gradient."""

    differentiable = False
    not_of_bool = "//"
    kernel = "floor_div", None


class Neg(Function):
    """y = -x;  dx = -dy."""

    half_kernels = "elementwise"
    not_of_bool = "-"

    def forward(self, x: Any) -> Any:
        return self.kernels.elementwise.neg(x)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.neg(dy)
