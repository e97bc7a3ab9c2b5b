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

from ops_cases import operations

THREADS = 2
ASLEEP = 0.02  # seconds until threads that look for work do so no more
Call = Callable[[], Any]


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
    took: list[float | str] = []
    try:
        took.append(least(lambda: function(*tensors), seconds))
        leaves = [t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in tensors]
        out = function(*leaves)
        out = out[0] if isinstance(out, tuple) else out
        if getattr(out, "requires_grad", False):
            dy = out.detach() * 0 + 1
            took.append(least(lambda: out.backward(dy, retain_graph=True), seconds))
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        took.append(str(error).splitlines()[0][:80])
    return took


def work(library: str, shape: tuple[int, int], dtype: str, only: list[str], seconds: float) -> None:
    """Measure each case that a line of standard input names, when the other library's threads have gone to sleep."""
    module: Any = importlib.import_module(library)
    module.set_num_threads(THREADS)
    cases = operations(module, importlib.import_module(f"{library}.nn.functional"), shape, dtype)
    print(json.dumps([name for name in cases if not only or name in only]), flush=True)
    for line in sys.stdin:
        name = line.rstrip("\n")
        time.sleep(ASLEEP)
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
        for direction, mine, other in zip(ratios, by["minigrad"], by["torch"]):
            if isinstance(mine, str) or isinstance(other, str):
                print(f"{name}, {direction}: {mine} | {other}")
            else:
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
