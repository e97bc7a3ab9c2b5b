"""A sum and its norm in one pass over the stream, on a GPU under autocast.

There the product before rounds its result, so it cannot add the stream itself. The last sum of a block has its norm in
the next block. So blocks hand on their stream and the branch that is still to be added.
"""

from collections.abc import Iterator
from typing import Any

from .. import nn
from ..autograd import Function
from ..dtypes import finfo, float32, is_half
from ..models.causal_lm import CausalLM
from ..models.llama import LlamaBlock
from ..modes import is_autocast_enabled
from ..nn.module import unmodified
from ..ops.layer_norm import LayerNorm
from ..ops.rms_norm import RMSNorm
from ..plans import Plan
from ..tensor import Tensor
from .gpt2 import CHANGED

# The norm before the attention, the attention, the norm before the MLP, the MLP.
_PARTS: dict[type[nn.Module], tuple[str, str, str, str]] = {
    nn.Block: ("ln_1", "attn", "ln_2", "mlp"),
    LlamaBlock: ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
}


class AddForNorm(Function):
    """h = x + y, whose norm the same pass computes for the ``LayerNorm`` or ``RMSNorm`` of h: ``made`` receives it.

    x is float32, y of its shape, float32 or half floats, ``affine`` weight and bias (C,), or the weight. ``family`` is
    "layer_norm" or "rms_norm". For backends that say ``fuses_add_norm``.
    """

    widens = False

    def forward(self, x: Any, y: Any, *, family: str, affine: tuple[Any, ...], eps: float, made: list[Any]) -> Any:
        rows = [self.kernels.contiguous(array).reshape(-1, affine[0].size) for array in (x, y)]
        norm, h, *statistics = getattr(self.kernels, family).add_forward(*rows, *affine, eps)
        made += norm, *statistics
        return h.reshape(x.shape)

    def backward(self, dh: Any) -> Any:
        return dh, dh


def _reasons(x: Any = None) -> Iterator[str]:
    if not isinstance(x, Tensor) or not x.device.kernels.fuses_add_norm:
        yield "only on a GPU"
    elif x.dtype != float32 or not is_autocast_enabled(x.device.type):
        yield "only of a float32 stream under autocast"


class AddNorm(Plan):
    """The sum within a block and the norm that follows it."""

    name = "sum with norm"
    equality = "the same bits"

    def reasons(self, module: nn.Module, *args: Any, **kwargs: Any) -> Iterator[str]:
        yield from _reasons(*args[:1])

    def run(self, module: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        x, *more = args
        x, branch = _branches(module, x, None, *more, **kwargs)
        return x + branch


class AddNormAcrossBlocks(Plan):
    """All sums but the first of a model, each with the norm that follows it in the next block or after the last."""

    name = "sums with norms across blocks"
    equality = "the same bits"

    def reasons(self, model: CausalLM, x: Tensor, caches: Any) -> Iterator[str]:
        yield from _reasons(x)
        if model.config.checkpoint_blocks and not caches:
            yield "blocks are recomputed in backward"
        if not all(type(block) in _PARTS and unmodified(block) for block in model._trunk[0]):
            yield CHANGED

    def run(self, model: CausalLM, x: Tensor, caches: Any) -> Tensor:
        (blocks, norm), branch = model._trunk, None
        for i, block in enumerate(blocks):
            x, branch = _branches(block, x, branch, caches[i] if caches else None)
        return _add_norm(x, branch, norm)[1]


def _branches(block: nn.Module, x: Tensor, branch: Tensor | None, *more: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """The block of x + branch in two parts, the stream and the branch of its MLP, (B, T, C) each."""
    kind = next(kind for kind in _PARTS if isinstance(block, kind))
    norm_1, attention, norm_2, mlp = (getattr(block, name) for name in _PARTS[kind])
    x, y = _add_norm(x, branch, norm_1)
    x, y = _add_norm(x, attention(y, *more, **named), norm_2)
    return x, mlp(y)


def _add_norm(x: Tensor, branch: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    """x + branch (x if it is None) and the norm of that: (..., C) each -> (..., C), (..., C)."""
    if branch is None:
        return x, norm(x)
    kind, weight, bias = type(norm), getattr(norm, "weight", None), getattr(norm, "bias", None)
    affine = tuple(p for p in (weight, bias) if p is not None)
    known = unmodified(norm) and len(affine) == {nn.LayerNorm: 2, nn.RMSNorm: 1}.get(kind)
    if not known or not _one_pass(x, branch, *affine):
        x = x + branch
        return x, norm(x)
    eps = float(finfo(float32).eps) if norm.eps is None else norm.eps
    family, operation = ("layer_norm", LayerNorm) if kind is nn.LayerNorm else ("rms_norm", RMSNorm)
    made: list[Any] = []
    h = AddForNorm.apply(x, branch, family=family, affine=tuple(p.data for p in affine), eps=eps, made=made)
    return h, operation.apply(h, *affine, eps=eps, made=made)


def _one_pass(x: Tensor, y: Tensor, *affine: Tensor) -> bool:
    """Whether one kernel adds y to x and normalises the rows."""
    return (
        x.dtype == float32
        and (y.dtype == float32 or is_half(y.dtype))
        and x.shape == y.shape
        and all(p.dtype == float32 and p.shape == x.shape[-1:] for p in affine)
        and x.numel() > 0
    )
