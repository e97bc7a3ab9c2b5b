"""Try everything on this machine's GPU in one command: environment, tests, speed, training, profiles.

    python benchmarks/first_light.py --out first_light.json
    python benchmarks/first_light.py --out first_light.json --minutes 25
    python benchmarks/first_light.py --out first_light.json --only training
    python benchmarks/first_light.py --out first_light.json --rehearse

Stages go from single kernels to training, each in processes of its own. The file is written after each test and each
stage, with a page to read beside it (first_light.md). The same command goes on where an earlier one was cut off: a test
that has a result, and a stage that is over, are not run again.

A failed test ends its process, because some errors (an illegal address) leave a CUDA context unusable; the next test of
its group gets a new process. A group of tests ends after three failures, a test that crashes or hangs is one of them.

--rehearse runs every stage in the simulator, without a GPU, at the smallest sizes. Its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_report import refusal, writer

ROOT = Path(__file__).resolve().parents[1]
MOST_FAILURES = 3  # of a group of tests
LAST_LINES = 60  # of a failed process's output, which are kept
GOOD = ("PASSED", "SKIPPED")
OUTCOME = re.compile(r"^(\S+?\.py::.+?) (PASSED|FAILED|SKIPPED|ERROR)\b")  # a line of pytest -v
SMALL_RUN = ["--eval-batches", "2", "--sample-every", "0", "--warmup", "5"]

Result = dict[str, Any]
Save = Callable[[], None]


class Stage(NamedTuple):
    """A part of the whole: at most so many seconds; ``run(result, seconds, save)`` fills in the result."""

    name: str
    seconds: float
    run: Callable[[Result, float, Save], None]


# Processes ------------------------------------------------------------------------------------------------------------


def run(command: Sequence[str], seconds: float, seen: Callable[[str], None] = lambda line: None) -> int | None:
    """Run a command, with all that it starts, for so many seconds; its exit code, or None if it took longer."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    late = threading.Event()

    def end() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(max(seconds, 0.0), end)
    timer.start()
    try:
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                seen(line.rstrip("\n"))
    finally:
        timer.cancel()
    return None if late.is_set() else process.returncode


def command_stage(name: str, seconds: float, *command: str) -> Stage:
    """A stage that is one command: it passes with exit code 0."""

    def stage(result: Result, limit: float, save: Save) -> None:
        lines: list[str] = []
        code = run(command, limit, lines.append)
        status = "cut off" if code is None and limit < seconds else "passed" if code == 0 else "failed"
        result.update(status=status, code=code, command=list(command), said=lines[-LAST_LINES:])

    return Stage(name, seconds, stage)


# Tests ----------------------------------------------------------------------------------------------------------------


def collect(*arguments: str) -> list[str]:
    """The names of tests, in pytest's order."""
    lines: list[str] = []
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *arguments]
    code = run(command, 300, lines.append)
    if code not in (0, 5):  # 5: none
        raise RuntimeError("\n".join(["the tests cannot be collected:", *lines[-LAST_LINES:]]))
    return [line for line in lines if "::" in line and not line.startswith(("SKIPPED", "FAILED", "ERROR"))]


def groups(names: Sequence[str], by: Callable[[str], str]) -> dict[str, list[str]]:
    """Tests by what ``by`` says of their names."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(by(name), []).append(name)
    return found


def test_stage(name: str, tests: Sequence[str], seconds: float) -> Stage:
    """A stage that runs tests which have no result yet, and begins a new process after each failure."""

    def stage(result: Result, limit: float, save: Save) -> None:
        outcomes: dict[str, str] = result.setdefault("tests", {})
        said: dict[str, list[str]] = result.setdefault("said", {})
        until = time.monotonic() + limit
        while left := [test for test in tests if test not in outcomes]:
            if sum(outcome not in GOOD for outcome in outcomes.values()) >= MOST_FAILURES:
                break
            lines: list[str] = []

            def seen(line: str, lines: list[str] = lines) -> None:
                lines.append(line)
                if match := OUTCOME.match(line):
                    outcomes[match[1]] = match[2]
                    save()

            command = [sys.executable, "-m", "pytest", "-v", "-n", "0", "-rfE", "--tb=short", "--maxfail=1", *left]
            code = run(command, until - time.monotonic(), seen)
            missed = [test for test in left if test not in outcomes]
            if code is None and limit < seconds:
                result["status"] = "cut off"
                return
            if code not in (0, 1) and missed:  # the process died, or took all the time of its group, in this test
                outcomes[missed[0]] = "HUNG" if code is None else f"CRASHED with code {code}"
            for test in set(left) & set(outcomes):
                if outcomes[test] not in GOOD:
                    said[test] = lines[-LAST_LINES:]
            if code is None or len(missed) == len(left):
                break
        result["status"] = "passed" if all(outcomes.get(test) in GOOD for test in tests) else "failed"
        result["not run"] = sum(test not in outcomes for test in tests)

    return Stage(name, seconds, stage)


# All stages -----------------------------------------------------------------------------------------------------------


def stages(out: Path, rehearse: bool) -> list[Stage]:
    """From the environment to profiles, in the order in which a new machine should be tried."""
    python = sys.executable
    found = [command_stage("environment", 60, python, "-m", "minigrad", "env")]
    if shutil.which("nvidia-smi"):
        found.append(command_stage("nvidia-smi", 30, "nvidia-smi", "-q", "-d", "MEMORY,CLOCK,POWER,ECC"))
    if not rehearse:
        found.append(command_stage("compile", 600, python, "-m", "minigrad.cuda_kernels.inspect", "--warm", "--lazy"))
    if rehearse:
        marked, others = collect("tests/cuda_kernels/test_pointwise.py"), []
    else:
        marked = collect("-m", "gpu", "tests/cuda_kernels", "tests/distributed", "tests/test_env.py")
        others = collect("-m", "not gpu", "tests/cuda_kernels", *map(str, ROOT.glob("tests/distributed/test_cuda*.py")))
    for name, tests in groups(marked, lambda test: test.partition("[")[0]).items():
        found.append(test_stage(f"tests: {name}", tests, 240))
    report = [python, "benchmarks/gpu_report.py", "--out", str(out.with_suffix(".report.json"))]
    found.append(command_stage("report", 900, *report, *["--rehearse"] * rehearse))
    found += training(out.with_suffix(".runs"), rehearse)
    if shutil.which("ncu") and not rehearse:
        step = [python, "examples/train_gpt2.py", "--device", "cuda", "--no-graph", "--steps", "3", "--batch-size", "8"]
        step += ["--grad-accum", "1", *SMALL_RUN, "--out", str(out.with_suffix(".runs") / "profiled")]
        found.append(command_stage("profile", 240, "ncu", "--launch-skip", "600", "--launch-count", "200", *step))
    for name, tests in groups(others, lambda test: test.partition("::")[0]).items():
        found.append(test_stage(f"tests: {name}", tests, 240))
    return found


def training(runs: Path, rehearse: bool) -> list[Stage]:
    """GPT-2 124M for some steps: as one CUDA graph, launch by launch, and resumed."""
    graph, eager = str(runs / "graph"), str(runs / "eager")
    device = ["--preset", "tiny"] if rehearse else ["--device", "cuda"]
    size = ["--batch-size", "16", "--grad-accum", "2", "--eval-every", "20", "--save-every", "20", *SMALL_RUN]
    first, last = ("4", "6") if rehearse else ("40", "60")
    begin = [*device, *([] if rehearse else size), "--steps", first, "--out"]
    runs_of = {
        "graph": [*begin, graph, "--graph"],
        "eager": [*begin, eager, "--no-graph"],
        "resumed": [*([] if rehearse else device), "--resume", "--steps", last, "--out", graph],
    }
    script = [sys.executable, "examples/train_gpt2.py"]
    return [command_stage(f"training: {name}", 240, *script, *options) for name, options in runs_of.items()]


# The report -----------------------------------------------------------------------------------------------------------


def page(report: Result) -> str:
    """The report to read: a line for each stage, then what failed and what it said."""
    rows = ["# First light", "", "| stage | status | seconds | tests |", "|---|---|---|---|"]
    failures: list[str] = []
    for name, result in report.items():
        outcomes = result.get("tests", {})
        counted = {word: list(outcomes.values()).count(word) for word in sorted(set(outcomes.values()))}
        if result.get("not run"):
            counted["not run"] = result["not run"]
        tests = ", ".join(f"{count} {word.lower()}" for word, count in counted.items())
        rows.append(f"| {name} | {result['status']} | {result['seconds']:.0f} | {tests} |")
        if result["status"] != "passed":
            said = result.get("said", [])
            for test, lines in said.items() if isinstance(said, dict) else [(name, said)]:
                failures += ["", f"## {test}", "", "```", *lines, "```"]
    shown = [("environment", report.get("environment", {})), ("report", report.get("report", {}))]
    details = [line for name, result in shown for line in ["", f"## {name}", "", "```", *result.get("said", []), "```"]]
    return "\n".join([*rows, *failures, *details, ""])


def run_stages(chosen: Sequence[Stage], out: Path, minutes: float) -> Result:
    """Run the stages that are not over by the report in ``out``, within so many minutes; the report."""
    report: Result = json.loads(out.read_text()) if out.exists() else {}
    until = time.monotonic() + 60 * minutes
    write = writer(out)

    def save() -> None:
        write(report)
        out.with_suffix(".md").write_text(page(report))

    for stage in chosen:
        if report.get(stage.name, {}).get("status") in ("passed", "failed"):
            continue
        result = report.setdefault(stage.name, {"seconds": 0.0})
        result["status"] = "cut off"  # unless it says something else at its end
        limit = min(stage.seconds, until - time.monotonic())
        before, started = result["seconds"], time.monotonic()
        if limit > 0:
            stage.run(result, limit, save)
        result["seconds"] = round(before + time.monotonic() - started, 1)
        save()
        print(f"{stage.name}: {result['status']} ({result['seconds']:.0f} s)", flush=True)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 if every stage passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="the report")
    parser.add_argument("--minutes", type=float, default=60.0, help="time for all stages (default 60)")
    parser.add_argument("--only", default="", metavar="WORD", help="stages whose name contains this word")
    parser.add_argument("--rehearse", action="store_true", help="run everything once in the simulator")
    options = parser.parse_args(arguments)
    if not options.minutes > 0:
        parser.error(f"--minutes is {options.minutes:g}, expected a number above 0")
    if options.rehearse:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    elif (reason := refusal()) is not None:
        parser.error(reason)
    out = options.out.resolve()
    every = stages(out, options.rehearse)
    chosen = [stage for stage in every if options.only in stage.name]
    if not chosen:
        parser.error(f"no stage's name contains {options.only!r}; there are {', '.join(s.name for s in every)}")
    report = run_stages(chosen, out, options.minutes)
    print(f"{out}, {out.with_suffix('.md')}")
    return int(any(result["status"] != "passed" for result in report.values()))


if __name__ == "__main__":
    sys.exit(main())
