"""Operations whose result is one of their inputs, element by element; the gradient goes to the one that was taken."""

from typing import Any, ClassVar

from ...autograd import Function
from .arithmetic import Arithmetic


class Maximum(Arithmetic):
    """z = max(x, y); a tie gives half of dz to each. NaN in either gives NaN."""

    largest: ClassVar[bool] = True

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y)
        return self.kernels.elementwise.maximum(x, y)

    def backward(self, dz: Any) -> Any:
        x, y = self.saved
        k, c = self.kernels.elementwise, self.kernels.comparison
        share = k.where(c.eq(x, y), k.mul(dz, 0.5), dz)
        x_loses, y_loses = (c.lt, c.gt) if self.largest else (c.gt, c.lt)
        return k.select(c.logical_not(x_loses(x, y)), share), k.select(c.logical_not(y_loses(x, y)), share)


class Minimum(Maximum):
    """z = min(x, y); a tie gives half of dz to each. NaN in either gives NaN."""

    largest = False

    def forward(self, x: Any, y: Any) -> Any:
        self.saved = (x, y)
        return self.kernels.elementwise.minimum(x, y)


class Where(Function):
    """z = x where the condition holds, else y;  dz goes to the one that was taken."""

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

    widens = False

    def forward(self, x: Any, mask: Any, value: float) -> Any:
        self.saved = (mask,)
        return self.kernels.elementwise.where(mask, self.kernels.full((), value, x.dtype), x)

    def backward(self, dy: Any) -> Any:
        (mask,) = self.saved
        return self.kernels.elementwise.select(self.kernels.comparison.logical_not(mask), dy), None, None


class NanToNum(Function):
    """y = x with NaN and the infinities replaced by numbers;  dx = dy where x is finite, else 0."""

    half_kernels = "elementwise"

    def forward(self, x: Any, *, nan: float, posinf: float | None, neginf: float | None) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.nan_to_num(x, nan, posinf, neginf)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.mul(dy, self.kernels.comparison.isfinite(self.saved[0]))


class Clamp(Arithmetic):
    """z = min(max(x, low), high), a NaN in any gives NaN; a bound may be a number, or None.

    dx = dz where low <= x <= high; dlow = dz where x < low < high; dhigh = dz where x > high or low > high.
    """

    half_kernels = "elementwise"

    def forward(self, x: Any, low: Any, high: Any = None) -> Any:
        self.saved = (x, low, high)
        return self.kernels.elementwise.clamp(x, low, high)

    def backward(self, dz: Any) -> Any:
        x, low, high = self.saved
        select, c = self.kernels.elementwise.select, self.kernels.comparison
        dx, dlow, dhigh = dz, None, None
        if low is not None:
            dx = select(c.ge(x, low), dx)
        if high is not None:
            dx = select(c.le(x, high), dx)
        if self.needs[1]:
            dlow = select(c.lt(x, low), dz)
            dlow = dlow if high is None else select(c.lt(low, high), dlow)
        if self.needs[2]:
            dhigh = select(c.gt(x, high) if low is None else c.logical_or(c.gt(x, high), c.gt(low, high)), dz)
        return dx, dlow, dhigh
