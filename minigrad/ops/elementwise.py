"""Elementwise operations with broadcasting. Gradients have the broadcast shape; autograd sums them back."""

from __future__ import annotations

import math
from typing import Any

from ..autograd import Function
from ..errors import located


def _refuse_bool(name: str, *inputs: Any) -> None:
    """Where NumPy would compute with bool as int8, which no tensor has."""
    if any(hasattr(x, "dtype") and x.dtype.kind == "b" for x in inputs):
        raise located(TypeError(f"{name} of bool tensors has no value; convert with .long() or .float()"))


class Arithmetic(Function):
    """Inputs are cast to their common dtype first."""

    __slots__ = ()
    promotes = True


class Add(Arithmetic):
    """z = x + y;  dx = dz, dy = dz."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.elementwise.add(x, y)

    def backward(self, dz: Any) -> Any:
        return dz, dz


class Sub(Arithmetic):
    """z = x - y;  dx = dz, dy = -dz."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        try:
            return self.kernels.elementwise.sub(x, y)
        except TypeError:  # NumPy has no difference of bool; asking first would cost every difference
            _refuse_bool("-", x, y)
            raise

    def backward(self, dz: Any) -> Any:
        return dz, self.kernels.elementwise.neg(dz) if self.needs[1] else None


class Mul(Arithmetic):
    """z = x y;  dx = y dz, dy = x dz."""

    __slots__ = ()

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

    __slots__ = ()
    floats = True

    def forward(self, x: Any, y: Any) -> Any:
        k = self.kernels.elementwise
        z = k.div(x, y)
        self.saved = (y, z if self.needs[1] else None)
        return z

    def backward(self, dz: Any) -> Any:
        y, z = self.saved
        k = self.kernels.elementwise
        # z / y first, as in PyTorch: where it overflows, or y is infinite, the order decides about NaN.
        return k.div(dz, y) if self.needs[0] else None, k.neg(k.mul(dz, k.div(z, y))) if self.needs[1] else None


class FloorDiv(Arithmetic):
    """z = floor(x / y); no gradient."""

    __slots__ = ()
    differentiable = False

    def forward(self, x: Any, y: Any) -> Any:
        _refuse_bool("//", x, y)
        return self.kernels.elementwise.floor_div(x, y)


class Remainder(Arithmetic):
    """z = x - y floor(x / y), of the sign of y;  dx = dz, dy = -floor(x / y) dz."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        _refuse_bool("%", x, y)
        self.saved = (x, y) if self.needs[1] else ()
        return self.kernels.elementwise.remainder(x, y)

    def backward(self, dz: Any) -> Any:
        if not self.needs[1]:
            return dz, None
        k = self.kernels.elementwise
        return dz, k.neg(k.mul(dz, k.floor_div(*self.saved)))


class FMod(Arithmetic):
    """z = x - y trunc(x / y), of the sign of x;  dx = dz, dy = -trunc(x / y) dz."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        _refuse_bool("fmod", x, y)
        self.saved = (x, y) if self.needs[1] else ()
        return self.kernels.elementwise.fmod(x, y)

    def backward(self, dz: Any) -> Any:
        if not self.needs[1]:
            return dz, None
        k = self.kernels.elementwise
        return dz, k.neg(k.mul(dz, k.trunc(k.div(*self.saved))))


class Pow(Arithmetic):
    """z = x^y;  dx = y x^(y-1) dz (0 where y = 0), dy = z log(x) dz (0 where x = 0 and y >= 0)."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any, y: Any) -> Any:
        _refuse_bool("**", x, y)
        z = self.kernels.elementwise.pow(x, y)
        self.saved = (x, y, z if self.needs[1] else None)
        return z

    def backward(self, dz: Any) -> Any:
        x, y, z = self.saved
        k, c = self.kernels.elementwise, self.kernels.comparison
        dx = dy = None
        if self.needs[0]:
            dx = k.select(c.ne(y, 0), k.mul(dz, k.mul(y, k.pow(x, k.sub(y, 1)))))
        if self.needs[1]:
            at_zero = c.logical_and(c.eq(x, 0), c.ge(y, 0))
            dy = k.mul(dz, k.select(c.logical_not(at_zero), k.mul(z, k.log(x))))
        return dx, dy


class PowScalar(Function):
    """y = x^n for a number n;  dx = n x^(n-1) dy, 0 if n = 0. An integer x with a float n is cast first."""

    __slots__ = ("n",)
    autocast = "float32"
    promotes = True
    n: float

    def forward(self, x: Any, n: float) -> Any:
        _refuse_bool("**", x)
        self.n = n
        self.saved = (x,)
        return self.power(x, n)

    def backward(self, dy: Any) -> Any:
        (x,) = self.saved
        k = self.kernels.elementwise
        if self.n == 0:
            return _zeros_like(self.kernels, dy), None
        return k.mul(dy, k.mul(self.power(x, self.n - 1), self.n)), None

    def power(self, x: Any, n: float) -> Any:
        """x^n; for n = 1/2 and -1/2 the roots, which differ at -0 and -inf (C's ``pow`` has no NaN there)."""
        k = self.kernels.elementwise
        if x.dtype.kind in "fV" and n in (0.5, -0.5):
            return k.sqrt(x) if n > 0 else k.rsqrt(x)
        return k.pow(x, n)


def _zeros_like(kernels: Any, x: Any) -> Any:
    return kernels.full(x.shape, 0, x.dtype)


class Maximum(Arithmetic):
    """z = max(x, y); a tie gives half of dz to each. NaN in either gives NaN."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y)
        return self.kernels.elementwise.maximum(x, y)

    def backward(self, dz: Any) -> Any:
        x, y = self.saved
        c = self.kernels.comparison
        return _split_ties(self.kernels, dz, c.eq(x, y), c.lt(x, y), c.gt(x, y))


class Minimum(Arithmetic):
    """z = min(x, y); a tie gives half of dz to each. NaN in either gives NaN."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y)
        return self.kernels.elementwise.minimum(x, y)

    def backward(self, dz: Any) -> Any:
        x, y = self.saved
        c = self.kernels.comparison
        return _split_ties(self.kernels, dz, c.eq(x, y), c.gt(x, y), c.lt(x, y))


def _split_ties(kernels: Any, dz: Any, tie: Any, x_loses: Any, y_loses: Any) -> tuple[Any, Any]:
    k, logical_not = kernels.elementwise, kernels.comparison.logical_not
    share = k.where(tie, k.mul(dz, 0.5), dz)
    return k.select(logical_not(x_loses), share), k.select(logical_not(y_loses), share)


class Where(Function):
    """z = x where the condition holds, else y;  dz goes to the one that was taken."""

    __slots__ = ()
    widens = False

    def forward(self, x: Any, y: Any, condition: Any) -> Any:
        self.saved = (condition,)
        return self.kernels.elementwise.where(condition, x, y)

    def backward(self, dz: Any) -> Any:
        (condition,) = self.saved
        k = self.kernels.elementwise
        return k.select(condition, dz), k.select(self.kernels.comparison.logical_not(condition), dz), None


class MaskedFill(Function):
    """y = value where the mask holds, else x;  dx = dy where the mask does not hold."""

    __slots__ = ()
    widens = False

    def forward(self, x: Any, mask: Any, *, value: float) -> Any:
        self.saved = (mask,)
        return self.kernels.elementwise.where(mask, self.kernels.full((), value, x.dtype), x)

    def backward(self, dy: Any) -> Any:
        (mask,) = self.saved
        k = self.kernels.elementwise
        return k.select(self.kernels.comparison.logical_not(mask), dy), None


class NanToNum(Function):
    """y = x with NaN and the infinities replaced by numbers;  dx = dy where x is finite, else 0."""

    __slots__ = ()

    def forward(self, x: Any, *, nan: float, posinf: float | None, neginf: float | None) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.nan_to_num(x, nan, posinf, neginf)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.mul(dy, self.kernels.comparison.isfinite(self.saved[0]))


class Clamp(Function):
    """y = min(max(x, low), high);  dx = dy where low <= x <= high."""

    __slots__ = ("bounds",)
    bounds: tuple[float | None, float | None]

    def forward(self, x: Any, *, low: float | None, high: float | None) -> Any:
        self.bounds = (low, high)
        self.saved = (x,)
        return self.kernels.elementwise.clamp(x, low, high)

    def backward(self, dy: Any) -> Any:
        (x,) = self.saved
        low, high = self.bounds
        select, c = self.kernels.elementwise.select, self.kernels.comparison
        if low is not None:
            dy = select(c.ge(x, low), dy)
        return select(c.le(x, high), dy) if high is not None else dy


class ClampTensor(Function):
    """z = min(max(x, low), high), a NaN in any gives NaN; a bound may be a number, or None.

    dx = dz where low <= x <= high; dlow = dz where x < low < high; dhigh = dz where x > high or low > high.
    """

    __slots__ = ()

    def forward(self, x: Any, low: Any, high: Any) -> Any:
        self.saved = (x, low, high)
        return self.kernels.elementwise.clamp(x, low, high)

    def backward(self, dz: Any) -> Any:
        x, low, high = self.saved
        select, c = self.kernels.elementwise.select, self.kernels.comparison
        dx = dlow = dhigh = dz
        if low is not None:
            dx = select(c.ge(x, low), dx)
            dlow = select(c.lt(x, low), dlow)
        if high is not None:
            dx = select(c.le(x, high), dx)
            dhigh = select(c.gt(x, high) if low is None else c.logical_or(c.gt(x, high), c.gt(low, high)), dhigh)
            if low is not None:
                dlow = select(c.lt(low, high), dlow)
        return dx, dlow if self.needs[1] else None, dhigh if self.needs[2] else None


class Lerp(Arithmetic):
    """z = x + w (y - x), from the nearer end: y - (1 - w) (y - x) for |w| >= 1/2.

    dx = (1 - w) dz, dy = w dz, dw = (y - x) dz.
    """

    __slots__ = ()

    def forward(self, x: Any, y: Any, w: Any) -> Any:
        k = self.kernels.elementwise
        with self.kernels.quiet():  # infinite ends
            distance = k.sub(y, x)
            rest = 1 - w if isinstance(w, int | float) else k.sub(1, w)
            self.saved = (w, rest, distance if self.needs[2] else None)
            if isinstance(w, int | float):
                return k.add(x, k.mul(distance, w)) if abs(w) < 0.5 else k.sub(y, k.mul(distance, rest))
            near = self.kernels.comparison.lt(k.abs(w), 0.5)
            return k.where(near, k.add(x, k.mul(distance, w)), k.sub(y, k.mul(distance, rest)))

    def backward(self, dz: Any) -> Any:
        w, rest, distance = self.saved
        k = self.kernels.elementwise
        return k.mul(dz, rest), k.mul(dz, w), k.mul(dz, distance) if self.needs[2] else None


class Huber(Arithmetic):
    """z = d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2), of d = x - y;  dx = -dy = d dz, d cut at +-delta.

    Source: Huber, "Robust estimation of a location parameter" (1964).
    """

    __slots__ = ()
    floats = True

    def forward(self, x: Any, y: Any, *, delta: float) -> Any:
        k = self.kernels.elementwise
        distance = k.sub(x, y)
        cut = k.clamp(distance, -delta, delta)
        self.saved = (cut,)
        return k.mul(k.abs(cut), k.sub(k.abs(distance), k.mul(k.abs(cut), 0.5)))

    def backward(self, dz: Any) -> Any:
        dx = self.kernels.elementwise.mul(dz, self.saved[0])
        return dx, self.kernels.elementwise.neg(dx) if self.needs[1] else None


class Neg(Function):
    """y = -x;  dx = -dy."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        _refuse_bool("-", x)
        return self.kernels.elementwise.neg(x)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.neg(dy)


class Abs(Function):
    """y = |x|;  dx = sign(x) dy, 0 at 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        _refuse_bool("abs", x)
        self.saved = (x,)
        return self.kernels.elementwise.abs(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.mul(dy, k.sign(self.saved[0]))


class Square(Function):
    """y = x^2;  dx = 2 x dy."""

    __slots__ = ()
    autocast = "float32"

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.square(x)

    def backward(self, dy: Any) -> Any:
        k = self.kernels.elementwise
        return k.mul(k.mul(dy, 2), self.saved[0])


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
        _refuse_bool("relu", x)
        y = self.kernels.elementwise.relu(x)
        self.saved = (y,)
        return y

    def backward(self, dy: Any) -> Any:
        c = self.kernels.comparison
        return self.kernels.elementwise.select(c.logical_not(c.le(self.saved[0], 0)), dy)  # not y > 0: NaN passes dy on


class Cast(Function):
    """y = x in another dtype;  dx = dy in the dtype of x (autograd casts it)."""

    __slots__ = ()
    widens = False

    def forward(self, x: Any, *, dtype: Any) -> Any:
        return self.kernels.elementwise.cast(x, dtype)

    def backward(self, dy: Any) -> Any:
        return dy


class Clone(Function):
    """y = x in new, contiguous memory;  dx = dy."""

    __slots__ = ()
    widens = False

    def forward(self, x: Any) -> Any:
        return self.kernels.copy(x)

    def backward(self, dy: Any) -> Any:
        return dy


class StepFunction(Function):
    """A piecewise constant function: its gradient is zero wherever it has one."""

    __slots__ = ()

    def backward(self, dy: Any) -> Any:
        return _zeros_like(self.kernels, dy)


class Sign(StepFunction):
    """y = -1, 0 or 1, the sign of x;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        return self.kernels.elementwise.sign(x)


class Floor(StepFunction):
    """y = the largest integer <= x;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        _refuse_bool("floor", x)
        return self.kernels.elementwise.floor(x)


class Ceil(StepFunction):
    """y = the smallest integer >= x;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        _refuse_bool("ceil", x)
        return self.kernels.elementwise.ceil(x)


class Round(StepFunction):
    """y = the nearest integer, halves to even;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        _refuse_bool("round", x)
        return self.kernels.elementwise.round(x)


class Trunc(StepFunction):
    """y = x without its fraction;  dx = 0."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        _refuse_bool("trunc", x)
        return self.kernels.elementwise.trunc(x)
