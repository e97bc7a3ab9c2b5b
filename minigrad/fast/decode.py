"""One token of each sequence through a whole model in one call of compiled code.

The kernel (``cpu_kernels/stages/decode.py``) knows the arrays of a model, not its modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import numpy as np

from .. import nn
from ..autograd import is_grad_enabled
from ..models.causal_lm import CausalLM
from ..models.gpt2 import GPT2
from ..models.llama import Llama, LlamaBlock
from ..modes import is_autocast_enabled
from ..nn.module import unmodified
from ..plans import Plan
from ..tensor import Tensor
from .gpt2 import CHANGED, arrays

_data = attrgetter("data")
_values: Callable[[dict[str, Any]], Iterable[Any]] = dict.values
# The class of each module, by the last part of its name.
_ROLES: dict[type[CausalLM], dict[str, type[nn.Module]]] = {
    GPT2: {
        "wte": nn.Embedding, "wpe": nn.Embedding, "drop": nn.Dropout, "h": nn.ModuleList, "block": nn.Block,
        "ln_1": nn.LayerNorm, "attn": nn.SelfAttention, "c_attn": nn.Linear, "c_proj": nn.Linear,
        "resid_dropout": nn.Dropout, "ln_2": nn.LayerNorm, "mlp": nn.MLP, "c_fc": nn.Linear, "gelu": nn.GELU,
        "dropout": nn.Dropout, "ln_f": nn.LayerNorm, "lm_head": nn.Linear,
    },
    Llama: {
        "embed_tokens": nn.Embedding, "layers": nn.ModuleList, "block": LlamaBlock, "input_layernorm": nn.RMSNorm,
        "self_attn": nn.GroupedQueryAttention, "q_proj": nn.Linear, "k_proj": nn.Linear, "v_proj": nn.Linear,
        "o_proj": nn.Linear, "post_attention_layernorm": nn.RMSNorm, "mlp": nn.SwiGLU, "gate_proj": nn.Linear,
        "up_proj": nn.Linear, "down_proj": nn.Linear, "norm": nn.RMSNorm, "lm_head": nn.Linear,
    },
}  # fmt: skip


class Decode(Plan):
    """The next token of GPT-2 and Llama with caches, on the CPU: a tenth of the calls."""

    name = "decode"
    equality = "the same logits within rounding: 1e-11 of the largest in float64, 1e-3 in float32"

    def reasons(self, model: CausalLM, tokens: Tensor, caches: list[nn.KVCache] | None = None) -> Iterator[str]:
        if not caches or tokens.ndim != 2 or tokens.shape[1] != 1:
            yield "it is not one token of each sequence with caches"
        elif model.device.kernels.stages is None:
            yield "these kernels have no stages"
        else:
            decoder = caches[0].decoder
            if decoder is None or not decoder.is_of(model, caches):
                decoder = caches[0].decoder = Decoder(model, caches)
            yield from decoder.reasons(tokens, caches)

    def run(self, model: CausalLM, tokens: Tensor, caches: list[nn.KVCache]) -> Tensor:
        return caches[0].decoder.step(tokens, caches)


class Decoder:
    """What the kernel needs of a model and its caches. Kept with the first cache, for the tokens that follow.

    ``plan`` is None for a model that the kernel cannot compute.
    """

    plan: Any

    def __init__(self, model: CausalLM, caches: list[nn.KVCache]) -> None:
        self._model, self._kernel = model, model.device.kernels.stages.decode
        tables = [module.__dict__ for module in model.modules()]
        # The model's own hooks are called around its forward, whatever that does.
        self._hooks = [table[kind] for table in tables[1:] for kind in ("_forward_pre_hooks", "_forward_hooks")]
        self._tables = [table[kind] for table in tables for kind in ("_modules", "_parameters")]
        self._entries = [*chain.from_iterable(map(_values, self._tables))]
        self._drops = [
            table for table in tables if "p" in table or ("dropout" in table and "dropout" not in table["_modules"])
        ]
        self._cached = [tensor for cache in caches for tensor in cache.tensors]
        self._tensors = [*model.parameters(), *self._cached]
        self._arrays = [*map(_data, self._tensors)]
        self._vocab = model.embedding.num_embeddings
        self.plan, self._why = None, CHANGED
        if _is_plain(model):
            parts = (_gpt2 if isinstance(model, GPT2) else _llama)(self._kernel.Layer, model, caches)
            self.plan = None if parts is None else self._kernel.prepare(self._kernel.Model(**parts))
            self._why = "the blocks are not alike, or an array has another dtype or shape than the kernel expects"

    def is_of(self, model: CausalLM, caches: list[nn.KVCache]) -> bool:
        """Whether model and caches are still those that the plan was made of."""
        entries = [*chain.from_iterable(map(_values, self._tables))]
        cached = [tensor for cache in caches for tensor in cache.tensors]
        return (
            model is self._model
            and len(entries) == len(self._entries)
            and len(cached) == len(self._cached)
            and all(map(is_, entries, self._entries))
            and all(map(is_, cached, self._cached))
            and all(map(is_, map(_data, self._tensors), self._arrays))
        )

    def reasons(self, tokens: Tensor, caches: list[nn.KVCache]) -> Iterator[str]:
        """Why the kernel does not do with tokens (B, 1) what the modules do, or what these would refuse."""
        if self.plan is None:
            yield self._why
            return
        if any(self._hooks):
            yield CHANGED
        if is_grad_enabled() or is_autocast_enabled("cpu"):
            yield "gradients are recorded, or autocast chooses dtypes"
        for table in self._drops:
            if table["training"] and (table.get("dropout") or table.get("p")):
                yield "dropout acts"
        start, ids = caches[0].length, tokens.data
        if start >= min(self.plan.room, self._model.config.block_size) or any(c.length != start for c in caches):
            yield "a cache is full, or they hold different numbers of tokens"
        if tokens.device is not self._model.device or ids.dtype.kind not in "iu" or len(ids) != self.plan.batch:
            yield "the tokens are on another device, no integers, or for another batch"
        elif not all(0 <= token < self._vocab for token in ids[:, 0].tolist()):
            yield "a token is out of range"

    def step(self, tokens: Tensor, caches: list[nn.KVCache]) -> Tensor:
        """Tokens (B, 1) -> logits (B, 1, vocab); the caches hold them from now on."""
        start = caches[0].length
        logits = self._kernel.step(self.plan, tokens.data, start)
        for cache in caches:
            cache.length = start + 1
        return Tensor.wrap(logits, tokens.device)


def _is_plain(model: CausalLM) -> bool:
    """Whether all modules are of the classes that the kernel computes, and called as these define it."""
    family = next((family for family in _ROLES if isinstance(model, family)), None)
    methods = ("_features", "_embed", "_through", "_trunk", "_head", "embedding")
    if family is None or any(getattr(type(model), name) is not getattr(family, name) for name in methods):
        return False
    for name, module in model.named_modules():
        role = name.rpartition(".")[2]
        expected = _ROLES[family].get("block" if role.isdecimal() else role)
        if module is not model and (type(module) is not expected or not unmodified(module)):
            return False
    return True


def _gpt2(Layer: Any, model: Any, caches: list[nn.KVCache]) -> dict[str, Any] | None:
    """The fields of the kernel's ``Model``, or None if the blocks are not alike."""
    alike = {(block.attn.n_head, block.attn.is_causal, block.mlp.gelu.approximate) for block in model.h}
    if len(alike) != 1 or len(model.h) != len(caches):
        return None
    ((n_head, is_causal, activation),) = alike
    if not is_causal or n_head != caches[0].tensors[0].shape[1]:
        return None
    layers, C = [], model.wte.embedding_dim
    for block, cache in zip(model.h, caches, strict=True):
        weight, bias = arrays(block.attn.c_attn)
        if weight.shape != (3 * C, C):
            return None
        thirds = [slice(i * C, (i + 1) * C) for i in range(3)]
        q, k, v = ((weight[rows], None if bias is None else bias[rows]) for rows in thirds)
        attn, mlp, cached = block.attn, block.mlp, tuple(tensor.data for tensor in cache.tensors)
        layers.append(
            Layer(
                norm_1=arrays(block.ln_1), q=q, k=k, v=v, out=arrays(attn.c_proj), norm_2=arrays(block.ln_2),
                gate=(None, None), up=arrays(mlp.c_fc), down=arrays(mlp.c_proj), cache=cached,
            )
        )  # fmt: skip
    norms = [norm for block in model.h for norm in (block.ln_1, block.ln_2)]
    return {
        **_ends(model, layers, norms),
        "positions": model.wpe.weight.data,
        "rotation": (None, None),
        "rms": False,
        "activation": activation,
    }


def _llama(Layer: Any, model: Any, caches: list[nn.KVCache]) -> dict[str, Any] | None:
    """The fields of the kernel's ``Model``, or None if the blocks are not alike."""
    attentions = [block.self_attn for block in model.layers]
    alike = {(a.n_head, a.n_kv_head, a.head_size, a.rope_base, a.rope_frequencies) for a in attentions}
    if len(alike) != 1 or len(attentions) != len(caches):
        return None
    ((n_head, n_kv_head, head_size, base, frequencies),) = alike
    _, heads, room, D = caches[0].tensors[0].shape
    if (n_kv_head, head_size) != (heads, D) or len(attentions[0].q_proj.weight.data) != n_head * D:
        return None
    layers = []
    for block, cache in zip(model.layers, caches, strict=True):
        attn, mlp, cached = block.self_attn, block.mlp, tuple(tensor.data for tensor in cache.tensors)
        layers.append(
            Layer(
                norm_1=arrays(block.input_layernorm), q=arrays(attn.q_proj), k=arrays(attn.k_proj),
                v=arrays(attn.v_proj), out=arrays(attn.o_proj), norm_2=arrays(block.post_attention_layernorm),
                gate=arrays(mlp.gate_proj), up=arrays(mlp.up_proj), down=arrays(mlp.down_proj), cache=cached,
            )
        )  # fmt: skip
    dtype, positions, rope = model.embedding.weight.dtype, np.arange(room), model.device.kernels.rope
    if frequencies is None:
        rotation = rope.tables(positions, D, base, dtype)
    else:
        rotation = rope.angle_tables(positions, np.asarray(frequencies), dtype)
    norms = [norm for block in model.layers for norm in (block.input_layernorm, block.post_attention_layernorm)]
    return {**_ends(model, layers, norms), "positions": None, "rotation": rotation, "rms": True, "activation": "silu"}


def _ends(model: CausalLM, layers: list[Any], norms: list[Any]) -> dict[str, Any]:
    last: Any = model._trunk[1]
    return {
        "embedding": model.embedding.weight.data,
        "layers": layers,
        "norm": arrays(last),
        "head": model._head.weight.data,
        "eps": [norm.eps for norm in (*norms, last)],
    }
