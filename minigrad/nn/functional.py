"""The functions of neural networks, stateless, with PyTorch's names and arguments."""

from __future__ import annotations

import math

from .. import shapes
from ..creation import ones, zeros
from ..dtypes import bool_, float32, float64
from ..ops import attention, elementwise, matmul
from ..ops import cross_entropy as cross_entropy_ops
from ..ops import dropout as dropout_ops
from ..ops import embedding as embedding_ops
from ..ops import gelu as gelu_ops
from ..ops import layer_norm as layer_norm_ops
from ..random import Generator, default_generator
from ..tensor import Tensor


def _float32_or_64(name: str, x: Tensor) -> Tensor:
    """``x``, if the fused kernels can compute with its dtype."""
    if x.dtype not in (float32, float64):
        raise TypeError(f"{name} expects float32 or float64, not {x.dtype}; convert with .float()")
    return x


def relu(x: Tensor) -> Tensor:
    """max(x, 0), with gradient 0 at 0."""
    return x.relu()


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x); ``approximate="tanh"`` is GPT-2's form. Floating, any shape."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate={approximate!r}; expected 'none' or 'tanh'")
    return gelu_ops.Gelu.apply(_float32_or_64("gelu", x), approximate=approximate)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return elementwise.Silu.apply(x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return x.sigmoid()


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return x.tanh()


def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) along ``dim``, divided by its sum."""
    return x.softmax(dim)


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """log(softmax(x)) along ``dim``, computed without overflow."""
    return x.log_softmax(dim)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: x (..., in), weight (out, in), bias (out,) or None -> (..., out)."""
    if (
        weight.ndim != 2
        or not x.ndim
        or x.shape[-1] != weight.shape[1]
        or (bias is not None and bias.shape != weight.shape[:1])
    ):
        raise ValueError(
            f"linear: x {x.shape}, weight {weight.shape}, bias {None if bias is None else bias.shape}; "
            "expected x (..., in), weight (out, in), bias (out,)"
        )
    return matmul.Linear.apply(x, weight) if bias is None else matmul.Linear.apply(x, weight, bias)


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """Rows of ``weight`` (num, dim) at integer ``indices`` of any shape -> (*indices.shape, dim).

    Raises IndexError naming an index out of range.
    """
    if indices.dtype.kind not in "iu":
        raise TypeError(
            f"embedding: indices must be integers, not {indices.dtype}; the order is embedding(indices, weight)"
        )
    if weight.ndim != 2:
        raise ValueError(f"embedding: weight of shape {weight.shape}; expected (num, dim)")
    indices = indices.long()
    bad = weight.device.kernels.embedding.check_indices(indices.data, weight.shape[0])
    if bad >= 0:
        index = int(indices.reshape(-1)[bad])
        raise IndexError(f"embedding: index {index} at position {bad} is out of range for {weight.shape[0]} rows")
    return embedding_ops.Embedding.apply(_float32_or_64("embedding", weight), indices)


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
    return layer_norm_ops.LayerNorm.apply(_float32_or_64("layer_norm", x), weight, bias, eps=eps)


def dropout(x: Tensor, p: float = 0.5, training: bool = True, generator: Generator | None = None) -> Tensor:
    """Zero each element with probability p and scale the rest by 1 / (1 - p); the identity if not training."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p={p}; expected a probability")
    if not training or p == 0:
        return x
    seed, offset = (generator or default_generator).next()
    return dropout_ops.Dropout.apply(_float32_or_64("dropout", x), p=p, seed=seed, offset=offset)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """softmax(scale q k^T + mask) v: query (B, H, Tq, D), key and value (B, H, Tk, D) -> (B, H, Tq, D).

    ``is_causal`` lets query i see keys 0 ... i. ``scale`` defaults to 1 / sqrt(D). With ``enable_gqa``, key and value
    may have fewer heads, of which each serves H / Hkv consecutive query heads. ``attn_mask``, broadcastable to (B, H,
    Tq, Tk), is added to the scores, or if bool, True where a key may be seen; that form computes the scores as a whole.
    A query that the mask lets see no key gives 0.
    ``dropout_p`` always applies (as in PyTorch, pass 0 when evaluating).
    """
    shapes_ = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError(f"scaled_dot_product_attention: {shapes_}; expected 4 dimensions (B, H, T, D)")
    B, H, _, D = query.shape
    Hkv = key.shape[1]
    if key.shape != value.shape or key.shape[0] != B or key.shape[3] != D:
        raise ValueError(f"scaled_dot_product_attention: {shapes_}; batch, key and value sizes must agree")
    if Hkv != H and not (enable_gqa and Hkv and H % Hkv == 0):
        raise ValueError(f"scaled_dot_product_attention: {H} query heads, {Hkv} key heads; enable_gqa needs a multiple")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"scaled_dot_product_attention: dropout_p={dropout_p}; expected [0, 1)")
    scale = 1 / math.sqrt(D) if scale is None else scale
    if attn_mask is not None:
        if is_causal:
            raise ValueError("scaled_dot_product_attention: pass attn_mask or is_causal, not both")
        return _masked_attention(query, key, value, attn_mask, dropout_p, scale, generator)
    seed, offset = (generator or default_generator).next() if dropout_p else (0, 0)
    options = (is_causal, scale, dropout_p, seed, offset)
    return attention.ScaledDotProductAttention.apply(_float32_or_64("attention", query), key, value, options=options)


def _masked_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout_p: float, scale: float, generator: Generator | None
) -> Tensor:
    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        B, Hkv, T, D = key.shape
        key, value = (t.unsqueeze(2).expand(B, Hkv, repeat, T, D).reshape(B, Hkv * repeat, T, D) for t in (key, value))
    scores = (query * scale) @ key.mT
    if mask.dtype == bool_:
        scores = scores.masked_fill(~mask, -math.inf)
    else:
        scores = scores + mask
    if not scores.shape[-1]:
        return scores @ value
    blind = scores.detach().amax(-1, keepdim=True) == -math.inf  # queries that may see no key: their result is 0
    probabilities = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    return dropout(probabilities, dropout_p, generator=generator) @ value


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target]: input (N, C) or (C,) or (N, C, d1, ...), target of class indices (N, d1, ...).

    ``weight`` (C,) scales each class; targets equal to ``ignore_index`` count for nothing; ``label_smoothing`` s mixes
    the target with s / C of every class. The mean is over the targets' weights; of no target at all it is NaN.
    Raises TypeError for targets that are not integers, IndexError naming a target out of range.
    """
    _reduction("cross_entropy", reduction)
    if target.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets are class indices, not {target.dtype}; convert with .long()")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing={label_smoothing}; expected [0, 1]")
    class_dim = 0 if input.ndim == 1 else 1
    expected = input.shape[:class_dim] + input.shape[class_dim + 1 :]
    if not input.ndim or target.shape != expected:
        raise ValueError(
            f"cross_entropy: input {input.shape}, target {target.shape}; expected input (N, C) with target (N,), "
            "so for (B, T, C) logits: cross_entropy(logits.view(-1, C), targets.view(-1))"
        )
    classes = input.shape[class_dim]
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"cross_entropy: weight of shape {weight.shape}; expected ({classes},)")
    logits = input if class_dim == input.ndim - 1 else _channels_last(input)
    logits = logits.reshape(-1, classes) if input.numel() else logits.reshape(target.numel(), classes)
    k = input.device.kernels
    labels = target.reshape(-1).long()
    bad = k.cross_entropy.check_targets(labels.data, classes, ignore_index)
    if bad >= 0:
        raise IndexError(
            f"cross_entropy: target {int(labels[bad])} at position {bad} is out of range for {classes} classes "
            f"(ignore_index is {ignore_index})"
        )
    class_weight = None if weight is None else k.copy(weight.to(input.dtype).data)  # which may change before backward
    options = (ignore_index, label_smoothing, class_weight)
    losses = cross_entropy_ops.CrossEntropy.apply(_float32_or_64("cross_entropy", logits), labels, options=options)
    if reduction == "none":
        return losses.reshape(target.shape)
    if reduction == "sum":
        return losses.sum()
    kept = labels != ignore_index
    if weight is None:
        return losses.sum() / float(kept.sum().item())
    return losses.sum() / weight.detach().to(input.dtype)[labels.where(kept, 0)].where(kept, 0.0).sum()


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, *range(2, x.ndim), 1)


def nll_loss(input: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """-input[target]: log-probabilities (N, C), class indices (N,)."""
    _reduction("nll_loss", reduction)
    if input.ndim != 2 or target.shape != input.shape[:1]:
        raise ValueError(f"nll_loss: input {input.shape}, target {target.shape}; expected (N, C) and (N,)")
    kept = target != ignore_index
    picked = -input.gather(1, target.where(kept, 0).unsqueeze(1)).squeeze(1).where(kept, 0.0)
    if reduction == "mean":
        return picked.sum() / float(kept.sum().item())
    return picked.sum() if reduction == "sum" else picked


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)^2, of equal shapes."""
    _reduction("mse_loss", reduction)
    if input.shape != target.shape:
        raise ValueError(f"mse_loss: input {input.shape} and target {target.shape} differ in shape")
    losses = (input - target).square()
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def _reduction(name: str, reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{name}: reduction={reduction!r}; expected 'mean', 'sum' or 'none'")
