"""The memory of a training step of GPT-2, predicted from its sizes: the arithmetic that ``memory_report`` counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import float32, is_half
from ..errors import bad_value
from ..tools.step_memory import MemoryReport
from .gpt2_config import GPT2Config

CHUNK_BYTES, DEVICE_CHUNK_BYTES = 256 << 20, 512 << 20  # of logits at a time, as the kernels for CPU and GPU make them


def gpt2_memory(
    config: GPT2Config, batch_size: int, tokens: int | None = None, dtype: Any = float32, moments: int = 2
) -> MemoryReport:
    """Bytes by kind of a step of ``GPT2(config)`` on ``batch_size`` sequences of ``tokens`` (default block_size).

    ``dtype`` is float32, or a half dtype: that of autocast on a device whose tensor cores compute with it, with float32
    weights. ``moments`` is the number of float32 arrays that the optimizer has for each weight, 2 for AdamW.

    With N = B T tokens, C channels, I within the MLP, V tokens in the vocabulary, and h bytes a number of ``dtype``:

        LayerNorm            4 C + 8          its input in float32, mean, 1 / deviation; two a layer, and the last one
        Linear               h C              a layer; the projection after attention has attention's output: 0
        PackedAttention      4 h C + 4 heads  a layer: queries, keys, values, the output, the rows' log-sum-exp
        FeedForward          h (C + I)        a layer: its input, and what GELU gets
        LinearCrossEntropy   2 h C + 8        its input and the input's gradient, targets; and 4 V C, once: the weight's

    times N each. With ``checkpoint_blocks`` a layer keeps 4 C + 4 instead. The temporary part is an estimate: of a
    layer, the gradients of its output (in float32 and ``dtype``) and of what GELU got, and what GELU gave; or a chunk
    of logits in float32 and ``dtype``, if more; and with ``checkpoint_blocks`` the layer's activations once more.

    Raises ValueError for another dtype, and for a head of its own (``tied=False``).
    """
    kind = np.dtype(dtype)
    if kind != float32 and not is_half(kind):
        raise bad_value(f"gpt2_memory: dtype is {kind}; expected float32, bfloat16 or float16")
    if not config.tied:
        raise bad_value("gpt2_memory: the configuration has tied=False; expected the head of GPT-2")
    T = config.block_size if tokens is None else tokens
    N, h = batch_size * T, kind.itemsize
    L, C, V, heads = config.n_layer, config.n_embd, config.vocab_size, config.n_head
    inner = config.n_inner or 4 * C
    matrices = V * C + L * (4 * C * C + 2 * C * inner)
    vectors = L * ((5 * C + inner + 2 * C) if config.bias else 0) + 2 * L * C + (C if config.bias else 0) + C
    layer = {
        "LayerNorm": 2 * N * (4 * C + 8),
        "Linear": N * h * C,
        "PackedAttention": N * (4 * h * C + 4 * heads),
        "FeedForward": N * h * (C + inner),
    }
    activations = {name: L * size for name, size in layer.items()}
    chunk = min(4 * V * N, DEVICE_CHUNK_BYTES) * (4 + h) // 4 if is_half(kind) else min(4 * V * N, CHUNK_BYTES)
    temporary = max(chunk, N * (4 * C + (h * C if is_half(kind) else 0) + 2 * h * inner))
    if config.checkpoint_blocks:
        activations = {"checkpoint": L * N * (4 * C + 4), "LayerNorm": 0}
        temporary += sum(layer.values())
    activations["LayerNorm"] += N * (4 * C + 8)
    activations["LinearCrossEntropy"] = N * (2 * h * C + 8) + 4 * V * C
    activations["Embedding"] = 8 * (N + T)
    weights = 4 * (matrices + vectors + config.block_size * C)
    return MemoryReport(
        weights=weights,
        optimizer=moments * weights,
        gradients=weights,
        weight_copies=h * matrices if is_half(kind) else 0,
        activations=activations,
        modules={},
        temporary=temporary,
    )
