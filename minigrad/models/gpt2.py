"""GPT-2 (Radford et al. 2019), configurable; module and parameter names are Hugging Face's."""

import re
from typing import ClassVar

from .. import nn
from ..creation import arange
from ..tensor import Tensor
from .causal_lm import CausalLM
from .gpt2_config import GPT2Config


class GPT2(CausalLM):
    """Token and position embeddings, blocks, final norm, and a head: the token embedding again (tied), or its own.

    Initial weights are GPT-2's: normal with standard deviation 0.02, divided by sqrt(2 n_layer) for the projections
    that write into the residual stream; biases 0.
    """

    config: GPT2Config

    model_types: ClassVar[tuple[str, ...]] = ("gpt2",)
    config_class = GPT2Config
    parts: ClassVar[tuple[str, str, str]] = "wte", "h", "ln_f"
    hub_prefix = "transformer."
    hub_buffers: ClassVar[re.Pattern[str]] = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
    # Conv1D's
    hub_transposed: ClassVar[re.Pattern[str]] = re.compile(r"h\.\d+\.(attn|mlp)\.(c_attn|c_proj|c_fc)\.weight")

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        self.wte: nn.Embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe: nn.Embedding = nn.Embedding(config.block_size, config.n_embd)
        self.drop: nn.Dropout = nn.Dropout(config.dropout)
        self.h: nn.ModuleList = nn.ModuleList(
            nn.Block(config.n_embd, config.n_head, config.dropout, config.bias, eps=config.eps, hidden=config.n_inner)
            for _ in range(config.n_layer)
        )
        self.ln_f: nn.LayerNorm = nn.LayerNorm(config.n_embd, config.eps, bias=config.bias)
        self._add_head("c_proj.weight")

    def _embed(self, tokens: Tensor, cache: nn.KVCache | None) -> Tensor:
        """The sum of the embeddings of tokens (B, T), which continue those in ``cache``, and of their positions: (B, T,
        C)."""
        T = tokens.shape[1]
        positions = arange(T, device=tokens.device) if cache is None else cache.positions(T)
        return self.drop(self.wte(tokens) + self.wpe(positions))

    def hub_zeros(self) -> dict[str, tuple[int, ...]]:
        """The biases that transformers' GPT-2 always has."""
        if self.config.bias:
            return {}
        names = {name: p for name, p in self.named_parameters() if name.startswith(("h.", "ln_f."))}
        return {f"{name.removesuffix('weight')}bias": p.shape[:1] for name, p in names.items()}
