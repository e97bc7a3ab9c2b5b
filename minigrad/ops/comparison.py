"""Comparisons and logic: bool results, no gradients. The bitwise operations give integers for integers."""

import functools
from operator import attrgetter
from typing import Any

from ..autograd import Function
from ..errors import bad_type


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


def _comparison(name: str, formula: str, kernel: str, kind: type[Function] = Comparison) -> type[Function]:
    """The class of a comparison, whose ``forward`` is one call of a kernel."""
    function = attrgetter(f"comparison.{kernel}")

    def forward(self: Function, *inputs: Any) -> Any:
        for x in inputs if kind is Bitwise else ():
            if hasattr(x, "dtype") and x.dtype.kind == "f":
                name = "~" if len(inputs) == 1 else formula.split()[1]
                advice = "compare first (x > 0), or convert with .long()"
                raise bad_type(f"{name} is for integers and bool, not {x.dtype}; {advice}")
        return function(self.kernels)(*inputs)

    return type(name, (kind,), {"__module__": __name__, "__doc__": formula, "forward": forward})


_bitwise = functools.partial(_comparison, kind=Bitwise)

Eq = _comparison("Eq", "x == y.", "eq")
Ne = _comparison("Ne", "x != y.", "ne")
Lt = _comparison("Lt", "x < y.", "lt")
Le = _comparison("Le", "x <= y.", "le")
Gt = _comparison("Gt", "x > y.", "gt")
Ge = _comparison("Ge", "x >= y.", "ge")
LogicalAnd = _comparison("LogicalAnd", "x and y.", "logical_and")
LogicalOr = _comparison("LogicalOr", "x or y.", "logical_or")
LogicalXor = _comparison("LogicalXor", "exactly one of x and y.", "logical_xor")
LogicalNot = _comparison("LogicalNot", "not x.", "logical_not")
IsNan = _comparison("IsNan", "x is NaN.", "isnan")
IsInf = _comparison("IsInf", "x is +inf or -inf.", "isinf")
IsFinite = _comparison("IsFinite", "x is neither NaN nor infinite.", "isfinite")

BitwiseAnd = _bitwise("BitwiseAnd", "x & y, bit by bit.", "bitwise_and")
BitwiseOr = _bitwise("BitwiseOr", "x | y, bit by bit.", "bitwise_or")
BitwiseXor = _bitwise("BitwiseXor", "x ^ y, bit by bit.", "bitwise_xor")
BitwiseNot = _bitwise("BitwiseNot", "~x, bit by bit: -x - 1 for a signed integer, not x for bool.", "bitwise_not")
LeftShift = _bitwise("LeftShift", "x << y, that is x 2^y without the bits that leave the dtype.", "left_shift")
RightShift = _bitwise("RightShift", "x >> y, that is floor(x / 2^y).", "right_shift")
