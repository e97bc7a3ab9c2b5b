"""Rows of a table by index."""

from typing import Any

from ..autograd import Function


class Embedding(Function):
    """y = weight[indices];  dweight[indices] += dy, repeated indices adding up."""

    widens = False  # which would copy the whole table
    adds_in_place = True

    def forward(self, weight: Any, indices: Any) -> Any:
        self.saved = (indices,)
        return self.kernels.embedding.forward(weight, indices)

    def backward_into(self, dy: Any, dweight: Any) -> None:
        add_rows(self.kernels, dy, self.saved[0], dweight)


def add_rows(kernels: Any, dy: Any, indices: Any, dweight: Any) -> None:
    """dweight[indices] += dy, repeated indices adding up."""
    if dweight.flags.c_contiguous:
        kernels.embedding.backward_into(dy, indices, dweight)
    else:  # what another use of the weight began
        own = kernels.zeros(dweight.shape, dweight.dtype)
        kernels.embedding.backward_into(dy, indices, own)
        kernels.elementwise.add_into(dweight, own)
