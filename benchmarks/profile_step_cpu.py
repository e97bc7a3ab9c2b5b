"""Where the time of one training step goes: minigrad's step of ``train_step_cpu.py``, part by part.

    python benchmarks/profile_step_cpu.py --preset M

Every function that the operations call in ``minigrad.cpu_kernels`` is timed by the wall clock, and counted to its part;
functions that they call in turn are not counted again. Python is the rest of the step: modules, graph, trainer. Idle is
another measure, the part of wall time x threads that no thread of this process ran; waiting threads of OpenMP spin, and
do not count as idle.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import os
import pkgutil
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from train_step_contenders import PRESETS, Minigrad
from turns import conditions

# Parts by the module of cpu_kernels. The head and its loss count as product; what is named nowhere as OTHER.
PARTS = {
    "matrix product": ("matmul", "linear", "linear_cross_entropy", "bfloat16_product"),
    "attention": ("attention",),
    "optimizer and clipping": ("adamw", "grad_norm", "multi_tensor"),
}
OTHER = "elementwise, norm, softmax, loss"
TIMED_TOOLS = ("bfloat16_product", "multi_tensor")  # of the toolbox; its other modules compute nothing by themselves


class Clock:
    """Seconds by part, of the outermost timed calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = False

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, counted to ``part``."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - begin
                self._inside = False

        return call

    def install(self) -> None:
        """Time the public functions of all kernel modules from now on."""
        package = importlib.import_module("minigrad.cpu_kernels")
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            room, _, name = info.name.removeprefix(f"{package.__name__}.").rpartition(".")
            if not info.ispkg and (not room or name in TIMED_TOOLS):
                self._wrap(importlib.import_module(info.name), part_of(name))

    def _wrap(self, module: ModuleType, part: str) -> None:
        for name, function in vars(module).copy().items():
            if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_"):
                setattr(module, name, self.timed(part, function))


def part_of(module: str) -> str:
    """The part to which the kernels of a module count."""
    return next((part for part, modules in PARTS.items() if module in modules), OTHER)


def profile(preset: str, threads: int, steps: int, build: Callable[..., Any] = Minigrad.build) -> dict[str, Any]:
    """The report: milliseconds of a step and the share of each part in it, in percent."""
    clock = Clock()
    clock.install()
    _, step = build(PRESETS[preset], threads)
    for _ in range(3):
        step()
    clock.seconds.clear()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    shares = {part: 100 * clock.seconds[part] / wall for part in (*PARTS, OTHER)}
    shares["Python"] = 100 - sum(shares.values())
    return {
        "preset": preset,
        **conditions(threads, steps),
        "milliseconds": 1e3 * wall / steps,
        "percent": shares,
        "idle_percent": max(0.0, 100 * (1 - processor / (wall * threads))),
    }


def show(report: dict[str, Any]) -> None:
    """Print the report as a table in Markdown."""
    print(f"preset {report['preset']}, {report['threads']} threads, {report['machine']['cpu']}")
    print(f"load average {report['load_average']:.1f}: nothing else should run on this machine meanwhile")
    print(f"{report['milliseconds']:.2f} ms a step\n\n| Part | share of the step |\n|---|---|")
    for part, percent in report["percent"].items():
        print(f"| {part} | {percent:.1f} % |")
    print(f"| idle, of all threads | {report['idle_percent']:.1f} % |")


def main() -> None:
    """Parse the flags, profile, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(PRESETS), default="M")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="(default: all cores)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the report here as well")
    args = parser.parse_args()
    report = profile(args.preset, args.threads, args.steps)
    show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
