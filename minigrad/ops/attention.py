"""Scaled dot-product attention (Vaswani et al. 2017) without the T x T matrix (Dao et al. 2022)."""

from __future__ import annotations

from typing import Any

from ..autograd import Function


class ScaledDotProductAttention(Function):
    """y = P v with P = softmax(scale q k^T), causal rows cut at the diagonal.

    dv = P^T dy;  with dP = dy v^T and dS = P (dP - sum(dy y)):  dq = scale dS k, dk = scale dS^T q. P is computed again
    from q, k and the rows' log-sum-exp. Dropout multiplies P (and dP) with a counter-based mask.
    """

    __slots__ = ("options",)
    promotes = True

    def forward(self, q: Any, k: Any, v: Any, *, options: tuple[Any, ...]) -> Any:
        self.options = options  # causal, scale, dropout_p, seed, offset
        y, lse = self.kernels.attention.forward(q, k, v, *options)
        self.saved = (q, k, v, y, lse)
        return y

    def backward(self, dy: Any) -> Any:
        return self.kernels.attention.backward(dy, *self.saved, *self.options)
