"""Matrix products."""

from __future__ import annotations

import math
from typing import Any

from ..autograd import Function
from ..dtypes import is_half


def _transposed(x: Any) -> Any:
    return x.swapaxes(-1, -2)


class MatMul(Function):
    """C = A B for matrices, batched and broadcast over leading axes;  dA = dC B^T, dB = A^T dC."""

    __slots__ = ()
    autocast = "half"
    half_kernels = "matmul"
    promotes = True

    def forward(self, a: Any, b: Any) -> Any:
        if a.shape[-1] != b.shape[-2]:
            raise ValueError(f"inner dimensions differ: {a.shape[-1]} and {b.shape[-2]}; (m, k) @ (k, n) would work")
        batches = zip(a.shape[-3::-1], b.shape[-3::-1])
        if any(n != m and 1 not in (n, m) for n, m in batches):
            raise ValueError(f"batches of shapes {a.shape[:-2]} and {b.shape[:-2]} do not broadcast")
        self.saved = (a if self.needs[1] else None, b if self.needs[0] else None)
        return self.kernels.matmul.matmul(a, b)

    def backward(self, dc: Any) -> Any:
        a, b = self.saved
        matmul = self.kernels.matmul.matmul
        da = matmul(dc, _transposed(b)) if self.needs[0] else None
        db = matmul(_transposed(a), dc) if self.needs[1] else None
        return da, db


class Linear(Function):
    """y = x W^T + b, W of shape (out, in);  dx = dy W, dW = dy^T x, db = sum of dy over the rows."""

    __slots__ = ()
    autocast = "half"
    half_kernels = "matmul"
    promotes = True

    def forward(self, x: Any, weight: Any, bias: Any = None) -> Any:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])  # no -1: a size may be 0
        self.saved = (rows if self.needs[1] else None, weight if self.needs[0] else None, x.shape)
        y = self.kernels.matmul.matmul(rows, weight.T, bias)
        return y.reshape(*x.shape[:-1], weight.shape[0])

    def backward(self, dy: Any) -> Any:
        rows, weight, shape = self.saved
        k = self.kernels
        dy = dy.reshape(math.prod(dy.shape[:-1]), dy.shape[-1])
        dx = k.matmul.matmul(dy, weight).reshape(shape) if self.needs[0] else None
        dweight = k.matmul.matmul(dy.T, rows) if self.needs[1] else None
        if len(self.needs) == 2:
            return dx, dweight
        if not self.needs[2]:
            return dx, dweight, None
        if is_half(dy.dtype):  # sums of halves are products: the kernels of matmul add in float32
            return dx, dweight, k.matmul.matmul(k.ones((1, len(dy)), dy.dtype), dy).reshape(dy.shape[1])
        return dx, dweight, k.reduce.sum(dy, (0,), False)
