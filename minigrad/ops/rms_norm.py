"""Root-mean-square normalisation (Zhang, Sennrich 2019)."""

import math
from typing import Any

from ..autograd import Function


class RMSNorm(Function):
    """y = n w with n = x rstd, rstd = 1 / sqrt(mean(x^2) + eps) over the normalised axes.

    dx = rstd (g - n mean(g n)) with g = dy w;  dw = sum over rows of dy n.
    """

    autocast = "float32"
    half_kernels = "reduce"
    promotes = True

    def forward(self, x: Any, weight: Any, *, eps: float, made: Any = None) -> Any:
        """``made``: what ``fast.add_norm.AddForNorm`` has computed of this x already."""
        contiguous = self.kernels.contiguous
        rows = contiguous(x).reshape(math.prod(x.shape[: x.ndim - weight.ndim]), weight.size)
        w = contiguous(weight).reshape(-1)
        y, rstd = made or self.kernels.rms_norm.forward(rows, w, eps)
        self.saved = (rows, w, rstd, x.shape, weight.shape)
        return y.reshape(x.shape)

    def backward(self, dy: Any) -> Any:
        rows, w, rstd, shape, w_shape = self.saved
        dx, dw = self.kernels.rms_norm.backward(self.kernels.contiguous(dy).reshape(rows.shape), rows, w, rstd)
        return dx.reshape(shape), dw.reshape(w_shape)
