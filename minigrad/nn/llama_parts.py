"""The pieces of a Llama block (Touvron et al. 2023): grouped-query attention with rotary positions, and SwiGLU."""

from collections.abc import Sequence

from ..creation import arange
from ..errors import bad_value
from ..tensor import Tensor
from . import functional as F
from .kv_cache import KVCache, causal_attention
from .layers import Linear, RMSNorm
from .module import Module


class GroupedQueryAttention(Module):
    """Causal self-attention in which ``n_kv_head`` heads of keys and values (default: as many as queries) each serve
    n_head / n_kv_head heads of queries (Ainslie et al. 2023): (B, T, C) -> (B, T, C).

    Queries and keys are rotated by their positions: ``F.rope`` with ``rope_base`` or, if given, ``rope_frequencies``.
    Heads have ``head_size`` channels, n_embd / n_head by default. Dropout acts on the attention probabilities. A cache
    for it has n_kv_head heads. Parameters are named as in Hugging Face's Llama.

    Two attributes are None at first. ``window``: how many tokens, itself included, each one sees (Mistral; beyond it,
    the scores of a prompt are computed as a whole). ``q_norm`` and ``k_norm``: norms of heads, before the rotation
    (Qwen3).
    """

    _shown = "n_head={n_head}, n_kv_head={n_kv_head}, is_causal=True, dropout={dropout}"

    def __init__(
        self, n_embd: int, n_head: int, n_kv_head: int | None = None, dropout: float = 0.0, bias: bool = False,
        rope_base: float = 10000.0, *, head_size: int | None = None, rope_frequencies: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        n_kv_head = n_head if n_kv_head is None else n_kv_head
        if n_head < 1 or (head_size is None and n_embd % (2 * n_head)):
            raise bad_value(f"GroupedQueryAttention: n_embd={n_embd} is not an even multiple of n_head={n_head}")
        if n_kv_head < 1 or n_head % n_kv_head:
            raise bad_value(f"GroupedQueryAttention: n_head={n_head} is not a multiple of n_kv_head={n_kv_head}")
        head_size = n_embd // n_head if head_size is None else head_size
        if head_size < 2 or head_size % 2:
            raise bad_value(f"GroupedQueryAttention: head_size={head_size}; rotation needs an even number of channels")
        self.n_head = n_head
        self.n_kv_head: int = n_kv_head
        self.head_size: int = head_size
        self.dropout = dropout
        self.rope_base = rope_base
        self.rope_frequencies = rope_frequencies
        self.window: int | None = None
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        self.q_proj: Linear = Linear(n_embd, n_head * head_size, bias)
        self.k_proj: Linear = Linear(n_embd, n_kv_head * head_size, bias)
        self.v_proj: Linear = Linear(n_embd, n_kv_head * head_size, bias)
        self.o_proj: Linear = Linear(n_head * head_size, n_embd, bias)

    def forward(self, x: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C). With a cache as ``CausalSelfAttention``; positions continue those in it."""
        B, T, _ = x.shape
        q = self.q_proj(x).reshape(B, T, self.n_head, self.head_size)
        k, v = (p(x).reshape(B, T, self.n_kv_head, self.head_size) for p in (self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        positions = arange(T, device=x.device) if cache is None else cache.positions(T)
        positions = positions.unsqueeze(1)  # one for all heads
        q, k = (F.rope(t, positions, self.rope_base, frequencies=self.rope_frequencies) for t in (q, k))
        dropout = self.dropout if self.training else 0.0
        if cache is not None:
            return self.o_proj(cache.attend(q, k, v, dropout, self.window))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = causal_attention(q, k, v, dropout, self.window)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class SwiGLU(Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020): (B, T, C) -> (B, T, C), by way of ``hidden`` channels.

    Parameters are named as in Hugging Face's Llama. ``hidden`` defaults to 8 C / 3, rounded: about the
    weights of ``MLP``.
    """

    def __init__(self, n_embd: int, hidden: int | None = None, bias: bool = False) -> None:
        super().__init__()
        hidden = round(8 * n_embd / 3) if hidden is None else hidden
        self.gate_proj: Linear = Linear(n_embd, hidden, bias)
        self.up_proj: Linear = Linear(n_embd, hidden, bias)
        self.down_proj: Linear = Linear(hidden, n_embd, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
