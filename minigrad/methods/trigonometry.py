"""Methods of Tensor: the inverse and the hyperbolic functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ops import trigonometry

if TYPE_CHECKING:
    from ..tensor import Tensor


class TrigonometryMethods:
    """See the module."""

    __slots__ = ()

    def sinh(self: Tensor) -> Tensor:
        """Hyperbolic sine."""
        return trigonometry.Sinh.apply(self)

    def cosh(self: Tensor) -> Tensor:
        """Hyperbolic cosine."""
        return trigonometry.Cosh.apply(self)

    def asin(self: Tensor) -> Tensor:
        """Inverse sine, in [-pi / 2, pi / 2]."""
        return trigonometry.Asin.apply(self)

    def acos(self: Tensor) -> Tensor:
        """Inverse cosine, in [0, pi]."""
        return trigonometry.Acos.apply(self)

    def atan(self: Tensor) -> Tensor:
        """Inverse tangent, in (-pi / 2, pi / 2)."""
        return trigonometry.Atan.apply(self)

    def atan2(self: Tensor, other: Tensor) -> Tensor:
        """The angle, in [-pi, pi], of the points with y = self and x = other."""
        return trigonometry.Atan2.apply(self, self._operand(other))

    def asinh(self: Tensor) -> Tensor:
        """Inverse hyperbolic sine."""
        return trigonometry.Asinh.apply(self)

    def acosh(self: Tensor) -> Tensor:
        """Inverse hyperbolic cosine, of values of at least 1."""
        return trigonometry.Acosh.apply(self)

    def atanh(self: Tensor) -> Tensor:
        """Inverse hyperbolic tangent, of values in [-1, 1]."""
        return trigonometry.Atanh.apply(self)
