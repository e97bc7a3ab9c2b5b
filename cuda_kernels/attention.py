"""Scaled dot-product attention and its gradient, without ever storing the Tq x Tk matrix.

    s_ij = scale q_i . k_j        p_ij = exp(s_ij - lse_i),  lse_i = log sum_j exp s_ij        y_i = sum_j p_ij v_j
    causal: key j is seen by the queries i >= j.  dropout: y_i = sum_j p_ij m_ij v_j with m_ij = 0 or 1 / (1 - p).

    delta_i = dy_i . y_i      ds_ij = p_ij (m_ij dy_i . v_j - delta_i)
    dq_i = scale sum_j ds_ij k_j       dk_j = scale sum_i ds_ij q_i       dv_j = sum_i p_ij m_ij dy_i

``flash.py`` computes this on tiles, ``attention_rows.py`` row by row where tiles do not pay or D exceeds theirs.
Gradients are two passes, one over the queries (dq) and one over the keys (dk, dv): each sum is a block's own, in a
fixed order, without atomics.

Sources: Dao et al., "FlashAttention" (2022); Dao, "FlashAttention-2" (2023); Ainslie et al., "GQA" (2023).
"""

from typing import Any

import numpy as np

from .elementwise import cast
from .flash import attention_rows, flash, flash_tensor_core, flash_tensor_core_gradient
from .matmul import supports_half as supports_half
from .platform.array import Array, empty
from .rowwise.strided_copy import copy_into

Options = tuple[bool, float, float, int, int]  # those of ``minigrad.ops.attention``
SMALL = 1 << 18  # multiply-adds of all scores: up to here attention_rows.py, a block or a thread for each row


def forward(q: Array, k: Array, v: Array, options: Options) -> tuple[Array, Array]:
    """softmax(scale q k^T) v, with dropout on the probabilities.

    Args:
        q: (B, H, Tq, D); k, v: (B, Hkv, Tk, D) with H a multiple of Hkv; float32 or float64, any strides (copied only
            if the last dimension is not contiguous). float16 and bfloat16: on tensor cores, or of float32 copies.
        options: causal, scale, dropout_p, seed, offset. With ``causal`` query i sees the keys j <= i, as in PyTorch
            also where Tq and Tk differ. Dropout: a probability is zeroed or divided by 1 - p; element (b,
            h, i, j) of the (B, H, Tq, Tk) mask is drawn as by the CPU backend, to the bit.

    Returns: y (B, H, Tq, D) and, for ``backward``, lse (B, H, Tq), the logarithm of each row's softmax denominator. y
    is laid out in memory as (B, Tq, H, D), as the output projection reads it. Without keys y is 0.
    """
    if q.dtype.itemsize == 2 and not _on_tensor_cores(q, k, options):
        y, lse = forward(_single(q), _single(k), _single(v), options)
        return cast(y, q.dtype), lse
    B, Hq, Tq, D = q.shape
    y = empty((B, Tq, Hq, D), q.dtype, q.device)
    lse = empty((B, Hq, Tq), np.float32 if q.dtype.itemsize == 2 else q.dtype, q.device)
    run, _ = _way(q, k)
    run(y, lse, (q, k, v), _settings(q, k, options))
    return y.swapaxes(1, 2), lse


def backward(
    dy: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, options: Options
) -> tuple[Array, Array, Array]:
    """The gradients (dq, dk, dv) of sum(dy * y), shaped like q, k, v and laid out as (B, T, heads, D).

    Arguments as given to and returned by ``forward``; the dropout mask is drawn again.
    """
    if q.dtype.itemsize == 2 and not _on_tensor_cores(q, k, options):
        grads = backward(_single(dy), _single(q), _single(k), _single(v), _single(out), lse, options)
        return cast(grads[0], q.dtype), cast(grads[1], q.dtype), cast(grads[2], q.dtype)
    (B, Hq, Tq, D), (H, Tk) = q.shape, k.shape[1:3]
    dq = empty((B, Tq, Hq, D), q.dtype, q.device)
    dk, dv = (empty((B, Tk, H, D), q.dtype, q.device) for _ in range(2))
    delta = empty((B, Hq, Tq), lse.dtype, q.device)
    _, run = _way(q, k)
    run((dq, dk, dv), delta, (dy, q, k, v, out, lse), _settings(q, k, options))
    return dq.swapaxes(1, 2), dk.swapaxes(1, 2), dv.swapaxes(1, 2)


def backward_packed(dy: Array, qkv: Array, out: Array, lse: Array, options: Options) -> Array:
    """``backward`` where one array qkv (B, T, 3, H, D) holds q, k and v: their gradients as one array like it."""
    q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
    dqkv = empty(qkv.shape, qkv.dtype, qkv.device)
    for i, grad in enumerate(backward(dy, q, k, v, out, lse, options)):
        copy_into(dqkv[:, :, i], grad.swapaxes(1, 2))
    return dqkv


def extend(q: Array, k: Array, v: Array, cache: Array, length: Array) -> Array:
    """Attention of one more token to those in a cache and itself, which it is added to.

    Args:
        q: (B, H, 1, D), k and v (B, Hkv, 1, D), of float32 or float64.
        cache: keys and values (2, B, Hkv, max_tokens, D), contiguous, of q's dtype, which get k and v.
        length: int64 (1,), how many tokens are in it, fewer than max_tokens. Only the kernel reads it.

    Returns: y (B, H, 1, D), laid out in memory as (B, 1, H, D).
    """
    B, H, T, D = q.shape
    y = empty((B, T, H, D), q.dtype, q.device)
    attention_rows.extend(y, (q, k, v), cache, length, D**-0.5)
    return y.swapaxes(1, 2)


def _way(q: Array, k: Array) -> tuple[Any, Any]:
    """The forward and the backward pass for heads of these sizes; halves are on tensor cores."""
    if q.dtype.itemsize == 2:
        return flash_tensor_core.forward, flash_tensor_core_gradient.backward
    tiles = 0 < q.shape[-1] <= flash.LARGEST[q.dtype] and _worth_tiles(q, k) and flash.fits(q.device)
    return (flash.forward, flash.backward) if tiles else (attention_rows.forward, attention_rows.backward)


def _worth_tiles(q: Array, k: Array) -> bool:
    """Whether there are enough scores to fill tiles."""
    return bool(q.size * k.shape[2] > SMALL)


def _on_tensor_cores(q: Array, k: Array, options: Options) -> bool:
    """Whether ``flash_tensor_core.py`` computes these heads of half floats."""
    D, dropout_p = q.shape[-1], options[2]
    return _worth_tiles(q, k) and D <= flash_tensor_core.LARGEST and D % 8 == 0 and not dropout_p


def _single(x: Array) -> Array:
    return cast(x, np.float32)


def _settings(q: Array, k: Array, options: Options) -> tuple[Any, ...]:
    """Sizes and options, as all kernels take them."""
    causal, scale, p, seed, offset = options
    real = q.dtype.type
    kept = real(1) / (real(1) - real(p)) if p < 1 else real(0)
    Hq, Tq, D = q.shape[1:]
    threshold = float(np.float32(p))
    sizes = Hq, k.shape[1], Tq, k.shape[2], D
    return *sizes, int(causal), threshold, int(seed), int(offset), float(scale), float(kept)
