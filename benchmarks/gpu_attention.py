"""Attention: forward and backward, float32 with heads of 64, bfloat16 on tensor cores with heads of 64 and 128."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gpu_case import Arrays, Call, Case, Sizes, normal, softmax

from minigrad.dtypes import bfloat16
from minigrad.ops.attention import Options

HALF_TOLERANCE = 2e-2  # probabilities are rounded to bfloat16 between the two products


def _attention(q: Any, k: Any, v: Any) -> Any:
    return _probabilities(q, k) @ v


def _probabilities(q: Any, k: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return softmax(np.where(np.tri(q.shape[-2], dtype=bool), scores, -np.inf))


def _attention_backward(dy: Any, q: Any, k: Any, v: Any) -> Arrays:
    p, scale = _probabilities(q, k), 1 / math.sqrt(q.shape[-1])
    dp = dy @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))
    return scale * ds @ k, scale * ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dy


def _ours(k: Any, q: Any, key: Any, v: Any) -> Call:
    return lambda: k.attention.forward(q, key, v, Options(True, 1 / math.sqrt(q.shape[-1])))[0]


def _our_backward(k: Any, dy: Any, q: Any, key: Any, v: Any) -> Call:
    scale = 1 / math.sqrt(q.shape[-1])
    y, lse = k.attention.forward(q, key, v, Options(True, scale))
    return lambda: k.attention.backward(dy, q, key, v, y, lse, Options(True, scale))


def _torch(t: Any, q: Any, key: Any, v: Any) -> Call:
    return lambda: t.nn.functional.scaled_dot_product_attention(q, key, v, is_causal=True)


def _torch_backward(t: Any, dy: Any, q: Any, key: Any, v: Any) -> Call:
    qkv = [x.requires_grad_() for x in (q, key, v)]
    y = t.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
    return lambda: t.autograd.grad(y, qkv, dy, retain_graph=True)


def _heads(count: int, dtype: Any, factor: int) -> Callable[[Sizes, np.random.Generator], Arrays]:
    """``count`` arrays with heads ``factor`` times as wide, and as many fewer."""
    return lambda s, rng: tuple(
        normal(rng, s.B, max(s.H // factor, 1), s.T, s.D * factor).astype(dtype) for _ in range(count)
    )


def causal_flops(s: Sizes) -> int:
    """Of attention forward: two products, the half above the diagonal left out."""
    return 2 * s.B * s.H * s.T * s.T * s.D


def _pair(name: str, dtype: Any, factor: int, goals: tuple[float, float] | tuple[None, None]) -> list[Case]:
    half = dtype == bfloat16
    rest: dict[str, Any] = {"rate": "matrix rate bfloat16", "tolerance": HALF_TOLERANCE} if half else {}
    return [
        Case(
            f"attention forward{name}",
            _heads(3, dtype, factor),
            _ours,
            _attention,
            _torch,
            flops=causal_flops,
            goal=goals[0],
            **rest,
        ),
        Case(
            f"attention backward{name}",
            _heads(4, dtype, factor),
            _our_backward,
            _attention_backward,
            _torch_backward,
            flops=lambda s: causal_flops(s) * 5 // 2,
            goal=goals[1],
            **rest,
        ),
    ]


# The goals of bfloat16 are 180 and 130 TFLOP/s where cuBLAS reaches 780, as it was measured to do on an H200.
CASES: Sequence[Case] = (
    *_pair("", np.float32, 1, (None, None)),
    *_pair(" bf16, heads of 64", bfloat16, 1, (23, 17)),
    *_pair(" bf16, heads of 128", bfloat16, 2, (23, 17)),
)
