"""Methods of Tensor: comparison, logic and bits, with their operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes
from ..autograd import TensorCore
from ..errors import located
from ..ops import comparison

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class ComparisonMethods:
    """See the module."""

    __slots__ = ()

    def __eq__(self: Tensor, other: Any) -> Tensor:  # type: ignore[override]  # elementwise, as in NumPy and PyTorch
        if other is None:
            return NotImplemented
        return comparison.Eq.apply(self, self._operand(other))

    def __ne__(self: Tensor, other: Any) -> Tensor:  # type: ignore[override]  # elementwise, as in NumPy and PyTorch
        if other is None:
            return NotImplemented
        return comparison.Ne.apply(self, self._operand(other))

    def __lt__(self: Tensor, other: Operand) -> Tensor:
        return comparison.Lt.apply(self, self._operand(other))

    def __le__(self: Tensor, other: Operand) -> Tensor:
        return comparison.Le.apply(self, self._operand(other))

    def __gt__(self: Tensor, other: Operand) -> Tensor:
        return comparison.Gt.apply(self, self._operand(other))

    def __ge__(self: Tensor, other: Operand) -> Tensor:
        return comparison.Ge.apply(self, self._operand(other))

    def __invert__(self: Tensor) -> Tensor:
        return comparison.BitwiseNot.apply(_bits("~", self))

    def __and__(self: Tensor, other: Operand) -> Tensor:
        return comparison.BitwiseAnd.apply(_bits("&", self), _bits("&", self._operand(other)))

    def __or__(self: Tensor, other: Operand) -> Tensor:
        return comparison.BitwiseOr.apply(_bits("|", self), _bits("|", self._operand(other)))

    def __xor__(self: Tensor, other: Operand) -> Tensor:
        return comparison.BitwiseXor.apply(_bits("^", self), _bits("^", self._operand(other)))

    def __rand__(self: Tensor, other: Operand) -> Tensor:
        return self & other

    def __ror__(self: Tensor, other: Operand) -> Tensor:
        return self | other

    def __rxor__(self: Tensor, other: Operand) -> Tensor:
        return self ^ other

    def __lshift__(self: Tensor, other: Operand) -> Tensor:
        return comparison.LeftShift.apply(_bits("<<", self), _bits("<<", self._operand(other)))

    def __rlshift__(self: Tensor, other: Operand) -> Tensor:
        return comparison.LeftShift.apply(_bits("<<", self._operand(other)), _bits("<<", self))

    def __rshift__(self: Tensor, other: Operand) -> Tensor:
        return comparison.RightShift.apply(_bits(">>", self), _bits(">>", self._operand(other)))

    def __rrshift__(self: Tensor, other: Operand) -> Tensor:
        return comparison.RightShift.apply(_bits(">>", self._operand(other)), _bits(">>", self))

    def eq(self: Tensor, other: Operand) -> Tensor:
        """self == other, elementwise."""
        return self == other

    def ne(self: Tensor, other: Operand) -> Tensor:
        """self != other, elementwise."""
        return self != other

    def lt(self: Tensor, other: Operand) -> Tensor:
        """self < other, elementwise."""
        return self < other

    def le(self: Tensor, other: Operand) -> Tensor:
        """self <= other, elementwise."""
        return self <= other

    def gt(self: Tensor, other: Operand) -> Tensor:
        """self > other, elementwise."""
        return self > other

    def ge(self: Tensor, other: Operand) -> Tensor:
        """self >= other, elementwise."""
        return self >= other

    def bitwise_not(self: Tensor) -> Tensor:
        """~self, of integers or bool."""
        return ~self

    def bitwise_and(self: Tensor, other: Operand) -> Tensor:
        """self & other, of integers or bool."""
        return self & other

    def bitwise_or(self: Tensor, other: Operand) -> Tensor:
        """self | other, of integers or bool."""
        return self | other

    def bitwise_xor(self: Tensor, other: Operand) -> Tensor:
        """self ^ other, of integers or bool."""
        return self ^ other

    def logical_not(self: Tensor) -> Tensor:
        """Where the value is 0."""
        return comparison.LogicalNot.apply(self)

    def logical_and(self: Tensor, other: Operand) -> Tensor:
        """Where neither value is 0."""
        return comparison.LogicalAnd.apply(self, self._operand(other))

    def logical_or(self: Tensor, other: Operand) -> Tensor:
        """Where not both values are 0."""
        return comparison.LogicalOr.apply(self, self._operand(other))

    def logical_xor(self: Tensor, other: Operand) -> Tensor:
        """Where exactly one of the two values is 0."""
        return comparison.LogicalXor.apply(self, self._operand(other))

    def isnan(self: Tensor) -> Tensor:
        """Where the value is NaN."""
        return comparison.IsNan.apply(self)

    def isinf(self: Tensor) -> Tensor:
        """Where the value is infinite."""
        return comparison.IsInf.apply(self)

    def isfinite(self: Tensor) -> Tensor:
        """Where the value is neither NaN nor infinite."""
        return comparison.IsFinite.apply(self)

    def isposinf(self: Tensor) -> Tensor:
        """Where the value is +inf."""
        return self == math.inf

    def isneginf(self: Tensor) -> Tensor:
        """Where the value is -inf."""
        return self == -math.inf


def _bits(name: str, x: Tensor | float) -> Tensor | float:
    dtype = x.dtype if isinstance(x, TensorCore) else np.asarray(x).dtype
    if dtypes.is_floating(dtype):
        raise located(
            TypeError(f"{name} is for integers and bool, not {dtype}; compare first (x > 0), or convert with .long()")
        )
    return x
