"""Normalisations. ``nn.functional`` has them under the same names."""

from __future__ import annotations

from .. import shapes
from ..creation import ones, zeros
from ..ops import layer_norm as layer_norm_ops
from ..tensor import Tensor
from .checks import float32_or_64


def layer_norm(
    x: Tensor,
    normalized_shape: int | tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dimensions, whose sizes are ``normalized_shape``."""
    shape = shapes.shape_argument((normalized_shape,))
    if not shape or x.shape[x.ndim - len(shape) :] != shape or x.ndim < len(shape):
        raise ValueError(f"layer_norm: x of shape {x.shape} does not end in normalized_shape {shape}")
    for name, p in (("weight", weight), ("bias", bias)):
        if p is not None and p.shape != shape:
            raise ValueError(f"layer_norm: {name} has shape {p.shape}, expected {shape}")
    weight = ones(shape, dtype=x.dtype, device=x.device) if weight is None else weight
    bias = zeros(shape, dtype=x.dtype, device=x.device) if bias is None else bias
    return layer_norm_ops.LayerNorm.apply(float32_or_64("layer_norm", x), weight, bias, eps=eps)
