"""Run a program on several real processes from a test: ``run_ranks(2, "...source...")``, which never hangs.

    result = run_ranks(2, SOURCE, "--steps", "3", timeout=30, returncode=0)
    assert result.lines(0) == ["done"]

``requires_mpi`` is the mark for tests that use it.
"""

import importlib.util
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

_missing = [name for name in ("mpi4py",) if importlib.util.find_spec(name) is None]
requires_mpi = pytest.mark.skipif(bool(_missing), reason="mpi4py is not installed; install the extra `mpi`")


@dataclass(frozen=True)
class RanksResult:
    """What a launch left behind. ``stdout`` and ``stderr`` have their ranks before each line; ``seconds`` it took."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def text(self) -> str:
        """All output, for an assertion's message."""
        return f"exit code {self.returncode} after {self.seconds:.1f} s\n{self.stdout}\n--- stderr\n{self.stderr}"

    def lines(self, rank: int) -> list[str]:
        """What a rank wrote to stdout, without the prefix."""
        return re.findall(rf"^\[{rank}\] (.*)$", self.stdout, re.M)

    def errors(self, rank: int) -> str:
        """What a rank wrote to stderr, without the prefix."""
        return "\n".join(re.findall(rf"^\[{rank}\] (.*)$", self.stderr, re.M))


def run_ranks(n, program, *arguments, timeout=60.0, options=(), env=None, returncode=None) -> RanksResult:
    """Run ``program`` on ``n`` ranks under the launcher: a path, source text (anything with a line break), or a
    function that needs nothing around it and gets ``arguments`` as strings. After ``timeout`` seconds all are killed.

    Each rank turns warnings into errors, as the tests do. The launch must end with ``returncode``, if one is given.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        command = [sys.executable, "-W", "error", "-m", "minigrad.distributed.launch", "-n", str(n)]
        command += ["--timeout", str(timeout), *options, str(_script(program, Path(folder))), *map(str, arguments)]
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error", **(env or {})},
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout + 20)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # mpirun and the ranks get a signal when their parent dies
            process.communicate(timeout=20)
            raise
    result = RanksResult(process.returncode, out, err, time.monotonic() - began)
    assert returncode in (None, result.returncode), result.text
    return result


def on_processes(n: int, function, returncode: int = 0) -> RanksResult:
    """Run ``function(comm)``, of a file of tests, on ``n`` ranks that are processes; each prints what it returns."""
    file, tests = Path(inspect.getfile(function)), Path(__file__).parent
    program = f"""
import sys
sys.path[:0] = [{str(file.parent)!r}, {str(tests)!r}]
from {file.stem} import {function.__name__} as function
from minigrad.distributed import MpiCommunicator
with MpiCommunicator(timeout=60) as comm:
    print(function(comm), flush=True)
"""
    return run_ranks(n, program, timeout=300, returncode=returncode)


def alive(mark: str) -> list[str]:
    """The processes whose command line holds ``mark``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if mark in command:
            found.append(f"{folder.name}: {command}")
    return found


def _script(program, folder: Path) -> Path:
    if isinstance(program, Path) or (isinstance(program, str) and "\n" not in program):
        return Path(program)
    path = folder / "program.py"
    if callable(program):
        source = textwrap.dedent(inspect.getsource(program))
        path.write_text(f"import sys\n\n{source}\n{program.__name__}(*sys.argv[1:])\n", encoding="utf-8")
    else:
        path.write_text(textwrap.dedent(program), encoding="utf-8")
    return path
