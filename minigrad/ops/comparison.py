"""Comparisons and logic: bool results, no gradients. The bitwise operations give integers for integers."""

from __future__ import annotations

from typing import Any

from ..autograd import Function


class Comparison(Function):
    """Inputs are cast to their common dtype first; the result is bool."""

    __slots__ = ()
    promotes = True
    widens = False
    differentiable = False


class Eq(Comparison):
    """x == y."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.eq(x, y)


class Ne(Comparison):
    """x != y."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.ne(x, y)


class Lt(Comparison):
    """x < y."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.lt(x, y)


class Le(Comparison):
    """x <= y."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.le(x, y)


class Gt(Comparison):
    """x > y."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.gt(x, y)


class Ge(Comparison):
    """x >= y."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.ge(x, y)


class LogicalAnd(Comparison):
    """x and y."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.logical_and(x, y)


class LogicalOr(Comparison):
    """x or y."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.logical_or(x, y)


class LogicalXor(Comparison):
    """exactly one of x and y."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.logical_xor(x, y)


class LogicalNot(Comparison):
    """not x."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        return self.kernels.comparison.logical_not(x)


class Bitwise(Function):
    """Integer or bool inputs are cast to their common dtype, which is the result's; on bool it is logic."""

    __slots__ = ()
    promotes = True
    differentiable = False


class BitwiseAnd(Bitwise):
    """x & y, bit by bit."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.bitwise_and(x, y)


class BitwiseOr(Bitwise):
    """x | y, bit by bit."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.bitwise_or(x, y)


class BitwiseXor(Bitwise):
    """x ^ y, bit by bit."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.bitwise_xor(x, y)


class LeftShift(Bitwise):
    """x << y, that is x 2^y without the bits that leave the dtype."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.left_shift(x, y)


class RightShift(Bitwise):
    """x >> y, that is floor(x / 2^y)."""

    __slots__ = ()

    def forward(self, x: Any, y: Any) -> Any:
        return self.kernels.comparison.right_shift(x, y)


class BitwiseNot(Bitwise):
    """~x, bit by bit: -x - 1 for a signed integer, not x for bool."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        return self.kernels.comparison.bitwise_not(x)


class IsNan(Comparison):
    """x is NaN."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        return self.kernels.comparison.isnan(x)


class IsInf(Comparison):
    """x is +inf or -inf."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        return self.kernels.comparison.isinf(x)


class IsFinite(Comparison):
    """x is neither NaN nor infinite."""

    __slots__ = ()

    def forward(self, x: Any) -> Any:
        return self.kernels.comparison.isfinite(x)
