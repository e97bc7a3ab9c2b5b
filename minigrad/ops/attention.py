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
    autocast = "half"
    promotes = True
    options: tuple[Any, ...]

    def forward(self, q: Any, k: Any, v: Any, *, options: tuple[Any, ...]) -> Any:
        self.options = options  # causal, scale, dropout_p, seed, offset
        y, lse = self.kernels.attention.forward(q, k, v, *options)
        self.saved = (q, k, v, y, lse)
        return y

    def backward(self, dy: Any) -> Any:
        return self.kernels.attention.backward(dy, *self.saved, *self.options)


class PackedAttention(Function):
    """The same where one projection made queries, keys and values: qkv (B, T, 3, H, D) -> y (B, T, H, D), or
    with these last dimensions as one (B, T, 3 H D) -> (B, T, H D).

    One node in place of the dozen that take qkv apart, and its gradient is written once, not added up from thirds.
    """

    __slots__ = ("heads", "options")
    autocast = "half"
    options: tuple[Any, ...]
    heads: tuple[int, ...]

    def forward(self, qkv: Any, *, heads: tuple[int, ...], options: tuple[Any, ...]) -> Any:
        self.heads, self.options = heads, options  # (B, T, 3, H, D)
        y, lse = self.kernels.attention.forward(*self._parts(qkv), *options)
        self.saved = (qkv, y, lse)
        y = y.swapaxes(1, 2)
        return y.reshape(*heads[:2], heads[3] * heads[4]) if len(qkv.shape) == 3 else y

    def backward(self, dy: Any) -> Any:
        qkv, y, lse = self.saved
        dqkv = self.kernels.empty(qkv.shape, qkv.dtype)
        dy = dy.reshape(*self.heads[:2], *self.heads[3:]).swapaxes(1, 2)
        grads = self.kernels.attention.backward(dy, *self._parts(qkv), y, lse, *self.options)
        for part, grad in zip(self._parts(dqkv), grads):
            self.kernels.elementwise.assign(part, grad)
        return dqkv

    def _parts(self, qkv: Any) -> list[Any]:
        """Queries, keys and values, each (B, H, T, D), as views."""
        qkv = qkv.reshape(self.heads)
        return [qkv[:, :, i].swapaxes(1, 2) for i in range(3)]
