"""Matrix products."""

from typing import Any

from .linear import OfProducts


class MatMul(OfProducts):
    """C = A B for matrices, batched and broadcast over leading axes;  dA = dC B^T, dB = A^T dC.

    A vector A is a matrix of one row, B of one column, and C lacks that dimension.
    """

    def forward(self, a: Any, b: Any) -> Any:
        row, column = len(a.shape) == 1, len(b.shape) == 1
        a, b = a.reshape((1, *a.shape)) if row else a, b.reshape((*b.shape, 1)) if column else b
        if a.shape[-1] != b.shape[-2]:
            raise ValueError(f"inner dimensions differ: {a.shape[-1]} and {b.shape[-2]}; (m, k) @ (k, n) would work")
        if len(a.shape) > 2 and any(n != m and 1 not in (n, m) for n, m in zip(a.shape[-3::-1], b.shape[-3::-1])):
            raise ValueError(f"batches of shapes {a.shape[:-2]} and {b.shape[:-2]} do not broadcast")
        c = self.kernels.matmul.matmul(a, b)
        self.saved = (a if self.needs[1] else None, b if self.needs[0] else None, row, column, c.shape)
        return _without(c, row, column)

    def backward(self, dc: Any) -> Any:
        a, b, row, column, shape = self.saved
        matmul, dc = self.kernels.matmul.matmul, dc.reshape(shape) if row or column else dc
        da = _without(matmul(dc, b.swapaxes(-1, -2)), row, False) if self.needs[0] else None
        return da, _without(matmul(a.swapaxes(-1, -2), dc), False, column) if self.needs[1] else None


def _without(x: Any, row: bool, column: bool) -> Any:
    """Matrices without the dimension of rows, if they are of one row, or of columns."""
    batch, last = x.shape[:-2], x.shape[-1:]
    return x.reshape(batch + (() if row else x.shape[-2:-1]) + (() if column else last)) if row or column else x
