"""Kernels of each family give the plain kernels' result on 1 and 2 threads and on more than there are cores.

The pool's size is fixed when a process starts, so the kernels run in a process with a larger pool: this file, run as
a script. A tenth of all inputs are denormal numbers, and three kernels are also given nothing else.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

POOL = max(7, 1 + (os.cpu_count() or 1))
RUNS = (1, 2, 4, POOL, POOL, 2)  # numbers of threads
CASES = {}
B, H, T, D = 2, 3, 70, 32
ATTENTION = (True, 0.3, 0.0, 0, 0)  # causal, scale, dropout
N, C = 700, 129


def case(*inputs):
    """Register a computation with the kernels ``k``, and its inputs: float32 numbers of a shape, or an array."""

    def register(run) -> None:
        arrays = [numbers(*x, seed=i) if isinstance(x, tuple) else x for i, x in enumerate(inputs)]
        CASES[run.__name__] = run, tuple(arrays)

    return register


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng((seed, *shape))
    x = rng.standard_normal(shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.1, x * np.float32(1e-40), x)


@case((150, 190), (190, 161), (161,), (9, 65, 70), (9, 70, 90), (1, 900), (900, 700), (300, 700), (700, 333))
def products(k, a, b, bias, c, d, *thin_and_of_several_blocks):
    multiply, turned, (e, f, g, h) = k.matmul.matmul, np.asfortranarray, thin_and_of_several_blocks
    thin = multiply(e, f), multiply(e, turned(f)), multiply(f.T, e.T)
    whole = multiply(a, b, bias), multiply(a, turned(b), bias), multiply(c, d)
    return *whole, *thin, multiply(g, h), multiply(g, turned(h))


@case((700, 70), (161, 70), (161,), (700, 161), (700, 161))
def linear_layer(k, x, w, b, r, dy):
    forward = k.linear.forward(x, w, b, r), *k.linear.forward_gelu(x, w, b, "tanh")
    total = np.ones_like(w)
    k.linear.add_weight_gradient(total, dy, x)
    return *forward, *k.linear.backward_gelu(dy, w, x, "none"), *k.linear.backward(dy, x, w, (True,) * 3), total


@case((N,), (N, C), np.arange(N) % C)
def cross_entropy_in_one_pass(k, dlosses, x, targets):
    return k.cross_entropy.forward_backward(dlosses, x, targets, (-100, 0.0, None))


@case((B, H, T, D), (B, H, T, D), (B, H, T, D), (B, H, T, D))
def attention(k, q, keys, v, dy):
    y, lse = k.attention.forward(q, keys, v, ATTENTION)
    return y, *k.attention.backward(dy, q, keys, v, y, lse, ATTENTION)


@case((1, 4, 300, 24), (1, 2, 300, 24), (1, 2, 300, 24), (1, 4, 300, 24))
def attention_with_dropout(k, q, keys, v, dy):
    """Few heads, so that tasks share the queries of one."""
    options = (True, 0.2, 0.2, 7, 0)
    y, lse = k.attention.forward(q, keys, v, options)
    return y, *k.attention.backward(dy, q, keys, v, y, lse, options)


@case((N, C), (C,), (C,), (N, C))
def layer_norm(k, x, w, b, dy):
    y, mean, rstd = k.layer_norm.forward(x, w, b, 1e-5)
    return y, *k.layer_norm.backward(dy, x, w, mean, rstd)


@case((N, C), (C,), (N, C))
def rms_norm(k, x, w, dy):
    y, rstd = k.rms_norm.forward(x, w, 1e-5)
    return y, *k.rms_norm.backward(dy, x, w, rstd)


@case((2, 20_001), (20_001,), (20_001,), (2, 20_001))
def long_rows(k, x, w, b, dy):
    y, mean, rstd = k.layer_norm.forward(x, w, b, 1e-5)
    p, targets = k.softmax.forward(x, 1), np.array([5, 20_000])
    losses, lse = k.cross_entropy.forward(x, targets, (-100, 0.1, None))
    dlosses = np.ones_like(losses)
    dx = k.cross_entropy.backward(dlosses, x, targets, lse, (-100, 0.1, None))
    return y, *k.layer_norm.backward(dy, x, w, mean, rstd), p, k.softmax.backward(dy, p, 1), losses, lse, dx


@case((N, C), (N, C))
def softmax(k, x, dy):
    y, log = k.softmax.forward(x, 1), k.softmax.log_forward(x, 0)
    return y, k.softmax.backward(dy, y, 1), log, k.softmax.log_backward(dy, log, 0)


@case((N, C), (N,), np.random.default_rng(0).integers(0, C, N))
def cross_entropy(k, x, dlosses, targets):
    losses, lse = k.cross_entropy.forward(x, targets, (-100, 0.1, None))
    return losses, lse, k.cross_entropy.backward(dlosses, x, targets, lse, (-100, 0.1, None))


@case((50, C), (N, C), np.random.default_rng(0).integers(0, 50, N))
def embedding(k, weight, dy, indices):
    dweight = np.zeros_like(weight)
    k.embedding.backward_into(dy, indices, dweight)
    return k.embedding.forward(weight, indices), dweight


@case((B, H, T * 10, D))
def rope(k, x):
    return (k.rope.rotate(x, *k.rope.tables(np.arange(T * 10), D, 10000.0, x.dtype), False),)


@case((90_001,), (70_001,))
def clipping(k, *arrays):
    arrays = tuple(x.copy() for x in arrays)
    norm = k.grad_norm.clip_(arrays, 1.0, 0.0)
    return *arrays, norm.astype(np.float32).reshape(())


@case((N, C))
def sums(k, x):
    return k.reduce.sum(x, (0,), False), k.reduce.sum(x, (1,), False)


@case((N, C), (N, C))
def dropout(k, x, dy):
    return k.dropout.forward(x, 0.25, 7, 0), k.dropout.forward(dy, 0.25, 7, 0)


@case()
def random_draws(k):
    n, draw = 3 * 16384 + 5, k.random
    whole = draw.integers(-5, 5, n, 3, 4), draw.permutation(n, 3, 4), draw.philox_bits(n, 3, 4) >> 8
    return draw.uniform(n, np.float32, 3, 4), draw.normal(n, np.float32, 3, 4), *(x.astype(np.float32) for x in whole)


def denormals(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 1 << 23, shape).astype(np.uint32).view(np.float32)


EVEN = (denormals(200, 200).view(np.uint32) & ~np.uint32(1)).view(np.float32)


@case(denormals(200, 200), EVEN, denormals(50, C), np.random.default_rng(0).integers(0, 50, N))
def only_denormals(k, x, even, weight, indices):
    """Results that are exact where denormal numbers are not taken for zero."""
    one = np.eye(200, dtype=x.dtype)
    return k.matmul.matmul(x, one), k.embedding.forward(weight, indices), k.gelu.forward(even, "tanh")


def error(y: np.ndarray, expected: np.ndarray) -> float:
    """The largest error relative to the largest number; infinite if there are NaN or the shapes differ."""
    if y.shape != np.shape(expected) or y.dtype != np.float32 or np.isnan(y).any():
        return float("inf")
    return float(np.abs(y - expected).max() / np.abs(expected).max())


def main() -> None:
    """Run all cases on each number of threads, some twice; print the errors and whether all bits are the same."""
    from minigrad import cpu_kernels, plain_kernels

    cpu_kernels.toolbox.jit.TEAM.most_helpers = 0  # they would be as many as threads
    results = {}
    for name, (run, inputs) in CASES.items():
        expected = run(plain_kernels, *(x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs))
        outcomes = []
        for count in RUNS:
            cpu_kernels.threads.set_num_threads(count)
            outcomes.append(run(cpu_kernels, *inputs))
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
    assert results[name]["same"] == [True] * len(RUNS)
    assert results[name]["error"] < (1e-30 if name == "only_denormals" else 1e-5)


if __name__ == "__main__":
    main()
