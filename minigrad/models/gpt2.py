"""GPT-2 (Radford et al. 2019), configurable; module and parameter names are Hugging Face's."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, ClassVar

from .. import nn
from ..errors import located
from ..nn.fusion import embed
from ..tensor import Tensor
from .causal_lm import CausalLM, check_dropout, check_sizes
from .decoding import arrays
from .hub_config import HubConfig


@dataclasses.dataclass(frozen=True)
class GPT2Config:
    """Sizes of a GPT-2; the defaults are those of the 124M model. ``block_size`` is the longest context.

    ``tied``: the head is the token embedding. ``n_inner``: channels within the MLP, None for 4 n_embd. ``eps`` is that
    of the norms. The two ids are for those who generate: the model does not use them.

    ``checkpoint_blocks``: ``backward`` computes the activations of each block again, so that less memory is needed.

    """

    vocab_size: int = 50257
    block_size: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True
    tied: bool = True
    n_inner: int | None = None
    eps: float = 1e-5
    bos_token_id: int | tuple[int, ...] | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    checkpoint_blocks: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "block_size", "n_layer", "n_head", "n_embd")
        if self.n_inner is not None:
            check_sizes(self, "n_inner")
        if self.n_embd % self.n_head:
            raise located(ValueError(f"GPT2Config: n_embd={self.n_embd} is not a multiple of n_head={self.n_head}"))
        check_dropout(self)

    @property
    def n_kv_head(self) -> int:
        """Heads of keys and values: as many as of queries."""
        return self.n_head

    @property
    def head_size(self) -> int:
        """Channels of a head."""
        return self.n_embd // self.n_head


class GPT2(CausalLM):
    """Token and position embeddings, blocks, final norm, and a head: the token embedding again (tied), or its own.

    Initial weights are GPT-2's: normal with standard deviation 0.02, divided by sqrt(2 n_layer) for the projections
    that write into the residual stream; biases 0.
    """

    config: GPT2Config

    model_type = "gpt2"
    decode_roles: ClassVar[dict[str, type[nn.Module]]] = {
        "wte": nn.Embedding, "wpe": nn.Embedding, "drop": nn.Dropout, "h": nn.ModuleList, "block": nn.Block,
        "ln_1": nn.LayerNorm, "attn": nn.SelfAttention, "c_attn": nn.Linear, "c_proj": nn.Linear,
        "resid_dropout": nn.Dropout, "ln_2": nn.LayerNorm, "mlp": nn.MLP, "c_fc": nn.Linear, "gelu": nn.GELU,
        "dropout": nn.Dropout, "ln_f": nn.LayerNorm, "lm_head": nn.Linear,
    }  # fmt: skip
    hub_prefix = "transformer."
    hub_buffers: ClassVar[re.Pattern[str]] = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
    # Conv1D's
    hub_transposed: ClassVar[re.Pattern[str]] = re.compile(r"h\.\d+\.(attn|mlp)\.(c_attn|c_proj|c_fc)\.weight")
    wte: nn.Embedding
    wpe: nn.Embedding
    drop: nn.Dropout
    h: nn.ModuleList
    ln_f: nn.LayerNorm
    lm_head: nn.Linear | None

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(
            nn.Block(config.n_embd, config.n_head, config.dropout, config.bias, eps=config.eps, hidden=config.n_inner)
            for _ in range(config.n_layer)
        )
        self.ln_f = nn.LayerNorm(config.n_embd, config.eps, bias=config.bias)
        self.lm_head = None if config.tied else nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self._init_weights("c_proj.weight")

    @property
    def embedding(self) -> nn.Embedding:
        """The token embedding."""
        return self.wte

    def _features(self, tokens: Tensor, start: int, caches: list[nn.KVCache] | None) -> Tensor:
        x = self.drop(embed(tokens, start, self.wte, self.wpe))  # (B, T, C)
        return self._through(self.h, self.ln_f, x, caches)

    def decode_arrays(self, caches: list[nn.KVCache]) -> dict[str, Any] | None:
        """What ``decoding.py`` computes a token with; None if the blocks are not alike."""
        alike = {(block.attn.n_head, block.attn.is_causal, block.mlp.gelu.approximate) for block in self.h}
        if len(alike) != 1 or len(self.h) != len(caches):
            return None
        ((n_head, is_causal, activation),) = alike
        if not is_causal or n_head != caches[0].tensors[0].shape[1]:
            return None
        layers, C = [], self.wte.embedding_dim
        for block, cache in zip(self.h, caches, strict=True):
            weight, bias = arrays(block.attn.c_attn)
            if weight.shape != (3 * C, C):
                return None
            thirds = [slice(i * C, (i + 1) * C) for i in range(3)]
            q, k, v = ((weight[rows], None if bias is None else bias[rows]) for rows in thirds)
            layers.append(
                {
                    "norm_1": arrays(block.ln_1), "q": q, "k": k, "v": v, "out": arrays(block.attn.c_proj),
                    "norm_2": arrays(block.ln_2), "gate": (None, None), "up": arrays(block.mlp.c_fc),
                    "down": arrays(block.mlp.c_proj), "cache": tuple(tensor.data for tensor in cache.tensors),
                }
            )  # fmt: skip
        norms = [norm for block in self.h for norm in (block.ln_1, block.ln_2)] + [self.ln_f]
        return {
            "embedding": self.wte.weight.data,
            "positions": self.wpe.weight.data,
            "layers": layers,
            "norm": arrays(self.ln_f),
            "head": self._head.weight.data,
            "rotation": (None, None),
            "eps": [norm.eps for norm in norms],
            "rms": False,
            "activation": activation,
        }

    # ------------------------------------------------------------------ Hugging Face's format

    @classmethod
    def config_from_hub(cls, hub: HubConfig, dropout: float | None) -> GPT2Config:
        """What a ``config.json`` of model_type gpt2 means; its other names for sizes are understood too.

        ``"bias": false`` (not of transformers, whose GPT-2 always has biases) is a model without.
        """
        hub.only("activation_function", "gelu_new", "gelu_pytorch_tanh")
        hub.only("scale_attn_weights", True)
        hub.only("scale_attn_by_inverse_layer_idx", False)
        hub.only("add_cross_attention", False)
        hub.inert("reorder_and_upcast_attn")  # the same numbers: attention is computed in float32 here
        hub.inert("n_ctx", *(name for name in hub.values if name.startswith("summary_")))
        drops = {name: hub.probability(name, 0.1) for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
        if dropout is None and len(set(drops.values())) > 1:
            shown = ", ".join(f"{name} {value:g}" for name, value in drops.items())
            raise located(hub.error(f"{shown}: there is one dropout probability here; pass dropout="))
        n_embd = hub.integer("n_embd")
        n_inner = hub.integer("n_inner", 4 * n_embd)
        return GPT2Config(
            vocab_size=hub.integer("vocab_size"),
            block_size=hub.integer("n_positions"),
            n_layer=hub.integer("n_layer"),
            n_head=hub.integer("n_head"),
            n_embd=n_embd,
            dropout=drops["resid_pdrop"] if dropout is None else dropout,
            bias=hub.boolean("bias", True),
            tied=hub.boolean("tie_word_embeddings", True),
            n_inner=None if n_inner == 4 * n_embd else n_inner,
            eps=hub.number("layer_norm_epsilon", 1e-5),
            bos_token_id=hub.token_ids("bos_token_id"),
            eos_token_id=hub.token_ids("eos_token_id"),
        )

    def config_to_hub(self) -> dict[str, Any]:
        """The fields of ``config.json``."""
        c = self.config
        return {
            "architectures": ["GPT2LMHeadModel"],
            "activation_function": "gelu_new",
            "attn_pdrop": c.dropout,
            "embd_pdrop": c.dropout,
            "resid_pdrop": c.dropout,
            "vocab_size": c.vocab_size,
            "n_positions": c.block_size,
            "n_layer": c.n_layer,
            "n_head": c.n_head,
            "n_embd": c.n_embd,
            "n_inner": c.n_inner,
            "layer_norm_epsilon": c.eps,
            "tie_word_embeddings": c.tied,
            "bos_token_id": c.bos_token_id,
            "eos_token_id": c.eos_token_id,
            **({} if c.bias else {"bias": False}),
        }

    def hub_zeros(self) -> dict[str, tuple[int, ...]]:
        """The biases that transformers' GPT-2 always has."""
        if self.config.bias:
            return {}
        names = {name: p for name, p in self.named_parameters() if name.startswith(("h.", "ln_f."))}
        return {f"{name.removesuffix('weight')}bias": p.shape[:1] for name, p in names.items()}
