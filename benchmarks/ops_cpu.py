"""Operations one by one on the CPU, minigrad beside PyTorch, each in a process of its own, in turns.

    python benchmarks/ops_cpu.py                                  512 x 1024, float32
    python benchmarks/ops_cpu.py --shape 16 64 --dtype float64
    python benchmarks/ops_cpu.py --only relu topk --out ops.json

For each operation the time of PyTorch over ours, forward and (with a gradient of ones) backward, the least of several
runs; then the worst twenty and the geometric means. Each process has two threads.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 2
Call = Callable[[], Any]


def operations(library: Any, F: Any, shape: tuple[int, int], dtype: str) -> dict[str, tuple[Any, ...]]:
    """By name a function and its tensors; gradients are taken where they are floating, for functions that have one."""
    rng = np.random.default_rng(0)
    rows, columns = shape
    floating = dtype != "int64"
    kind = getattr(library, dtype)

    def tensor(array: np.ndarray) -> Any:
        return library.tensor(array.astype(np.float32) if floating else array).to(kind)

    values = rng.normal(0, 2, shape) if floating else rng.integers(-9, 9, shape)
    x, y = tensor(values), tensor(np.where(values[::-1] == 0, 1, values[::-1]))
    positive = tensor(np.abs(values) + 1)
    row, condition = tensor(values[0]), library.tensor(values > 0)
    places = library.tensor(rng.integers(0, rows, rows))
    along = library.tensor(rng.integers(0, columns, shape))
    classes = library.tensor(rng.integers(0, 64, rows * 4))
    unary = {
        "abs": lambda x: x.abs(), "neg": lambda x: -x, "square": lambda x: x.square(), "sign": lambda x: x.sign(),
        "clamp": lambda x: x.clamp(-1, 1), "relu": F.relu, "sum": lambda x: x.sum(), "sum rows": lambda x: x.sum(-1),
        "sum columns": lambda x: x.sum(0), "max": lambda x: x.max(), "max rows": lambda x: x.max(-1),
        "argmax": lambda x: x.argmax(-1), "prod": lambda x: x.prod(-1), "cumsum": lambda x: x.cumsum(-1),
        "sort": lambda x: x.sort(-1), "topk": lambda x: x.topk(5, -1), "median": lambda x: x.median(),
        "contiguous of T": lambda x: x.transpose(0, 1).contiguous(), "clone": lambda x: x.clone(),
        "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(3, 0), "tile": lambda x: x.tile(2, 1),
        "tril": lambda x: x.tril(), "slice": lambda x: x[1:, ::2].contiguous(), "any": lambda x: x.any(),
        "unique": lambda x: x.unique(), "nonzero": lambda x: x.nonzero(), "isnan": lambda x: x.isnan(),
        "to bfloat16": lambda x: x.to(library.bfloat16), "to float64": lambda x: x.to(library.float64),
        "to int64": lambda x: x.to(library.int64), "gather": lambda x: x.gather(1, along),
        "index_select": lambda x: x.index_select(0, places), "masked_fill": lambda x: x.masked_fill(condition, 0),
        "index by mask": lambda x: x[condition], "cat": lambda x: library.cat([x, x], 0),
        "stack": lambda x: library.stack([x, x]), "logical_not": lambda x: x.logical_not(),
        "x + 2": lambda x: x + 2, "x * 2": lambda x: x * 2, "x + row": lambda x: x + row,
    }  # fmt: skip
    binary = {
        "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
        "floor_div": lambda x, y: x // y, "remainder": lambda x, y: x % y, "maximum": library.maximum,
        "lt": lambda x, y: x < y, "eq": lambda x, y: x == y, "where": lambda x, y: library.where(condition, x, y),
    }  # fmt: skip
    real = {
        "exp": lambda x: x.exp(), "tanh": lambda x: x.tanh(), "sin": lambda x: x.sin(), "erf": lambda x: x.erf(),
        "sigmoid": lambda x: x.sigmoid(), "silu": F.silu, "gelu": F.gelu, "leaky_relu": F.leaky_relu, "elu": F.elu,
        "selu": F.selu, "softplus": F.softplus, "hardswish": F.hardswish, "mish": F.mish, "floor": lambda x: x.floor(),
        "round": lambda x: x.round(), "mean rows": lambda x: x.mean(-1), "var rows": lambda x: x.var(-1),
        "logsumexp": lambda x: x.logsumexp(-1), "softmax": lambda x: x.softmax(-1), "norm": lambda x: x.norm(),
        "log_softmax": lambda x: x.log_softmax(-1), "layer_norm": lambda x: F.layer_norm(x, (columns,)),
        "dropout": lambda x: F.dropout(x, 0.1), "linear": lambda x: F.linear(x, y),
    }  # fmt: skip
    above_zero = {
        "log": lambda x: x.log(), "log1p": lambda x: x.log1p(), "sqrt": lambda x: x.sqrt(),
        "rsqrt": lambda x: x.rsqrt(), "reciprocal": lambda x: x.reciprocal(), "pow 3": lambda x: x**3,
    }  # fmt: skip
    found: dict[str, tuple[Any, ...]] = {name: (function, x) for name, function in unary.items()}
    found |= {name: (function, x, y) for name, function in binary.items()}
    found |= {"mse_loss": (F.mse_loss, x, y), "smooth_l1": (F.smooth_l1_loss, x, y)} if floating else {}
    found |= {name: (function, x) for name, function in real.items()} if floating else {}
    found |= {name: (function, positive) for name, function in above_zero.items()} if floating else {}
    found |= {"one_hot": (lambda x: F.one_hot(classes, 64), x), "outer": (lambda x: library.outer(row, row), x)}
    if floating:
        bounded = x.sigmoid()
        found["bce"] = (lambda p: F.binary_cross_entropy(p, bounded.detach()), bounded.detach())
    return found


def least(call: Call, seconds: float) -> float:
    """The least time of a call in microseconds, of as many as fit into ``seconds``, at least three."""
    best, end, count = math.inf, time.perf_counter() + seconds, 0
    while count < 3 or time.perf_counter() < end:
        before = time.perf_counter()
        call()
        best, count = min(best, time.perf_counter() - before), count + 1
    return round(1e6 * best, 2)


def measure(name: str, function: Callable[..., Any], tensors: tuple[Any, ...], seconds: float) -> list[float | str]:
    """Microseconds forward and, where there is a gradient, backward; or what was refused."""
    try:
        forward = least(lambda: function(*tensors), seconds)
        leaves = [t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in tensors]
        out = function(*leaves)
        out = out if hasattr(out, "requires_grad") else out[0]
        if not getattr(out, "requires_grad", False):
            return [forward]
        dy = out.detach() * 0 + 1
        return [forward, least(lambda: out.backward(dy, retain_graph=True), seconds)]
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        return [str(error).splitlines()[0][:80]]


def work(library: str, shape: tuple[int, int], dtype: str, only: list[str], seconds: float) -> None:
    """Measure each case that a line of standard input names."""
    module: Any = importlib.import_module(library)
    module.set_num_threads(THREADS)
    cases = operations(module, importlib.import_module(f"{library}.nn.functional"), shape, dtype)
    print(json.dumps([name for name in cases if not only or name in only]), flush=True)
    for line in sys.stdin:
        name = line.rstrip("\n")
        print(json.dumps(measure(name, cases[name][0], cases[name][1:], seconds)), flush=True)


def compare(arguments: argparse.Namespace) -> dict[str, dict[str, list[Any]]]:
    """By operation what both libraries took; a round after the other, the lesser of two."""
    workers, names = {}, []
    for library in ("minigrad", "torch"):
        command = [sys.executable, __file__, "--work", library, *sys.argv[1:]]
        workers[library] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        names = json.loads(answer(workers[library]))
    results: dict[str, dict[str, list[Any]]] = {name: {} for name in names}
    for name in names:
        for library, process in [*workers.items()] * 2:
            assert process.stdin is not None
            process.stdin.write(name + "\n")
            process.stdin.flush()
            took = json.loads(answer(process))
            before = results[name].get(library, took)
            results[name][library] = [
                min(pair) if not isinstance(pair[0], str) else pair[0] for pair in zip(before, took)
            ]
    for process in workers.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    return results


def answer(process: subprocess.Popen[str]) -> str:
    """A line of a worker."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{' '.join(map(str, process.args))} ended")  # type: ignore[arg-type]
    return line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=2, default=(512, 1024))
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64", "bfloat16", "int64"))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=0.05, help="of each measurement")
    parser.add_argument("--out", type=Path, default=None, help="JSON")
    parser.add_argument("--work", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, tuple(arguments.shape), arguments.dtype, arguments.only, arguments.seconds)
        return
    results = compare(arguments)
    ratios: dict[str, dict[str, float]] = {"forward": {}, "backward": {}}
    for name, by in results.items():
        ours, theirs = by["minigrad"], by["torch"]
        if isinstance(ours[0], str) or isinstance(theirs[0], str):
            print(f"{name}: {ours[0]} | {theirs[0]}")
            continue
        for direction, mine, other in zip(ratios, ours, theirs):
            ratios[direction][name] = other / mine
    means = {}
    for direction, found in ratios.items():
        mean = means[direction] = math.exp(sum(map(math.log, found.values())) / max(1, len(found)))
        print(f"\n{direction}: {len(found)} operations, PyTorch's time / ours {mean:.2f} (geometric mean); the worst:")
        for name, ratio in sorted(found.items(), key=lambda item: item[1])[:20]:
            ours, theirs = (by[list(ratios).index(direction)] for by in results[name].values())
            print(f"  {name:16} {ratio:6.2f}   {ours:10.1f} us, PyTorch {theirs:10.1f} us")
    if arguments.out is not None:
        about = {"shape": arguments.shape, "dtype": arguments.dtype, "threads": THREADS, "cpu": platform.processor()}
        lines = [f'  "{name}": {json.dumps(by)}' for name, by in results.items()]
        head = json.dumps({**about, "means": means}).removesuffix("}")
        rows = ",\n".join(lines)
        arguments.out.write_text(f'{head},\n "microseconds": {{\n{rows}\n }}}}\n')


if __name__ == "__main__":
    main()
