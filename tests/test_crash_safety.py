"""Every system call of a save fails, is cut short, or is the last one of the process, and then power is cut, too.

Whatever happens: the last two checkpoints that were whole stay so, bit for bit, or the new one is the last of two.
"""

import contextlib
import errno
import itertools
import os
import random
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from minigrad import distributed as dist, serialization
from minigrad.files import durable

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the calls that are made to fail are POSIX's")

CALLS = (
    *("open", "write", "fsync", "close", "mkdir", "rename"),
    *("replace", "unlink", "rmdir", "listdir", "scandir", "stat", "lstat", "fstat"),
)
ONLY = {"short": ("write",), "full": ("open", "write", "fsync", "mkdir", "rename", "replace")}  # can end in this way


def by_ranks(*arguments) -> None:
    dist.run_threads(2, lambda comm: dist.save_distributed_checkpoint(comm, *arguments), timeout=20)


def beside_the_training(*arguments) -> None:
    with dist.AsyncCheckpointer() as checkpoints:
        checkpoints.save(*arguments)


def save(folder: Path, step: int, note: str = "", write=serialization.save_checkpoint) -> None:
    arrays = {"w": np.full(5, step, np.float32), "b": np.arange(3.0) + step}
    write(folder, {"model": arrays, "optimizer": {"m": np.full(2, -step)}}, {"step": step, "note": note}, 2)


def whole(folder: Path) -> list[tuple[int, str]]:
    """Step and note of the last two checkpoints that are whole, after a check of their content."""
    found = {}
    for entry in serialization.list_checkpoints(folder):
        with contextlib.suppress(serialization.CheckpointError):
            checkpoint = serialization.load_checkpoint(entry.path)
            step = checkpoint.step
            np.testing.assert_array_equal(checkpoint.tensors["model"]["w"], np.full(5, step, np.float32))
            np.testing.assert_array_equal(checkpoint.tensors["model"]["b"], np.arange(3.0) + step)
            np.testing.assert_array_equal(checkpoint.tensors["optimizer"]["m"], np.full(2, -step))
            found[step] = checkpoint.state["note"]
    return list(found.items())[-2:]


class Killed(BaseException):
    """Stands for the end of the process: from then on no call has an effect."""


class Faults:
    """Counts the calls in CALLS, of flock and of urandom; call number `at` fails as `kind` says."""

    def __init__(self, at: int, kind: str) -> None:
        self.at, self.kind, self.count = at, kind, 0

    def wrap(self, name: str, real):
        def call(*args, **kwargs):
            if name not in ONLY.get(self.kind, [name]):
                return real(*args, **kwargs)
            self.count += 1
            hit = self.count == self.at
            if self.kind == "kill" and self.count >= self.at:
                if name in ("close", "flock"):
                    real(*args)  # the kernel closes the files of a dead process, and frees its locks
                elif name == "write" and hit:
                    real(args[0], args[1][: len(args[1]) // 2])
                raise Killed
            if not hit:
                return real(*args, **kwargs)
            if name == "write" and self.kind in ONLY:
                written = real(args[0], args[1][: len(args[1]) // 2])
                if self.kind == "short":
                    return written
            elif name == "close":
                real(*args)
            code = errno.ENOSPC if self.kind == "full" else errno.EIO
            raise OSError(code, os.strerror(code))

        return call

    @contextlib.contextmanager
    def installed(self):
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self.wrap(name, getattr(os, name)))
            patch.setattr(durable.fcntl, "flock", self.wrap("flock", durable.fcntl.flock))
            patch.setattr(random, "_urandom", self.wrap("urandom", os.urandom))  # what secrets calls
            yield


def each_call(kind: str):
    """Faults at the first call, at the second, and so on, until there was no such call any more."""
    for at in itertools.count(1):
        faults = Faults(at, kind)
        yield faults
        if faults.count < at:
            return


# ---- power cuts ----------------------------------------------------------------------------------------------------


class Disk:
    """What a disk may hold after a power cut: names and contents that were flushed, and parts of those that were not.

    Folders map names to nodes (a dict for a folder, a list ``[content, flushed content]`` for a file); each folder is
    kept twice, as programs see it and as it was last flushed.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.seen = {}
        self.flushed = {}
        self.folders = [self.seen]  # kept alive: `flushed` knows them by id
        self.open = {}

    def node(self, path: str | os.PathLike[str]):
        current = self.seen
        for part in Path(path).relative_to(self.root).parts:
            current = current[part]
        return current

    def parent(self, path: str | os.PathLike[str]):
        return self.node(Path(path).parent), Path(path).name

    def record(self, call: str, result, arguments) -> None:
        """What a call that succeeded has changed."""
        if call == "mkdir":
            folder, name = self.parent(arguments[0])
            folder[name] = {}
            self.folders.append(folder[name])
        elif call == "open":
            path, flags = arguments[:2]
            if flags & os.O_CREAT:
                folder, name = self.parent(path)
                folder[name] = [b"", None]
            self.open[result] = self.node(path)
        elif call == "write":
            self.open[arguments[0]][0] += bytes(arguments[1][:result])
        elif call == "fsync":
            node = self.open[arguments[0]]
            if isinstance(node, dict):
                self.flushed[id(node)] = dict(node)
            else:
                node[1] = node[0]
        elif call == "rename":
            folder, name = self.parent(arguments[0])
            other, new_name = self.parent(arguments[1])
            other[new_name] = folder.pop(name)
        elif call == "rmtree":
            folder, name = self.parent(arguments[0])
            folder.pop(name, {}).clear()

    def materialise(self, target: Path, names_survive: bool, contents: str) -> None:
        """Write the disk after a cut: unflushed names survive or not, unflushed contents are zeros or cut."""

        def write(node, path: Path) -> None:
            if isinstance(node, dict):
                path.mkdir()
                for name, child in (node if names_survive else self.flushed.get(id(node), {})).items():
                    write(child, path / name)
            else:
                content, flushed = node
                if flushed is None:
                    flushed = b"\0" * len(content) if contents == "zeros" else content[: len(content) // 2]
                path.write_bytes(flushed)

        write(self.seen, target)

    def after_cuts(self, target: Path):
        """What may be there after a cut, one possibility after the other."""
        for names_survive, contents in ((False, "zeros"), (True, "zeros"), (True, "cut")):
            self.materialise(target, names_survive, contents)
            yield target
            shutil.rmtree(target)

    @contextlib.contextmanager
    def recorded(self):
        """Within, each call that changes the disk is recorded; rmtree as one."""

        def wrap(name: str, real):
            def call(*args, **kwargs):
                result = real(*args, **kwargs)
                known = args[0] in self.open if isinstance(args[0], int) else kwargs.get("dir_fd") is None
                if known and (isinstance(args[0], int) or self.root in (Path(args[0]), *Path(args[0]).parents)):
                    self.record(name, result, args)
                elif name == "open":  # elsewhere, or one of rmtree's own
                    self.open.pop(result, None)
                return result

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "write", "fsync", "mkdir", "rename"):
                patch.setattr(os, name, wrap(name, getattr(os, name)))
            patch.setattr(shutil, "rmtree", wrap("rmtree", shutil.rmtree))
            yield


# ---- saves ----------------------------------------------------------------------------------------------------------


STORIES = {
    "the first": [(1, "first")],
    "the second": [(1, "first"), (2, "second")],
    "the third": [(1, "first"), (2, "second"), (5, "third")],
    "the same step": [(1, "first"), (2, "second"), (2, "again")],
}
ONE, KINDS = serialization.save_checkpoint, ("error", "kill", "full", "short")
SAVES = [(kind, story, ONE) for story in reversed(STORIES) for kind in KINDS]
SAVES += [(kind, "the third", write) for write in (by_ranks, beside_the_training) for kind in KINDS]


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("kind", "story", "write"), SAVES)
def test_any_call_of_a_save_may_fail_and_then_the_power(tmp_path, kind, story, write):
    *before, new = STORIES[story]
    old, now = (list(dict(saves).items())[-2:] for saves in (before, STORIES[story]))
    outcomes, cuts = [], 0
    save(tmp_path / "warm", 1, "", write)  # what is opened once, such as a kernel, is not of the save
    for faults in each_call(kind):
        root = tmp_path / str(faults.at)
        disk = Disk(root)
        with disk.recorded():
            for step, note in before:
                save(root / "run", step, note)
            returned = False
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # an old checkpoint that could not be deleted
                with contextlib.suppress(serialization.CheckpointError, Killed), faults.installed():
                    save(root / "run", *new, write)
                    returned = True
        found = whole(root / "run")
        assert found == now if returned else found in (now, old)
        newest = serialization.list_checkpoints(root / "run")[-1:]
        assert [entry.step for entry in newest] == [step for step, _ in found[-1:]]  # a half-written one is no entry
        for after in disk.after_cuts(tmp_path / "after"):
            assert whole(after / "run") in ([now] if returned else [now, old])
            cuts += 1
        save(root / "run", 9)  # and the next save is not disturbed by what was left behind
        assert whole(root / "run")[-1] == (9, "")
        assert [name for name in os.listdir(root / "run") if not name.startswith("step-")] == []
        outcomes.append((returned, found == now))
        shutil.rmtree(root)
    assert faults.at > (4 if kind in ("short", "full") else 30) and cuts == 3 * faults.at
    assert (True, True) in outcomes and (kind == "short" or (False, False) in outcomes)


def test_no_call_of_a_save_is_left_out(tmp_path):
    called = set()
    sys.setprofile(lambda frame, event, function: called.add(function) if event == "c_call" else None)
    for step in range(3):
        save(tmp_path / "run", step)
    sys.setprofile(None)
    names = {call.__name__ for call in called if call.__module__ in ("posix", "fcntl")}
    assert names - {"fspath"} <= {*CALLS, "flock", "urandom"} and {"urandom", "rename", "rmdir"} <= names


@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("kind", ["error", "full", "short", "kill"])
def test_any_call_of_saving_weights_may_fail(tmp_path, kind, checksums):
    path = tmp_path / "weights.safetensors"
    for faults in each_call(kind):
        serialization.save_safetensors(path, {"w": np.zeros(3)}, checksums=checksums)
        returned = False
        with contextlib.suppress(serialization.CheckpointError, Killed), faults.installed():
            serialization.save_safetensors(path, {"w": np.ones(3)}, checksums=checksums)
            returned = True
        found = serialization.load_safetensors(path)["w"].tolist()
        assert found == [1.0] * 3 if returned else found in ([1.0] * 3, [0.0] * 3)
    serialization.save_safetensors(path, {})
    assert os.listdir(tmp_path) == [path.name]
