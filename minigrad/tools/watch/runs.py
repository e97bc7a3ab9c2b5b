"""Runs on disk, read as they grow: the lines of their logs, and what was written of their ranks."""

import json
import math
import os
import socket
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from ...metrics_log import parse_line
from .series import SECONDS, STEP, Series
from .timelines import read_timeline, waiting_of

SAMPLES = 100  # that are kept of a run
TAIL = 200  # bytes before the place of reading, by which a file is known again
RECENT = 50  # lines that the time left is judged by
SILENT = 60.0  # seconds without a line after which a run of an unknown process is taken to have stopped
KNOWN = ("step", "time", "run", "sample", "world_size", "waited_by_rank")  # that are no curves


class WatchError(Exception):
    """What was asked for cannot be shown; the message is one line."""


class WatchedRun:
    """A run, as far as it has been read: ``log`` is its file of JSON lines, ``folder`` has its timelines."""

    def __init__(self, name: str, folder: Path, log: Path | None) -> None:
        self.name: str = name
        self.folder: Path = folder
        self.log: Path | None = log
        self.lock: threading.Lock = threading.Lock()
        self.version: int = 0
        self._timelines: dict[str, tuple[float, dict[str, Any] | None]] = {}
        self._begin()

    def _begin(self) -> None:
        """As if nothing had been read."""
        self.series: defaultdict[str, Series] = defaultdict(Series)
        self.waits: list[Series] = []
        self.samples: list[tuple[float, str]] = []
        self.about: dict[str, Any] = {}
        self.restarts: list[float] = []
        self.notes: dict[str, str] = {}
        self.step: float = 0.0
        self.seconds: float = 0.0
        self._clock: float | None = None  # the time of the line before, of the same process
        self._offset, self._tail, self._damaged = 0, b"", 0

    def refresh(self) -> None:
        """Read what is new. A file that is another one, or was cut, is read from its begin."""
        with self.lock:
            if self.log is not None:
                try:
                    self._read_log(self.log)
                except OSError as error:
                    self.notes["file"] = f"{self.log.name}: {error.strerror}"
            found = sorted(self.folder.glob("timeline*.json"))
            changed = {path.name: path.stat().st_mtime for path in found if path.exists()}
            for name, since in changed.items():
                if since != self._timelines.get(name, (None,))[0]:
                    self._timelines[name] = since, self._timeline(self.folder / name)
                    self.version += 1

    def _timeline(self, path: Path) -> dict[str, Any] | None:
        self.notes.pop(path.name, None)
        try:
            return read_timeline(path)
        except (OSError, ValueError) as error:
            self.notes[path.name] = str(error)
            return None

    def _read_log(self, path: Path) -> None:
        with open(path, "rb") as file:
            self.notes.pop("file", None)
            file.seek(self._offset - len(self._tail))
            if file.read(len(self._tail)) != self._tail:
                self._begin()
                file.seek(0)
                self.version += 1
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._take(line)
        self._offset += len(whole)
        self._tail = (self._tail + whole)[-TAIL:]
        self.version += bool(whole)
        if len(whole) < len(new):
            self.notes["cut"] = "the last line is not whole: it is being written, or the run was killed"
        else:
            self.notes.pop("cut", None)

    def _take(self, line: bytes) -> None:
        record = parse_line(line)
        if record is None:
            if line.strip():
                self._damaged += 1
                self.notes["damaged"] = f"damaged lines, which are left out: {self._damaged}"
            return
        at, step = _number(record.get("time")), _number(record.get("step"))
        if isinstance(record.get("run"), dict):  # a process begins: the time since the one before it does not count
            if self.step:
                self.restarts.append(self.step)
            self.about = json.loads(json.dumps(record["run"]), parse_constant=str)  # NaN, which is no JSON, as a word
            self._clock = at
        if step is None or not math.isfinite(step):
            return
        numbers = {key: n for key, value in record.items() if key not in KNOWN and (n := _number(value)) is not None}
        if step < self.step and any(self.series[key].reached(step) for key in numbers):
            self._rewind(step)
        passed = 0.0 if at is None or self._clock is None else max(0.0, at - self._clock)
        self.seconds += passed
        self.step, self._clock = max(self.step, step), at
        for key, number in numbers.items():
            self.series[key].add(step, self.seconds, number)
            if not math.isfinite(number):
                self.notes[key] = f"{key} of step {step:g} is {record[key]}"
        if isinstance(record.get("sample"), str):
            self.samples = [*self.samples, (step, record["sample"])][-SAMPLES:]
        self._take_waiting(record.get("waited_by_rank"), step, passed)

    def _take_waiting(self, waited: Any, step: float, passed: float) -> None:
        """The share of the time since the line before that each rank waited."""
        if isinstance(waited, list) and all(_number(value) is not None for value in waited) and passed:
            self.waits += [Series() for _ in range(len(waited) - len(self.waits))]
            for series, value in zip(self.waits, waited):
                series.add(step, self.seconds, float(value) / passed)

    def _rewind(self, step: float) -> None:
        """The run goes on from an older checkpoint, and its log was not cut there: what came after is not this run."""
        for series in (*self.series.values(), *self.waits):
            series.cut(step)
        self.samples = [sample for sample in self.samples if sample[0] < step]
        self.restarts = [min(step, place) for place in self.restarts]
        self.step, self.seconds = step, max((s.columns[SECONDS][-1] for s in self.series.values() if s), default=0.0)

    # ------------------------------------------------------------------ what is shown

    def summary(self, now: float) -> dict[str, Any]:
        """A line of the table of runs, as JSON values."""
        with self.lock:
            last = {key: value for key, series in self.series.items() if (value := series.last()) is not None}
            steps = _finite(self.about.get("steps"))
            state = self._state(now, steps)
            rate = self._steps_per_second()
            left = (steps - self.step) / rate - (now - (self._clock or now)) if steps and rate else None
            best = self.series["val_loss"].least() if "val_loss" in self.series else None
            return {
                "name": self.name, "version": self.version, "state": state, "step": self.step, "steps": steps,
                "seconds": self.seconds, "last": last, "best_val_loss": best, "notes": list(self.notes.values()),
                "left": max(0.0, left) if left is not None and state == "running" else None,
            }  # fmt: skip

    def _state(self, now: float, steps: float | None) -> str:
        if steps and self.step >= steps:
            return "finished"
        if self.log is None or not self._offset:
            return "no log" if self.log is None else "waiting for its first line"
        pid, same = self.about.get("pid"), self.about.get("host") == socket.gethostname()
        if isinstance(pid, int) and pid > 0 and same and os.name == "posix":
            alive = _is_alive(pid)
        else:
            try:
                alive = now - self.log.stat().st_mtime < SILENT
            except OSError:
                alive = False
        return "running" if alive else "stopped"

    def _steps_per_second(self) -> float | None:
        if not self.series or not (longest := max(self.series.values(), key=len)):
            return None
        steps, seconds = (longest.columns[axis][-RECENT:] for axis in (STEP, SECONDS))
        return (steps[-1] - steps[0]) / (seconds[-1] - seconds[0]) if seconds[-1] > seconds[0] else None

    def detail(self, axis: int = STEP, start: float = -math.inf, end: float = math.inf) -> dict[str, Any]:
        """The curves, samples and lanes, as JSON values."""
        with self.lock:
            lanes = {name: lanes for name, (_, lanes) in self._timelines.items() if lanes}
            if waiting := waiting_of(self.waits):
                lanes = {"log": waiting, **lanes}
            return {
                "name": self.name,
                "version": self.version,
                "about": self.about,
                "tokens_per_step": _finite(self.about.get("tokens_per_step")),
                "restarts": self.restarts,
                "samples": self.samples,
                "lanes": lanes,
                "series": {key: series.shown(axis, start, end) for key, series in self.series.items() if series},
            }


class Runs:
    """All runs in some places, also those that come later; ``by_name`` has those found so far."""

    def __init__(self, places: list[Path]) -> None:
        self.places: list[Path] = places
        self.by_name: dict[str, WatchedRun] = {}
        self.lock: threading.Lock = threading.Lock()

    def refresh(self) -> None:
        """Look for new runs, and read what is new of all."""
        with self.lock:
            for place in self.places:
                for name, folder, log in _runs_of(place):
                    if name not in self.by_name:
                        self.by_name[name] = WatchedRun(name, folder, log)
            runs = list(self.by_name.values())
        for run in runs:
            run.refresh()

    def summaries(self) -> list[dict[str, Any]]:
        """A summary of each run, in order of name."""
        return [run.summary(time.time()) for _, run in sorted(self.by_name.copy().items())]


def _runs_of(place: Path) -> list[tuple[str, Path, Path | None]]:
    """Name, folder and log of the runs of a file, of a folder, or of a folder's folders."""
    if place.is_file():
        return [(str(place), place.parent, None if place.match("timeline*.json") else place)]
    folders = [folder for folder in (place, *sorted(place.glob("*"))) if folder.is_dir()]
    found: list[tuple[str, Path, Path | None]] = []
    for folder in folders:
        logs = sorted(folder.glob("*.jsonl"))
        found += [(str(folder if log.name == "metrics.jsonl" else log), folder, log) for log in logs]
        if not logs and any(folder.glob("timeline*.json")):
            found.append((str(folder), folder, None))
    return found


def open_runs(places: list[str]) -> Runs:
    """The runs in these places, read; raises WatchError if there is none."""
    runs = Runs([Path(place) for place in places or ["runs"]])
    for place in runs.places:
        if not place.exists():
            there = [name for near in dict.fromkeys((place.parent, Path("runs"))) for name, *_ in _runs_of(near)][:9]
            hint = "there are " + ", ".join(there) if there else "train one first, or name a folder or its log"
            raise WatchError(f"{place} does not exist; {hint}")
        if not _runs_of(place):
            raise WatchError(f"{place} holds no run: no file of JSON lines such as metrics.jsonl, and no timeline.json")
    runs.refresh()
    return runs


def _number(value: Any) -> float | None:
    """A number of a log, where NaN and infinities are strings; None for what is none."""
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def _finite(value: Any) -> float | None:
    number = _number(value)
    return None if number is None or not math.isfinite(number) else number


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (OSError, OverflowError):
        return False
    return True
