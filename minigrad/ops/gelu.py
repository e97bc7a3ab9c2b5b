"""The Gaussian error linear unit (Hendrycks and Gimpel 2016)."""

from __future__ import annotations

from typing import Any

from ..autograd import Function


class Gelu(Function):
    """y = x Phi(x), Phi the normal distribution function;  dx = (Phi(x) + x phi(x)) dy.

    ``approximate="tanh"`` uses Phi(x) = (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, as GPT-2 does.
    """

    __slots__ = ("approximate",)
    approximate: str

    def forward(self, x: Any, *, approximate: str) -> Any:
        self.approximate = approximate
        self.saved = (x,)
        return self.kernels.gelu.forward(x, approximate)

    def backward(self, dy: Any) -> Any:
        return self.kernels.gelu.backward(dy, self.saved[0], self.approximate)
