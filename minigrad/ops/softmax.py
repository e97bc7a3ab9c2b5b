"""Softmax and its logarithm along one axis."""

from typing import Any

from ..autograd import Function


class Softmax(Function):
    """y = e^x / sum(e^x);  dx = y (dy - sum(dy y)).

    Backward has y as it was rounded, where kernels read half floats.
    """

    autocast = "float32"
    half_kernels = "reduce"
    floats = True

    def forward(self, x: Any, *, axis: int) -> Any:
        y = self.kernels.softmax.forward(x, axis)
        self.saved = (y, axis)
        return y

    def backward(self, dy: Any) -> Any:
        return self.kernels.softmax.backward(dy, *self.saved)


class LogSoftmax(Softmax):
    """y = x - log(sum(e^x));  dx = dy - e^y sum(dy)."""

    def forward(self, x: Any, *, axis: int) -> Any:
        y = self.kernels.softmax.log_forward(x, axis)
        self.saved = (y, axis)
        return y

    def backward(self, dy: Any) -> Any:
        return self.kernels.softmax.log_backward(dy, *self.saved)
