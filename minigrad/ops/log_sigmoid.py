"""Logarithm of the sigmoid."""

from typing import Any

from ..autograd import Function


class LogSigmoid(Function):
    """y = log(1 / (1 + e^-x));  dx = dy / (1 + e^x)."""

    def forward(self, x: Any) -> Any:
        self.saved = (x,)
        return self.kernels.log_sigmoid.forward(x)

    def backward(self, dy: Any) -> Any:
        return self.kernels.log_sigmoid.backward(dy, self.saved[0])
