"""Rows of a table by index, and those of the places where the indices stand."""

from __future__ import annotations

from typing import Any

from ..autograd import Function
from .embedding import add_rows


class PositionedEmbedding(Function):
    """y[b, t] = weight[indices[b, t]] + positions[start + t];  dweight as in ``Embedding``, dpositions[start + t] +=
    the sum over b of dy[b, t]. indices (B, T), both tables (rows, C), float32 or float64, on the CPU.
    """

    __slots__ = ("start",)
    adds_in_place = True
    start: int

    def forward(self, weight: Any, indices: Any, positions: Any, *, start: int) -> Any:
        self.start, self.saved = start, (indices,)
        rows = positions[start : start + indices.shape[1]]
        return self.kernels.positioned_embedding.forward(weight, indices, rows)

    def backward_into(self, dy: Any, dx: Any, *more: Any) -> None:
        if self.needs[0]:
            add_rows(self.kernels, dy, self.saved[0], dx)
        if self.needs[2]:
            rows = (dx, *more)[-1][self.start : self.start + dy.shape[1]]
            self.kernels.elementwise.add_into(rows, self.kernels.reduce.sum(dy, (0,), False))
