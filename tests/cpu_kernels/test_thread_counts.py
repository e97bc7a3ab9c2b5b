"""Kernels of each family give their plain version's result on 1 and 2 threads and on more than there are cores.

The pool's size is fixed when a process starts, so the kernels run in a process with a larger pool: this file, run as
a script. A tenth of all inputs are denormal numbers, and three kernels are also given nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

Arrays = tuple[np.ndarray, ...]
POOL = max(7, 1 + (os.cpu_count() or 1))
COUNTS = (1, 2, 4, POOL)
CASES: dict[str, Callable[[], tuple[Callable[[], Arrays], Arrays]]] = {}
B, H, T, D = 2, 3, 70, 32
N, C = 700, 129


def case(make: Callable[[], tuple[Callable[[], Arrays], Arrays]]) -> None:
    """Register a case: the call of the kernels, and what the plain formulas give in float64."""
    CASES[make.__name__] = make


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng((seed, *shape))
    x = rng.standard_normal(shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.1, x * np.float32(1e-40), x)


def wide(*arrays: np.ndarray) -> Arrays:
    return tuple(x.astype(np.float64) for x in arrays)


@case
def product():
    from minigrad.cpu_kernels.matmul import matmul

    a, b, bias = numbers(150, 190), numbers(190, 161), numbers(161)
    A, W, c = wide(a, b, bias)
    return lambda: (matmul(a, b, bias), matmul(a, np.asfortranarray(b), bias)), (A @ W + c,) * 2


@case
def batch_of_products():
    from minigrad.cpu_kernels.matmul import matmul

    a, b = numbers(9, 65, 70), numbers(9, 70, 90)
    return lambda: (matmul(a, b),), (np.matmul(*wide(a, b)),)


@case
def thin_product():
    from minigrad.cpu_kernels.matmul import matmul

    a, b = numbers(1, 900), numbers(900, 700)
    A, W = wide(a, b)
    return lambda: (matmul(a, b), matmul(a, np.asfortranarray(b))), (A @ W,) * 2


@case
def linear_layer():
    from minigrad.cpu_kernels import gelu, linear

    x, w, b, r, dy = numbers(700, 70), numbers(161, 70), numbers(161), numbers(700, 161), numbers(700, 161, seed=1)
    X, W, c, R, DY = wide(x, w, b, r, dy)
    before = X @ W.T + c

    def run() -> Arrays:
        forward = linear.forward(x, w, b, r), *linear.forward_gelu(x, w, b, "tanh")
        total = np.ones_like(w)
        linear.add_weight_gradient(total, dy, x)
        return *forward, *linear.backward_gelu(dy, w, x, "none"), *linear.backward(dy, x, w, (True,) * 3), total

    of_gelu = gelu.backward(DY @ W, X, "none"), gelu.forward(X, "none")
    plain = (before + R, gelu.forward(before, "tanh"), before, *of_gelu, DY @ W, DY.T @ X, DY.sum(0), DY.T @ X + 1)
    return run, plain


@case
def cross_entropy_in_one_pass():
    from minigrad.cpu_kernels import cross_entropy

    x, targets = numbers(N, C), np.arange(N) % C
    p = np.exp(wide(x)[0])
    p /= p.sum(1, keepdims=True)
    rows = np.arange(N)
    dx = (p - (targets[:, None] == np.arange(C))) * 0.5
    lse = np.log(np.exp(wide(x)[0]).sum(1))
    one = np.full(N, 0.5, np.float32)
    plain = -np.log(p[rows, targets]), lse, dx
    return lambda: cross_entropy.forward_backward(one, x, targets, -100, 0.0, None), plain


@case
def attention():
    from minigrad.cpu_kernels import attention as kernel

    q, k, v, dy = (numbers(B, H, T, D, seed=i) for i in range(4))

    def run() -> Arrays:
        y, lse = kernel.forward(q, k, v, True, 0.3)
        return y, *kernel.backward(dy, q, k, v, y, lse, True, 0.3)

    Q, K, V, G = wide(q, k, v, dy)
    scores = np.where(np.tri(T, dtype=bool), 0.3 * Q @ K.swapaxes(2, 3), -np.inf)
    P = np.exp(scores - scores.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    dP = G @ V.swapaxes(2, 3)
    dS = 0.3 * P * (dP - (dP * P).sum(-1, keepdims=True))
    return run, (P @ V, dS @ K, dS.swapaxes(2, 3) @ Q, P.swapaxes(2, 3) @ G)


@case
def layer_norm():
    from minigrad.cpu_kernels import layer_norm as kernel

    x, w, b, dy = numbers(N, C), numbers(C), numbers(C, seed=1), numbers(N, C, seed=2)

    def run() -> Arrays:
        y, mean, rstd = kernel.forward(x, w, b, 1e-5)
        return y, *kernel.backward(dy, x, w, mean, rstd)

    X, W, bias, G = wide(x, w, b, dy)
    rstd = 1 / np.sqrt(X.var(1, keepdims=True) + 1e-5)
    xhat = (X - X.mean(1, keepdims=True)) * rstd
    g = G * W
    dx = rstd * (g - g.mean(1, keepdims=True) - xhat * (g * xhat).mean(1, keepdims=True))
    return run, (xhat * W + bias, dx, (G * xhat).sum(0), G.sum(0))


@case
def transformer_block():
    from minigrad.cpu_kernels import attention, layer_norm, linear
    from minigrad.cpu_kernels import transformer_block as kernel

    sequences, tokens, channels, inner, heads = 28, 16, 24, 40, 3
    pairs = [(channels,), (3 * channels, channels), (channels, channels), (channels,)]
    pairs += [(inner, channels), (channels, inner)]
    weights = tuple(numbers(*shape, seed=2) for pair in pairs for shape in (pair, pair[:1]))
    x, dy = (numbers(sequences, tokens, channels, seed=seed) for seed in (3, 4))
    options = heads, (1e-3, 1e-3), True, "tanh", 0.3

    def run() -> Arrays:
        y, kept = kernel.forward(x, weights, options, True)
        (alone, _), grads = (
            kernel.forward(x, weights, options, False),
            kernel.backward(dy, x, weights[::2], kept, options, (True,) * 13),
        )
        return y, alone, *grads

    X, DY, n1, b1, wqkv, bqkv, wo, bo, n2, b2, w, b, v, c = wide(x, dy, *weights)  # one by one, in float64
    X, DY = X.reshape(-1, channels), DY.reshape(-1, channels)
    normed, *stats = layer_norm.forward(X, n1, b1, 1e-3)
    qkv = linear.forward(normed, wqkv, bqkv).reshape(sequences, tokens, 3, heads, -1)
    a, lse = attention.forward(*(qkv[:, :, i].swapaxes(1, 2) for i in range(3)), True, 0.3)
    merged = a.swapaxes(1, 2).reshape(-1, channels)
    X2 = linear.forward(merged, wo, bo, X)
    normed_2, *stats_2 = layer_norm.forward(X2, n2, b2, 1e-3)
    g, h = linear.forward_gelu(normed_2, w, b, "tanh")
    dh, g = linear.backward_gelu(DY, v, h, "tanh")
    _, dv, dc = linear.backward(DY, g, None, (False, True, True))
    dn2, dw, db = linear.backward(dh, normed_2, w, (True,) * 3)
    dx2, dnorm_2, dbias_2 = layer_norm.backward(dn2, X2, n2, *stats_2)
    dx2 = dx2 + DY
    da, dwo, dbo = linear.backward(dx2, merged, wo, (True,) * 3)
    dqkv = attention.backward_packed(da.reshape(a.swapaxes(1, 2).shape).swapaxes(1, 2), qkv, a, lse, True, 0.3)
    dn1, dwqkv, dbqkv = linear.backward(dqkv.reshape(-1, 3 * channels), normed, wqkv, (True,) * 3)
    dx, dnorm_1, dbias_1 = layer_norm.backward(dn1, X, n1, *stats)
    y = linear.forward(g, v, c, X2).reshape(x.shape)
    grads = (dx + dx2).reshape(x.shape), dnorm_1, dbias_1, dwqkv, dbqkv, dwo, dbo, dnorm_2, dbias_2, dw, db, dv, dc
    return run, (y, y, *grads)


@case
def rms_norm():
    from minigrad.cpu_kernels import rms_norm as kernel

    x, w, dy = numbers(N, C), numbers(C), numbers(N, C, seed=2)

    def run() -> Arrays:
        y, rstd = kernel.forward(x, w, 1e-5)
        return y, *kernel.backward(dy, x, w, rstd)

    X, W, G = wide(x, w, dy)
    rstd = 1 / np.sqrt((X * X).mean(1, keepdims=True) + 1e-5)
    xhat, g = X * rstd, G * W
    return run, (xhat * W, rstd * (g - xhat * (g * xhat).mean(1, keepdims=True)), (G * xhat).sum(0))


@case
def gelu():
    from minigrad.cpu_kernels import gelu as kernel

    x, dy = numbers(N, C), numbers(N, C, seed=1)
    X, G = wide(x, dy)
    root = np.sqrt(2 / np.pi)
    t = np.tanh(root * (X + 0.044715 * X**3))
    slope = 0.5 * (1 + t) + 0.5 * X * (1 - t * t) * root * (1 + 3 * 0.044715 * X * X)
    return lambda: (kernel.forward(x, "tanh"), kernel.backward(dy, x, "tanh")), (0.5 * X * (1 + t), G * slope)


@case
def softmax():
    from minigrad.cpu_kernels import softmax as kernel

    x, dy = numbers(N, C), numbers(N, C, seed=1)

    def run() -> Arrays:
        y = kernel.forward(x, 1)
        log = kernel.log_forward(x, 0)
        return y, kernel.backward(dy, y, 1), log, kernel.log_backward(dy, log, 0)

    X, G = wide(x, dy)
    rows, columns = (np.exp(X) / np.exp(X).sum(axis, keepdims=True) for axis in (1, 0))
    return run, (
        rows,
        rows * (G - (G * rows).sum(1, keepdims=True)),
        np.log(columns),
        G - columns * G.sum(0, keepdims=True),
    )


@case
def cross_entropy():
    import minigrad as mg
    from minigrad.nn import functional as F

    x, targets = numbers(N, C), np.random.default_rng(0).integers(0, C, N)

    def run() -> Arrays:
        logits = mg.from_numpy(x).requires_grad_()
        loss = F.cross_entropy(logits, mg.from_numpy(targets))
        return loss.detach().numpy(), loss.backward()[logits].numpy()

    (X,) = wide(x)
    P = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    return run, (-np.log(P[np.arange(N), targets]).mean(), (P - np.eye(C)[targets]) / N)


@case
def embedding():
    from minigrad.cpu_kernels import embedding as kernel

    weight, dy, indices = numbers(50, C), numbers(N, C), np.random.default_rng(0).integers(0, 50, N)

    def run() -> Arrays:
        dweight = np.zeros_like(weight)
        kernel.backward_into(dy, indices, dweight)
        return kernel.forward(weight, indices), dweight

    return run, (weight[indices], np.eye(50)[indices].T @ dy.astype(np.float64))


@case
def rope():
    from minigrad.cpu_kernels import rope as kernel

    x = numbers(B, H, T * 10, D)
    angles = np.arange(T * 10)[:, None] * 10000.0 ** (-np.arange(0, D, 2) / D)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    X, c, s = wide(x, cos, sin)
    first, second = X[..., : D // 2], X[..., D // 2 :]
    return (
        lambda: (kernel.rotate(x, cos, sin, False),),
        (np.concatenate([first * c - second * s, second * c + first * s], -1),),
    )


@case
def adamw():
    from minigrad import Tensor, from_numpy
    from minigrad.grad_store import GradStore
    from minigrad.optim import AdamW

    start, grads = numbers(90_001), numbers(90_001, seed=1)

    def run() -> Arrays:
        p: Tensor = from_numpy(start.copy()).requires_grad_()
        optimizer = AdamW([p], lr=0.1, weight_decay=0.1)
        store = (p * from_numpy(grads)).sum().backward()
        assert isinstance(store, GradStore)
        optimizer.step(store)
        return (p.detach().numpy(),)

    P, G = wide(start, grads)
    return run, (P * (1 - 0.1 * 0.1) - 0.1 * G / (np.abs(G) + 1e-8),)


@case
def clipping():
    from minigrad.cpu_kernels import grad_norm as kernel

    x, y = numbers(90_001), numbers(70_001)

    def run() -> Arrays:
        arrays = [x.copy(), y.copy()]
        norm = kernel.clip_(arrays, 1.0, 0.0)
        return *arrays, norm.astype(np.float32).reshape(())

    X, Y = wide(x, y)
    norm = np.sqrt((X * X).sum() + (Y * Y).sum())
    return run, (X / norm, Y / norm, norm)


@case
def sums():
    from minigrad.cpu_kernels import reduce

    x = numbers(N, C)
    (X,) = wide(x)
    return lambda: (reduce.sum(x, (0,), False), reduce.sum(x, (1,), False)), (X.sum(0), X.sum(1))


@case
def dropout():
    from minigrad.cpu_kernels import dropout as kernel

    x, dy = numbers(N, C), numbers(N, C, seed=1)
    X, G = wide(x, dy)
    kept = kernel.forward(np.ones_like(x), 0.25, 7, 0) != 0  # which are kept is Philox's, tested elsewhere
    return lambda: (kernel.forward(x, 0.25, 7, 0), kernel.backward(dy, 0.25, 7, 0)), (X * kept / 0.75, G * kept / 0.75)


def denormals(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 1 << 23, shape).astype(np.uint32).view(np.float32)


@case
def only_denormals():
    """Results that are exact where denormal numbers are not taken for zero."""
    from minigrad.cpu_kernels import embedding, gelu
    from minigrad.cpu_kernels.matmul import matmul

    x, weight = denormals(200, 200), denormals(50, C)
    indices = np.random.default_rng(0).integers(0, 50, N)
    even = (x.view(np.uint32) & ~np.uint32(1)).view(np.float32)
    return (
        lambda: (
            matmul(x, np.eye(200, dtype=np.float32)),
            embedding.forward(weight, indices),
            gelu.forward(even, "tanh"),
        ),
        (x, weight[indices], even * 0.5),
    )


def error(y: np.ndarray, expected: np.ndarray) -> float:
    """The largest error relative to the largest number; infinite if there are NaN or the shapes differ."""
    if y.shape != np.shape(expected) or y.dtype != np.float32 or np.isnan(y).any():
        return float("inf")
    return float(np.abs(y - expected).max() / np.abs(expected).max())


def main() -> None:
    """Run all cases on each number of threads, each twice; print the errors and whether all bits are the same."""
    from minigrad.cpu_kernels import threads

    results = {}
    for name, make in CASES.items():
        run, expected = make()
        outcomes = []
        for count in (*COUNTS, *COUNTS):
            threads.set_num_threads(count)
            outcomes.append(run())
        same = [all(x.tobytes() == y.tobytes() for x, y in zip(o, outcomes[0], strict=True)) for o in outcomes]
        results[name] = {"same": same, "error": max(error(y, x) for y, x in zip(outcomes[0], expected, strict=True))}
    print(json.dumps(results))


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, object]]:
    environment = {**os.environ, "NUMBA_NUM_THREADS": str(POOL)}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", list(CASES))
def test_result_on_any_number_of_threads(results: dict[str, dict[str, object]], name: str) -> None:
    assert results[name]["same"] == [True] * 2 * len(COUNTS)
    assert results[name]["error"] < (1e-30 if name == "only_denormals" else 1e-5)


if __name__ == "__main__":
    main()
