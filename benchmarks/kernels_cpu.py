"""Time single operations on the CPU, minigrad beside NumPy (OpenBLAS) and PyTorch, in float32.

    python benchmarks/kernels_cpu.py

Each library runs in a process of its own, so that no thread pool disturbs another's; the processes take turns, and a
time is the least of all turns. Products are given in GFLOP/s, everything else as PyTorch's time over minigrad's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# Tokens and channels of the presets S and M of train_step_cpu.py: (M, K, N) of y = a @ b, and which operands are
# transposed views, as forward (x @ w.T), input gradient (dy @ w) and weight gradient (dy.T @ x) have them.
PRODUCTS = {
    f"{preset} {name}": shape
    for preset, tokens, C in (("S", 768, 128), ("M", 4096, 384))
    for name, shape in {
        "x @ w.T": (tokens, C, 4 * C, "b"),
        "dy @ w": (tokens, 4 * C, C, ""),
        "dy.T @ x": (4 * C, tokens, C, "a"),
    }.items()
}
ATTENTION = {"attention S": (12, 4, 64, 32), "attention M": (16, 6, 256, 64), "attention 2048": (1, 4, 2048, 64)}
ROWS = {"layer_norm": (4096, 384), "gelu": (4096, 1536), "softmax": (4096, 256)}
LOSSES = {"cross_entropy 65": (4096, 65), "cross_entropy 50257": (1024, 50257)}

Timed = dict[str, Callable[[], Any]]


def product_operands(M: int, K: int, N: int, transposed: str) -> tuple[np.ndarray, np.ndarray]:
    """Random (M, K) and (K, N); the one named in ``transposed`` is a transposed view."""
    random = np.random.default_rng(0)
    a, b = random.standard_normal((M, K), np.float32), random.standard_normal((K, N), np.float32)
    if "a" in transposed:
        a = np.ascontiguousarray(a.T).T
    if "b" in transposed:
        b = np.ascontiguousarray(b.T).T
    return a, b


def numpy_timed() -> Timed:
    """NumPy's products."""
    operands = {name: product_operands(*shape) for name, shape in PRODUCTS.items()}
    return {name: lambda a=a, b=b: a @ b for name, (a, b) in operands.items()}


def minigrad_timed() -> Timed:
    """minigrad's products and operations; a backward is of the operation alone."""
    import minigrad
    from minigrad.nn import functional as F

    timed: Timed = {}
    for name, shape in PRODUCTS.items():
        # Transposed arrays, not contiguous copies: what the operations hand to the kernel.
        a, b = (minigrad.from_numpy(x) for x in product_operands(*shape))
        timed[name] = lambda a=a, b=b: a @ b
    for name, (B, H, T, D) in ATTENTION.items():
        q, k, v = (minigrad.randn(B, H, T, D, requires_grad=True) for _ in range(3))
        add_pair(timed, name, lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True), minigrad)
    for name, (N, C) in ROWS.items():
        x, w, b = (minigrad.randn(*s, requires_grad=True) for s in ((N, C), (C,), (C,)))
        forms = {
            "layer_norm": lambda x=x, w=w, b=b, C=C: F.layer_norm(x, (C,), w, b),
            "gelu": lambda x=x: F.gelu(x, "tanh"),
            "softmax": lambda x=x: x.softmax(-1),
        }
        add_pair(timed, name, forms[name], minigrad)
    for name, (N, V) in LOSSES.items():
        logits, targets = minigrad.randn(N, V, requires_grad=True), minigrad.randint(0, V, (N,))
        add_pair(timed, name, lambda x=logits, y=targets: F.cross_entropy(x, y), minigrad)
    return timed


def torch_timed() -> Timed:
    """The same in PyTorch."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(os.cpu_count() or 1)
    timed: Timed = {}
    for name, shape in PRODUCTS.items():
        a, b = (torch.from_numpy(x) for x in product_operands(*shape))
        timed[name] = lambda a=a, b=b: a @ b
    for name, (B, H, T, D) in ATTENTION.items():
        q, k, v = (torch.randn(B, H, T, D, requires_grad=True) for _ in range(3))
        add_pair(timed, name, lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True), torch)
    for name, (N, C) in ROWS.items():
        x, w, b = (torch.randn(*s, requires_grad=True) for s in ((N, C), (C,), (C,)))
        forms = {
            "layer_norm": lambda x=x, w=w, b=b, C=C: F.layer_norm(x, (C,), w, b),
            "gelu": lambda x=x: F.gelu(x, approximate="tanh"),
            "softmax": lambda x=x: x.softmax(-1),
        }
        add_pair(timed, name, forms[name], torch)
    for name, (N, V) in LOSSES.items():
        logits, targets = torch.randn(N, V, requires_grad=True), torch.randint(0, V, (N,))
        add_pair(timed, name, lambda x=logits, y=targets: F.cross_entropy(x, y), torch)
    return timed


def add_pair(timed: Timed, name: str, forward: Callable[[], Any], library: Any) -> None:
    """Time the forward without a graph, and forward and backward together."""

    def alone() -> None:
        with library.no_grad():
            forward()

    gradient = library.ones_like(forward().detach())
    timed[f"{name} forward"] = alone
    timed[f"{name} forward + backward"] = lambda: forward().backward(gradient)


WORKERS: dict[str, Callable[[], Timed]] = {"minigrad": minigrad_timed, "numpy": numpy_timed, "torch": torch_timed}


def work(name: str, seconds: float) -> None:
    """Print the seconds of each timed call as one JSON line."""
    best = {}
    for label, call in WORKERS[name]().items():
        call()
        best[label] = float("inf")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = time.perf_counter()
            call()
            best[label] = min(best[label], time.perf_counter() - begin)
    print(json.dumps(best))


def main() -> None:
    """Run the workers in turns and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each operation in each turn (default 0.3)")
    parser.add_argument("--worker", choices=list(WORKERS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.seconds)
        return
    names = [name for name in WORKERS if importlib.util.find_spec(name)]
    best: dict[str, dict[str, float]] = {name: {} for name in names}
    for _ in range(args.turns):
        for name in names:
            command = [sys.executable, __file__, "--worker", name, "--seconds", str(args.seconds)]
            for label, seconds in json.loads(subprocess.check_output(command)).items():
                best[name][label] = min(best[name].get(label, seconds), seconds)
    print(f"{'GFLOP/s':24}" + "".join(f"{name:>12}" for name in names))
    for label, (M, K, N, _) in PRODUCTS.items():
        print(f"{label:24}" + "".join(f"{2e-9 * M * K * N / best[name][label]:12.0f}" for name in names))
    if "torch" in names:
        print(f"\n{'':40}{'minigrad us':>12}{'torch us':>12}{'ratio':>8}")
        for label, ours in best["minigrad"].items():
            if label not in PRODUCTS:
                theirs = best["torch"][label]
                print(f"{label:40}{1e6 * ours:12.0f}{1e6 * theirs:12.0f}{theirs / ours:8.2f}")


if __name__ == "__main__":
    main()
