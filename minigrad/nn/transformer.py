"""The pieces of a GPT-2 block (Radford et al. 2019): causal self-attention with a key-value cache, MLP, block.

Sizes in the comments: B sequences, T tokens, C channels, nh heads of size hs = C / nh. What is computed in fewer
operations, and when, is in ``minigrad.fast``.
"""

import math

from ..creation import ones, where
from ..dtypes import bool_
from ..errors import bad_value
from ..tensor import Tensor, check_tensor
from . import functional as F
from .kv_cache import KVCache
from .layers import GELU, Dropout, LayerNorm, Linear
from .module import Module


class SelfAttention(Module):
    """Multi-head attention of each token to all, or (``is_causal``) to itself and earlier ones: (B, T, C) -> (B, T, C).

    One projection makes queries, keys and values. Dropout acts on the attention probabilities and on the output.
    """

    _shown = "n_head={n_head}, is_causal={is_causal}, dropout={dropout}"

    def __init__(
        self, n_embd: int, n_head: int, dropout: float = 0.0, bias: bool = True, is_causal: bool = False
    ) -> None:
        super().__init__()
        if n_head < 1 or n_embd % n_head:
            raise bad_value(f"{type(self).__name__}: n_embd={n_embd} is not a multiple of n_head={n_head}")
        self.n_head = n_head
        self.dropout = dropout
        self.is_causal = is_causal
        self.c_attn: Linear = Linear(n_embd, 3 * n_embd, bias)
        self.c_proj: Linear = Linear(n_embd, n_embd, bias)
        self.resid_dropout: Dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, cache: KVCache | None = None, attn_mask: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """(B, T, C) -> (B, T, C). With a cache (causal only, under no_grad), x continues the tokens that are in it: one
        at a time, or any number into an empty cache.

        ``attn_mask``, broadcastable to (B, nh, T, T), is as in ``F.scaled_dot_product_attention``: True where a token
        (row) may see another (column), or numbers that are added to the scores; causal attention stays causal besides.
        For sequences padded with the token ``pad``: ``attn_mask = (tokens != pad)[:, None, None, :]``. It goes with no
        cache. A ``residual`` (B, T, C) is added to the result.
        """
        y: Tensor = self.resid_dropout(self.c_proj(self.attend(x, cache, attn_mask)))
        return y if residual is None else residual + y

    def attend(self, x: Tensor, cache: KVCache | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """``forward`` without the last projection and its dropout: what all heads read, (B, T, C)."""
        if cache is not None and attn_mask is not None:
            raise bad_value("attention takes a KV cache or an attn_mask, not both")
        if cache is not None and not self.is_causal:
            raise bad_value("a KV cache is for causal attention; here each token sees those that come later too")
        C = self.c_proj.in_features
        if check_tensor(type(self).__name__, x).ndim != 3 or x.shape[2] != C:
            raise bad_value(f"{type(self).__name__}: x of shape {x.shape}; expected (B, T, C) with C = {C} channels")
        B, T, _ = x.shape
        qkv, dropout = self.c_attn(x), self.dropout if self.training else 0.0
        heads = B, T, 3, self.n_head, qkv.shape[2] // (3 * self.n_head)
        if cache is not None:
            q, k, v = qkv.reshape(heads).unbind(2)
            return cache.attend(q, k, v, dropout)
        if attn_mask is None:
            return F.packed_attention(qkv, dropout, is_causal=self.is_causal, n_head=self.n_head)
        q, k, v = (t.transpose(1, 2) for t in qkv.reshape(heads).unbind(2))
        mask = _causal_too(attn_mask, T) if self.is_causal else attn_mask
        return F.scaled_dot_product_attention(q, k, v, mask, dropout).transpose(1, 2).reshape(B, T, -1)


def _causal_too(mask: Tensor, T: int) -> Tensor:
    """The mask, and no token sees a later one."""
    causal = ones(T, T, dtype=bool_, device=mask.device).tril()
    return mask & causal if mask.dtype == bool_ else where(causal, mask, -math.inf)


class CausalSelfAttention(SelfAttention):
    """``SelfAttention`` in which no token sees a later one."""

    def __init__(self, n_embd: int, n_head: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__(n_embd, n_head, dropout, bias, is_causal=True)


class MLP(Module):
    """Linear to ``hidden`` channels (4 C by default), GELU (tanh form), linear back: (B, T, C) -> (B, T, C)."""

    def __init__(self, n_embd: int, dropout: float = 0.0, bias: bool = True, hidden: int | None = None) -> None:
        super().__init__()
        hidden = 4 * n_embd if hidden is None else hidden
        self.c_fc: Linear = Linear(n_embd, hidden, bias)
        self.gelu: GELU = GELU("tanh")
        self.c_proj: Linear = Linear(hidden, n_embd, bias)
        self.dropout: Dropout = Dropout(dropout)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C). A ``residual`` (B, T, C) is added to the result."""
        y: Tensor = self.dropout(self.c_proj(self.gelu(self.c_fc(x))))
        return y if residual is None else residual + y


class Block(Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): (B, T, C) -> (B, T, C).

    Attention is causal, as in GPT-2; with ``is_causal`` False each token sees all, as in a vision transformer.
    ``eps`` is that of the norms, ``hidden`` the channels within the MLP.
    """

    def __init__(
        self, n_embd: int, n_head: int, dropout: float = 0.0, bias: bool = True, is_causal: bool = True, *,
        eps: float = 1e-5, hidden: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.ln_1: LayerNorm = LayerNorm(n_embd, eps, bias=bias)
        self.attn: SelfAttention = SelfAttention(n_embd, n_head, dropout, bias, is_causal)
        self.ln_2: LayerNorm = LayerNorm(n_embd, eps, bias=bias)
        self.mlp: MLP = MLP(n_embd, dropout, bias, hidden)

    def forward(self, x: Tensor, cache: KVCache | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C). ``cache`` and ``attn_mask`` are as in ``SelfAttention``."""
        x = x + self.attn(self.ln_1(x), cache, attn_mask)
        return x + self.mlp(self.ln_2(x))
