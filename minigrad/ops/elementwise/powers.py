"""Powers of two tensors, or of a tensor and a number."""

from typing import Any

from ...autograd import Function
from .arithmetic import Arithmetic, zeros_like


def _of_base(k: Any, dz: Any, x: Any, y: Any) -> Any:
    return k.select(k.ne(y, 0), k.mul(dz, k.mul(y, k.pow(x, k.sub(y, 1)))))


def _of_exponent(k: Any, dz: Any, x: Any, y: Any, z: Any) -> Any:
    at_zero = k.logical_and(k.eq(x, 0), k.ge(y, 0))
    return k.mul(dz, k.select(k.logical_not(at_zero), k.mul(z, k.log(x))))


class Pow(Arithmetic):
    """z = x^y;  dx = y x^(y-1) dz (0 where y = 0), dy = z log(x) dz (0 where x = 0 and y >= 0)."""

    autocast = "float32"
    not_of_bool = "**"

    def forward(self, x: Any, y: Any) -> Any:
        z = self.kernels.elementwise.pow(x, y)
        self.saved = (x, y, z if self.needs[1] else None)
        return z

    def backward(self, dz: Any) -> Any:
        (x, y, z), fused = self.saved, self.kernels.elementwise.fused
        dx = fused(_of_base, dz, x, y) if self.needs[0] else None
        return dx, fused(_of_exponent, dz, x, y, z) if self.needs[1] else None


class PowScalar(Function):
    """y = x^n for a number n;  dx = n x^(n-1) dy, 0 if n = 0. An integer x with a float n is cast first."""

    autocast = "float32"
    half_kernels = "elementwise"
    promotes = True
    not_of_bool = "**"

    def forward(self, x: Any, n: float) -> Any:
        self.saved = (x, n)
        return self.power(x, n)

    def backward(self, dy: Any) -> Any:
        x, n = self.saved
        if n == 0:
            return zeros_like(self.kernels, dy), None
        return self.kernels.elementwise.fused(_scaled, dy, x if n == 2 else self.power(x, n - 1), n), None

    def power(self, x: Any, n: float) -> Any:
        """x^n; as PyTorch by products and roots, in a tenth of the time. (At -0 and -inf the roots are not C's.)"""
        k = self.kernels.elementwise
        if n == 3:
            return k.cube(x)
        if n == 2:
            return k.square(x)
        if x.dtype.kind in "fV" and n in (0.5, -0.5):
            return k.sqrt(x) if n > 0 else k.rsqrt(x)
        if x.dtype.kind in "fV" and n in (-1, -2):
            return k.reciprocal(x) if n == -1 else k.fused(_of_square, x)
        return k.pow(x, n)


def _of_square(k: Any, x: Any) -> Any:
    return k.reciprocal(k.square(x))


def _scaled(k: Any, dy: Any, x: Any, n: float) -> Any:
    return k.mul(dy, k.mul(x, n))


class AddScaled(Arithmetic):
    """z = x + w y for a number w;  dx = dz, dy = w dz."""

    def forward(self, x: Any, y: Any, w: float) -> Any:
        self.saved = (w,)
        return self.kernels.elementwise.fused(_add_scaled, x, y, w)

    def backward(self, dz: Any) -> Any:
        return dz, self.kernels.elementwise.mul(dz, self.saved[0]), None


def _add_scaled(k: Any, x: Any, y: Any, w: float) -> Any:
    return k.add(x, k.mul(y, w))
