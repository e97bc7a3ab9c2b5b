"""Run the scripts in ``examples/`` as a user does, with sizes that train in a second."""

import contextlib
import importlib
import io
import itertools
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import python

import minigrad

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

# Every kind of event within 24 steps: two micro-batches a step, dropout, validation, samples, checkpoints.
TINY = shlex.split(
    "--steps 24 --batch-size 2 --block-size 16 --grad-accum 2 --n-layer 1 --n-head 2 --n-embd 16 --dropout 0.1 "
    "--warmup 4 --eval-every 6 --eval-batches 1 --sample-every 6 --sample-chars 300 --save-every 8 --keep 9"
)


def command(script: str, *arguments: object) -> list[str]:
    return [sys.executable, str(EXAMPLES / script), *map(str, arguments)]


def spawned(script: str, *arguments: object, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    """The finished process, which must end well."""
    return python(EXAMPLES / script, *arguments, cwd=cwd, **{"returncode": 0, **options})


def called(main: Callable[[], object], patch: pytest.MonkeyPatch, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What a process with this main would have left, from a call in this one, which keeps its generator and threads."""
    out, err = io.StringIO(), io.StringIO()
    state, threads = minigrad.default_generator.state_dict(), minigrad.get_num_threads()
    patch.chdir(cwd)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main()
    except SystemExit as ended:
        code = ended.code
    finally:
        minigrad.default_generator.load_state_dict(state)
        minigrad.set_num_threads(threads)
    return subprocess.CompletedProcess(sys.argv, code, out.getvalue(), err.getvalue())


def run(script: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The script as ``spawned`` runs it, but in this process, which has imported the library and loaded the kernels."""
    with pytest.MonkeyPatch.context() as patch:
        module = load(script, patch, *arguments)
        return called(lambda: module.run_cli(module.main), patch, cwd)


def finish(script: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same, of one that must end well."""
    done = run(script, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def load(script: str, monkeypatch: pytest.MonkeyPatch, *arguments: object):
    """The script's module, whose ``main()`` finds these arguments: in this process, which has loaded the kernels."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    return importlib.import_module(script.removesuffix(".py"))


def recorded(monkeypatch: pytest.MonkeyPatch, module, name: str):
    """The arguments of all calls of a function, which is called as before, in one list."""
    seen = []
    function = getattr(module, name)

    def call(*arguments):
        seen.extend(arguments)
        return function(*arguments)

    monkeypatch.setattr(module, name, call)
    return seen


def send_twice(monkeypatch: pytest.MonkeyPatch, owner, name: str, count: int, number: int) -> None:
    """Before the call of this count, a function's process gets the signal twice."""
    function, calls = getattr(owner, name), itertools.count(1)

    def call(*arguments):
        for _ in range(2 * (next(calls) == count)):
            signal.raise_signal(number)
        return function(*arguments)

    monkeypatch.setattr(owner, name, call)


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder below, with time of change and bytes: equal if and only if nothing was touched."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def assert_refused(result, code: int, *parts: str) -> None:
    """One clear line on stderr that holds ``parts``, the exit code, and nothing that looks like a crash."""
    assert result.returncode == code, result.stdout + result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.stdout
    for part in parts:
        assert part in lines[0], lines[0]


def refusals(section: str) -> list:
    """Of a section of golden/refused_commands.txt each command line, and the parts of its answer."""
    text = Path(__file__).with_name("golden").joinpath("refused_commands.txt").read_text(encoding="utf-8")
    (lines,) = re.findall(rf"(?ms)^\[{section}\]\n(.*?)(?:\n\n|\Z)", text)
    rows = [line.split(" -> ") for line in lines.splitlines()]
    return [pytest.param(shlex.split(command), parts.split(" | "), id=command) for command, parts in rows]
