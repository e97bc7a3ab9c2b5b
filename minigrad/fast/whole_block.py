"""A block of GPT-2 as one operation on the CPU: threads take their sequences through all of it and wait once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .. import nn
from ..autograd import Function
from ..modes import of_thread
from ..nn.kv_cache import KVCache
from ..plans import Plan
from ..tensor import Tensor
from .parts import CHANGED, are, inactive, is_attention

_LAYERS = nn.LayerNorm, nn.Linear, nn.Linear, nn.LayerNorm, nn.Linear, nn.Linear, nn.GELU


class TransformerBlock(Function):
    """x2 = x + A(N(x)) Wo^T + bo, A attention on qkv = N(x) Wqkv^T + bqkv;  y = x2 + G(N(x2) W^T + b) V^T + c, N layer
    norm, G GELU. The derivative is the chain of those of ``LayerNorm``, ``Linear``, ``PackedAttention``, ``LayerNorm``
    and ``FeedForward``, whose bits it has, and kept is what they keep.

    Inputs are x (B, T, C), then weight and bias (or None) of the first norm, Wqkv (3 C, C), Wo (C, C), the second norm,
    W (I, C) and V (C, I); ``options`` are the kernels' ``Options``. A gradient of x or of the first norm is wanted, or
    none at all; that of a matrix too, where its bias's is.
    """

    __slots__ = ("options",)
    options: Any

    def forward(self, x: Any, *weights: Any, options: Any) -> Any:
        self.options, keep = options, True in self.needs
        y, kept = self.kernels.stages.transformer_block.forward(x, weights, options, keep)
        if keep:
            self.saved = (x, kept, *weights[::2])
        return y

    def backward(self, dy: Any) -> Any:
        x, kept, *weights = self.saved
        return self.kernels.stages.transformer_block.backward(dy, x, weights, kept, self.options, self.needs)


class WholeBlock(Plan):
    """``TransformerBlock``. It runs where it is faster than the operations one by one."""

    name = "whole block"
    equality = "the same bits, but for the gradient of an x with other uses: its sum has another order"

    def reasons(
        self, block: nn.Block, x: Tensor, cache: KVCache | None = None, attn_mask: Tensor | None = None
    ) -> Iterator[str]:
        mode, attn, mlp = of_thread.mode, block.attn, block.mlp
        if cache is not None or attn_mask is not None:
            yield "a cache or a mask is given"
        if mode.autocast is not None:
            yield "autocast chooses a dtype for each operation"
        if mode.anomaly:
            yield "detect_anomaly names each operation"
        if not isinstance(x, Tensor) or x.device.kernels.stages is None:
            yield "these kernels have no stages"
            return
        if not (is_attention(attn) and are((nn.MLP,), mlp) and are(_LAYERS, *_layers(block), mlp.gelu)):
            yield CHANGED
            return
        if not inactive(attn.resid_dropout) or not inactive(mlp.dropout) or (attn.training and attn.dropout):
            yield "dropout acts, or is a changed module"
        if mlp.gelu.approximate not in ("none", "tanh"):
            yield "the GELU has another form"
        weights = _weights(block)
        if mode.enabled and not _takes_gradients(x, weights):
            yield "of x and the first norm no gradient is wanted, or a bias's without its matrix's"
        arrays = [None if weight is None else weight.data for weight in weights]
        yield from x.device.kernels.stages.transformer_block.reasons(x.data, arrays, attn.n_head)

    def run(self, block: nn.Block, x: Tensor, cache: None = None, attn_mask: None = None) -> Tensor:
        attn, eps = block.attn, (float(block.ln_1.eps), float(block.ln_2.eps))
        heads, scale = int(attn.n_head), 1 / math.sqrt(x.shape[2] // attn.n_head)
        options = heads, eps, bool(attn.is_causal), block.mlp.gelu.approximate, scale
        return TransformerBlock.apply(x, *_weights(block), options=options)


def _layers(block: nn.Block) -> list[Any]:
    attn, mlp = block.attn, block.mlp
    return [block.ln_1, attn.c_attn, attn.c_proj, block.ln_2, mlp.c_fc, mlp.c_proj]


def _weights(block: nn.Block) -> list[Tensor | None]:
    weights: list[Tensor | None] = []
    for layer in _layers(block):
        weights += layer.weight, layer.bias
    return weights


def _takes_gradients(x: Tensor, weights: list[Tensor | None]) -> bool:
    """Whether the wanted gradients are none, or of x or the first norm too, and of a matrix wherever of its bias."""
    wanted = [tensor is not None and tensor.requires_grad for tensor in weights]
    if False not in wanted:
        return True
    if not (x.requires_grad or wanted[0]):
        return True not in wanted
    return not any(wanted[i + 1] and not wanted[i] for i in (2, 4, 8, 10))
