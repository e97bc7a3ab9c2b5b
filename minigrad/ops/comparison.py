"""Comparisons and logic: bool results, no gradients. The bitwise operations give integers for integers."""

from collections.abc import Callable
from typing import Any

from ..autograd import Function


class Comparison(Function):
    """Inputs are cast to their common dtype first, integers to one that holds them all; the result is bool."""

    promotes = True
    compares = True
    widens = False
    differentiable = False


class Bitwise(Function):
    """Integer or bool inputs are cast to their common dtype, which is the result's; on bool it is logic."""

    promotes = True
    differentiable = False


def _comparison(
    name: str, formula: str, forward: Callable[..., Any], kind: type[Function] = Comparison
) -> type[Function]:
    """The class of a comparison, whose ``forward`` is one call of a kernel."""
    return type(name, (kind,), {"__module__": __name__, "__doc__": formula, "forward": forward})


def _bitwise(name: str, formula: str, forward: Callable[..., Any]) -> type[Function]:
    """The same of an operation on bits."""
    return _comparison(name, formula, forward, Bitwise)


Eq = _comparison("Eq", "x == y.", lambda op, x, y: op.kernels.comparison.eq(x, y))
Ne = _comparison("Ne", "x != y.", lambda op, x, y: op.kernels.comparison.ne(x, y))
Lt = _comparison("Lt", "x < y.", lambda op, x, y: op.kernels.comparison.lt(x, y))
Le = _comparison("Le", "x <= y.", lambda op, x, y: op.kernels.comparison.le(x, y))
Gt = _comparison("Gt", "x > y.", lambda op, x, y: op.kernels.comparison.gt(x, y))
Ge = _comparison("Ge", "x >= y.", lambda op, x, y: op.kernels.comparison.ge(x, y))
LogicalAnd = _comparison("LogicalAnd", "x and y.", lambda op, x, y: op.kernels.comparison.logical_and(x, y))
LogicalOr = _comparison("LogicalOr", "x or y.", lambda op, x, y: op.kernels.comparison.logical_or(x, y))
LogicalXor = _comparison(
    "LogicalXor", "exactly one of x and y.", lambda op, x, y: op.kernels.comparison.logical_xor(x, y)
)
LogicalNot = _comparison("LogicalNot", "not x.", lambda op, x: op.kernels.comparison.logical_not(x))
IsNan = _comparison("IsNan", "x is NaN.", lambda op, x: op.kernels.comparison.isnan(x))
IsInf = _comparison("IsInf", "x is +inf or -inf.", lambda op, x: op.kernels.comparison.isinf(x))
IsFinite = _comparison("IsFinite", "x is neither NaN nor infinite.", lambda op, x: op.kernels.comparison.isfinite(x))

BitwiseAnd = _bitwise("BitwiseAnd", "x & y, bit by bit.", lambda op, x, y: op.kernels.comparison.bitwise_and(x, y))
BitwiseOr = _bitwise("BitwiseOr", "x | y, bit by bit.", lambda op, x, y: op.kernels.comparison.bitwise_or(x, y))
BitwiseXor = _bitwise("BitwiseXor", "x ^ y, bit by bit.", lambda op, x, y: op.kernels.comparison.bitwise_xor(x, y))
BitwiseNot = _bitwise(
    "BitwiseNot",
    "~x, bit by bit: -x - 1 for a signed integer, not x for bool.",
    lambda op, x: op.kernels.comparison.bitwise_not(x),
)
LeftShift = _bitwise(
    "LeftShift",
    "x << y, that is x 2^y without the bits that leave the dtype.",
    lambda op, x, y: op.kernels.comparison.left_shift(x, y),
)
RightShift = _bitwise(
    "RightShift", "x >> y, that is floor(x / 2^y).", lambda op, x, y: op.kernels.comparison.right_shift(x, y)
)
