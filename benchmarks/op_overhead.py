"""Host cost of a small operation, minigrad beside PyTorch: four-element tensors, so that the arithmetic is nothing.

    python benchmarks/op_overhead.py

Microseconds per operation, the least of several runs; both libraries in one process, in turns, one thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import timeit
from collections.abc import Callable
from typing import Any

LENGTH = 100  # operations in a chain


def cases(library: Any, linear: Callable[..., Any], layer_norm: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Functions that run LENGTH operations each."""
    x = library.ones(4)
    p = library.ones(4, requires_grad=True)
    matrix, w = library.ones(4, 4, requires_grad=True), library.ones(4, requires_grad=True)

    def chain(step: Callable[[Any], Any], start: Any) -> Any:
        y = start
        for _ in range(LENGTH):
            y = step(y)
        return y

    def without_graph() -> None:
        with library.no_grad():
            chain(lambda y: y + x, x)

    return {
        "add, no_grad": without_graph,
        "add, forward": lambda: chain(lambda y: y + p, p),
        "add, forward + backward": lambda: chain(lambda y: y + p, p).sum().backward(),
        "mul, forward + backward": lambda: chain(lambda y: y * p, p).sum().backward(),
        "linear, forward + backward": lambda: chain(lambda y: linear(y, matrix, w), matrix).sum().backward(),
        "layer_norm, forward + backward": lambda: chain(lambda y: layer_norm(y, (4,), w, p), matrix).sum().backward(),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    repeat = parser.parse_args().repeat

    import minigrad
    from minigrad.nn import functional as ours

    minigrad.set_num_threads(1)
    libraries = {"minigrad": cases(minigrad, ours.linear, ours.layer_norm)}
    if importlib.util.find_spec("torch"):
        import torch
        from torch.nn import functional as theirs

        torch.set_num_threads(1)
        libraries["torch"] = cases(torch, theirs.linear, theirs.layer_norm)
    print(f"{'microseconds per operation':34}" + "".join(f"{name:>10}" for name in libraries))
    for case in libraries["minigrad"]:
        best = dict.fromkeys(libraries, float("inf"))
        for _ in range(repeat):
            for name, functions in libraries.items():
                seconds = timeit.timeit(functions[case], number=10)
                best[name] = min(best[name], 1e6 * seconds / 10 / LENGTH)
        print(f"{case:34}" + "".join(f"{microseconds:10.2f}" for microseconds in best.values()))


if __name__ == "__main__":
    main()
