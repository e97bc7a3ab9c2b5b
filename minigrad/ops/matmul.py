"""Matrix products."""

from typing import Any

from .linear import OfProducts


def _transposed(x: Any) -> Any:
    return x.swapaxes(-1, -2)


class MatMul(OfProducts):
    """C = A B for matrices, batched and broadcast over leading axes;  dA = dC B^T, dB = A^T dC."""

    def forward(self, a: Any, b: Any) -> Any:
        if a.shape[-1] != b.shape[-2]:
            raise ValueError(f"inner dimensions differ: {a.shape[-1]} and {b.shape[-2]}; (m, k) @ (k, n) would work")
        if any(n != m and 1 not in (n, m) for n, m in zip(a.shape[-3::-1], b.shape[-3::-1])):
            raise ValueError(f"batches of shapes {a.shape[:-2]} and {b.shape[:-2]} do not broadcast")
        self.saved = (a if self.needs[1] else None, b if self.needs[0] else None)
        return self.kernels.matmul.matmul(a, b)

    def backward(self, dc: Any) -> Any:
        a, b = self.saved
        matmul = self.kernels.matmul.matmul
        da = matmul(dc, _transposed(b)) if self.needs[0] else None
        db = matmul(_transposed(a), dc) if self.needs[1] else None
        return da, db
