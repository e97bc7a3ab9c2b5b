"""Llama (Touvron et al. 2023; Grattafiori et al. 2024), configurable; module and parameter names are Hugging Face's.

Rotary positions, RMSNorm, SwiGLU and grouped queries. Llama 2 and 3, SmolLM2 and their like are sizes of it.
"""

from __future__ import annotations

import re
from typing import ClassVar

from .. import nn
from ..tensor import Tensor
from .causal_lm import CausalLM
from .llama_config import LlamaConfig


class LlamaBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): (B, T, C) -> (B, T, C)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        c = config
        self.input_layernorm: nn.RMSNorm = nn.RMSNorm(c.n_embd, c.eps)
        self.self_attn: nn.GroupedQueryAttention = nn.GroupedQueryAttention(
            c.n_embd,
            c.n_head,
            c.n_kv_head,
            c.dropout,
            c.attention_bias,
            head_size=c.head_size,
            rope_frequencies=c.rope_frequencies,
        )
        self.post_attention_layernorm: nn.RMSNorm = nn.RMSNorm(c.n_embd, c.eps)
        self.mlp: nn.SwiGLU = nn.SwiGLU(c.n_embd, c.n_inner, c.mlp_bias)

    def forward(self, x: Tensor, cache: nn.KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.self_attn(self.input_layernorm(x), cache)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Llama(CausalLM):
    """Token embedding, blocks, final norm, and a head: the token embedding again (tied), or its own.

    Initial weights are as GPT-2's: normal with standard deviation 0.02, divided by sqrt(2 n_layer) for the projections
    that write into the residual stream; biases 0.
    """

    config: LlamaConfig

    model_type = "llama"
    config_class = LlamaConfig
    hub_prefix = "model."
    hub_buffers: ClassVar[re.Pattern[str]] = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
    hub_transposed: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")  # none

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.embed_tokens: nn.Embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers: nn.ModuleList = nn.ModuleList(LlamaBlock(config) for _ in range(config.n_layer))
        self.norm: nn.RMSNorm = nn.RMSNorm(config.n_embd, config.eps)
        self._add_head("o_proj.weight", "down_proj.weight")

    @property
    def embedding(self) -> nn.Embedding:
        """The token embedding."""
        return self.embed_tokens

    @property
    def _trunk(self) -> tuple[nn.ModuleList, nn.RMSNorm]:
        """The blocks, and the norm after the last one."""
        return self.layers, self.norm

    def _embed(self, tokens: Tensor, start: int) -> Tensor:
        """The embeddings of tokens (B, T): (B, T, C). Their positions count in the attention."""
        x: Tensor = self.embed_tokens(tokens)
        return x
