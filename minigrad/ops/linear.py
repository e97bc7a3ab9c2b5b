"""Linear layers, with the sum that follows one."""

import math
from typing import Any

from ..autograd import Function


def rows_of(kernels: Any, x: Any) -> Any:
    """(..., C) as a matrix. The kernels may have to copy, which a captured graph does again."""
    shape = (math.prod(x.shape[:-1]), x.shape[-1])  # no -1: a size may be 0
    return x if len(x.shape) == 2 else kernels.movement.reshape(x, shape)


class OfProducts(Function):
    """What is computed by products of matrices: in half floats under autocast, where these kernels have them."""

    autocast = "half"
    half_kernels = "matmul"
    promotes = True


class Linear(OfProducts):
    """y = x W^T + b (+ r), W of shape (out, in);  dx = dy W, dW = dy^T x, db = sum of dy over the rows, dr = dy.

    Inputs are x, W, then b or None, then r; the last ones may be left out.
    """

    def forward(self, x: Any, weight: Any, bias: Any = None, residual: Any = None) -> Any:
        rows, needs = rows_of(self.kernels, x), self.needs
        self.saved = (rows if needs[1] else None, weight if needs[0] else None, x.shape)
        added = None if residual is None else rows_of(self.kernels, residual)
        y = self.kernels.linear.forward(rows, weight, bias, added)
        return y if len(x.shape) == 2 else y.reshape(*x.shape[:-1], weight.shape[0])

    def backward(self, dy: Any) -> Any:
        (rows, weight, shape), needs = self.saved, self.needs
        dx, dweight, dbias = self.kernels.linear.backward(
            rows_of(self.kernels, dy), rows, weight, (needs[0], needs[1], len(needs) > 2 and needs[2])
        )
        if dx is not None and len(shape) != 2:
            dx = dx.reshape(shape)
        return (dx, dweight, dbias, dy if len(needs) == 4 and needs[3] else None)[: len(needs)]
