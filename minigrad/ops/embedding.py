"""Rows of a table by index."""

from __future__ import annotations

from typing import Any

from ..autograd import Function


class Embedding(Function):
    """y = weight[indices];  dweight[indices] += dy, repeated indices adding up."""

    __slots__ = ()
    widens = False  # which would copy the whole table
    adds_in_place = True

    def forward(self, weight: Any, indices: Any) -> Any:
        self.saved = (indices,)
        return self.kernels.embedding.forward(weight, indices)

    def backward_into(self, dy: Any, dweight: Any) -> None:
        if dweight.flags.c_contiguous:
            self.kernels.embedding.backward_into(dy, self.saved[0], dweight)
        else:  # what another use of the weight began
            own = self.kernels.zeros(dweight.shape, dweight.dtype)
            self.kernels.embedding.backward_into(dy, self.saved[0], own)
            self.kernels.elementwise.add_into(dweight, own)
