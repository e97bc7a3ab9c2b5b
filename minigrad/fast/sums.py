"""A GPT-2 block's sums within its products, and its MLP as one operation."""

from __future__ import annotations

from collections.abc import Iterator

from .. import nn
from ..nn import functional as F
from ..nn.kv_cache import KVCache
from ..plans import Plan
from ..tensor import Tensor
from .parts import CHANGED, are, inactive, is_attention

_LAYERS = nn.Linear, nn.GELU, nn.Linear


def feed_forward(mlp: nn.MLP, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """The three layers of ``mlp`` in one operation."""
    fc, proj = mlp.c_fc, mlp.c_proj
    return F.feed_forward(x, fc.weight, fc.bias, proj.weight, proj.bias, mlp.gelu.approximate, residual=residual)


class FusedFeedForward(Plan):
    """``F.feed_forward``: the GELU happens to rows that are still in the cache, and only its input is kept."""

    name = "feed forward"
    equality = "the same bits in float32 and float64; under autocast one rounding less"

    def reasons(self, mlp: nn.MLP, x: Tensor) -> Iterator[str]:
        if not are(_LAYERS, mlp.c_fc, mlp.gelu, mlp.c_proj):
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
            or not are((*_LAYERS, nn.Linear), mlp.c_fc, mlp.gelu, mlp.c_proj, attn.c_proj)
        ):
            yield CHANGED
        elif not (inactive(attn.resid_dropout) and inactive(mlp.dropout)):
            yield "dropout acts between a product and its sum"

    def run(self, block: nn.Block, x: Tensor, cache: KVCache | None = None, attn_mask: Tensor | None = None) -> Tensor:
        proj = block.attn.c_proj
        y = block.attn.attend(block.ln_1(x), cache, attn_mask)
        x = F.linear(y, proj.weight, proj.bias, residual=x)
        return feed_forward(block.mlp, block.ln_2(x), residual=x)
