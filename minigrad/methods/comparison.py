"""Methods of Tensor: comparison, logic and bits, with their operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from .. import dtypes
from ..autograd import TensorCore
from ..ops import comparison
from .combine import combine, of_each, of_two

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class ComparisonMethods:
    """See the module."""

    __slots__ = ()

    def __eq__(self: Tensor, other: Any) -> Tensor:  # type: ignore[override]  # elementwise, as in NumPy and PyTorch
        return NotImplemented if other is None else combine(comparison.Eq, self, self._operand(other))

    def __ne__(self: Tensor, other: Any) -> Tensor:  # type: ignore[override]  # elementwise, as in NumPy and PyTorch
        return NotImplemented if other is None else combine(comparison.Ne, self, self._operand(other))

    eq: Final = of_two(comparison.Eq, "eq", "self == other, elementwise.")
    ne: Final = of_two(comparison.Ne, "ne", "self != other, elementwise.")
    lt: Final = of_two(comparison.Lt, "lt", "self < other, elementwise.")
    le: Final = of_two(comparison.Le, "le", "self <= other, elementwise.")
    gt: Final = of_two(comparison.Gt, "gt", "self > other, elementwise.")
    ge: Final = of_two(comparison.Ge, "ge", "self >= other, elementwise.")

    __lt__ = lt
    __le__ = le
    __gt__ = gt
    __ge__ = ge

    def isclose(
        self: Tensor, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor:
        """Where |self - other| <= atol + rtol |other|; equal infinities are close, NaN if ``equal_nan``."""
        other = self.tensor_type(other, device=self.device) if not isinstance(other, TensorCore) else other
        if self.dtype == other.dtype == dtypes.bool_:
            return self == other
        near = (self - other).abs() <= other.abs() * rtol + atol
        close = (self == other) | (near & other.isfinite())
        return close | (self.isnan() & other.isnan()) if equal_nan else close

    def allclose(self: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
        """Whether ``isclose`` holds everywhere."""
        return bool(self.isclose(other, rtol, atol, equal_nan).all())

    def equal(self: Tensor, other: Tensor) -> bool:
        """Whether shape and all values are equal."""
        return self.data.shape == other.data.shape and bool((self == other).all().item())

    isnan: Final = of_each(comparison.IsNan, "Where the value is NaN.")
    isinf: Final = of_each(comparison.IsInf, "Where the value is infinite.")
    isfinite: Final = of_each(comparison.IsFinite, "Where the value is neither NaN nor infinite.")

    def isposinf(self: Tensor) -> Tensor:
        """Where the value is +inf."""
        return self == math.inf if self.is_floating_point() else self.isnan()

    def isneginf(self: Tensor) -> Tensor:
        """Where the value is -inf."""
        return self == -math.inf if self.is_floating_point() else self.isnan()

    logical_not: Final = of_each(comparison.LogicalNot, "Where the value is 0.", "logical_not")
    logical_and: Final = of_two(comparison.LogicalAnd, "logical_and", "Where neither value is 0.")
    logical_or: Final = of_two(comparison.LogicalOr, "logical_or", "Where not both values are 0.")
    logical_xor: Final = of_two(comparison.LogicalXor, "logical_xor", "Where exactly one of the two values is 0.")

    bitwise_not: Final = of_each(comparison.BitwiseNot, "~self, of integers or bool.", "bitwise_not")
    bitwise_and: Final = of_two(comparison.BitwiseAnd, "bitwise_and", "self & other, of integers or bool.")
    bitwise_or: Final = of_two(comparison.BitwiseOr, "bitwise_or", "self | other, of integers or bool.")
    bitwise_xor: Final = of_two(comparison.BitwiseXor, "bitwise_xor", "self ^ other, of integers or bool.")
    bitwise_left_shift: Final = of_two(comparison.LeftShift, "bitwise_left_shift", "self << other, of integers.")
    bitwise_right_shift: Final = of_two(comparison.RightShift, "bitwise_right_shift", "self >> other, with its sign.")
    __rlshift__: Final = of_two(comparison.LeftShift, "__rlshift__")
    __rrshift__: Final = of_two(comparison.RightShift, "__rrshift__")

    __invert__ = bitwise_not
    __and__ = bitwise_and
    __rand__ = bitwise_and
    __or__ = bitwise_or
    __ror__ = bitwise_or
    __xor__ = bitwise_xor
    __rxor__ = bitwise_xor
    __lshift__ = bitwise_left_shift
    __rshift__ = bitwise_right_shift
