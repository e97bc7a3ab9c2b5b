"""Processes that take turns: how contenders are compared on a noisy machine.

Each contender runs in a process of its own, which is stopped while another one runs, so that no thread pool disturbs
another's; they take turns within a round, and what counts is the median over the rounds of the ratio of their times
within one round.
"""

from __future__ import annotations

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

HERE = Path(__file__).resolve().parent


class Contender:
    """A worker process, ``script name *arguments threads``, stopped (SIGSTOP), all threads of it, except in its turns.

    It prints a JSON line when it is warm, then one with ``"seconds"`` for each line with a number of units of work.
    """

    def __init__(self, script: str, name: str, arguments: list[str], threads: int) -> None:
        # The thread count must be known before the libraries start their pools.
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
        command = [sys.executable, str(HERE / script), name, *arguments, str(threads)]
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

    def run(self, count: int) -> dict[str, Any]:
        """The worker's figures for some units of work (after one that is not counted)."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        answer = self._read()
        self._process.send_signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def contest(script: str, names: list[str], arguments: list[str], threads: int) -> Iterator[list[Contender]]:
    """All contenders, started one after the other, ended at the close."""
    contenders: list[Contender] = []
    try:
        for name in names:
            contenders.append(Contender(script, name, arguments, threads))
        yield contenders
    finally:
        for contender in contenders:
            contender.close()


def take_turns(contenders: list[Contender], rounds: int, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """What each contender answered in each round; a turn takes about ``seconds``. Odd rounds go backwards."""
    counts = {c.name: max(2, round(seconds / c.ready["seconds"])) for c in contenders}
    answers: dict[str, list[dict[str, Any]]] = {c.name: [] for c in contenders}
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            answers[contender.name].append(contender.run(counts[contender.name]))
    return answers


def ratios(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    """Our speed over theirs within each round: the median, its middle half and its range."""
    values = sorted(t["seconds"] / o["seconds"] for t, o in zip(theirs, ours, strict=True))
    quarter = len(values) // 4
    return {
        "median": statistics.median(values),
        "middle_half": [values[quarter], values[-1 - quarter]],
        "range": [values[0], values[-1]],
    }


def median_seconds(answers: list[dict[str, Any]]) -> float:
    """The median over the rounds."""
    return statistics.median(answer["seconds"] for answer in answers)


def print_ratios(report: dict[str, Any]) -> None:
    """A line for each of ``report["speed_of_minigrad_against"]``."""
    for name, r in report["speed_of_minigrad_against"].items():
        low, high = r["middle_half"]
        print(
            f"minigrad's speed / {name}'s: median {r['median']:.2f}, "
            f"middle half {low:.2f} to {high:.2f}, all {r['range'][0]:.2f} to {r['range'][1]:.2f}"
        )


def conditions(threads: int, rounds: int) -> dict[str, Any]:
    """Under what a report is measured."""
    return {
        "threads": threads,
        "rounds": rounds,
        "load_average": os.getloadavg()[0],
        "machine": {"cpu": cpu_name(), "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")},
    }


def those_that_run(names: list[str], contenders: dict[str, Any], ours: str = "minigrad") -> list[str]:
    """``ours`` and the named contenders that are installed; the others are skipped, with the reason printed."""
    running = []
    for name in [ours, *(name for name in names if name != ours)]:
        if (reason := contenders[name].missing()) is None:
            running.append(name)
        elif name == ours:
            raise SystemExit(f"minigrad cannot run: {reason}")
        else:
            print(f"{name}: skipped, {reason}")
    return running


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
