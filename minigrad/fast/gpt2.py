"""The plans of GPT-2: the sums of a block within products, and its MLP as one operation.

On a GPU these are fewer passes over memory, on a CPU fewer operations for Python to note.
"""

from collections.abc import Iterator
from typing import Any

from .. import nn
from ..nn import functional as F
from ..nn.kv_cache import KVCache
from ..nn.module import unmodified
from ..plans import Plan
from ..tensor import Tensor

CHANGED = "a module within has hooks, is of another class or has another forward"
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


# A block ------------------------------------------------------------------------------------------------------------


def feed_forward(mlp: nn.MLP, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """The three layers of ``mlp`` in one operation."""
    fc, proj = mlp.c_fc, mlp.c_proj
    return F.feed_forward(x, fc.weight, fc.bias, proj.weight, proj.bias, mlp.gelu.approximate, residual=residual)


class FusedFeedForward(Plan):
    """``F.feed_forward``: the GELU is part of a product on a GPU, and only its input is kept."""

    name = "feed forward"
    equality = "the same bits in float32 and float64; under autocast one rounding less"

    def reasons(self, mlp: nn.MLP, x: Tensor) -> Iterator[str]:
        if not are(_MLP_LAYERS, mlp.c_fc, mlp.gelu, mlp.c_proj):
            yield CHANGED

    def run(self, mlp: nn.MLP, x: Tensor) -> Tensor:
        return mlp.dropout(feed_forward(mlp, x))


class SumsInProducts(Plan):
    """The last product of attention and MLP adds x itself."""

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
