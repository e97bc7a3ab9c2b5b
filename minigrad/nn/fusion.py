"""When several modules are one operation, and the operations that GPT-2 and Llama share: a sum with its norm, and the
embeddings of tokens and of their positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

from ..creation import arange
from ..device import CPU
from ..dtypes import float32, float64
from ..grad_mode import of_thread
from ..mixed_precision import is_autocast_enabled
from ..ops.positioned_embedding import PositionedEmbedding
from ..tensor import Tensor
from .activation_modules import GELU
from .checks import check_indices
from .layers import Dropout, Embedding, LayerNorm, Linear, RMSNorm
from .module import Module
from .normalization import add_layer_norm, add_rms_norm

M = TypeVar("M", bound=Module)

apart = False
"""Whether operations are one by one: set by ``one_by_one``."""

_FORWARDS: dict[type[Module], Any] = {
    kind: kind.forward for kind in (Embedding, Linear, LayerNorm, RMSNorm, GELU, Dropout)
}


def as_built(module: Module) -> bool:
    """Whether calling ``module`` does what its class in this library does, and nothing else.

    Blocks then compute several of their modules in one fused operation. Not so for a module that was replaced by one of
    another class (also a subclass), that has forward hooks, or whose ``forward`` was assigned: it is called.
    """
    own = module.__dict__
    return (
        _FORWARDS.get(type(module)) is type(module).forward
        and not own["_forward_hooks"]
        and not own["_forward_pre_hooks"]
        and "forward" not in own
    )


def drops(dropout: Module) -> bool:
    """Whether this module does more than to return its input."""
    return not as_built(dropout) or (dropout.training and dropout.p > 0)


def register_as_built(kind: type[M]) -> type[M]:
    """Let ``as_built`` know a class by the ``forward`` that it has now."""
    _FORWARDS[kind] = kind.forward
    return kind


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """Within it each operation of ``Block`` and ``embed`` is one of its own, in all threads: to count or time them."""
    global apart
    before, apart = apart, True
    try:
        yield
    finally:
        apart = before


def adds_with_norm(x: Tensor) -> bool:
    """Whether a stream x gets a branch added and its norm taken in one pass: in float32 on a GPU under autocast, where
    the product before, whose result is rounded, cannot add it.
    """
    return x.device.type == "cuda" and x.dtype == float32 and is_autocast_enabled("cuda")


def add_norm(x: Tensor, branch: Tensor | None, norm: Module) -> tuple[Tensor, Tensor]:
    """x + branch (x if it is None) and the norm of that: (..., C) each -> (..., C), (..., C).

    One pass for a norm that is as built, with weights, where ``adds_with_norm``; the bits are the same.
    """
    if branch is None:
        return x, norm(x)
    if adds_with_norm(x) and as_built(norm):
        if isinstance(norm, LayerNorm) and norm.weight is not None and norm.bias is not None:
            return add_layer_norm(x, branch, norm.weight, norm.bias, norm.eps)
        if isinstance(norm, RMSNorm) and norm.weight is not None:
            return add_rms_norm(x, branch, norm.weight, norm.eps)
    x = x + branch
    return x, norm(x)


def embed(tokens: Tensor, start: int, wte: Embedding, wpe: Embedding) -> Tensor:
    """The embeddings of tokens (B, T) and of their positions, of which ``start`` is the first: (B, T, C).

    One operation, with the same bits, on the CPU in float32 or float64, if both modules are as built; not within
    ``detect_anomaly`` or ``one_by_one``.
    """
    if (
        type(wte) is type(wpe) is Embedding
        and wte.padding_idx is None
        and wpe.padding_idx is None
        and not apart
        and not of_thread.mode.anomaly
        and as_built(wte)
        and as_built(wpe)
    ):
        table, places = wte.weight, wpe.weight
        x, y = table.data, places.data
        if (
            table.device is places.device is CPU
            and x.dtype is y.dtype
            and x.dtype in (float32, float64)
            and x.ndim == y.ndim == 2
            and x.shape[1] == y.shape[1] > 0
            and 0 < tokens.shape[1] <= y.shape[0] - start
        ):
            return PositionedEmbedding.apply(table, check_indices(tokens, table), places, start=start)
    sums: Tensor = wte(tokens) + wpe(arange(start, start + tokens.shape[1], device=tokens.device))
    return sums
