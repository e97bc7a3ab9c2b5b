"""The plans of GPT-2: a block as one operation, its sums within products, its MLP and its embeddings as one each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .. import nn
from ..autograd import Function
from ..dtypes import float32, float64
from ..models.gpt2 import GPT2
from ..modes import of_thread
from ..nn import functional as F
from ..nn.functional import check_indices
from ..nn.kv_cache import KVCache
from ..nn.module import unmodified
from ..ops.embedding import add_rows
from ..plans import Plan
from ..tensor import Tensor

CHANGED = "a module within has hooks, is of another class or has another forward"
_BLOCK_LAYERS = nn.LayerNorm, nn.Linear, nn.Linear, nn.LayerNorm, nn.Linear, nn.Linear, nn.GELU
_MLP_LAYERS = nn.Linear, nn.GELU, nn.Linear


# What plans ask of the modules within the one that they compute -------------------------------------------------------


def inactive(dropout: nn.Module) -> bool:
    """Whether this module returns its input."""
    return type(dropout) is nn.Dropout and unmodified(dropout) and not (dropout.training and dropout.p > 0)


def are(kinds: tuple[type[nn.Module], ...], *modules: nn.Module) -> bool:
    """Whether the modules are unmodified and of exactly these classes."""
    return tuple(map(type, modules)) == kinds and all(map(unmodified, modules))


def is_attention(module: nn.Module) -> bool:
    """Whether it is the attention of a GPT-2 block, unmodified."""
    return type(module) in (nn.SelfAttention, nn.CausalSelfAttention) and unmodified(module)


def arrays(module: Any) -> tuple[Any, Any]:
    """The arrays of a layer's weight and bias, None for one that it has not."""
    weight, bias = module.weight, getattr(module, "bias", None)
    return (None if weight is None else weight.data), (None if bias is None else bias.data)


# A block --------------------------------------------------------------------------------------------------------------


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
        if not (is_attention(attn) and are((nn.MLP,), mlp) and are(_BLOCK_LAYERS, *_layers(block), mlp.gelu)):
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


def feed_forward(mlp: nn.MLP, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """The three layers of ``mlp`` in one operation."""
    fc, proj = mlp.c_fc, mlp.c_proj
    return F.feed_forward(x, fc.weight, fc.bias, proj.weight, proj.bias, mlp.gelu.approximate, residual=residual)


class FusedFeedForward(Plan):
    """``F.feed_forward``: the GELU happens to rows that are still in the cache, and only its input is kept."""

    name = "feed forward"
    equality = "the same bits in float32 and float64; under autocast one rounding less"

    def reasons(self, mlp: nn.MLP, x: Tensor) -> Iterator[str]:
        if not are(_MLP_LAYERS, mlp.c_fc, mlp.gelu, mlp.c_proj):
            yield CHANGED

    def run(self, mlp: nn.MLP, x: Tensor) -> Tensor:
        y: Tensor = mlp.dropout(feed_forward(mlp, x))
        return y


class SumsInProducts(Plan):
    """The last product of attention and MLP adds x itself, to rows that are still in the cache."""

    name = "sums in products"
    equality = "the same bits"

    def reasons(
        self, block: nn.Block, x: Tensor, cache: KVCache | None = None, attn_mask: Tensor | None = None
    ) -> Iterator[str]:
        attn, mlp = block.attn, block.mlp
        if (
            not is_attention(attn)
            or not are((nn.MLP,), mlp)
            or not are((*_MLP_LAYERS, nn.Linear), mlp.c_fc, mlp.gelu, mlp.c_proj, attn.c_proj)
        ):
            yield CHANGED
        elif not (inactive(attn.resid_dropout) and inactive(mlp.dropout)):
            yield "dropout acts between a product and its sum"

    def run(self, block: nn.Block, x: Tensor, cache: KVCache | None = None, attn_mask: Tensor | None = None) -> Tensor:
        proj = block.attn.c_proj
        y = block.attn.attend(block.ln_1(x), cache, attn_mask)
        x = F.linear(y, proj.weight, proj.bias, residual=x)
        return feed_forward(block.mlp, block.ln_2(x), residual=x)


# Embeddings -----------------------------------------------------------------------------------------------------------


class PositionedEmbedding(Function):
    """y[b, t] = weight[indices[b, t]] + positions[start + t];  dweight as in ``Embedding``, dpositions[start + t] +=
    the sum over b of dy[b, t]. indices (B, T), both tables (rows, C), float32 or float64, on the CPU.
    """

    __slots__ = ("start",)
    adds_in_place = True
    start: int

    def forward(self, weight: Any, indices: Any, positions: Any, *, start: int) -> Any:
        self.start, self.saved = start, (indices,)
        rows = positions[start : start + indices.shape[1]]
        return self.kernels.embedding.forward_at_positions(weight, indices, rows)

    def backward_into(self, dy: Any, dx: Any, *more: Any) -> None:
        if self.needs[0]:
            add_rows(self.kernels, dy, self.saved[0], dx)
        if self.needs[2]:
            rows = (dx, *more)[-1][self.start : self.start + dy.shape[1]]
            self.kernels.elementwise.add_into(rows, self.kernels.reduce.sum(dy, (0,), False))


class Embeddings(Plan):
    """``PositionedEmbedding`` instead of two embeddings, a range and a sum."""

    name = "embeddings"
    equality = "the same bits"

    def reasons(self, model: GPT2, tokens: Tensor, start: int) -> Iterator[str]:
        wte, wpe = model.wte, model.wpe
        if of_thread.mode.anomaly:
            yield "detect_anomaly names each operation"
        if not are((nn.Embedding, nn.Embedding), wte, wpe):
            yield CHANGED
            return
        if wte.padding_idx is not None or wpe.padding_idx is not None:
            yield "a table has a padding_idx"
        table, places = wte.weight, wpe.weight
        x, y = table.data, places.data
        if table.device is not places.device or table.device.kernels.stages is None:
            yield "these kernels have no stages"
        if x.dtype != y.dtype or x.dtype not in (float32, float64):
            yield "the tables are not both float32, or both float64"
        if not (x.ndim == y.ndim == 2 and x.shape[1] == y.shape[1] > 0):
            yield "the tables are no matrices of the same width"
        elif not 0 < tokens.shape[1] <= y.shape[0] - start:
            yield "there are no tokens, or no rows for their positions"

    def run(self, model: GPT2, tokens: Tensor, start: int) -> Tensor:
        table = model.wte.weight
        rows = PositionedEmbedding.apply(table, check_indices(tokens, table), model.wpe.weight, start=start)
        y: Tensor = model.drop(rows)
        return y
