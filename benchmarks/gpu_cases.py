"""What ``gpu_report.py`` measures: for each kernel its inputs, our call, PyTorch's, the result in float64, its work.

Products are in ``gpu_products.py``, attention in ``gpu_attention.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gpu_attention
import gpu_products
import numpy as np
from gpu_case import Arrays, Call, Case, Sizes, elements, normal, normals, softmax

from minigrad import Device
from minigrad.dtypes import bfloat16

# float64 ------------------------------------------------------------------------------------------------------------


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_backward(dy: Any, x: Any) -> Any:
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x))


def _layer_norm(x: Any, w: Any, b: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def _layer_norm_backward(dy: Any, x: Any, w: Any) -> Arrays:
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    n = (x - x.mean(-1, keepdims=True)) * rstd
    g = dy * w
    dx = rstd * (g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True))
    return dx, (dy * n).sum(0), dy.sum(0)


def _rms_norm(x: Any, w: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w


def _rms_norm_backward(dy: Any, x: Any, w: Any) -> Arrays:
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    n, g = x * rstd, dy * w
    return rstd * (g - n * (g * n).mean(-1, keepdims=True)), (dy * n).sum(0)


def _softmax_backward(dy: Any, x: Any) -> Any:
    y = softmax(x)
    return y * (dy - (dy * y).sum(-1, keepdims=True))


def _cross_entropy(x: Any, targets: Any) -> Arrays:
    rows = np.arange(len(x))
    p = softmax(x)
    losses = -np.log(p[rows, targets])
    p[rows, targets] -= 1
    return losses, p


def _embedding_backward(dy: Any, indices: Any, w: Any) -> Any:
    np.add.at(w, indices, dy)
    return w


def _rope(x: Any, cos: Any, sin: Any) -> Any:
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


DROPOUT = (0.1, 1, 2)  # p, seed, offset
BETA1, BETA2, LR, EPS, DECAY = 0.9, 0.95, 1e-3, 1e-8, 0.1


def _adamw(*arrays: Any) -> Arrays:
    count = len(arrays) // 2
    updated = []
    for p, g in zip(arrays[:count], arrays[count:]):
        m, v = (1 - BETA1) * g, (1 - BETA2) * g * g
        step = LR * (m / (1 - BETA1)) / (np.sqrt(v / (1 - BETA2)) + EPS)
        updated.append(p * (1 - LR * DECAY) - step)
    return tuple(updated)


# Calls of several lines -----------------------------------------------------------------------------------------------


def _our_layer_norm_backward(k: Any, dy: Any, x: Any, w: Any) -> Call:
    _, mean, rstd = k.layer_norm.forward(x, w, None, 1e-5)
    return lambda: k.layer_norm.backward(dy, x, w, mean, rstd)


def _torch_layer_norm_backward(t: Any, dy: Any, x: Any, w: Any) -> Call:
    shape, b = list(w.shape), t.zeros_like(w)
    _, mean, rstd = t.ops.aten.native_layer_norm(x, shape, w, b, 1e-5)
    return lambda: t.ops.aten.native_layer_norm_backward(dy, x, shape, mean, rstd, w, b, [True] * 3)


def _our_rms_norm_backward(k: Any, dy: Any, x: Any, w: Any) -> Call:
    _, rstd = k.rms_norm.forward(x, w, 1e-5)
    return lambda: k.rms_norm.backward(dy, x, w, rstd)


def _our_softmax_backward(k: Any, dy: Any, x: Any) -> Call:
    y = k.softmax.forward(x, 1)
    return lambda: k.softmax.backward(dy, y, 1)


def _torch_softmax_backward(t: Any, dy: Any, x: Any) -> Call:
    y = t.softmax(x, 1)
    return lambda: t.ops.aten._softmax_backward_data(dy, y, 1, x.dtype)


def _our_cross_entropy(k: Any, x: Any, targets: Any) -> Call:
    ones = k.ones((x.shape[0],), x.dtype)

    def call() -> Arrays:
        losses, lse = k.cross_entropy.forward(x, targets, (-100, 0.0, None))
        return losses, k.cross_entropy.backward(ones, x, targets, lse, (-100, 0.0, None))

    return call


def _torch_cross_entropy(t: Any, x: Any, targets: Any) -> Call:
    x.requires_grad_()
    return lambda: t.autograd.grad(t.nn.functional.cross_entropy(x, targets, reduction="sum"), x)


def _our_embedding_backward(k: Any, dy: Any, indices: Any, weight: Any) -> Call:
    def call() -> Any:
        k.embedding.backward_into(dy, indices, weight)
        return weight

    return call


def _our_adamw(k: Any, *arrays: Any) -> Call:
    count = len(arrays) // 2
    params, grads = list(arrays[:count]), list(arrays[count:])
    table = k.adamw.Table(params, *([k.zeros(p.shape, p.dtype) for p in params] for _ in range(2)))
    row = (1 - LR * DECAY, 1 - BETA1, BETA2, 1 - BETA2, LR / (1 - BETA1), math.sqrt(1 - BETA2), EPS)
    scalars = np.tile(np.array(row), (count, 1))

    def call() -> Any:
        k.adamw.step(table, grads, scalars)
        return tuple(params)

    return call


def _torch_adamw(t: Any, *arrays: Any) -> Call:
    count = len(arrays) // 2
    params = [t.nn.Parameter(p) for p in arrays[:count]]
    for p, g in zip(params, arrays[count:]):
        p.grad = g
    options = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAY, "fused": True}
    return t.optim.AdamW(params, **options).step


def _torch_norm(t: Any, *grads: Any) -> Call:
    return lambda: t.linalg.vector_norm(t.stack(t._foreach_norm(list(grads)))).item()


def _our_scale(k: Any, *grads: Any) -> Call:
    def call() -> Arrays:
        k.grad_norm.scale_(grads, 0.5)
        return grads

    return call


def _tokens(s: Sizes, rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.integers(0, s.V, rows)


def _params(count: int) -> Callable[[Sizes, np.random.Generator], Arrays]:
    return lambda s, rng: tuple(normal(rng, n) for _ in range(count) for n in s.params)


def _angles(s: Sizes, rng: np.random.Generator) -> Arrays:
    angles = np.arange(s.T)[:, None] * 10000.0 ** (np.arange(0, s.D, 2) / -s.D)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return normal(rng, s.B, s.H, s.T, s.D), cos, sin


def _reductions() -> list[Case]:
    axes: dict[str, tuple[tuple[int, ...], float]] = {"all": ((0, 1), 92), "rows": ((1,), 90), "columns": ((0,), 85)}
    return [
        Case(
            f"sum {name}",
            normals(1),
            lambda k, x, over=over: lambda: k.reduce.sum(x, over, False),
            lambda x, over=over: x.sum(over),
            lambda t, x, over=over: lambda: x.sum(over),
            elements(1),
            goal=goal,
        )
        for name, (over, goal) in axes.items()
    ]


CASES: Sequence[Case] = (
    Case(
        "add",
        normals(2),
        lambda k, x, y: lambda: k.elementwise.add(x, y),
        np.add,
        lambda t, x, y: lambda: x + y,
        elements(3),
        goal=92,
    ),
    Case(
        "add a row",
        lambda s, rng: (normal(rng, s.R, s.C), normal(rng, s.C)),
        lambda k, x, b: lambda: k.elementwise.add(x, b),
        np.add,
        lambda t, x, b: lambda: x + b,
        elements(2),
        goal=92,
    ),
    Case(
        "cast to bfloat16",
        normals(1),
        lambda k, x: lambda: k.elementwise.cast(x, bfloat16),
        lambda x: x.astype(np.float32).astype(bfloat16),
        lambda t, x: lambda: x.to(t.bfloat16),
        lambda s: 6 * s.R * s.C,
        goal=92,
    ),
    *_reductions(),
    Case(
        "transpose",
        normals(1),
        lambda k, x: lambda: k.contiguous(x.T),
        np.transpose,
        lambda t, x: lambda: x.t().contiguous(),
        elements(2),
        goal=85,
    ),
    *gpu_products.CASES,
    Case(
        "gelu forward",
        normals(1),
        lambda k, x: lambda: k.gelu.forward(x, "tanh"),
        _gelu,
        lambda t, x: lambda: t.nn.functional.gelu(x, approximate="tanh"),
        elements(2),
        goal=92,
    ),
    Case(
        "gelu backward",
        normals(2),
        lambda k, dy, x: lambda: k.gelu.backward(dy, x, "tanh"),
        _gelu_backward,
        lambda t, dy, x: lambda: t.ops.aten.gelu_backward(dy, x, approximate="tanh"),
        elements(3),
        goal=90,
    ),
    Case(
        "layer_norm forward",
        lambda s, rng: (normal(rng, s.R, s.C), normal(rng, s.C), normal(rng, s.C)),
        lambda k, x, w, b: lambda: k.layer_norm.forward(x, w, b, 1e-5)[0],
        _layer_norm,
        lambda t, x, w, b: lambda: t.nn.functional.layer_norm(x, w.shape, w, b),
        elements(2),
        goal=90,
    ),
    Case(
        "layer_norm backward",
        lambda s, rng: (normal(rng, s.R, s.C), normal(rng, s.R, s.C), normal(rng, s.C)),
        _our_layer_norm_backward,
        _layer_norm_backward,
        _torch_layer_norm_backward,
        elements(3),
        goal=75,
    ),
    Case(
        "rms_norm forward",
        lambda s, rng: (normal(rng, s.R, s.C), normal(rng, s.C)),
        lambda k, x, w: lambda: k.rms_norm.forward(x, w, 1e-5)[0],
        _rms_norm,
        lambda t, x, w: lambda: t.nn.functional.rms_norm(x, w.shape, w, 1e-5),
        elements(2),
        goal=90,
    ),
    Case(
        "rms_norm backward",
        lambda s, rng: (normal(rng, s.R, s.C), normal(rng, s.R, s.C), normal(rng, s.C)),
        _our_rms_norm_backward,
        _rms_norm_backward,
        None,
        elements(3),
        goal=75,
    ),
    Case(
        "softmax forward",
        normals(1),
        lambda k, x: lambda: k.softmax.forward(x, 1),
        softmax,
        lambda t, x: lambda: t.softmax(x, 1),
        elements(2),
        goal=90,
    ),
    Case(
        "softmax backward",
        normals(2),
        _our_softmax_backward,
        _softmax_backward,
        _torch_softmax_backward,
        elements(3),
        goal=90,
    ),
    Case(
        "cross_entropy forward + backward",
        lambda s, rng: (normal(rng, s.loss_rows, s.V), _tokens(s, rng, s.loss_rows)),
        _our_cross_entropy,
        _cross_entropy,
        _torch_cross_entropy,
        lambda s: 8 * s.loss_rows * s.V,
        goal=85,
    ),
    Case(
        "embedding forward",
        lambda s, rng: (normal(rng, s.V, s.C), _tokens(s, rng, s.R)),
        lambda k, w, i: lambda: k.embedding.forward(w, i),
        lambda w, i: w[i],
        lambda t, w, i: lambda: t.nn.functional.embedding(i, w),
        elements(2),
        goal=85,
    ),
    Case(
        "embedding backward",
        lambda s, rng: (normal(rng, s.R, s.C), _tokens(s, rng, s.R), np.zeros((s.V, s.C), np.float32)),
        _our_embedding_backward,
        _embedding_backward,
        lambda t, dy, i, w: lambda: t.ops.aten.embedding_dense_backward(dy, i, w.shape[0], -1, False),
        lambda s: 4 * s.C * (s.R + 2 * min(s.R, s.V)),
        goal=60,
    ),
    *gpu_attention.CASES,
    Case(
        "rope",
        _angles,
        lambda k, x, cos, sin: lambda: k.rope.rotate(x, cos, sin, False),  # interleaved pairs move less at a time
        _rope,
        None,
        lambda s: 8 * s.B * s.H * s.T * s.D,
        goal=85,
    ),
    Case(
        "dropout",
        normals(1),
        lambda k, x: lambda: k.dropout.forward(x, *DROPOUT),
        lambda x: Device("cpu").kernels.dropout.forward(x, *DROPOUT),  # the mask is the same on every device
        lambda t, x: lambda: t.nn.functional.dropout(x, DROPOUT[0]),
        elements(2),
        goal=75,
    ),
    Case(
        "AdamW",
        _params(2),
        _our_adamw,
        _adamw,
        _torch_adamw,
        lambda s: 28 * sum(s.params),
        goal=88,
    ),
    Case(
        "gradient norm",
        _params(1),
        lambda k, *grads: lambda: np.sqrt(k.grad_norm.sum_of_squares(grads)),
        lambda *grads: np.sqrt(sum((g * g).sum() for g in grads)),
        _torch_norm,
        lambda s: 4 * sum(s.params),
        goal=80,
    ),
    Case(
        "gradient scale",
        _params(1),
        _our_scale,
        lambda *grads: tuple(0.5 * g for g in grads),
        lambda t, *grads: lambda: t._foreach_mul_(list(grads), 0.5),
        lambda s: 8 * sum(s.params),
        goal=80,
    ),
)
