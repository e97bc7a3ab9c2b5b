"""Every system call of a save fails, is cut short, or is the last one of the process; power is cut after every one.

Whatever happens: the old checkpoint or the new one loads, bit for bit, and the new one if the save had returned.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minigrad.serialization import (
    CheckpointError,
    list_checkpoints,
    load_checkpoint,
    load_safetensors,
    save_checkpoint,
    save_safetensors,
)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the calls that are made to fail are POSIX's")

CALLS = (
    "open",
    "write",
    "fsync",
    "close",
    "mkdir",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "listdir",
    "scandir",
    "stat",
)


def save(folder: Path, step: int, note: str = "", keep: int = 1) -> None:
    arrays = {"w": np.full(5, step, np.float32), "b": np.arange(3.0) + step}
    save_checkpoint(
        folder, {"model": arrays, "optimizer": {"m": np.full(2, -step)}}, {"step": step, "note": note}, keep
    )


def loaded(folder: Path) -> tuple[int, str]:
    """Step and note of the newest checkpoint, after a check of its content."""
    checkpoint = load_checkpoint(folder)
    step = checkpoint.step
    np.testing.assert_array_equal(checkpoint.tensors["model"]["w"], np.full(5, step, np.float32))
    np.testing.assert_array_equal(checkpoint.tensors["model"]["b"], np.arange(3.0) + step)
    np.testing.assert_array_equal(checkpoint.tensors["optimizer"]["m"], np.full(2, -step))
    return step, checkpoint.state["note"]


class Killed(BaseException):
    """Stands for the end of the process: from then on no call has an effect."""


class Faults:
    """Counts the calls in CALLS; call number `at` fails as `kind` says."""

    def __init__(self, at: int, kind: str) -> None:
        self.at, self.kind, self.count = at, kind, 0

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            hit = self.count == self.at
            if self.kind == "kill" and self.count >= self.at:
                if name == "close":
                    real(*args)  # the kernel closes the files of a dead process
                elif name == "write" and hit:
                    real(args[0], args[1][: len(args[1]) // 2])
                raise Killed
            if not hit:
                return real(*args, **kwargs)
            if name == "write" and self.kind in ("short", "full"):
                written = real(args[0], args[1][: len(args[1]) // 2])
                if self.kind == "short":
                    return written
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.kind == "short":
                return real(*args, **kwargs)
            if name == "close":
                real(*args)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        return call

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self.wrap(name, getattr(os, name)))
            yield


def each_call(kind: str) -> Iterator[Faults]:
    """Faults at the first call, at the second, and so on, until there was no such call any more."""
    for at in itertools.count(1):
        faults = Faults(at, kind)
        yield faults
        if faults.count < at:
            return


@pytest.mark.parametrize("kind", ["error", "full", "short", "kill"])
@pytest.mark.parametrize("same_step", [False, True], ids=["next step", "same step"])
def test_any_call_of_a_save_may_fail(tmp_path, kind, same_step):
    new = (1, "new") if same_step else (2, "new")
    outcomes = set()
    for faults in each_call(kind):
        folder = tmp_path / str(faults.at)
        save(folder, 1, "old")
        returned = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an old checkpoint that could not be deleted
            with contextlib.suppress(CheckpointError, Killed), faults.installed():
                save(folder, *new)
                returned = True
        found = loaded(folder)
        assert found == new if returned else found in (new, (1, "old"))
        for entry in list_checkpoints(folder):  # no half-written and no half-deleted one is ever in the list
            load_checkpoint(entry.path)
        outcomes.add((returned, found))
        save(folder, 3)  # and the next save is not disturbed by what was left behind
        assert loaded(folder) == (3, "")
        assert [name for name in os.listdir(folder) if not name.startswith("step-")] == []
        shutil.rmtree(folder)
    assert faults.at > 30  # some forty, and fewer where rmtree makes fewer calls (Python 3.10)
    assert (True, new) in outcomes
    assert kind == "short" or (False, (1, "old")) in outcomes


@pytest.mark.parametrize("kind", ["error", "full", "short", "kill"])
def test_any_call_of_saving_weights_may_fail(tmp_path, kind):
    path = tmp_path / "weights.safetensors"
    for faults in each_call(kind):
        save_safetensors(path, {"w": np.zeros(3)})
        returned = False
        with contextlib.suppress(CheckpointError, Killed), faults.installed():
            save_safetensors(path, {"w": np.ones(3)})
            returned = True
        found = load_safetensors(path)["w"].tolist()
        assert found == [1.0] * 3 if returned else found in ([1.0] * 3, [0.0] * 3)
    save_safetensors(path, {})
    assert os.listdir(tmp_path) == [path.name]


# ---- power cuts ----------------------------------------------------------------------------------------------------


class Disk:
    """What a disk may hold after a power cut: names and contents that were flushed, and parts of those that were not.

    Folders map names to nodes (a dict for a folder, a list ``[content, flushed content]`` for a file); each folder is
    kept twice, as programs see it and as it was last flushed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: dict[str, Any] = {}
        self.flushed: dict[int, dict[str, Any]] = {}
        self.folders = [self.seen]  # kept alive: `flushed` knows them by id
        self.open: dict[int, Any] = {}

    def node(self, path: str | os.PathLike[str]) -> Any:
        current: Any = self.seen
        for part in Path(path).relative_to(self.root).parts:
            current = current[part]
        return current

    def parent(self, path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
        return self.node(Path(path).parent), Path(path).name

    def on_mkdir(self, path: Any) -> None:
        folder, name = self.parent(path)
        folder[name] = {}
        self.folders.append(folder[name])

    def on_open(self, fd: int, path: Any, flags: int) -> None:
        if flags & os.O_CREAT:
            folder, name = self.parent(path)
            folder[name] = [b"", None]
        self.open[fd] = self.node(path)

    def on_write(self, fd: int, data: bytes) -> None:
        self.open[fd][0] += data

    def on_fsync(self, fd: int) -> None:
        node = self.open[fd]
        if isinstance(node, dict):
            self.flushed[id(node)] = dict(node)
        else:
            node[1] = node[0]

    def on_rename(self, source: Any, target: Any) -> None:
        folder, name = self.parent(source)
        other, new_name = self.parent(target)
        other[new_name] = folder.pop(name)

    def on_rmtree(self, path: Any) -> None:
        folder, name = self.parent(path)
        node = folder.pop(name, None)
        if node:
            node.clear()

    def materialise(self, target: Path, names_survive: bool, contents: str) -> None:
        """Write the disk after a cut: unflushed names survive or not, unflushed contents are zeros, cut, or kept."""

        def write(node: Any, path: Path) -> None:
            if isinstance(node, dict):
                path.mkdir()
                for name, child in (node if names_survive else self.flushed.get(id(node), {})).items():
                    write(child, path / name)
            else:
                content, flushed = node
                if flushed is None:
                    half = content[: len(content) // 2]
                    flushed = {"zeros": b"\0" * len(content), "cut": half, "kept": content}[contents]
                path.write_bytes(flushed)

        write(self.seen, target)


def test_power_may_be_cut_after_any_call(tmp_path, monkeypatch):
    root = tmp_path / "root"
    root.mkdir()
    disk = Disk(root)
    disk.flushed[id(disk.seen)] = {}
    checked = finished = 0
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "mkdir", "rename")}
    rmtree = shutil.rmtree
    quiet = False

    def check() -> None:
        nonlocal checked, quiet
        quiet = True
        for names_survive in (False, True):
            for contents in ("zeros", "cut", "kept"):
                after = tmp_path / "after"
                disk.materialise(after, names_survive, contents)
                allowed = history[max(0, finished - 1) : finished + 1]
                if finished > 0 or list_checkpoints(after / "run"):
                    assert loaded(after / "run") in allowed
                rmtree(after)
                checked += 1
        quiet = False

    def recorder(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if quiet:
                return real[name](*args, **kwargs)
            result = real[name](*args, **kwargs)
            if name == "open":
                disk.on_open(result, args[0], args[1])
            elif name == "write":
                disk.on_write(args[0], bytes(args[1][:result]))
            elif name == "fsync":
                disk.on_fsync(args[0])
            elif name == "mkdir":
                disk.on_mkdir(args[0])
            else:
                disk.on_rename(args[0], args[1])
            check()
            return result

        return call

    def record_rmtree(path: Any, **kwargs: Any) -> None:
        nonlocal quiet
        quiet = True
        rmtree(path, **kwargs)
        quiet = False
        disk.on_rmtree(path)
        check()

    history = [(1, "first"), (2, "second"), (2, "again"), (5, "last")]
    for name in real:
        monkeypatch.setattr(os, name, recorder(name))
    monkeypatch.setattr(shutil, "rmtree", record_rmtree)
    for step, note in history:
        save(root / "run", step, note)
        finished += 1
        check()
    assert checked > 500


# ---- the real thing ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses Linux's file size limit and /proc")
def test_the_system_refuses_the_bytes(tmp_path):
    """A file size limit makes the kernel write a part of the data, then fail: what a full disk does."""
    save(tmp_path, 1, "old")
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        with pytest.raises(CheckpointError, match=r"step 2.*File too large.*model\.safetensors"):
            save_checkpoint(tmp_path, {"model": {"w": np.ones(100_000)}}, {"step": 2}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(tmp_path) == ["step-00000001"]
    assert loaded(tmp_path) == (1, "old")
    assert len(os.listdir("/proc/self/fd")) == before


WRITER = """
import itertools, sys
import numpy as np
from minigrad.serialization import load_checkpoint, list_checkpoints, save_checkpoint
folder = sys.argv[1]
start = load_checkpoint(folder).step + 1 if list_checkpoints(folder) else 1
for step in itertools.count(start):
    arrays = {"w": np.full(5, step, np.float32), "b": np.arange(3.0) + step}
    optimizer = {"m": np.full(2, -step)}
    save_checkpoint(folder, {"model": arrays, "optimizer": optimizer}, {"step": step, "note": ""}, keep=1)
    print(step, flush=True)
"""


def test_killed_writers_leave_a_checkpoint(tmp_path):
    rng = np.random.default_rng(0)
    last = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            saved = int(process.stdout.readline())
            time.sleep(rng.uniform(0, 0.05))
            process.kill()
            saved = max([saved, *map(int, process.stdout.read().split("\n")[:-1])])
        step, _ = loaded(tmp_path)
        assert last < saved <= step <= saved + 1
        last = step
    save(tmp_path, last + 1)
    assert os.listdir(tmp_path) == [f"step-{last + 1:08d}"]
