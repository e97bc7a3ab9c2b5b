"""Layer normalisation (Ba, Kiros, Hinton 2016)."""

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
    shape: tuple[int, ...] | None  # of x, unless its rows are those of a matrix

    def forward(self, x: Any, weight: Any, bias: Any, *, eps: float, made: Any = None) -> Any:
        """``made``: what ``fast.add_norm.AddForNorm`` has computed of this x already."""
        self.shape = None
        w, b, rows = weight, bias, x
        if weight.ndim > 1:
            w, b = (self.kernels.contiguous(array).reshape(-1) for array in (weight, bias))
        if x.ndim != 2 or weight.ndim != 1:
            self.shape = x.shape
            rows = self.kernels.contiguous(x).reshape(math.prod(x.shape[: x.ndim - weight.ndim]), w.size)
        y, mean, rstd = made or self.kernels.layer_norm.forward(rows, w, b, eps)
        self.saved = (rows, w, mean, rstd, weight.shape)
        return y if self.shape is None else y.reshape(self.shape)

    def backward(self, dy: Any) -> Any:
        rows, w, mean, rstd, shape = self.saved
        if self.shape is not None:
            dy = self.kernels.contiguous(dy).reshape(rows.shape)
        dx, dw, db = self.kernels.layer_norm.backward(dy, rows, w, mean, rstd)
        if len(shape) > 1:
            dw, db = dw.reshape(shape), db.reshape(shape)
        return dx if self.shape is None else dx.reshape(self.shape), dw, db
