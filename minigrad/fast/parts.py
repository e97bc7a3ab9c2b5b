"""What plans ask of the modules within the one that they compute."""

from __future__ import annotations

from typing import Any

from .. import nn
from ..nn.module import unmodified

CHANGED = "a module within has hooks, is of another class or has another forward"


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
