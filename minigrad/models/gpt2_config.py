"""The sizes of a GPT-2, how Hugging Face's ``config.json`` says them, and the memory that a training step needs."""

import dataclasses
from typing import Annotated, Any

import numpy as np

from ..dtypes import float32, is_half
from ..errors import bad_value
from ..tools.step_memory import MemoryReport
from .hub_config import Bos, Eos, HubConfig, Stored, check_numbers, check_sizes

DROPS = "resid_pdrop", "embd_pdrop", "attn_pdrop"


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
        check_numbers(self)

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
    def from_hub(cls, hub: HubConfig, dropout: float | None) -> "GPT2Config":
        """What a ``config.json`` of model_type gpt2 means; its other names for sizes are understood too.

        ``"bias": false`` (not of transformers, whose GPT-2 always has biases) is a model without.
        """
        hub.only("activation_function", "gelu_new", "gelu_pytorch_tanh")
        hub.only("scale_attn_weights", True)
        hub.only("scale_attn_by_inverse_layer_idx", False)
        hub.only("add_cross_attention", False)
        hub.only("sliding_window", None)
        hub.inert("reorder_and_upcast_attn")  # the same numbers: attention is computed in float32 here
        hub.inert("n_ctx", *(name for name in hub.values if name.startswith("summary_")))
        drops = {name: hub.probability(name, 0.1) for name in DROPS}
        if dropout is None and len(set(drops.values())) > 1:
            shown = ", ".join(f"{name} {value:g}" for name, value in drops.items())
            raise hub.error(f"{shown}: there is one dropout probability here; pass dropout=")
        fields = Stored.read_all(cls, hub)
        n_inner = hub.integer("n_inner", 4 * fields["n_embd"])
        fields |= {"bias": hub.boolean("bias", True), "n_inner": None if n_inner == 4 * fields["n_embd"] else n_inner}
        return cls(**fields, dropout=drops["resid_pdrop"] if dropout is None else dropout)

    def to_hub(self) -> dict[str, Any]:
        """The fields of ``config.json``."""
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            **dict.fromkeys(DROPS, self.dropout),
            **Stored.write_all(self),
            "n_inner": self.n_inner,
            **({} if self.bias else {"bias": False}),
        }


CHUNK_BYTES, DEVICE_CHUNK_BYTES = 256 << 20, 512 << 20  # of logits at a time, as the kernels for CPU and GPU make them


def gpt2_memory(
    config: GPT2Config, batch_size: int, tokens: int | None = None, dtype: Any = float32, moments: int = 2
) -> MemoryReport:
    """Bytes by kind of a step of ``GPT2(config)`` on ``batch_size`` sequences of ``tokens`` (default block_size).

    ``dtype`` is float32, or a half dtype: that of autocast on a device whose tensor cores compute with it, with float32
    weights. ``moments`` is the number of float32 arrays that the optimizer has for each weight, 2 for AdamW.

    With N = B T tokens, C channels, I within the MLP, V tokens in the vocabulary, and h bytes a number of ``dtype``:

        LayerNorm            4 C + 8          its input in float32, mean, 1 / deviation; two a layer, and the last one
        Linear               h C              a layer; the projection after attention has attention's output: 0
        PackedAttention      4 h C + 4 heads  a layer: queries, keys, values, the output, the rows' log-sum-exp
        FeedForward          h (C + I)        a layer: its input, and what GELU gets
        LinearCrossEntropy   2 h C + 8        its input and the input's gradient, targets; and 4 V C, once: the weight's

    times N each. With ``checkpoint_blocks`` a layer keeps 4 C + 4 instead. The temporary part is an estimate: of a
    layer, the gradients of its output (in float32 and ``dtype``) and of what GELU got, and what GELU gave; or a chunk
    of logits in float32 and ``dtype``, if more; and with ``checkpoint_blocks`` the layer's activations once more.

    Raises ValueError for another dtype, and for a head of its own (``tied=False``).
    """
    kind = np.dtype(dtype)
    if kind != float32 and not is_half(kind):
        raise bad_value(f"gpt2_memory: dtype is {kind}; expected float32, bfloat16 or float16")
    if not config.tied:
        raise bad_value("gpt2_memory: the configuration has tied=False; expected the head of GPT-2")
    T = config.block_size if tokens is None else tokens
    N, h = batch_size * T, kind.itemsize
    L, C, V, heads = config.n_layer, config.n_embd, config.vocab_size, config.n_head
    inner = config.n_inner or 4 * C
    matrices = V * C + L * (4 * C * C + 2 * C * inner)
    vectors = L * ((5 * C + inner + 2 * C) if config.bias else 0) + 2 * L * C + (C if config.bias else 0) + C
    layer = {
        "LayerNorm": 2 * N * (4 * C + 8),
        "Linear": N * h * C,
        "PackedAttention": N * (4 * h * C + 4 * heads),
        "FeedForward": N * h * (C + inner),
    }
    activations = {name: L * size for name, size in layer.items()}
    chunk = min(4 * V * N, DEVICE_CHUNK_BYTES) * (4 + h) // 4 if is_half(kind) else min(4 * V * N, CHUNK_BYTES)
    temporary = max(chunk, N * (4 * C + (h * C if is_half(kind) else 0) + 2 * h * inner))
    if config.checkpoint_blocks:
        activations = {"checkpoint": L * N * (4 * C + 4), "LayerNorm": 0}
        temporary += sum(layer.values())
    activations["LayerNorm"] += N * (4 * C + 8)
    activations["LinearCrossEntropy"] = N * (2 * h * C + 8) + 4 * V * C
    activations["Embedding"] = 8 * (N + T)
    weights = 4 * (matrices + vectors + config.block_size * C)
    report = MemoryReport(weights, optimizer=moments * weights, gradients=weights, activations=activations)
    report.weight_copies, report.temporary = h * matrices if is_half(kind) else 0, temporary
    return report
