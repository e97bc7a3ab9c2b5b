"""Layer normalisation (Ba, Kiros, Hinton 2016)."""

import math
from typing import Any

from ..autograd import Function


class LayerNorm(Function):
    """y = n w + b with n = (x - mean) rstd over the normalised axes, rstd = 1 / sqrt(var + eps).

    dx = rstd (g - mean(g) - n mean(g n)) with g = dy w;  dw = sum over rows of dy n, db = sum over rows of dy.
    """

    autocast = "float32"
    half_kernels = "reduce"
    promotes = True

    def forward(self, x: Any, weight: Any, bias: Any, *, eps: float, made: Any = None) -> Any:
        """``made``: what ``fast.add_norm.AddForNorm`` has computed of this x already."""
        w, b, rows, shape = weight, bias, x, None  # the shape of x, unless its rows are those of a matrix
        if weight.ndim > 1:
            w, b = (self.kernels.contiguous(array).reshape(-1) for array in (weight, bias))
        if x.ndim != 2 or weight.ndim != 1:
            shape = x.shape
            rows = self.kernels.contiguous(x).reshape(math.prod(shape[: x.ndim - weight.ndim]), w.size)
        y, mean, rstd = made or self.kernels.layer_norm.forward(rows, w, b, eps)
        self.saved = (rows, w, mean, rstd, shape, weight.shape)
        return y if shape is None else y.reshape(shape)

    def backward(self, dy: Any) -> Any:
        rows, w, mean, rstd, shape, w_shape = self.saved
        if shape is not None:
            dy = self.kernels.contiguous(dy).reshape(rows.shape)
        dx, dw, db = self.kernels.layer_norm.backward(dy, rows, w, mean, rstd)
        if len(w_shape) > 1:
            dw, db = dw.reshape(w_shape), db.reshape(w_shape)
        return dx if shape is None else dx.reshape(shape), dw, db
