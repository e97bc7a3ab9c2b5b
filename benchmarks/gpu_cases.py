"""What ``gpu_report.py`` measures: for each kernel its inputs, our call, PyTorch's, the result in float64, its work.

All sizes come from ``Sizes``: those of a GPT-2 124M (``FULL``) for the time, small ones (``CHECK``) for the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad import Device
from minigrad.dtypes import bfloat16

Arrays = tuple[Any, ...]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    """R rows (tokens) of C channels, V words, ``loss_rows`` of logits, M the side of a matrix, attention's B, H, T, D,
    and the elements of the optimizer's parameters."""

    R: int
    C: int
    V: int
    loss_rows: int
    M: int
    B: int
    H: int
    T: int
    D: int
    params: tuple[int, ...]


GPT2 = (50304 * 768, 1024 * 768, *(768 * 768,) * 144, *(768,) * 98)  # about its parameters, 124 million
FULL = Sizes(65536, 768, 50304, 8192, 4096, 16, 12, 1024, 64, GPT2)
CHECK = Sizes(1003, 768, 5003, 301, 515, 2, 3, 257, 64, (70001, 768, 33, 1))
TINY = Sizes(3, 40, 50, 2, 6, 1, 1, 5, 8, (9, 3))


@dataclass(frozen=True)
class Case:
    """One line of the report.

    ``inputs(s, rng)`` are NumPy arrays; ``ours(k, *arrays)`` prepares and returns the call that is timed, with the
    kernel package k and the arrays on the device; ``torch(t, *tensors)`` is the same for PyTorch, None where it has no
    such thing; ``exact(*arrays)`` gives the results from float64 arrays. ``nbytes`` is the least that must be moved,
    ``flops`` what must be computed. ``goal`` is in per cent of the copy's rate, or of the matrix rate where there are
    flops.
    """

    name: str
    inputs: Callable[[Sizes, np.random.Generator], Arrays]
    ours: Callable[..., Call]
    exact: Callable[..., Any]
    torch: Callable[..., Call] | None = None
    nbytes: Callable[[Sizes], int] | None = None
    flops: Callable[[Sizes], int] | None = None
    goal: float | None = None


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32; large arrays repeat their beginning, which takes less time."""
    size = math.prod(shape)
    return np.resize(rng.standard_normal(min(size, 1 << 22), np.float32), shape)


def normals(count: int) -> Callable[[Sizes, np.random.Generator], Arrays]:
    """``count`` arrays (R, C)."""
    return lambda s, rng: tuple(normal(rng, s.R, s.C) for _ in range(count))


def elements(count: int) -> Callable[[Sizes], int]:
    """Bytes of ``count`` float32 arrays (R, C)."""
    return lambda s: 4 * count * s.R * s.C


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


def softmax(x: Any) -> Any:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


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
        losses, lse = k.cross_entropy.forward(x, targets, -100, 0.0, None)
        return losses, k.cross_entropy.backward(ones, x, targets, lse, -100, 0.0, None)

    return call


def _torch_cross_entropy(t: Any, x: Any, targets: Any) -> Call:
    x.requires_grad_()
    return lambda: t.autograd.grad(t.nn.functional.cross_entropy(x, targets, reduction="sum"), x)


def _our_embedding_backward(k: Any, dy: Any, indices: Any, weight: Any) -> Call:
    def call() -> Any:
        k.embedding.backward_into(dy, indices, weight)
        return weight

    return call


def _our_attention_backward(k: Any, dy: Any, q: Any, key: Any, v: Any) -> Call:
    scale = 1 / math.sqrt(q.shape[-1])
    y, lse = k.attention.forward(q, key, v, True, scale)
    return lambda: k.attention.backward(dy, q, key, v, y, lse, True, scale)


def _torch_attention_backward(t: Any, dy: Any, q: Any, key: Any, v: Any) -> Call:
    qkv = [x.requires_grad_() for x in (q, key, v)]
    y = t.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
    return lambda: t.autograd.grad(y, qkv, dy, retain_graph=True)


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


def _heads(count: int) -> Callable[[Sizes, np.random.Generator], Arrays]:
    return lambda s, rng: tuple(normal(rng, s.B, s.H, s.T, s.D) for _ in range(count))


def _params(count: int) -> Callable[[Sizes, np.random.Generator], Arrays]:
    return lambda s, rng: tuple(normal(rng, n) for _ in range(count) for n in s.params)


def _angles(s: Sizes, rng: np.random.Generator) -> Arrays:
    angles = np.arange(s.T)[:, None] * 10000.0 ** (np.arange(0, s.D, 2) / -s.D)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return normal(rng, s.B, s.H, s.T, s.D), cos, sin


def _products() -> list[Case]:
    """A square one, and those of GPT-2's layer from C to 4 C: forward, input gradient, weight gradient."""
    square = Case(
        "matmul square",
        lambda s, rng: (normal(rng, s.M, s.M), normal(rng, s.M, s.M)),
        lambda k, a, b: lambda: k.matmul.matmul(a, b),
        np.matmul,
        lambda t, a, b: lambda: a @ b,
        flops=lambda s: 2 * s.M**3,
        goal=80,
    )
    views: dict[str, tuple[Callable[[Sizes], tuple[int, int, int, int]], str]] = {
        "matmul x @ w.T": (lambda s: (s.R // 4, s.C, 4 * s.C, s.C), "b"),
        "matmul dy @ w": (lambda s: (s.R // 4, 4 * s.C, 4 * s.C, s.C), ""),
        "matmul dy.T @ x": (lambda s: (s.R // 4, 4 * s.C, s.R // 4, s.C), "a"),
    }
    return [square, *(_product(name, shapes, transposed) for name, (shapes, transposed) in views.items())]


def _product(name: str, shapes: Callable[[Sizes], tuple[int, int, int, int]], transposed: str) -> Case:
    def inputs(s: Sizes, rng: np.random.Generator) -> Arrays:
        rows, columns, rows_b, columns_b = (max(n, 2) for n in shapes(s))
        return normal(rng, rows, columns), normal(rng, rows_b, columns_b)

    def multiply(a: Any, b: Any) -> Any:
        return (a.T if transposed == "a" else a), (b.T if transposed == "b" else b)

    return Case(
        name,
        inputs,
        lambda k, a, b: lambda: k.matmul.matmul(*multiply(a, b)),
        lambda a, b: np.matmul(*multiply(a, b)),
        lambda t, a, b: lambda: t.matmul(*multiply(a, b)),
        flops=lambda s: 2 * max(s.R // 4, 2) * 4 * s.C * s.C,
        goal=80,
    )


def causal_flops(s: Sizes) -> int:
    """Of attention forward: two products, the half above the diagonal left out."""
    return 2 * s.B * s.H * s.T * s.T * s.D


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
    *_products(),
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
    Case(
        "attention forward",
        _heads(3),
        lambda k, q, key, v: lambda: k.attention.forward(q, key, v, True, 1 / math.sqrt(q.shape[-1]))[0],
        _attention,
        lambda t, q, key, v: lambda: t.nn.functional.scaled_dot_product_attention(q, key, v, is_causal=True),
        flops=causal_flops,
    ),
    Case(
        "attention backward",
        _heads(4),
        _our_attention_backward,
        _attention_backward,
        _torch_attention_backward,
        flops=lambda s: causal_flops(s) * 5 // 2,
    ),
    Case(
        "rope",
        _angles,
        lambda k, x, cos, sin: lambda: k.rope.rotate(x, cos, sin, False),
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
