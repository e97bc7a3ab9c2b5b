"""Llama (Touvron et al. 2023; Grattafiori et al. 2024), configurable; module and parameter names are Hugging Face's.

Rotary positions, RMSNorm, SwiGLU and grouped queries. Llama 2 and 3, SmolLM2 and their like are sizes of it, which
Hugging Face's ``config.json`` says. Mistral (Jiang et al. 2023) and Qwen3 (Yang et al. 2025) are settings.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Annotated, Any, ClassVar

import numpy as np

from .. import nn
from ..errors import bad_value, check_choice, expect
from ..tensor import Tensor
from .causal_lm import CausalLM
from .hub_config import LARGE, Bos, Eos, HubConfig, Stored, check_numbers, check_sizes


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How the frequencies of the rotary positions are lowered for contexts longer than those of the first training.

    ``linear`` divides all by ``factor`` (Chen et al. 2023). ``llama3`` divides those whose wavelength is above
    ``original_block_size / low_freq_factor`` tokens, leaves those below ``original_block_size / high_freq_factor``, and
    blends in between (Llama 3.1).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_block_size: int = 8192

    def __post_init__(self) -> None:
        check_choice("RopeScaling", "kind", self.kind, ("linear", "llama3"))
        expect(1 <= self.factor < math.inf, "RopeScaling: factor", self.factor, "a number of at least 1")
        if not 0 < self.low_freq_factor < self.high_freq_factor < math.inf:
            factors = f"low_freq_factor={self.low_freq_factor}, high_freq_factor={self.high_freq_factor}"
            raise bad_value(f"RopeScaling: {factors}; expected positive numbers, the second one larger")
        check_sizes(self, "original_block_size")

    def scale(self, frequencies: np.ndarray) -> np.ndarray:
        """The lowered frequencies, radians per token, float64."""
        if self.kind == "linear":
            return frequencies / self.factor
        turns = self.original_block_size * frequencies / (2 * math.pi)  # in the original context
        kept = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama; the defaults are those of SmolLM2-135M. ``block_size`` is the longest context.

    ``n_kv_head`` heads of keys and values each serve n_head / n_kv_head heads of queries. ``n_inner``: channels within
    the MLP. ``head_dim``: channels of a head, None for n_embd / n_head. ``tied``: the head is the token embedding.
    ``eps`` is that of the norms; ``dropout`` that of the attention. The two ids are for those who generate: the model
    does not use them.

    ``sliding_window``: how many tokens, itself included, each one sees, as in Mistral. ``qk_norm``: the queries and
    keys of each head are normalised, as in Qwen3.

    ``checkpoint_blocks``: ``backward`` computes the activations of each block again, so that less memory is needed.

    """

    vocab_size: Annotated[int, Stored("vocab_size")] = 49152
    block_size: Annotated[int, Stored("max_position_embeddings")] = 8192
    n_layer: Annotated[int, Stored("num_hidden_layers")] = 30
    n_head: Annotated[int, Stored("num_attention_heads")] = 9
    n_kv_head: int = 3
    n_embd: Annotated[int, Stored("hidden_size")] = 576
    n_inner: Annotated[int, Stored("intermediate_size")] = 1536
    head_dim: int | None = None
    rope_base: float = 100000.0
    rope_scaling: RopeScaling | None = None
    eps: Annotated[float, Stored("rms_norm_eps", HubConfig.number, (1e-6,))] = 1e-5
    tied: Annotated[bool, Stored("tie_word_embeddings", HubConfig.boolean, (False,))] = True
    attention_bias: Annotated[bool, Stored("attention_bias", HubConfig.boolean, (False,))] = False
    mlp_bias: Annotated[bool, Stored("mlp_bias", HubConfig.boolean, (False,))] = False
    dropout: Annotated[float, Stored("attention_dropout", HubConfig.probability, (0.0,))] = 0.0
    bos_token_id: Bos = None
    eos_token_id: Eos = None
    checkpoint_blocks: bool = False
    sliding_window: int | None = None
    qk_norm: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "block_size", "n_layer", "n_head", "n_kv_head", "n_embd", "n_inner")
        check_sizes(self, *(name for name in ("head_dim", "sliding_window") if getattr(self, name) is not None))
        if self.head_dim is None and self.n_embd % self.n_head:
            raise bad_value(f"LlamaConfig: n_embd={self.n_embd} is not a multiple of n_head={self.n_head}")
        if self.head_size % 2:
            raise bad_value(f"LlamaConfig: heads of {self.head_size} channels; rotation needs an even number")
        if self.n_head % self.n_kv_head:
            remedy = f"n_kv_head={self.n_head} gives each head its own keys and values"
            heads = f"n_head={self.n_head} is not a multiple of n_kv_head={self.n_kv_head}"
            raise bad_value(f"LlamaConfig: {heads}; {remedy}")
        biased = self.mlp_bias or (self.attention_bias and not self.qk_norm)
        if (self.sliding_window or self.qk_norm) and (biased or (self.sliding_window and self.qk_norm)):
            raise bad_value("LlamaConfig: sliding_window goes without qk_norm and biases, qk_norm without mlp_bias")
        expect(0 < self.rope_base < LARGE, "LlamaConfig: rope_base", self.rope_base, "a positive number of float32")
        check_numbers(self)

    @property
    def head_size(self) -> int:
        """Channels of a head."""
        return self.n_embd // self.n_head if self.head_dim is None else self.head_dim

    @property
    def rope_frequencies(self) -> tuple[float, ...]:
        """Radians per token by which each of the head_size / 2 pairs is rotated."""
        frequencies = self.rope_base ** (-np.arange(0, self.head_size, 2) / self.head_size)
        return tuple((frequencies if self.rope_scaling is None else self.rope_scaling.scale(frequencies)).tolist())

    # ------------------------------------------------------------------ Hugging Face's format

    @classmethod
    def from_hub(cls, hub: HubConfig, dropout: float | None) -> LlamaConfig:
        """What a ``config.json`` of model_type llama, mistral or qwen3 means, of transformers 4 or 5."""
        kind = hub.get("model_type")
        hub.only("hidden_act", "silu", "swish")
        hub.only("rope_interleaved", False)
        hub.inert("is_llama_config", "pretraining_tp", "transformers.js_config")
        if kind == "qwen3":
            hub.inert("max_window_layers", "sliding_window")  # without use_sliding_window, which is refused
        elif kind != "mistral":
            hub.only("sliding_window", None)
        fields = Stored.read_all(cls, hub)
        n_head, n_embd = fields["n_head"], fields["n_embd"]
        fields["n_kv_head"] = hub.integer("num_key_value_heads", {"mistral": 8, "qwen3": 32}.get(kind, n_head))
        given = hub.get("head_dim", 128 if kind == "qwen3" else None) is not None
        head_dim = hub.integer("head_dim", 128) if given else None
        if kind == "mistral" and hub.get("sliding_window", 4096) is not None:
            fields["sliding_window"] = hub.integer("sliding_window", 4096)
        fields["qk_norm"] = kind == "qwen3"
        fields["head_dim"] = None if head_dim is not None and head_dim * n_head == n_embd else head_dim
        fields["rope_base"], fields["rope_scaling"] = _rope_from_hub(hub)
        return cls(**fields if dropout is None else {**fields, "dropout": dropout})

    def to_hub(self) -> dict[str, Any]:
        """The fields of ``config.json``, in the form of transformers 4, which 5 reads too."""
        stored = None if self.rope_scaling is None else dataclasses.asdict(self.rope_scaling)
        if stored is not None:
            names = {"kind": "rope_type", "original_block_size": "original_max_position_embeddings"}
            given = stored if stored["kind"] == "llama3" else ("kind", "factor")
            stored = {names.get(name, name): stored[name] for name in given}
        kind = "qwen3" if self.qk_norm else "llama" if self.sliding_window is None else "mistral"
        return {
            "architectures": [f"{kind.capitalize()}ForCausalLM"],
            "model_type": kind,
            "sliding_window": self.sliding_window,
            "hidden_act": "silu",
            **Stored.write_all(self),
            "num_key_value_heads": self.n_kv_head,
            "head_dim": self.head_size,
            "rope_theta": self.rope_base,
            "rope_scaling": stored,
        }


def _rope_from_hub(hub: HubConfig) -> tuple[float, RopeScaling | None]:
    """Base and scaling: ``rope_theta`` and ``rope_scaling`` of transformers 4, or ``rope_parameters`` of 5."""
    found = {name: hub.get(name, None) for name in ("rope_parameters", "rope_scaling")}
    given = {name: value for name, value in found.items() if value is not None}
    if len(given) > 1:
        raise hub.error("both rope_parameters and rope_scaling are given; expected one of them")
    where, values = next(iter(given.items()), ("rope_scaling", {}))
    if not isinstance(values, dict):
        raise hub.error(f"{where} is {values!r:.60}, expected an object")
    kind = values.get("rope_type", values.get("type", "default"))
    base = hub.check_number("rope_theta", values.get("rope_theta", hub.get("rope_theta", 10000.0)))
    hub.only("partial_rotary_factor", 1.0, 1, None)
    if values.get("partial_rotary_factor", 1) != 1:
        raise hub.error(f"{where}: partial_rotary_factor is not supported, only 1")
    llama3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    kinds: dict[Any, tuple[str, ...]] = {"default": (), "linear": ("factor",), "llama3": llama3}
    if not isinstance(kind, str) or kind not in kinds:
        raise hub.error(f"{where}: the rope type {kind!r:.60} is not supported, only default, linear and llama3")
    unknown = sorted(values.keys() - {"rope_type", "type", "rope_theta", "partial_rotary_factor", *kinds[kind]})
    if unknown:
        raise hub.error(f"{where}: {unknown[0]!r:.60} is not supported with the rope type {kind}")
    if kind == "default":
        return base, None
    missing = sorted(set(kinds[kind]) - values.keys())
    if missing:
        raise hub.error(f"{where}: {missing[0]} is missing")
    numbers: dict[str, Any] = {name: hub.check_number(f"{where}: {name}", values[name]) for name in kinds[kind][:3]}
    if kind == "linear":
        return base, RopeScaling(kind, **numbers)
    original = values["original_max_position_embeddings"]
    if type(original) is not int:
        raise hub.error(f"{where}: original_max_position_embeddings is {original!r:.60}, expected an integer")
    return base, RopeScaling(kind, **numbers, original_block_size=original)


class LlamaBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): (B, T, C) -> (B, T, C)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        c = config
        self.input_layernorm: nn.RMSNorm = nn.RMSNorm(c.n_embd, c.eps)
        heads: dict[str, Any] = {"head_size": c.head_size, "rope_frequencies": c.rope_frequencies}
        self.self_attn: nn.GroupedQueryAttention = nn.GroupedQueryAttention(
            c.n_embd, c.n_head, c.n_kv_head, c.dropout, c.attention_bias, **heads
        )
        self.self_attn.window = c.sliding_window
        if c.qk_norm:
            self.self_attn.q_norm, self.self_attn.k_norm = (nn.RMSNorm(c.head_size, c.eps) for _ in range(2))
        self.post_attention_layernorm: nn.RMSNorm = nn.RMSNorm(c.n_embd, c.eps)
        self.mlp: nn.SwiGLU = nn.SwiGLU(c.n_embd, c.n_inner, c.mlp_bias)

    def forward(self, x: Tensor, cache: nn.KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.self_attn(self.input_layernorm(x), cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(CausalLM):
    """Token embedding, blocks, final norm, and a head: the token embedding again (tied), or its own.

    Initial weights are as GPT-2's: normal with standard deviation 0.02, divided by sqrt(2 n_layer) for the projections
    that write into the residual stream; biases 0.
    """

    config: LlamaConfig

    model_types: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen3")
    config_class = LlamaConfig
    parts: ClassVar[tuple[str, str, str]] = "embed_tokens", "layers", "norm"
    hub_prefix = "model."
    hub_buffers: ClassVar[re.Pattern[str]] = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
    hub_transposed: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")  # none

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.embed_tokens: nn.Embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers: nn.ModuleList = nn.ModuleList(LlamaBlock(config) for _ in range(config.n_layer))
        self.norm: nn.RMSNorm = nn.RMSNorm(config.n_embd, config.eps)
        self._add_head("o_proj.weight", "down_proj.weight")

    def _embed(self, tokens: Tensor, cache: nn.KVCache | None) -> Tensor:
        """The embeddings of tokens (B, T): (B, T, C). Their positions count in the attention."""
        return self.embed_tokens(tokens)
