"""Run the scripts in ``examples/`` as a user does, with sizes that train in a second."""

import importlib
import shlex
import sys
from pathlib import Path

import pytest
from processes import python

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

# Every kind of event within 24 steps: two micro-batches a step, dropout, validation, samples, checkpoints.
TINY = shlex.split(
    "--steps 24 --batch-size 2 --block-size 16 --grad-accum 2 --n-layer 1 --n-head 2 --n-embd 16 --dropout 0.1 "
    "--warmup 4 --eval-every 6 --eval-batches 1 --sample-every 6 --sample-chars 300 --save-every 8 --keep 9"
)


def command(script: str, *arguments: object) -> list[str]:
    return [sys.executable, str(EXAMPLES / script), *map(str, arguments)]


def run(script: str, *arguments: object, cwd: Path, **options):
    """The finished process, with its output as text."""
    return python(EXAMPLES / script, *arguments, cwd=cwd, **options)


def finish(script: str, *arguments: object, cwd: Path, **options):
    """The same, of a process that must end well."""
    return run(script, *arguments, cwd=cwd, returncode=0, **options)


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
