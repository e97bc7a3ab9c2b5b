"""The functions of neural networks, stateless, with PyTorch's names and arguments.

Whatever the dtypes of a norm's parameters (float32 ones for a bfloat16 x are usual), the result is of x's.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import hints as _hints, shapes
from ..creation import cat, one_hot as one_hot, where
from ..dtypes import bool_, finfo, float32, int64, is_floating, is_half
from ..errors import bad_index, bad_state, bad_type, bad_value, check_choice, expect
from ..functions import log_softmax as log_softmax, relu as relu, sigmoid as sigmoid, softmax as softmax, tanh as tanh
from ..methods.combine import combine, combine_three
from ..mixed_precision import in_float32, of_halves
from ..modes import cast_inputs, constant, is_autocast_enabled, no_grad
from ..ops import (
    activation,
    attention,
    batch_norm as batch_norm_ops,
    dropout as dropout_ops,
    elementwise,
    embedding as embedding_ops,
    gelu as gelu_ops,
    indexing as indexing_ops,
    layer_norm as layer_norm_ops,
    linear as linear_ops,
    rms_norm as rms_norm_ops,
    rope as rope_ops,
)
from ..random import Source, default_generator
from ..tensor import Tensor, check_tensor, floating, in_dtype_of
from .losses import *
from .losses import Weight


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x); ``approximate="tanh"`` is GPT-2's form. Floating, any shape."""
    if approximate not in ("none", "tanh"):
        raise bad_value(f"gelu: approximate={approximate!r}; expected 'none' or 'tanh'")
    return combine(gelu_ops.Gelu, floating("gelu", x), approximate=approximate)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return combine(elementwise.Silu, x)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where x > 0, else negative_slope * x."""
    return combine(activation.LeakyRelu, x, float(negative_slope))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where x > 0, else alpha (exp(x) - 1)."""
    return combine(activation.Elu, x, float(alpha))


def selu(x: Tensor) -> Tensor:
    """``elu`` with the alpha and the scale that keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    return combine(activation.Selu, floating("selu", x))


def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x)) (Misra 2019)."""
    return combine(activation.Mish, floating("mish", x))


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x limited to [min_val, max_val], with gradient 0 at the limits too."""
    return combine_three(activation.Hardtanh, floating("hardtanh", x), float(min_val), float(max_val))


def relu6(x: Tensor) -> Tensor:
    """x limited to [0, 6], with gradient 0 at the limits."""
    return hardtanh(x, 0.0, 6.0)


def hardsigmoid(x: Tensor) -> Tensor:
    """relu6(x + 3) / 6, a sigmoid of straight lines."""
    return combine(activation.Hardsigmoid, floating("hardsigmoid", x))


def hardswish(x: Tensor) -> Tensor:
    """x hardsigmoid(x)."""
    return combine(activation.Hardswish, floating("hardswish", x))


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """The first half of ``dim`` times the sigmoid of the second (Dauphin et al. 2017)."""
    at = shapes.normalize_dim(dim, floating("glu", x).ndim)
    if not x.ndim or x.shape[at] % 2:
        raise bad_value(f"glu of shape {x.shape}: expected an even size of dim {dim}, which is halved")
    return combine(activation.Glu, x, axis=at)


def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return combine(activation.Softsign, x)


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return combine(activation.Tanhshrink, x)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, a smooth relu; x itself where beta x > threshold."""
    return combine_three(activation.Softplus, x, float(beta), float(threshold))


def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)), computed without overflow."""
    return combine(activation.LogSigmoid, floating("logsigmoid", x))


def pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    """Borders: ``pad`` is (before, after) of the last dimension, then of the last but one, ...

    ``mode`` "constant" puts ``value`` there; "reflect" mirrors at the first and last element, "replicate" repeats them,
    "circular" goes on at the other end. Only "constant" may remove elements, by negative numbers.
    """
    if mode == "constant":
        return x.pad(pad, value)
    check_choice("pad", "mode", mode, ("constant", "reflect", "replicate", "circular"))
    for dim, (before, after) in enumerate(shapes.pad_widths(pad, x.shape)):
        n = x.shape[dim]
        most = {"reflect": n - 1, "circular": n}.get(mode, max(before, after) if n else 0)
        if min(before, after) < 0 or max(before, after) > max(most, 0):
            raise bad_value(f"pad: {mode} by ({before}, {after}) of dim {dim} of shape {x.shape}")
        if before or after:
            if mode == "circular":
                x = cat([x.narrow(dim, n - before, before), x, x.narrow(dim, 0, after)], dim)
            else:
                places = constant(functools.partial(_bordered, mode, before, n, after, x.device)).data
                x = combine(indexing_ops.Index, x, (slice(None),) * dim + (places,))
    return x


@functools.lru_cache(16)
def _bordered(mode: str, before: int, n: int, after: int, device: Any) -> Tensor:
    """The places along a dimension of n that one with a border has."""
    at = np.arange(-before, n + after)
    return Tensor(at.clip(0, n - 1) if mode == "replicate" else n - 1 - abs(n - 1 - abs(at)), device=device)


def softmin(x: Tensor, dim: int) -> Tensor:
    """``softmax`` of -x."""
    return (-x).softmax(dim)


@of_halves
def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its p-norms along ``dim``, which count as ``eps`` at least."""
    return _normalized(x, p, dim, eps)


def _normalized(x: Tensor, p: float, dim: int, eps: float) -> Tensor:
    x = x.float() if is_half(x.dtype) and x.requires_grad else x  # whose gradient is a sum
    return x / x.norm(p, dim, keepdim=True, dtype=float32 if is_half(x.dtype) else None).clamp(min=eps)


@of_halves
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 . x2 / (|x1| |x2|) along ``dim``, in [-1, 1]; norms count as ``eps`` at least. The two broadcast."""
    x1, x2 = x1._together(x2)
    return (_normalized(x1, 2.0, dim, eps) * _normalized(x2, 2.0, dim, eps)).sum(dim)


def linear(x: Tensor, weight: Tensor, bias: Weight = None, *, residual: Tensor | None = None) -> Tensor:
    """x W^T + b: x (..., in), weight (out, in), bias (out,) or None -> (..., out).

    With a ``residual`` (..., out), ``residual + linear(x, weight, bias)`` in one operation.
    """
    _check_linear("linear", x, weight, bias)
    if residual is None:
        return linear_ops.Linear.apply(x, weight) if bias is None else linear_ops.Linear.apply(x, weight, bias)
    if not _added(residual, x, weight):
        return residual + linear(x, weight, bias)
    return linear_ops.Linear.apply(x, weight, bias, residual)


def _check_linear(name: str, x: Tensor, weight: Tensor, bias: Weight) -> None:
    sizes, of_weight = check_tensor(name, x).data.shape, weight.data.shape
    fits = len(of_weight) == 2 and sizes[-1:] == of_weight[1:]
    if not fits or (bias is not None and bias.data.shape != of_weight[:1]):
        given = f"x {x.shape}, weight {weight.shape}, bias {None if bias is None else bias.shape}"
        ends = f", but x ends with {sizes[-1]}, and in is {of_weight[1]}" if sizes and len(of_weight) == 2 else ""
        raise bad_value(f"{name}: {given}; expected x (..., in), weight (out, in), bias (out,){ends}")


def _added(residual: Tensor, x: Tensor, weight: Tensor) -> bool:
    """Whether a product with this weight adds the residual itself; else it would be rounded, promoted or broadcast."""
    r, outputs = check_tensor("residual", residual).data, weight.data
    return bool(
        not is_autocast_enabled(x.device.type)
        and is_floating(r.dtype)
        and r.dtype == x.data.dtype == outputs.dtype
        and r.shape == (*x.data.shape[:-1], outputs.shape[0])
    )


def feed_forward(
    x: Tensor, weight: Tensor, bias: Weight, weight2: Tensor, bias2: Tensor | None, approximate: str = "none", *,
    residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``linear(gelu(linear(x, weight, bias), approximate), weight2, bias2, residual=residual)`` in one operation:
    x (..., in), weight (hidden, in), weight2 (out, hidden) -> (..., out).

    Kept for ``backward`` is the hidden layer before the GELU, not what comes after it.
    """
    if approximate not in ("none", "tanh"):
        raise bad_value(f"feed_forward: approximate={approximate!r}; expected 'none' or 'tanh'")
    _check_linear("feed_forward", floating("feed_forward", x), weight, bias)
    hidden = weight.data.shape[0]
    if weight2.ndim != 2 or weight2.shape[1] != hidden or (bias2 is not None and bias2.shape != weight2.shape[:1]):
        given = f"weight2 {weight2.shape}, bias2 {None if bias2 is None else bias2.shape}"
        wanted = f"weight2 (out, {hidden}), as weight {weight.shape} gives {hidden} channels, and bias2 (out,)"
        raise bad_value(f"feed_forward: {given}; expected {wanted}")
    inside = [residual] if residual is not None and _added(residual, x, weight2) else []
    y = gelu_ops.FeedForward.apply(x, weight, bias, weight2, bias2, *inside, approximate=approximate)
    return y if residual is None or inside else residual + y


def check_indices(indices: Any, weight: Tensor) -> Tensor:
    """``indices`` as int64, if they are integers that name rows of the table ``weight`` (num, dim)."""
    if check_tensor("embedding", indices).data.dtype.kind not in "iu":
        raise bad_type(f"embedding: indices must be integers, not {indices.dtype}: embedding(indices.long(), weight)")
    if weight.ndim != 2:
        raise bad_value(f"embedding: weight of shape {weight.shape}; expected (num, dim)")
    if indices.device is not weight.device:
        place = weight.device
        raise bad_state(f"embedding: indices on {indices.device}, weight on {place}; move them to one with .to(device)")
    labels: Tensor = indices if indices.data.dtype == int64 else indices.long()
    check_rows(labels, weight.shape[0])
    return labels


def check_rows(labels: Tensor, rows: int) -> None:
    """IndexError, naming the first, for ``labels``, int64, that name none of so many rows of an embedding."""
    bad = labels.device.kernels.embedding.check_indices(labels.data, rows)
    if bad >= 0:
        index = int(labels.reshape(-1)[bad])
        raise bad_index(f"embedding: index {index} at position {bad} is out of range for {rows} rows")


def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of ``weight`` (num, dim) at integer ``indices`` of any shape -> (*indices.shape, dim).

    Row ``padding_idx`` (negative ones count from the end) gets no gradient. Raises IndexError naming an index out of
    range.
    """
    indices = check_indices(indices, weight)
    y = combine(embedding_ops.Embedding, floating("embedding", weight), indices)
    if padding_idx is None:
        return y
    return where((indices == padding_row(padding_idx, weight.shape[0])).unsqueeze(-1), y.detach(), y)


def padding_row(padding_idx: int, rows: int) -> int:
    """The row that ``padding_idx`` names; ValueError if there is none."""
    if not -rows <= padding_idx < rows:
        raise bad_value(f"embedding: padding_idx={padding_idx} is no row of {rows}")
    return padding_idx % rows


def layer_norm(
    x: Tensor, normalized_shape: shapes.Sizes, weight: Weight = None, bias: Weight = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dimensions, whose sizes are ``normalized_shape``."""
    shape = _last_sizes("layer_norm", x, normalized_shape)
    if weight is None or bias is None or weight.data.shape != shape or bias.data.shape != shape:
        weight, bias = _affine("layer_norm", x, shape, weight, bias)
    return in_dtype_of(x, layer_norm_ops.LayerNorm.apply(floating("layer_norm", x), weight, bias, eps=eps))


def rms_norm(x: Tensor, normalized_shape: shapes.Sizes, weight: Weight = None, eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimensions, whose sizes are ``normalized_shape``.

    ``eps`` defaults to the distance from 1 to the next number of x's dtype, as in PyTorch.
    """
    shape = _last_sizes("rms_norm", x, normalized_shape)
    weight, _ = _affine("rms_norm", floating("rms_norm", x), shape, weight, None)
    eps = float(finfo(float32 if is_half(x.dtype) else x.dtype).eps) if eps is None else eps
    return in_dtype_of(x, rms_norm_ops.RMSNorm.apply(x, weight, eps=eps))


def group_norm(x: Tensor, num_groups: int, weight: Weight = None, bias: Weight = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias: x (N, C, ...), weight and bias (C,) -> the same shape as x.

    Mean and variance are those of C / num_groups neighbouring channels of one sample.
    """
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise bad_value(f"group_norm: {num_groups} groups of x {x.shape}; expected (N, C, ...), C a multiple of them")
    weight, bias = _affine("group_norm", x, x.shape[1:2], weight, bias)
    y = batch_norm_ops.GroupNorm.apply(floating("group_norm", x), weight, bias, groups=num_groups, eps=eps)
    return in_dtype_of(x, y)


def batch_norm(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Weight = None, bias: Weight = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias by channel: x (N, C, ...), the others (C,) -> the same shape as x.

    In training, mean and (biased) variance are those of the batch. The running ones, if given, become (1 - momentum)
    times themselves + momentum times the batch's, in place, with the unbiased variance. Otherwise the running ones are
    used.
    """
    if x.ndim < 2:
        raise bad_value(f"batch_norm: x of shape {x.shape}; expected (N, C, ...)")
    channels = x.shape[1:2]
    weight, bias = _affine("batch_norm", x, channels, weight, bias)
    _sizes("batch_norm", channels, running_mean=running_mean, running_var=running_var)
    floating("batch_norm", x)
    count = math.prod(x.shape) // max(x.shape[1], 1)
    options: dict[str, Any] = {"groups": x.shape[1], "eps": eps, "found": []}
    if not training:
        if running_mean is None or running_var is None:
            raise bad_value("batch_norm: evaluation needs running_mean and running_var; or pass training=True")
        wide = float32 if is_half(x.dtype) else x.dtype
        options["given"] = tuple(t.to(wide).data.reshape(1, -1, 1, 1) for t in (running_mean, running_var))
    elif count < 2 and x.shape[1]:
        raise bad_value(f"batch_norm: x of shape {x.shape}; training needs more than one value of each channel")
    y = batch_norm_ops.BatchNorm.apply(x, weight, bias, **options)
    for running, batch, scale in zip((running_mean, running_var), options["found"], (1, 1 / max(count - 1, 1))):
        if training and running is not None:
            with no_grad():
                batch = Tensor.wrap(batch.reshape(-1), x.device).to(running.dtype)
                running.mul_(1 - momentum).add_(batch * (scale * momentum))
    return y.to(x.dtype)


def _last_sizes(name: str, x: Tensor, normalized_shape: shapes.Sizes) -> tuple[int, ...]:
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


def _affine(name: str, x: Tensor, shape: tuple[int, ...], weight: Weight, bias: Weight) -> tuple[Tensor, Tensor]:
    """Weight and bias of the given shape, 1 and 0 where there is none."""
    if (weight is not None and weight.data.shape != shape) or (bias is not None and bias.data.shape != shape):
        _sizes(name, shape, weight=weight, bias=bias)
    weight = x.wrap(x.device.kernels.ones(shape, x.dtype), x.device) if weight is None else weight
    return weight, x.wrap(x.device.kernels.zeros(shape, x.dtype), x.device) if bias is None else bias


def rope(
    x: Tensor, positions: Tensor, base: float = 10000.0, interleaved: bool = False,
    frequencies: Sequence[float] | None = None,
) -> Tensor:  # fmt: skip
    """Rotary position embedding of queries or keys: x (..., T, D), D even -> the same shape.

    Pair j of a row is rotated by the row's position times base^(-2j / D), or times frequencies[j] if the D / 2
    ``frequencies`` are given. It is elements j and j + D / 2, as in Hugging Face's Llama, or with ``interleaved``
    elements 2j and 2j + 1, as in the paper.
    ``positions``, integers or floats, broadcasts to x.shape[:-1]: (T,) for all sequences, (B, 1, T) for (B, H, T, D).
    """
    if not x.ndim or x.shape[-1] % 2:
        raise bad_value(f"rope: x of shape {x.shape}; expected (..., D) with an even D")
    if positions.dtype == bool_:
        raise bad_type("rope: positions are numbers, not bool")
    if positions.ndim > x.ndim - 1 or any(
        p not in (1, n) for p, n in zip(positions.shape[::-1], x.shape[-2::-1], strict=False)
    ):
        raise bad_value(f"rope: positions of shape {positions.shape} do not broadcast to {x.shape[:-1]}, x without D")
    options: dict[str, Any] = {"base": base, "interleaved": interleaved}
    if frequencies is not None:
        options["frequencies"] = np.asarray(frequencies, dtype=np.float64)
        if options["frequencies"].shape != (x.shape[-1] // 2,):
            shape = options["frequencies"].shape
            raise bad_value(f"rope: frequencies of shape {shape} for x of shape {x.shape}; expected D / 2 of them")
    return rope_ops.Rope.apply(floating("rope", x), positions.detach(), **options)


def dropout(x: Tensor, p: float = 0.5, training: bool = True, generator: Source = None) -> Tensor:
    """Zero each element with probability p and scale the rest by 1 / (1 - p); the identity if not training."""
    if not 0 <= p <= 1:
        raise bad_value(f"dropout: p={p}; expected a probability, 0 to 1")
    if not training or p == 0:
        return x
    seed, offset = (generator or default_generator).next()
    return combine(dropout_ops.Dropout, floating("dropout", x), p=p, seed=seed, offset=offset)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, generator: Source = None,
) -> Tensor:  # fmt: skip
    """softmax(scale q k^T + mask) v: query (B, H, Tq, D), key (B, H, Tk, D), value (B, H, Tk, E) -> (B, H, Tq, E).

    ``is_causal`` lets query i see keys 0 ... i. ``scale`` defaults to 1 / sqrt(D). With ``enable_gqa``, key and value
    may have fewer heads: each serves H / Hkv consecutive query heads. ``attn_mask``, broadcastable to (B, H,
    Tq, Tk), is added to the scores, or if bool, True where a key may be seen; that form computes the scores as a whole.
    A query that the mask lets see no key gives 0.
    ``dropout_p`` always applies (as in PyTorch, pass 0 when evaluating).
    """
    shapes_ = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if not query.ndim == key.ndim == value.ndim == 4:
        raise bad_value(f"scaled_dot_product_attention: {shapes_}; expected 4 dimensions (B, H, T, D)")
    B, H, _, D = query.shape
    Hkv = key.shape[1]
    if key.shape[:3] != value.shape[:3] or key.shape[0] != B or key.shape[3] != D:
        raise bad_value(f"scaled_dot_product_attention: {shapes_}; batch, key and value sizes must agree")
    if Hkv != H and not (enable_gqa and Hkv and H % Hkv == 0):
        raise bad_value(f"scaled_dot_product_attention: {H} query heads, {Hkv} key heads; enable_gqa needs a multiple")
    expect(0 <= dropout_p < 1, "scaled_dot_product_attention: dropout_p", dropout_p, "[0, 1)")
    scale = 1 / math.sqrt(D) if scale is None else scale
    if (size := value.shape[3]) != D:  # the narrower ones with zeros, which add nothing
        query, key, value = (t.pad((0, max(size, D) - t.shape[3])) for t in (query, key, value))
        options_ = attn_mask, dropout_p, is_causal, scale, enable_gqa, generator
        return scaled_dot_product_attention(query, key, value, *options_)[..., :size]
    if attn_mask is not None:
        if is_causal:
            raise bad_value("scaled_dot_product_attention: pass attn_mask or is_causal, not both")
        query, key, value = cast_inputs("half", query, key, value)
        return _masked_attention(query, key, value, attn_mask, dropout_p, scale, generator)
    seed, offset = (generator or default_generator).next() if dropout_p else (0, 0)
    options = attention.Options(is_causal, scale, dropout_p, seed, offset)
    return attention.ScaledDotProductAttention.apply(floating("attention", query), key, value, options=options)


def packed_attention(
    qkv: Tensor, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    generator: Source = None, n_head: int | None = None,
) -> Tensor:  # fmt: skip
    """Self-attention of queries, keys and values that one projection made: qkv (B, T, 3, H, D) -> (B, T, H, D), or as
    the projection gives it, with ``n_head`` saying how many heads that is: (B, T, 3 H D) -> (B, T, H D).

    The numbers of ``scaled_dot_product_attention`` on ``qkv.unbind(2)``, with heads transposed, in one operation.
    """
    heads = qkv.shape
    if n_head is not None and len(heads) == 3 and n_head > 0 and heads[2] % (3 * n_head) == 0:
        heads = (*heads[:2], 3, n_head, heads[2] // (3 * n_head))
    elif len(heads) != 5 or heads[2] != 3 or n_head is not None:
        expected = "(B, T, 3, H, D)" if n_head is None else f"(B, T, 3 n_head D) with n_head = {n_head}"
        raise bad_value(f"packed_attention: qkv of shape {qkv.shape}; expected {expected}")
    if not 0 <= dropout_p < 1:
        raise bad_value(f"packed_attention: dropout_p={dropout_p}; expected [0, 1)")
    scale = 1 / math.sqrt(heads[4]) if scale is None else scale
    seed, offset = (generator or default_generator).next() if dropout_p else (0, 0)
    options = attention.Options(is_causal, scale, dropout_p, seed, offset)
    return combine(attention.PackedAttention, floating("packed_attention", qkv), heads=heads, options=options)


@in_float32
def _masked_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout_p: float, scale: float, generator: Source
) -> Tensor:
    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        B, Hkv, T, D = key.shape
        key, value = (t.unsqueeze(2).expand(B, Hkv, repeat, T, D).reshape(B, Hkv * repeat, T, D) for t in (key, value))
    scores = (query * scale) @ key.mT
    scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == bool_ else scores + mask
    if not scores.shape[-1]:
        return scores @ value
    blind = scores.detach().amax(-1, keepdim=True) == -math.inf  # queries that may see no key: their result is 0
    probabilities = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    return dropout(probabilities, dropout_p, generator=generator) @ value


_hints.complete(__name__, "")
_hints.answer_for(__name__, searched=True)
