"""Methods of Tensor: the in-place forms of other methods, with the operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..tensor import Operand, Tensor


class DerivedInPlaceMethods:
    """See the module."""

    __slots__ = ()

    def pow_(self: Tensor, exponent: Operand) -> Tensor:
        """self **= exponent, in place."""
        return self._write("pow_", lambda x, y: x**y, exponent)

    def remainder_(self: Tensor, other: Operand) -> Tensor:
        """self %= other, in place."""
        return self._write("remainder_", lambda x, y: x % y, other)

    def floor_divide_(self: Tensor, other: Operand) -> Tensor:
        """self //= other, in place."""
        return self._write("floor_divide_", lambda x, y: x // y, other)

    def bitwise_and_(self: Tensor, other: Operand) -> Tensor:
        """self &= other, in place."""
        return self._write("bitwise_and_", lambda x, y: x & y, other)

    def bitwise_or_(self: Tensor, other: Operand) -> Tensor:
        """self |= other, in place."""
        return self._write("bitwise_or_", lambda x, y: x | y, other)

    def bitwise_xor_(self: Tensor, other: Operand) -> Tensor:
        """self ^= other, in place."""
        return self._write("bitwise_xor_", lambda x, y: x ^ y, other)

    def bitwise_left_shift_(self: Tensor, other: Operand) -> Tensor:
        """self <<= other, in place."""
        return self._write("bitwise_left_shift_", lambda x, y: x << y, other)

    def bitwise_right_shift_(self: Tensor, other: Operand) -> Tensor:
        """self >>= other, in place."""
        return self._write("bitwise_right_shift_", lambda x, y: x >> y, other)

    __ifloordiv__ = floor_divide_
    __imod__ = remainder_
    __ipow__ = pow_
    __iand__ = bitwise_and_
    __ior__ = bitwise_or_
    __ixor__ = bitwise_xor_
    __ilshift__ = bitwise_left_shift_
    __irshift__ = bitwise_right_shift_

    def clamp_(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        """``clamp`` in place."""
        return self._write("clamp_", lambda x, _: x.clamp(min, max), 0)

    def lerp_(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
        """``lerp`` in place."""
        return self._write("lerp_", lambda x, y: x.lerp(y, weight), end)

    def neg_(self: Tensor) -> Tensor:
        """``neg`` in place."""
        return self._write("neg_", lambda x, _: x.neg(), 0)

    def abs_(self: Tensor) -> Tensor:
        """``abs`` in place."""
        return self._write("abs_", lambda x, _: x.abs(), 0)

    def exp_(self: Tensor) -> Tensor:
        """``exp`` in place."""
        return self._write("exp_", lambda x, _: x.exp(), 0)

    def log_(self: Tensor) -> Tensor:
        """``log`` in place."""
        return self._write("log_", lambda x, _: x.log(), 0)

    def sqrt_(self: Tensor) -> Tensor:
        """``sqrt`` in place."""
        return self._write("sqrt_", lambda x, _: x.sqrt(), 0)

    def rsqrt_(self: Tensor) -> Tensor:
        """``rsqrt`` in place."""
        return self._write("rsqrt_", lambda x, _: x.rsqrt(), 0)

    def reciprocal_(self: Tensor) -> Tensor:
        """``reciprocal`` in place."""
        return self._write("reciprocal_", lambda x, _: x.reciprocal(), 0)

    def square_(self: Tensor) -> Tensor:
        """``square`` in place."""
        return self._write("square_", lambda x, _: x.square(), 0)

    def sigmoid_(self: Tensor) -> Tensor:
        """``sigmoid`` in place."""
        return self._write("sigmoid_", lambda x, _: x.sigmoid(), 0)

    def tanh_(self: Tensor) -> Tensor:
        """``tanh`` in place."""
        return self._write("tanh_", lambda x, _: x.tanh(), 0)

    def relu_(self: Tensor) -> Tensor:
        """``relu`` in place."""
        return self._write("relu_", lambda x, _: x.relu(), 0)

    def round_(self: Tensor) -> Tensor:
        """``round`` in place."""
        return self._write("round_", lambda x, _: x.round(), 0)

    def floor_(self: Tensor) -> Tensor:
        """``floor`` in place."""
        return self._write("floor_", lambda x, _: x.floor(), 0)

    def ceil_(self: Tensor) -> Tensor:
        """``ceil`` in place."""
        return self._write("ceil_", lambda x, _: x.ceil(), 0)

    def trunc_(self: Tensor) -> Tensor:
        """``trunc`` in place."""
        return self._write("trunc_", lambda x, _: x.trunc(), 0)
