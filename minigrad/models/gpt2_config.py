"""The sizes of a GPT-2, and how Hugging Face's ``config.json`` says them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from ..errors import bad_value
from .hub_config import Bos, Eos, HubConfig, Stored, check_dropout, check_sizes


@dataclasses.dataclass(frozen=True)
class GPT2Config:
    """Sizes of a GPT-2; the defaults are those of the 124M model. ``block_size`` is the longest context.

    ``tied``: the head is the token embedding. ``n_inner``: channels within the MLP, None for 4 n_embd. ``eps`` is that
    of the norms. The two ids are for those who generate: the model does not use them.

    ``checkpoint_blocks``: ``backward`` computes the activations of each block again, so that less memory is needed.

    """

    vocab_size: Annotated[int, Stored("vocab_size")] = 50257
    block_size: Annotated[int, Stored("n_positions")] = 1024
    n_layer: Annotated[int, Stored("n_layer")] = 12
    n_head: Annotated[int, Stored("n_head")] = 12
    n_embd: Annotated[int, Stored("n_embd")] = 768
    dropout: float = 0.0
    bias: bool = True
    tied: Annotated[bool, Stored("tie_word_embeddings", HubConfig.boolean, (True,))] = True
    n_inner: int | None = None
    eps: Annotated[float, Stored("layer_norm_epsilon", HubConfig.number, (1e-5,))] = 1e-5
    bos_token_id: Bos = None
    eos_token_id: Eos = None
    checkpoint_blocks: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "block_size", "n_layer", "n_head", "n_embd")
        if self.n_inner is not None:
            check_sizes(self, "n_inner")
        if self.n_embd % self.n_head:
            raise bad_value(f"GPT2Config: n_embd={self.n_embd} is not a multiple of n_head={self.n_head}")
        check_dropout(self)

    @property
    def n_kv_head(self) -> int:
        """Heads of keys and values: as many as of queries."""
        return self.n_head

    @property
    def head_size(self) -> int:
        """Channels of a head."""
        return self.n_embd // self.n_head

    # ------------------------------------------------------------------ Hugging Face's format

    @classmethod
    def from_hub(cls, hub: HubConfig, dropout: float | None) -> GPT2Config:
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
            raise hub.error(f"{shown}: there is one dropout probability here; pass dropout=")
        fields = Stored.read_all(cls, hub)
        n_inner = hub.integer("n_inner", 4 * fields["n_embd"])
        return cls(
            **fields,
            dropout=drops["resid_pdrop"] if dropout is None else dropout,
            bias=hub.boolean("bias", True),
            n_inner=None if n_inner == 4 * fields["n_embd"] else n_inner,
        )

    def to_hub(self) -> dict[str, Any]:
        """The fields of ``config.json``."""
        return {
            "architectures": ["GPT2LMHeadModel"],
            "activation_function": "gelu_new",
            "attn_pdrop": self.dropout,
            "embd_pdrop": self.dropout,
            "resid_pdrop": self.dropout,
            **Stored.write_all(self),
            "n_inner": self.n_inner,
            **({} if self.bias else {"bias": False}),
        }
