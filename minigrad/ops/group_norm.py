"""Group normalisation (Wu, He 2018)."""

from typing import Any

from ..autograd import Function


class GroupNorm(Function):
    """y = n w + b with n = (x - mean) rstd, where mean and rstd are those of a group of channels of one sample.

    dx = rstd (g - mean(g) - n mean(g n)) with g = dy w;  dw = sum of dy n and db = sum of dy over all but the channels.
    """

    autocast = "float32"
    promotes = True

    def forward(self, x: Any, weight: Any, bias: Any, *, groups: int, eps: float) -> Any:
        N, C, *_ = shape = x.shape
        x = self.kernels.contiguous(x).reshape(N, C, x.size // max(N * C, 1))
        y, mean, rstd = self.kernels.group_norm.forward(x, weight, bias, groups, eps)
        self.saved = (x, weight, mean, rstd, shape)
        return y.reshape(shape)

    def backward(self, dy: Any) -> Any:
        x, weight, mean, rstd, shape = self.saved
        dy = self.kernels.contiguous(dy).reshape(x.shape)
        dx, dw, db = self.kernels.group_norm.backward(dy, x, weight, mean, rstd)
        return dx.reshape(shape), dw, db
