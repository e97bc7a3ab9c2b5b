"""Normalisations. ``nn.functional`` has them under the same names. Whatever the dtypes of the parameters (float32 ones
for a bfloat16 x are usual), the result is of x's.
"""

from __future__ import annotations

import math

from .. import shapes
from ..autograd import no_grad
from ..creation import ones, zeros
from ..dtypes import finfo, float32, is_half
from ..errors import bad_value
from ..ops import batch_norm as batch_norm_ops
from ..ops import group_norm as group_norm_ops
from ..ops import layer_norm as layer_norm_ops
from ..ops import rms_norm as rms_norm_ops
from ..tensor import Tensor
from .checks import floating, in_dtype_of


def layer_norm(
    x: Tensor,
    normalized_shape: int | tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dimensions, whose sizes are ``normalized_shape``."""
    shape = _last_sizes("layer_norm", x, normalized_shape)
    if weight is None or bias is None or weight.data.shape != shape or bias.data.shape != shape:
        weight, bias = _affine("layer_norm", x, shape, weight, bias)
    return in_dtype_of(x, layer_norm_ops.LayerNorm.apply(floating("layer_norm", x), weight, bias, eps=eps))


def rms_norm(
    x: Tensor, normalized_shape: int | tuple[int, ...], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimensions, whose sizes are ``normalized_shape``.

    ``eps`` defaults to the distance from 1 to the next number of x's dtype, as in PyTorch.
    """
    shape = _last_sizes("rms_norm", x, normalized_shape)
    weight, _ = _affine("rms_norm", floating("rms_norm", x), shape, weight, None)
    eps = float(finfo(float32 if is_half(x.dtype) else x.dtype).eps) if eps is None else eps
    return in_dtype_of(x, rms_norm_ops.RMSNorm.apply(x, weight, eps=eps))


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias: x (N, C, ...), weight and bias (C,) -> the same shape as x.

    Mean and variance are those of C / num_groups neighbouring channels of one sample.
    """
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise bad_value(
            f"group_norm: x of shape {x.shape}, {num_groups} groups; expected (N, C, ...), C a multiple of them"
        )
    weight, bias = _affine("group_norm", x, x.shape[1:2], weight, bias)
    y = group_norm_ops.GroupNorm.apply(floating("group_norm", x), weight, bias, groups=num_groups, eps=eps)
    return in_dtype_of(x, y)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias by channel: x (N, C, ...), the others (C,) -> the same shape as x.

    In training, mean and (biased) variance are those of the batch, and the running ones, if given, become (1 -
    momentum) times themselves + momentum times the batch's, in place, with the unbiased variance. Otherwise the running
    ones are used.
    """
    if x.ndim < 2:
        raise bad_value(f"batch_norm: x of shape {x.shape}; expected (N, C, ...)")
    channels = x.shape[1:2]
    weight, bias = _affine("batch_norm", x, channels, weight, bias)
    _sizes("batch_norm", channels, running_mean=running_mean, running_var=running_var)
    floating("batch_norm", x)
    wide = float32 if is_half(x.dtype) else x.dtype
    if not training:
        if running_mean is None or running_var is None:
            raise bad_value("batch_norm: evaluation needs running_mean and running_var; or pass training=True")
        mean, var = (t.to(wide).data for t in (running_mean, running_var))
        y = batch_norm_ops.BatchNorm.apply(x, weight, bias, mean=mean, var=var, eps=eps, of_batch=False)
        return y.to(x.dtype)
    count = math.prod(x.shape) // max(x.shape[1], 1)
    if count < 2 and x.shape[1]:
        raise bad_value(f"batch_norm: x of shape {x.shape}; training needs more than one value of each channel")
    rows = x.detach().to(wide).reshape(x.shape[0], x.shape[1], count // max(x.shape[0], 1))
    mean, var = (Tensor.wrap(a, x.device) for a in x.device.kernels.batch_norm.statistics(rows.data))
    with no_grad():
        for running, batch in ((running_mean, mean), (running_var, var * (count / max(count - 1, 1)))):
            if running is not None:
                running.mul_(1 - momentum).add_((batch * momentum).to(running.dtype))
    y = batch_norm_ops.BatchNorm.apply(x, weight, bias, mean=mean.data, var=var.data, eps=eps, of_batch=True)
    return y.to(x.dtype)


def _last_sizes(name: str, x: Tensor, normalized_shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """``normalized_shape`` as a tuple; ValueError if x does not end in it."""
    if type(normalized_shape) is tuple and x.data.shape[-1:] == normalized_shape:  # as LayerNorm gives it
        return normalized_shape
    shape = shapes.shape_argument((normalized_shape,))
    if not shape or x.shape[x.ndim - len(shape) :] != shape or x.ndim < len(shape):
        raise bad_value(f"{name}: x of shape {x.shape} does not end in normalized_shape {shape}")
    return shape


def _sizes(name: str, shape: tuple[int, ...], **parameters: Tensor | None) -> None:
    for parameter, p in parameters.items():
        if p is not None and p.shape != shape:
            raise bad_value(f"{name}: {parameter} has shape {p.shape}, expected {shape}")


def _affine(
    name: str, x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the given shape, 1 and 0 where there is none."""
    if (weight is not None and weight.data.shape != shape) or (bias is not None and bias.data.shape != shape):
        _sizes(name, shape, weight=weight, bias=bias)
    weight = ones(shape, dtype=x.dtype, device=x.device) if weight is None else weight
    return weight, zeros(shape, dtype=x.dtype, device=x.device) if bias is None else bias
