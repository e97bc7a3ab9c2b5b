"""Metrics as JSON lines: one object per line, appended, so that a killed run loses at most the line being written."""

import errno
import json
import math
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import of_extra
from .files import durable
from .modes import Closing

Callback = Callable[[dict[str, Any]], object]


class JsonLinesLog(Closing):
    """An append-only log of records; usable as a context manager.

    Opening an existing file continues it; a last line that a kill cut short is removed first. Each record goes to the
    system as one line at once, so readers and `tail -f` see it. NaN and infinities, which JSON lacks, are the strings
    "NaN", "Infinity" and "-Infinity", which ``float()`` reads back.

    Args:
        path: the file; missing folders are created.
        callbacks: called with each record that was written, as JSON has it. More may be appended to the attribute.
            One that has a ``close`` is closed with the log.

    Raises:
        OSError: naming the file; BlockingIOError, with the process in its text, while another process writes it.
    """

    def __init__(self, path: str | os.PathLike[str], callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks: list[Callback] = list(callbacks)
        self.path: Path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self.path, flags, 0o666)
        try:
            if other := durable.other_holder(self._fd):
                raise BlockingIOError(errno.EAGAIN, f"{other} is writing it", str(self.path))
            self._drop_cut_line()
        except BaseException:
            self.close()
            raise

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record: strings, numbers, bools, None, NumPy scalars, and lists and maps of these.

        Raises:
            TypeError: a value is none of these.
            OSError: naming the file, e.g. the disk is full; the file then ends with the last complete line.
        """
        legal = _legal(record)
        line = json.dumps(legal, allow_nan=False).encode() + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            durable.write_all(self._fd, line)
        except OSError as error:
            os.ftruncate(self._fd, size)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        for callback in self.callbacks:
            try:
                callback(legal)
            except Exception as error:  # the line is written, and no picture of it is worth the run
                warnings.warn(f"a callback of {self.path} failed, and is called again: {error!r}", stacklevel=2)

    def truncate_after(self, step: int) -> None:
        """Cut the log at the first record whose ``"step"`` is beyond `step`.

        Call it when a run resumes from the checkpoint of `step`: what the killed run logged after it happens again.
        """
        end = 0
        with open(self.path, "rb") as file:
            for line in file:
                found = (parse_line(line) or {}).get("step")
                if isinstance(found, int | float) and found > step:
                    break
                end += len(line)
        if end < os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, end)
            self.sync()

    def sync(self) -> None:
        """Flush the log to the device, so that it survives a power cut as a checkpoint does."""
        durable.fsync(self._fd)

    def close(self) -> None:
        """Close the file; again is harmless."""
        if self._fd >= 0:
            durable.release(self._fd)
            os.close(self._fd)
            self._fd = -1
            for callback in self.callbacks:
                getattr(callback, "close", lambda: None)()

    def _drop_cut_line(self) -> None:
        content = self.path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            if parse_line(content[complete:]) is None:
                os.ftruncate(self._fd, complete)
            else:  # only the newline is missing
                durable.write_all(self._fd, b"\n")


class TensorBoardWriter:
    """A callback of JsonLinesLog: numbers as scalars and text as text, in event files in ``folder``.

    Raises ModuleNotFoundError, with the command that installs it, without tensorboardX.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        library = of_extra("tensorboard", "tensorboardX", "TensorBoard's files need tensorboardX")
        self._writer = library.SummaryWriter(os.fspath(folder))
        self.close: Callable[[], object] = self._writer.close

    def __call__(self, record: dict[str, Any]) -> None:
        """Write the numbers and the text of a record with a step."""
        for key, value in record.items() if "step" in record else ():
            if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
                self._writer.add_text(key, value, record["step"], record.get("time"))
            elif isinstance(value, int | float | str) and key not in ("step", "time"):
                self._writer.add_scalar(key, float(value), record["step"], record.get("time"))
        self._writer.flush()


def moment(device: Any = None) -> dict[str, Any]:
    """What a line says beside its metrics: the ``time``, in seconds since 1970, and where it is known ``memory_bytes``.

    Those are the process's, or of its tensors on a GPU.
    """
    found: dict[str, Any] = {"time": round(time.time(), 3)}
    if device is not None and device.type == "cuda":
        found["memory_bytes"] = device.kernels_package().memory.memory_allocated(device.index)
    elif os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm", "rb") as file:
            found["memory_bytes"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found


def about_run(steps: int, tokens_per_step: int, **more: Any) -> dict[str, Any]:
    """The record with which a process begins or resumes a run: how long it is, and who writes it."""
    process = {"pid": os.getpid(), "host": socket.gethostname()}
    return {"run": {"steps": steps, "tokens_per_step": tokens_per_step, **process, **more}, **moment()}


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a log, also while it is being written; lines that are not a JSON object are left out."""
    with open(path, "rb") as file:
        return [record for line in file if (record := parse_line(line)) is not None]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None for one that is damaged, or no JSON object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _legal(value: Any) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _legal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_legal(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
