"""The judge: checks run in a process of their own, so that nothing in a learner's file can harm the command.

``judge`` starts the process, ``python -m minigrad.learn.judge`` is the process. It reads a request from its input and
writes an answer, a line of JSON, for each exercise as it ends.
"""

import contextlib
import importlib.util
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from .course import SIMULATED, Chapter, chapters
from .exercise import Exercise, Wrong

SECONDS = 20.0  # for one exercise
PRINTED = 20_000  # characters that a file may print
UNSTOPPABLE = 99  # the exit code of a process whose learner's code goes on when it is interrupted


class Answer(NamedTuple):
    """What became of an exercise: ``"passed"``, ``"missing"`` (not written yet) or ``"wrong"``; and the words."""

    exercise: str
    state: str
    message: str = ""
    printed: str = ""


class Endless(BaseException):
    """A learner's code took too long, or printed too much."""


# The command's side ---------------------------------------------------------------------------------------------------


def judge(
    chapter: Chapter, jobs: Sequence[tuple[str, Sequence[str]]], earlier: Mapping[int, str], seconds: float = SECONDS
) -> list[Answer]:
    """The answers for each job: the text of a chapter's file, and the numbers of the exercises to check in it.

    ``earlier`` has the files of the chapters before, by number; for others the solved ones are taken.
    """
    numbers = [number for _, exercises in jobs for number in exercises]
    with tempfile.TemporaryDirectory(prefix="minigrad-learn-") as folder:
        lay_out(Path(folder), chapter, earlier)
        for k, (source, _) in enumerate(jobs):
            (Path(folder) / str(k)).mkdir()
            (Path(folder) / str(k) / f"{chapter.module}.py").write_text(source, encoding="utf-8")
        given = {"chapter": chapter.number, "folder": folder, "jobs": [list(e) for _, e in jobs], "seconds": seconds}
        lines, ended = _run(json.dumps(given), chapter.number in SIMULATED, seconds * (len(numbers) + 1) + 30)
    answers = [Answer(*json.loads(line)) for line in lines]
    if left := numbers[len(answers) :]:
        endless = f"it did not end within {seconds:g} s, and could not be interrupted"
        gone = f"the process ended without an answer (exit code {ended}); does the file call os._exit?"
        answers.append(Answer(left[0], "wrong", endless if ended in (None, UNSTOPPABLE) else gone))
    return answers + [Answer(number, "wrong", "not checked: the one before it did not end") for number in left[1:]]


def lay_out(folder: Path, chapter: Chapter, earlier: Mapping[int, str]) -> None:
    """Write the files of the chapters before this one: the learner's, or the solved ones."""
    for number, before in chapters().items():
        if number < chapter.number:
            text = earlier.get(number) or before.solution
            (folder / f"{before.module}.py").write_text(text, encoding="utf-8")


def _run(request: str, simulated: bool, seconds: float) -> tuple[list[str], int | None]:
    """The lines that the judging process wrote, and its exit code, None if it had to be ended."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
    environment |= {"NUMBA_ENABLE_CUDASIM": "1"} if simulated else {}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    process = subprocess.Popen([sys.executable, "-m", __name__], env=environment, encoding="utf-8", **pipes)
    code: int | None = None
    try:
        written, _ = process.communicate(request, timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        written, _ = process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):  # what the learner's code has started
            os.killpg(process.pid, signal.SIGKILL)
    return [line for line in written.splitlines() if line.startswith("[")], code


# The process ----------------------------------------------------------------------------------------------------------


class Printed(io.StringIO):
    """What the learner's code prints, up to a limit."""

    def write(self, text: str) -> int:
        """Keep the text; raises ``Endless`` at the limit."""
        if self.tell() > PRINTED:
            raise Endless("it prints without end")
        return super().write(text)


def main() -> None:
    """Answer the request on the input."""
    request = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as results:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        chapter, folder = chapters()[request["chapter"]], Path(request["folder"])
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        exercises = {item.number: item for item in chapter.exercises}
        for k, numbers in enumerate(request["jobs"]):
            for answer in answers(folder / str(k) / f"{chapter.module}.py", [exercises[n] for n in numbers], request):
                results.write(json.dumps(answer) + "\n")
                results.flush()
    os._exit(0)  # also with threads of the learner's that run on


def answers(path: Path, exercises: Sequence[Exercise], request: dict[str, Any]) -> Iterator[Answer]:
    """Load a learner's file and check it."""
    loaded: list[ModuleType] = []
    broken = watched("", lambda: loaded.append(load(path)), path, request["seconds"])
    for item in exercises:
        if loaded:
            yield watched(item.number, lambda item=item: item.check(loaded[0]), path, request["seconds"])
        else:
            yield broken._replace(exercise=item.number, state="wrong", message=f"the file fails: {broken.message}")


def load(path: Path) -> ModuleType:
    """The learner's file as a module, under its plain name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def watched(number: str, work: Any, path: Path, seconds: float) -> Answer:
    """What becomes of a piece of work, within the time limit: never an exception."""

    rings = itertools.count()

    def ring(signum: int, frame: FrameType | None) -> None:
        if next(rings) == 10:
            os._exit(UNSTOPPABLE)
        raise Endless(f"it did not end within {seconds:g} s: an endless loop?")

    printed = Printed()
    state, message = "passed", ""
    signal.signal(signal.SIGALRM, ring)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)  # again and again, if it is caught
            try:
                work()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as error:
        state, message = verdict(number, error, path)
    return Answer(number, state, message, printed.getvalue()[:1000])


def verdict(number: str, error: BaseException, path: Path) -> tuple[str, str]:
    """The state and the words for what a check raised."""
    if isinstance(error, Wrong):
        return "wrong", str(error)
    if isinstance(error, NotImplementedError) and str(error).startswith("exercise "):
        asked = str(error).removeprefix("exercise ")
        return "missing", "not written yet" if asked == number else f"needs exercise {asked} first"
    if isinstance(error, SyntaxError):
        return "wrong", f"line {error.lineno}: {error.msg}: {(error.text or '').strip()}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if path.parents[1] in Path(f.filename).parents]
    what = str(error) if isinstance(error, Endless) else f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        what = "it ends the program (sys.exit)"
    if "'NoneType'" in what:
        what += " (a function that returned nothing?)"
    if not frames:
        return "wrong", f"the check could not use what it got: {what}"
    place = "" if Path(frames[-1].filename).name == path.name else f"{Path(frames[-1].filename).name}, "
    return "wrong", f"{place}line {frames[-1].lineno}: {what}: {frames[-1].line}"


if __name__ == "__main__":
    main()
