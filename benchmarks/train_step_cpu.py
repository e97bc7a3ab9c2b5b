"""Time a whole GPT training step on the CPU, minigrad beside PyTorch eager and torch.compile.

    python benchmarks/train_step_cpu.py --preset S
    python benchmarks/train_step_cpu.py --preset M --rounds 20 --json results.json

A step is forward, backward, clipping by the global norm and AdamW, in float32, through each library's public interface,
with the same sizes, weights' shapes, tokens and threads. Machines are noisy, so no absolute time is trusted: each
contender runs in a process of its own that is stopped while the other one runs, they take turns within a round, and
what counts is the median over the rounds of the ratio of their times within one round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from train_step_contenders import CONTENDERS, PRESETS

HERE = Path(__file__).resolve().parent


class Contender:
    """A worker process with one model. It is stopped (SIGSTOP), all threads of it, except during its turns."""

    def __init__(self, name: str, preset: str, threads: int) -> None:
        # The thread count must be known before the libraries start their pools.
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
        command = [sys.executable, str(HERE / "train_step_contenders.py"), name, preset, str(threads)]
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.ready = self._read()
        self._process.send_signal(signal.SIGSTOP)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the {self.name} worker ended with code {self._process.wait()}")
        return dict(json.loads(line))

    def run(self, steps: int) -> dict[str, Any]:
        """Seconds per step over some steps (after one that is not counted), and the worker's figures."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        answer = self._read()
        self._process.send_signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def contest(names: list[str], preset: str, threads: int) -> Iterator[list[Contender]]:
    """All contenders, started one after the other, ended at the close."""
    contenders: list[Contender] = []
    try:
        for name in names:
            contenders.append(Contender(name, preset, threads))
        yield contenders
    finally:
        for contender in contenders:
            contender.close()


def compare(names: list[str], preset: str, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Run the rounds and return the report."""
    load = os.getloadavg()[0]
    with contest(names, preset, threads) as contenders:
        steps = {c.name: max(2, round(seconds / c.ready["seconds_per_step"])) for c in contenders}
        times: dict[str, list[float]] = {c.name: [] for c in contenders}
        memory: dict[str, float] = {}
        for number in range(rounds):
            for contender in contenders if number % 2 == 0 else contenders[::-1]:
                answer = contender.run(steps[contender.name])
                times[contender.name].append(answer["seconds_per_step"])
                memory[contender.name] = answer["peak_megabytes"]
        report: dict[str, Any] = {
            "preset": preset,
            "threads": threads,
            "rounds": rounds,
            "load_average": load,
            "machine": {"cpu": cpu_name(), "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")},
            "contenders": {
                c.name: {
                    "version": c.ready["version"],
                    "median_milliseconds": 1e3 * statistics.median(times[c.name]),
                    "tokens_per_second": PRESETS[preset].tokens / statistics.median(times[c.name]),
                    "peak_megabytes": memory[c.name],
                    "first_step_seconds": c.ready["first_step_seconds"],
                    "first_losses": c.ready["losses"],
                }
                for c in contenders
            },
            "speed_of_minigrad_against": {},
        }
    for name in names[1:]:
        ratios = sorted(theirs / ours for theirs, ours in zip(times[name], times["minigrad"]))
        quarter = len(ratios) // 4
        report["speed_of_minigrad_against"][name] = {
            "median": statistics.median(ratios),
            "middle_half": [ratios[quarter], ratios[-1 - quarter]],
            "range": [ratios[0], ratios[-1]],
        }
    return report


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def show(report: dict[str, Any]) -> None:
    """Print the report as a table."""
    print(
        f"preset {report['preset']}, {report['threads']} threads, {report['machine']['cpu']}, {report['rounds']} rounds"
    )
    print(f"load average {report['load_average']:.1f}: nothing else should run on this machine meanwhile")
    print(f"{'':14}{'version':>14}{'ms/step':>10}{'tokens/s':>11}{'peak MB':>9}{'first step s':>14}")
    for name, c in report["contenders"].items():
        print(
            f"{name:14}{c['version']:>14}{c['median_milliseconds']:10.2f}{c['tokens_per_second']:11,.0f}"
            f"{c['peak_megabytes']:9.0f}{c['first_step_seconds']:14.2f}"
        )
    for name, r in report["speed_of_minigrad_against"].items():
        low, high = r["middle_half"]
        print(
            f"minigrad's speed / {name}'s: median {r['median']:.2f}, "
            f"middle half {low:.2f} to {high:.2f}, all {r['range'][0]:.2f} to {r['range'][1]:.2f}"
        )


def main() -> None:
    """Parse the flags, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(PRESETS), default="S")
    parser.add_argument(
        "--against", nargs="+", choices=list(CONTENDERS), default=["torch-eager"], help="(default eager)"
    )
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="of each contender (default: all cores)"
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (default 2)")
    parser.add_argument("--json", type=Path, help="write the report here as well")
    args = parser.parse_args()
    names = ["minigrad", *(name for name in args.against if name != "minigrad")]
    for name in names:
        if (reason := CONTENDERS[name].missing()) is not None:
            parser.error(f"{name} cannot run: {reason}")
    report = compare(names, args.preset, args.threads, args.rounds, args.seconds)
    show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
