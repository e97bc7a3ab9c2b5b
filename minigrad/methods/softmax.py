"""Methods of Tensor: softmax and its logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import shapes
from ..ops import softmax

if TYPE_CHECKING:
    from ..tensor import Tensor


class SoftmaxMethods:
    """See the module."""

    __slots__ = ()

    def softmax(self: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
        """exp(self) along ``dim``, divided by its sum."""
        return softmax.Softmax.apply(self, axis=shapes.some_dim("softmax", dim, axis, self.ndim))

    def log_softmax(self: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
        """log(softmax(self)) along ``dim``, computed without overflow."""
        return softmax.LogSoftmax.apply(self, axis=shapes.some_dim("log_softmax", dim, axis, self.ndim))
