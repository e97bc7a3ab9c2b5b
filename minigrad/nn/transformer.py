"""The pieces of a GPT-2 block (Radford et al. 2019): causal self-attention with a key-value cache, MLP, block; and of a
Llama block (Touvron et al. 2023): grouped-query attention with rotary positions, SwiGLU.

Sizes in the comments: B sequences, T tokens, C channels, nh heads of size hs = C / nh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..creation import arange, ones, where
from ..dtypes import bool_, float32, float64
from ..errors import located
from ..grad_mode import of_thread
from ..ops.transformer_block import TransformerBlock
from ..tensor import Tensor
from . import functional as F
from . import fusion
from .activation_modules import GELU
from .checks import check_tensor
from .fusion import add_norm, adds_with_norm, as_built, drops, register_as_built
from .kv_cache import KVCache, check_use
from .layers import Dropout, LayerNorm, Linear
from .module import Module


def causal_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, cache: KVCache | None) -> Tensor:
    """Attention of each token to itself and those before it: q (B, T, nh, hs), k and v (B, T, n_kv, hs) -> (B, T,
    nh hs).

    With a cache (under no_grad), the tokens continue those that are in it: one at a time, or any number into an empty
    cache.
    """
    B, T, nh, hs = q.shape
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    causal = True
    if cache is not None:
        check_use(cache, T)
        causal = cache.length == 0  # one new token sees all that came before
        k, v = cache.extend(k, v)
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal, enable_gqa=True)
    return y.transpose(1, 2).reshape(B, T, nh * hs)


@register_as_built
class SelfAttention(Module):
    """Multi-head attention of each token to all, or (``is_causal``) to itself and earlier ones: (B, T, C) -> (B, T, C).

    One projection makes queries, keys and values. Dropout acts on the attention probabilities and on the output.
    """

    n_head: int
    dropout: float
    is_causal: bool
    c_attn: Linear
    c_proj: Linear
    resid_dropout: Dropout

    def __init__(
        self, n_embd: int, n_head: int, dropout: float = 0.0, bias: bool = True, is_causal: bool = False
    ) -> None:
        super().__init__()
        if n_head < 1 or n_embd % n_head:
            raise located(ValueError(f"{type(self).__name__}: n_embd={n_embd} is not a multiple of n_head={n_head}"))
        self.n_head, self.dropout, self.is_causal = n_head, dropout, is_causal
        self.c_attn = Linear(n_embd, 3 * n_embd, bias)
        self.c_proj = Linear(n_embd, n_embd, bias)
        self.resid_dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        cache: KVCache | None = None,
        attn_mask: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """(B, T, C) -> (B, T, C). With a cache (causal only, under no_grad), x continues the tokens that are in it: one
        at a time, or any number into an empty cache. A ``residual`` (B, T, C) is added to the result.

        ``attn_mask``, broadcastable to (B, nh, T, T), is as in ``F.scaled_dot_product_attention``: True where a token
        (row) may see another (column), or numbers that are added to the scores; causal attention stays causal besides.
        For sequences padded with the token ``pad``: ``attn_mask = (tokens != pad)[:, None, None, :]``. It goes with no
        cache.
        """
        if cache is not None and attn_mask is not None:
            raise located(ValueError("attention takes a KV cache or an attn_mask, not both"))
        if cache is not None and not self.is_causal:
            raise located(
                ValueError("a KV cache is for causal attention; here each token sees those that come later too")
            )
        B, T, C = self._sizes(x)
        qkv = self.c_attn(x)
        dropout = self.dropout if self.training else 0.0
        if cache is None and attn_mask is None:
            y = F.packed_attention(qkv, dropout, is_causal=self.is_causal, n_head=self.n_head)
        elif cache is not None and qkv.dtype in (float32, float64) and not dropout:
            check_use(cache, T)
            y = cache.attend(qkv)
        else:
            q, k, v = qkv.reshape(B, T, 3, self.n_head, C // self.n_head).unbind(2)
            if attn_mask is not None:
                q, k, v = (t.transpose(1, 2) for t in (q, k, v))
                mask = _causal_too(attn_mask, T) if self.is_causal else attn_mask
                y = F.scaled_dot_product_attention(q, k, v, mask, dropout).transpose(1, 2).reshape(B, T, C)
            else:
                y = causal_attention(q, k, v, dropout, cache)
        return _project(self.c_proj, self.resid_dropout, y, residual)

    def _sizes(self, x: Tensor) -> tuple[int, ...]:
        C = self.c_proj.in_features
        if check_tensor(type(self).__name__, x).ndim != 3 or x.shape[2] != C:
            raise located(
                ValueError(f"{type(self).__name__}: x of shape {x.shape}; expected (B, T, C) with C = {C} channels")
            )
        return x.shape

    def extra_repr(self) -> str:
        """Heads and options."""
        return f"n_head={self.n_head}, is_causal={self.is_causal}, dropout={self.dropout}"


def _project(linear: Linear, dropout: Dropout, x: Tensor, residual: Tensor | None) -> Tensor:
    """dropout(linear(x)), added to the residual."""
    if residual is not None and as_built(linear) and not drops(dropout):
        return F.linear(x, linear.weight, linear.bias, residual=residual)
    y: Tensor = dropout(linear(x))
    return y if residual is None else residual + y


def _causal_too(mask: Tensor, T: int) -> Tensor:
    """The mask, and no token sees a later one."""
    causal = ones(T, T, dtype=bool_, device=mask.device).tril()
    return mask & causal if mask.dtype == bool_ else where(causal, mask, -math.inf)


@register_as_built
class CausalSelfAttention(SelfAttention):
    """``SelfAttention`` in which no token sees a later one."""

    def __init__(self, n_embd: int, n_head: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__(n_embd, n_head, dropout, bias, is_causal=True)


class GroupedQueryAttention(Module):
    """Causal self-attention in which ``n_kv_head`` heads of keys and values (default: as many as queries) each serve
    n_head / n_kv_head heads of queries (Ainslie et al. 2023): (B, T, C) -> (B, T, C).

    Queries and keys are rotated by their positions: ``F.rope`` with ``rope_base`` or, if given, ``rope_frequencies``.
    Heads have ``head_size`` channels, n_embd / n_head by default. Dropout acts on the attention probabilities. A cache
    for it has n_kv_head heads. Parameters are named as in Hugging Face's Llama.
    """

    n_head: int
    n_kv_head: int
    head_size: int
    dropout: float
    rope_base: float
    rope_frequencies: Sequence[float] | None
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        n_kv_head: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        rope_base: float = 10000.0,
        *,
        head_size: int | None = None,
        rope_frequencies: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        n_kv_head = n_head if n_kv_head is None else n_kv_head
        if n_head < 1 or (head_size is None and n_embd % (2 * n_head)):
            raise located(
                ValueError(f"GroupedQueryAttention: n_embd={n_embd} is not an even multiple of n_head={n_head}")
            )
        if n_kv_head < 1 or n_head % n_kv_head:
            raise located(
                ValueError(f"GroupedQueryAttention: n_head={n_head} is not a multiple of n_kv_head={n_kv_head}")
            )
        head_size = n_embd // n_head if head_size is None else head_size
        if head_size < 2 or head_size % 2:
            raise located(
                ValueError(f"GroupedQueryAttention: head_size={head_size}; rotation needs an even number of channels")
            )
        self.n_head, self.n_kv_head, self.head_size = n_head, n_kv_head, head_size
        self.dropout, self.rope_base, self.rope_frequencies = dropout, rope_base, rope_frequencies
        self.q_proj = Linear(n_embd, n_head * head_size, bias)
        self.k_proj = Linear(n_embd, n_kv_head * head_size, bias)
        self.v_proj = Linear(n_embd, n_kv_head * head_size, bias)
        self.o_proj = Linear(n_head * head_size, n_embd, bias)

    def forward(self, x: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C). With a cache as ``CausalSelfAttention``; positions continue those in it."""
        B, T, _ = x.shape
        q = self.q_proj(x).reshape(B, T, self.n_head, self.head_size)
        k, v = (p(x).reshape(B, T, self.n_kv_head, self.head_size) for p in (self.k_proj, self.v_proj))
        start = 0 if cache is None else cache.length
        positions = arange(start, start + T, device=x.device).unsqueeze(1)  # one for all heads
        q, k = (F.rope(t, positions, self.rope_base, frequencies=self.rope_frequencies) for t in (q, k))
        out: Tensor = self.o_proj(causal_attention(q, k, v, self.dropout if self.training else 0.0, cache))
        return out

    def extra_repr(self) -> str:
        """Heads and options."""
        return f"n_head={self.n_head}, n_kv_head={self.n_kv_head}, is_causal=True, dropout={self.dropout}"


@register_as_built
class MLP(Module):
    """Linear to ``hidden`` channels (4 C by default), GELU (tanh form), linear back: (B, T, C) -> (B, T, C).

    One operation (``F.feed_forward``) as long as the three modules are as built; see ``as_built``.
    """

    c_fc: Linear
    gelu: GELU
    c_proj: Linear
    dropout: Dropout

    def __init__(self, n_embd: int, dropout: float = 0.0, bias: bool = True, hidden: int | None = None) -> None:
        super().__init__()
        hidden = 4 * n_embd if hidden is None else hidden
        self.c_fc = Linear(n_embd, hidden, bias)
        self.gelu = GELU("tanh")
        self.c_proj = Linear(hidden, n_embd, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C). A ``residual`` (B, T, C) is added to the result."""
        fc, gelu, proj, dropout = self.c_fc, self.gelu, self.c_proj, self.dropout
        if not (as_built(fc) and as_built(gelu) and as_built(proj)):
            return _project(proj, dropout, gelu(fc(x)), residual)
        weights = fc.weight, fc.bias, proj.weight, proj.bias, gelu.approximate
        if not drops(dropout):
            return F.feed_forward(x, *weights, residual=residual)
        y: Tensor = dropout(F.feed_forward(x, *weights))
        return y if residual is None else residual + y


class SwiGLU(Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020): (B, T, C) -> (B, T, C), by way of ``hidden`` channels.

    Parameters are named as in Hugging Face's Llama. ``hidden`` defaults to 8 C / 3, rounded: about the
    weights of ``MLP``.
    """

    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear

    def __init__(self, n_embd: int, hidden: int | None = None, bias: bool = False) -> None:
        super().__init__()
        hidden = round(8 * n_embd / 3) if hidden is None else hidden
        self.gate_proj = Linear(n_embd, hidden, bias)
        self.up_proj = Linear(n_embd, hidden, bias)
        self.down_proj = Linear(hidden, n_embd, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


@register_as_built
class Block(Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): (B, T, C) -> (B, T, C).

    Attention is causal, as in GPT-2; with ``is_causal`` False each token sees all, as in a vision transformer.
    ``eps`` is that of the norms, ``hidden`` the channels within the MLP.
    """

    ln_1: LayerNorm
    attn: SelfAttention
    ln_2: LayerNorm
    mlp: MLP

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        dropout: float = 0.0,
        bias: bool = True,
        is_causal: bool = True,
        *,
        eps: float = 1e-5,
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(n_embd, eps, bias=bias)
        self.attn = SelfAttention(n_embd, n_head, dropout, bias, is_causal)
        self.ln_2 = LayerNorm(n_embd, eps, bias=bias)
        self.mlp = MLP(n_embd, dropout, bias, hidden)

    def forward(self, x: Tensor, cache: KVCache | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C). ``cache`` and ``attn_mask`` are as in ``SelfAttention``."""
        if cache is None and attn_mask is None and (weights := _as_one(self, x)) is not None:
            attn, eps = self.attn, (float(self.ln_1.eps), float(self.ln_2.eps))
            heads, scale = int(attn.n_head), 1 / math.sqrt(x.shape[2] // attn.n_head)
            options = heads, eps, bool(attn.is_causal), self.mlp.gelu.approximate, scale
            return TransformerBlock.apply(x, *weights, options=options)
        if adds_with_norm(x):
            x, branch = self.branches(x, None, cache, attn_mask)
            return x + branch
        attn, mlp = self.attn, self.mlp
        y: Tensor = self.ln_1(x)
        x = attn(y, cache, attn_mask, x) if as_built(attn) else x + attn(y, cache, attn_mask)
        y = self.ln_2(x)
        out: Tensor = mlp(y, x) if as_built(mlp) else x + mlp(y)
        return out

    def branches(
        self, x: Tensor, branch: Tensor | None, cache: KVCache | None = None, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``forward`` of x + branch, in two parts that the next block, or the norm after the last one, adds: the stream
        and the MLP's branch, (B, T, C) each. See ``add_norm``.
        """
        x, y = add_norm(x, branch, self.ln_1)
        x, y = add_norm(x, self.attn(y, cache, attn_mask), self.ln_2)
        return x, self.mlp(y)


def _as_one(block: Block, x: Tensor) -> list[Tensor | None] | None:
    """Weights and biases of a block that can be one operation, ``TransformerBlock``, with the same bits (but for the
    gradient of an x with other uses: the sum has another order), and is faster so; else None, and its operations run
    one by one.

    So it is on the CPU, in float32 or float64, if all modules are as built and none drops anything, for the gradients
    and sizes that the operation takes; not within autocast, ``detect_anomaly`` or ``one_by_one``, which tell operations
    apart.
    """
    mode = of_thread.mode
    if mode.autocast is not None or mode.anomaly or fusion.apart or not isinstance(x, Tensor) or x.device.type != "cpu":
        return None
    attn, mlp = block.attn, block.mlp
    if type(attn) not in (SelfAttention, CausalSelfAttention) or type(mlp) is not MLP:
        return None
    layers = [block.ln_1, attn.c_attn, attn.c_proj, block.ln_2, mlp.c_fc, mlp.c_proj]
    modules = [*layers, mlp.gelu]
    if (
        [*map(type, modules)] != _LAYERS
        or not all(map(as_built, (*modules, attn, mlp)))
        or drops(attn.resid_dropout)
        or drops(mlp.dropout)
        or (attn.training and attn.dropout)
        or mlp.gelu.approximate not in ("none", "tanh")
    ):
        return None
    weights: list[Tensor | None] = []
    for layer in layers:
        weights += layer.weight, layer.bias
    arrays = [None if weight is None else weight.data for weight in weights]
    if mode.enabled and not _takes_gradients(x, weights):
        return None
    return weights if x.device.kernels.transformer_block.takes(x.data, arrays, attn.n_head) else None


def _takes_gradients(x: Tensor, weights: list[Tensor | None]) -> bool:
    """Whether the wanted gradients are none, or of x or the first norm too, and of a matrix wherever of its bias."""
    wanted = [tensor is not None and tensor.requires_grad for tensor in weights]
    if False not in wanted:
        return True
    if not (x.requires_grad or wanted[0]):
        return True not in wanted
    return not any(wanted[i + 1] and not wanted[i] for i in (2, 4, 8, 10))


_LAYERS = [LayerNorm, Linear, Linear, LayerNorm, Linear, Linear, GELU]
