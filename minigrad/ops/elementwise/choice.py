"""Operations whose result is one of their inputs, element by element; the gradient goes to the one that was taken."""

from collections.abc import Callable
from typing import Any, ClassVar

from ...autograd import Function
from .formulas import OfTensors


def _share(k: Any, dz: Any, x: Any, y: Any) -> Any:
    return k.where(k.eq(x, y), k.mul(dz, 0.5), dz)


def _of_larger(k: Any, dz: Any, x: Any, y: Any) -> Any:
    return k.select(k.logical_not(k.lt(x, y)), _share(k, dz, x, y))


def _of_smaller(k: Any, dz: Any, x: Any, y: Any) -> Any:
    return k.select(k.logical_not(k.gt(x, y)), _share(k, dz, x, y))


class Maximum(OfTensors):
    """z = max(x, y); a tie gives half of dz to each. NaN in either gives NaN."""

    formulas = (lambda k, x, y: k.maximum(x, y), _of_larger, _of_smaller)


class Minimum(OfTensors):
    """z = min(x, y); a tie gives half of dz to each. NaN in either gives NaN."""

    formulas = (lambda k, x, y: k.minimum(x, y), _of_smaller, _of_larger)


def _rest(k: Any, dz: Any, condition: Any) -> Any:
    return k.select(k.logical_not(condition), dz)


class Where(Function):
    """z = x where the condition holds, else y;  dz goes to the one that was taken."""

    widens = False

    def forward(self, condition: Any, x: Any, y: Any) -> Any:
        self.saved = (condition,)
        return self.kernels.elementwise.where(condition, x, y)

    def backward(self, dz: Any) -> Any:
        (condition,) = self.saved
        k = self.kernels.elementwise
        return None, k.select(condition, dz), k.fused(_rest, dz, condition)


class MaskedFill(Function):
    """y = value where the mask holds, else x;  dx = dy where the mask does not hold."""

    widens = False
    formula: ClassVar[Any] = staticmethod(lambda k, x, mask, value: k.where(mask, value, x))

    def forward(self, x: Any, mask: Any, value: float) -> Any:
        self.saved = (mask,)
        return self.kernels.elementwise.fused(self.formula, x, mask, value)

    def backward(self, dy: Any) -> Any:
        (mask,) = self.saved
        return self.kernels.elementwise.fused(_rest, dy, mask), None, None


class NanToNum(Function):
    """y = x with NaN and the infinities replaced by numbers;  dx = dy where x is finite, else 0."""

    half_kernels = "elementwise"

    def forward(self, x: Any, *, nan: float, posinf: float | None, neginf: float | None) -> Any:
        self.saved = (x,)
        return self.kernels.elementwise.nan_to_num(x, nan, posinf, neginf)

    def backward(self, dy: Any) -> Any:
        return self.kernels.elementwise.fused(_of_finite, dy, self.saved[0])


def _of_finite(k: Any, dy: Any, x: Any) -> Any:
    return k.mul(dy, k.isfinite(x))


def _where(compared: str) -> Callable[..., Any]:
    return lambda k, dz, x, y: k.select(getattr(k, compared)(x, y), dz)


class AtLeast(OfTensors):
    """z = max(x, low), a NaN in either gives NaN;  dx = dz where x >= low, else dlow = dz."""

    formulas = (Maximum.formulas[0], _where("ge"), _where("lt"))


class AtMost(OfTensors):
    """z = min(x, high), a NaN in either gives NaN;  dx = dz where x <= high, else dhigh = dz."""

    formulas = (Minimum.formulas[0], _where("le"), _where("gt"))


class Clamp(OfTensors):
    """z = min(max(x, low), high), a NaN in any gives NaN.

    dx = dz where low <= x <= high; dlow = dz where x < low < high; dhigh = dz where x > high or low > high.
    """

    formulas: ClassVar[tuple[Any, ...]] = (
        lambda k, x, low, high: k.clamp(x, low, high),
        lambda k, dz, x, low, high: k.select(k.logical_and(k.ge(x, low), k.le(x, high)), dz),
        lambda k, dz, x, low, high: k.select(k.logical_and(k.lt(x, low), k.lt(low, high)), dz),
        lambda k, dz, x, low, high: k.select(k.logical_or(k.gt(x, high), k.gt(low, high)), dz),
    )
