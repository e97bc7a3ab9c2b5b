"""Batch normalisation (Ioffe, Szegedy 2015)."""

from typing import Any

from ..autograd import Function


class BatchNorm(Function):
    """y = n w + b with n = (x - mean) rstd, rstd = 1 / sqrt(var + eps), channel by channel.

    dw = sum of dy n and db = sum of dy over all but the channels;  dx = w rstd dy, and where mean and var are those of
    x itself (``of_batch``) dx = w rstd (dy - mean(dy) - n mean(dy n)).
    """

    promotes = True

    def forward(self, x: Any, weight: Any, bias: Any, *, mean: Any, var: Any, eps: float, of_batch: bool) -> Any:
        N, C, *_ = shape = x.shape
        x = self.kernels.contiguous(x).reshape(N, C, x.size // max(N * C, 1))
        y, rstd = self.kernels.batch_norm.forward(x, weight, bias, mean, var, eps)
        self.saved = (x, weight, mean, rstd, of_batch, shape)
        return y.reshape(shape)

    def backward(self, dy: Any) -> Any:
        x, weight, mean, rstd, of_batch, shape = self.saved
        dy = self.kernels.contiguous(dy).reshape(x.shape)
        dx, dw, db = self.kernels.batch_norm.backward(dy, x, weight, mean, rstd, of_batch)
        return dx.reshape(shape), dw, db
