"""Scaled dot-product attention (Vaswani et al. 2017) without the T x T matrix (Dao et al. 2022)."""

from typing import Any, NamedTuple

from ..autograd import Function


class Options(NamedTuple):
    """Of attention: dropout draws its mask from ``seed`` and ``offset``."""

    causal: bool
    scale: float
    dropout_p: float = 0.0
    seed: int = 0
    offset: int = 0


class ScaledDotProductAttention(Function):
    """y = P v with P = softmax(scale q k^T), causal rows cut at the diagonal.

    dv = P^T dy;  with dP = dy v^T and dS = P (dP - sum(dy y)):  dq = scale dS k, dk = scale dS^T q. P is computed again
    from q, k and the rows' log-sum-exp. Dropout multiplies P (and dP) with a counter-based mask.
    """

    autocast = "half"
    half_kernels = "attention"
    promotes = True

    def forward(self, q: Any, k: Any, v: Any, *, options: Options) -> Any:
        y, lse = self.kernels.attention.forward(q, k, v, options)
        self.saved = (q, k, v, y, lse, options)
        return y

    def backward(self, dy: Any) -> Any:
        return self.kernels.attention.backward(dy, *self.saved)


class PackedAttention(Function):
    """The same where one projection made queries, keys and values: qkv (B, T, 3, H, D) -> y (B, T, H, D), or
    with these last dimensions as one (B, T, 3 H D) -> (B, T, H D).

    One node in place of the dozen that take qkv apart, and its gradient is written once, not added up from thirds.
    """

    autocast = "half"
    half_kernels = "attention"

    def forward(self, qkv: Any, *, heads: tuple[int, ...], options: Options) -> Any:
        y, lse = self.kernels.attention.forward(*_parts(qkv, heads), options)
        self.saved = (qkv, y, lse, heads, options)
        y = y.swapaxes(1, 2)
        return y.reshape(*heads[:2], heads[3] * heads[4]) if len(qkv.shape) == 3 else y

    def backward(self, dy: Any) -> Any:
        qkv, y, lse, heads, options = self.saved
        dy = dy.reshape(*heads[:2], *heads[3:]).swapaxes(1, 2)
        dqkv = self.kernels.attention.backward_packed(dy, qkv.reshape(heads), y, lse, options)
        return dqkv if len(qkv.shape) == 5 else dqkv.reshape(qkv.shape)


class ExtendedAttention(Function):
    """The same for one more token of each sequence, which is added to a cache: q (B, H, 1, D), k and v (B, Hkv, 1, D).

    ``cache``: keys and values (2, B, Hkv, max_tokens, D), of which ``length``, int64 (1,), tokens are there. For
    generation: it has no backward.
    """

    differentiable = False

    def forward(self, q: Any, k: Any, v: Any, *, cache: Any, length: Any) -> Any:
        return self.kernels.attention.extend(q, k, v, cache, length)


def _parts(qkv: Any, heads: tuple[int, ...]) -> list[Any]:
    """Queries, keys and values, each (B, H, T, D), as views of qkv in the shape ``heads``, (B, T, 3, H, D)."""
    qkv = qkv.reshape(heads)
    return [qkv[:, :, i].swapaxes(1, 2) for i in range(3)]
