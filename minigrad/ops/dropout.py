"""Dropout (Srivastava et al. 2014) whose mask is never stored."""

from typing import Any

from ..autograd import Function


class Dropout(Function):
    """y = x m / (1 - p), m_i = 0 with probability p, else 1;  dx = dy m / (1 - p).

    m comes from the counter-based generator at (seed, offset), so backward computes it again instead of keeping it.
    """

    __slots__ = ("draw",)
    half_kernels = "elementwise"

    def forward(self, x: Any, *, p: float, seed: int, offset: int) -> Any:
        self.draw: tuple[float, int, int] = (p, seed, offset)
        return self.kernels.dropout.forward(x, *self.draw)

    def backward(self, dy: Any) -> Any:
        return self.kernels.dropout.forward(dy, *self.draw)
