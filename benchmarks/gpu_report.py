"""Measure this machine's GPU: every kernel, the host's cost, compile time, training, beside the card's own limits.

    python benchmarks/gpu_report.py --out report.json
    python benchmarks/gpu_report.py --out report.json --only softmax
    python benchmarks/gpu_report.py --out report.json --tune --only engines
    python benchmarks/gpu_report.py --out report.json --rehearse

Kernels that move data are given in per cent of the driver's copy within the same card. Kernels that multiply are given
in per cent of cuBLAS's product of the same dtype. Both are measured in the same run. Beside them are the goal, the
largest error against float64 (relative to the largest value), and PyTorch's time where it is installed. Each part has a
limit, eight minutes in all, and three more for --tune. The file is written after each entry, so it keeps what was
measured whatever happens. An entry that fails is recorded with its error, and the next one goes on.

--tune also measures which engine multiplies the matrices of a GPT-2 faster, and remembers it for this card beside the
compiled kernels: from then on products of about these sizes are that engine's (minigrad.cuda.set_gemm).

--rehearse runs every entry once in the simulator, without a GPU, at the smallest sizes. Its times mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WORKER = Path(__file__).resolve().with_name("gpu_worker.py")
ANSWER = "entry "  # as in gpu_worker.py, which needs a GPU to be imported

# Seconds that the entries of a part may take in all, a first compilation included.
LIMITS: dict[str, float] = {
    "machine": 15,
    "limits": 30,
    "host": 15,
    "kernels": 210,
    "ladders": 30,
    "compile": 30,
    "training": 150,
    "tune": 180,
}
REHEARSAL_FACTOR = 5  # the simulator's seconds

Result = dict[str, Any]


class Worker:
    """The process that measures, started when it is first asked and again after it was lost."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._errors: Any = None

    def ask(self, name: str, seconds: float) -> Result:
        """Measure an entry. An answer with ``error`` if the process dies or takes longer than that."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended: what it said is below
                process.stdin.write(name + "\n")
                process.stdin.flush()
            for line in process.stdout:
                if line.startswith(ANSWER):
                    result: Result = json.loads(line.removeprefix(ANSWER))
                    if result.pop("lost_gpu", False):
                        self.close()
                    return result
                print(line, end="", file=sys.stderr)
        finally:
            timer.cancel()
        code = process.wait()
        said = self._said()
        self.close()
        reason = f"took more than {seconds:.0f} s" if late.is_set() else f"the process ended with code {code}: {said}"
        return {"error": reason}

    def _start(self) -> subprocess.Popen[str]:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        return self._process

    def _said(self) -> str:
        self._errors.seek(0)
        return " ".join(self._errors.read().split())[-400:]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._errors.close()
        self._process = None


def measure_all(
    chosen: Sequence[tuple[str, str, float | None]],
    ask: Callable[[str, float], Result],
    save: Callable[[Result], None],
    limits: dict[str, float],
) -> Result:
    """Ask for each (part, name, goal) within its part's seconds; ``save`` the report after each."""
    report: Result = {"machine": {}, "entries": []}
    used = dict.fromkeys(limits, 0.0)
    for part, name, goal in chosen:
        left = limits[part] - used[part]
        started = time.perf_counter()
        result = (
            ask(name, left) if left > 0 else {"error": f"not measured: {limits[part]:.0f} s of {part} were used up"}
        )
        took = time.perf_counter() - started
        used[part] += took
        if part == "machine":
            report["machine"] = result
        else:
            report["entries"].append(
                {"part": part, "name": name, "goal": goal, **result, "took_seconds": round(took, 2)}
            )
        rate(report["entries"])
        save(report)
        print(
            f"{part}: {name}: {result.get('error', 'skipped' if 'skipped' in result else 'measured')}",
            file=sys.stderr,
            flush=True,
        )
    return report


def rate(entries: Sequence[Result]) -> None:
    """Add GB/s or TFLOP/s, per cent of the card's limit and of PyTorch's speed to the entries that have a time."""
    known = {entry["name"]: entry for entry in entries}
    copy = known.get("copy rate", {}).get("bytes_per_second")
    for entry in entries:
        ms = entry.get("ms")
        if not ms:
            continue
        if entry.get("flops"):
            entry["tflops"] = entry["flops"] / ms * 1e-9
            matrix = known.get(entry.get("rate", "matrix rate"), {}).get("flops_per_second")
            if matrix:
                entry["percent"] = 100e12 * entry["tflops"] / matrix
        elif entry.get("bytes"):
            entry["gb_per_second"] = entry["bytes"] / ms * 1e-6
            if copy:
                entry["percent"] = 100e9 * entry["gb_per_second"] / copy
        if entry.get("torch_ms"):
            entry["torch_ratio"] = entry["torch_ms"] / ms
        if entry.get("goal") and "percent" in entry:
            entry["met"] = entry["percent"] >= entry["goal"]


def table(report: Result) -> str:
    """The report as text."""
    machine = report["machine"]
    lines = [", ".join(f"{name} {value}" for name, value in machine.items())]
    entries = report["entries"]
    for entry in entries:
        if "bytes_per_second" in entry:
            lines.append(f"copy within the card: {entry['bytes_per_second'] * 1e-9:.0f} GB/s, read and written")
        if "flops_per_second" in entry:
            word = entry["name"].removeprefix("matrix rate").strip() or "float32"
            lines.append(f"{word} product: {entry['flops_per_second'] * 1e-12:.1f} TFLOP/s ({entry['by']})")
        if "us" in entry:
            goal = f", goal {entry['goal_us']:.0f}" if "goal_us" in entry else ""
            theirs = f", PyTorch {entry['torch_us']:.2f}" if "torch_us" in entry else ""
            lines.append(f"{entry['name']}: {entry['us']:.2f} us of the host{goal}{theirs}")
        if "cached_seconds" in entry:
            lines.append(
                f"{entry['name']}: {entry['cold_seconds']:.1f} s when {entry.get('kernels', 0)} kernels are compiled, "
                f"{entry['cached_seconds']:.1f} s from the cache"
            )
        if "tokens_per_second" in entry:
            lines.append(
                f"{entry['name']}: {entry['tokens_per_second']:,.0f} tokens/s, {entry['ms']:.1f} ms a step of "
                f"{entry['batch']} tokens, peak memory {entry['peak_gib']:.1f} GiB, loss {entry['losses'][0]:.4f} to "
                f"{entry['losses'][-1]:.4f}"
                + (f", {entry['percent']:.0f} % of cuBLAS's rate" if "percent" in entry else "")
                + (f", goals {', '.join(f'{goal:,}' for goal in entry['goals'].values())}" if "goals" in entry else "")
            )
        if "products" in entry and "skipped" not in entry:
            engines = [product["engine"] for product in entry["products"].values()]
            shares = ", ".join(f"{engine} {engines.count(engine)}" for engine in sorted(set(engines)))
            lines.append(f"{entry['name']}: faster at the shapes measured: {shares}")
    head = f"{'kernel':40}{'ms':>9}{'GB/s':>8}{'TFLOP/s':>9}{'%':>6}{'goal':>6}{'torch ms':>10}{'speed':>7}"
    lines += ["", head + f"{'error':>10}"]
    for entry in entries:
        if entry["part"] not in ("kernels", "ladders") or "skipped" in entry:
            continue
        lines.append(
            f"{entry['name']:40}{_cell(entry, 'ms', 9, '.3f')}{_cell(entry, 'gb_per_second', 8, '.0f')}"
            f"{_cell(entry, 'tflops', 9, '.1f')}{_cell(entry, 'percent', 6, '.0f')}{_cell(entry, 'goal', 6, '.0f')}"
            f"{_cell(entry, 'torch_ms', 10, '.3f')}{_cell(entry, 'torch_ratio', 7, '.2f')}"
            f"{_cell(entry, 'max_rel_err', 10, '.1e')}"
            + ("" if entry.get("right", True) else "  WRONG")
            + ("" if entry.get("met", True) else "  below its goal")
        )
    judged = [entry for entry in entries if "met" in entry]
    lines += ["", f"{sum(entry['met'] for entry in judged)} of {len(judged)} goals reached"]
    lines += [f"{entry['name']}: skipped: {entry['skipped']}" for entry in entries if "skipped" in entry]
    failed = [entry for entry in entries if "error" in entry or "torch_error" in entry]
    lines += [f"{e['name']}: {e.get('error') or 'PyTorch: ' + e['torch_error']}" for e in failed]
    return "\n".join(lines)


def _cell(entry: Result, key: str, width: int, form: str) -> str:
    value = entry.get(key)
    return f"{'-':>{width}}" if value is None else f"{value:{width}{form}}"


def writer(path: Path) -> Callable[[Result], None]:
    """A function that replaces the file, whole, by a report."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def save(report: Result) -> None:
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(report, indent=1) + "\n")
        os.replace(new, path)

    return save


def refusal() -> str | None:
    """Why nothing can be measured here, or None."""
    from minigrad import cuda_kernels

    if cuda_kernels.simulated():
        return "NUMBA_ENABLE_CUDASIM is set: the simulator's times say nothing about a GPU; unset it"
    found, reason = cuda_kernels.availability()
    return None if found else f"there is no GPU to measure: {reason}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. 0 if nothing failed and all results are right; goals that are not reached are no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="the report")
    parser.add_argument("--only", default="", metavar="WORD", help="entries whose part or name contains this word")
    parser.add_argument("--tune", action="store_true", help="also measure and remember the faster engine of products")
    parser.add_argument("--rehearse", action="store_true", help="run everything once in the simulator")
    options = parser.parse_args(arguments)
    if options.rehearse:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before the first import of the kernels, here and in the worker
    elif (reason := refusal()) is not None:
        parser.error(reason)
    from gpu_worker import entries

    always = ("machine", "limits")
    word = options.only.lower()
    tuning = options.tune or options.rehearse
    every = [(e.part, e.name, None if options.rehearse else e.goal) for e in entries() if e.part != "tune" or tuning]
    chosen = [e for e in every if e[0] in always or word in f"{e[0]} {e[1]}".lower()]
    if all(part in always for part, _, _ in chosen):
        parser.error(
            f"no entry's part or name contains {options.only!r}; there are {', '.join(n for _, n, _ in every)}"
        )
    worker = Worker([sys.executable, str(WORKER)])
    limits = {part: seconds * (REHEARSAL_FACTOR if options.rehearse else 1) for part, seconds in LIMITS.items()}
    try:
        report = measure_all(chosen, worker.ask, writer(options.out), limits)
    finally:
        worker.close()
    print(table(report))
    bad = any("error" in entry or not entry.get("right", True) for entry in report["entries"])
    return 1 if "error" in report["machine"] or bad else 0


if __name__ == "__main__":
    sys.exit(main())
