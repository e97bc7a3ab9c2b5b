"""What tensor-parallel layers move between ranks. Each operation says what it does in both directions: where forward
gives every rank the same x, backward adds up what each made of it; without that, gradients further down would be those
of one rank's part only.

Parts are those of ``comm.gather.part_of`` (atomr-accel-train's slices).
"""

from __future__ import annotations

from typing import Any

from minigrad.autograd import Function
from minigrad.tensor import Tensor

from ..comm.communicator import Communicator
from ..comm.gather import all_gather_columns, part_of


class _OverRanks(Function):
    """An operation that knows the other ranks."""

    __slots__ = ("communicator",)
    communicator: Communicator
    widens = False

    def sum_of(self, x: Any) -> Any:
        """The sum of all ranks' arrays, in new memory."""
        total = Tensor.wrap(self.kernels.copy(x), self.device)
        self.communicator.all_reduce(total)
        return total.data

    def own(self, whole: Any) -> Any:
        """This rank's part of (..., n)."""
        begin, end = part_of(whole.shape[-1], self.communicator)
        return self.kernels.copy(whole[..., begin:end])


class CopyToRanks(_OverRanks):
    """y = x on every rank;  dx = sum of dy over the ranks, each of which used x for another part."""

    __slots__ = ()
    is_view = True

    def forward(self, x: Any, *, communicator: Communicator) -> Any:
        self.communicator = communicator
        return x

    def backward(self, dy: Any) -> Any:
        return self.sum_of(dy)


class SumOverRanks(_OverRanks):
    """y = sum of x over the ranks;  dx = dy, which is the same on every rank."""

    __slots__ = ()

    def forward(self, x: Any, *, communicator: Communicator) -> Any:
        self.communicator = communicator
        return self.sum_of(x)

    def backward(self, dy: Any) -> Any:
        return dy


class GatherFromRanks(_OverRanks):
    """y (..., n) = the ranks' x (..., n_r) side by side;  dx = this rank's part of dy."""

    __slots__ = ()

    def forward(self, x: Any, *, n: int, communicator: Communicator) -> Any:
        self.communicator = communicator
        return all_gather_columns(self.communicator, x, n)

    def backward(self, dy: Any) -> Any:
        return self.own(dy)


class SplitToRanks(_OverRanks):
    """y (..., n_r) = this rank's part of x (..., n);  dx = the ranks' dy side by side."""

    __slots__ = ("n",)
    n: int

    def forward(self, x: Any, *, communicator: Communicator) -> Any:
        self.communicator = communicator
        self.n = x.shape[-1]
        return self.own(x)

    def backward(self, dy: Any) -> Any:
        return all_gather_columns(self.communicator, dy, self.n)
