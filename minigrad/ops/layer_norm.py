"""Layer normalisation (Ba, Kiros, Hinton 2016)."""

from __future__ import annotations

import math
from typing import Any

from ..autograd import Function


class LayerNorm(Function):
    """y = n w + b with n = (x - mean) rstd over the normalised axes, rstd = 1 / sqrt(var + eps).

    dx = rstd (g - mean(g) - n mean(g n)) with g = dy w;  dw = sum over rows of dy n, db = sum over rows of dy.
    """

    __slots__ = ("shape",)
    autocast = "float32"
    promotes = True
    shape: Any

    def forward(self, x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
        self.shape = x.shape
        contiguous = self.kernels.contiguous
        rows = contiguous(x).reshape(math.prod(x.shape[: x.ndim - weight.ndim]), weight.size)
        w = contiguous(weight).reshape(-1)
        y, mean, rstd = self.kernels.layer_norm.forward(rows, w, contiguous(bias).reshape(-1), eps)
        self.saved = (rows, w, mean, rstd, weight.shape)
        return y.reshape(x.shape)

    def backward(self, dy: Any) -> Any:
        rows, w, mean, rstd, shape = self.saved
        dy = self.kernels.contiguous(dy).reshape(rows.shape)
        dx, dw, db = self.kernels.layer_norm.backward(dy, rows, w, mean, rstd)
        if len(shape) > 1:
            dw, db = dw.reshape(shape), db.reshape(shape)
        return dx.reshape(self.shape), dw, db
