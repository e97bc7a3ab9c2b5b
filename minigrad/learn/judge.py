"""The judge: checks run in a process of their own, so that nothing in a learner's file can harm the command.

``judge`` starts the process, ``python -m minigrad.learn.judge`` is the process. It reads a request from its input and
writes an answer, a line of JSON, for each exercise as it ends.
"""

import contextlib
import functools
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
    """What became of an exercise, and the words: ``"passed"``, ``"missing"`` (not written yet) or ``"wrong"``.

    It is ``"broken"``, with the same words for each exercise, if the file does not load.
    """

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
        lay_out(Path(folder), chapter, earlier, [source for source, _ in jobs])
        given = {"chapter": chapter.number, "folder": folder, "jobs": [list(e) for _, e in jobs], "seconds": seconds}
        lines, ended = _run(json.dumps(given), environment(chapter), seconds * (len(numbers) + 1) + 30)
    answers = [Answer(*json.loads(line)) for line in lines]
    if left := numbers[len(answers) :]:
        endless = f"it did not end within {seconds:g} s, and could not be interrupted"
        gone = f"the process ended without an answer (exit code {ended}); does the file call os._exit?"
        answers.append(Answer(left[0], "wrong", endless if ended in (None, UNSTOPPABLE) else gone))
    return answers + [Answer(number, "wrong", "not checked: the one before it did not end") for number in left[1:]]


def lay_out(folder: Path, chapter: Chapter, earlier: Mapping[int, str], sources: Sequence[str] = ()) -> list[Path]:
    """Write the files of the chapters before, the learner's or the solved ones; returns those of ``sources``."""
    for number, before in chapters().items():
        if number < chapter.number:
            text = earlier.get(number) or before.solution
            (folder / f"{before.module}.py").write_text(text, encoding="utf-8")
    files = [folder / str(k) / f"{chapter.module}.py" for k in range(len(sources))]
    for file, source in zip(files, sources):
        file.parent.mkdir()
        file.write_text(source, encoding="utf-8")
    return files


def environment(chapter: Chapter, **more: str) -> dict[str, str]:
    """The variables of a process in which a chapter's code runs."""
    simulated = {"NUMBA_ENABLE_CUDASIM": "1"} if chapter.number in SIMULATED else {}
    return {**os.environ, **simulated, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1", **more}


def _run(request: str, variables: dict[str, str], seconds: float) -> tuple[list[str], int | None]:
    """The lines that the judging process wrote, and its exit code, None if it had to be ended."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    process = subprocess.Popen([sys.executable, "-m", __name__], env=variables, encoding="utf-8", **pipes)
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
    broken = watched(None, lambda: loaded.append(load(path)), path, request["seconds"])
    for item in exercises:
        if loaded:
            yield checked(item, loaded[0], path, request["seconds"])
        else:
            yield broken._replace(exercise=item.number, state="broken", message=f"the file fails: {broken.message}")


def checked(item: Exercise, module: Any, path: Path, seconds: float) -> Answer:
    """The answer to what a module has of an exercise; a typical mistake is named, or an exercise that it rests on."""
    answer = watched(item, lambda: item.examine(module), path, seconds)
    for other in rests_on(item, vars(module)) if answer.state == "wrong" else ():
        if watched(other, lambda other=other: other.examine(module), path, seconds).state != "passed":
            first = f"exercise {other.number}, on which this one may rest, is not right yet: begin there"
            return answer._replace(message=f"{first}\n{answer.message}")
    if answer.state == "wrong" and "\nexpected" in answer.message:
        name = typical(item.number, seconds).get(answer.message)
        return answer._replace(message="\n".join([answer.message, *([name] if name else [])]))
    return answer


def rests_on(item: Exercise, names: Mapping[str, Any]) -> list[Exercise]:
    """Earlier exercises of the chapter whose names the code of an exercise uses, or its check, or what these use."""
    found = words_of(item.check) | {name.partition(".")[0] for name in item.names}
    while more := {word for name in found & {*names} for word in words_of(names[name])} - found:
        found |= more
    exercises = chapters()[int(item.number.partition(".")[0])].exercises
    earlier = exercises[: exercises.index(item)]
    return [other for other in earlier if found & {name.partition(".")[0] for name in other.names}]


def words_of(thing: Any) -> set[str]:
    """The names that a function uses, or the functions of a class."""
    thing = getattr(thing, "__code__", thing) if callable(thing) else thing
    inner = vars(thing).values() if isinstance(thing, type) else getattr(thing, "co_consts", ())
    return {*getattr(thing, "co_names", ()), *(word for part in inner for word in words_of(part))}


@functools.cache
def typical(number: str, seconds: float) -> dict[str, str]:
    """What the check says of the typical mistakes of an exercise: it says the same of a learner's who made one."""
    chapter = chapters()[int(number.partition(".")[0])]
    (item,) = [item for item in chapter.exercises if item.number == number]
    said: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="minigrad-learn-") as folder:
        for k, (old, new, name) in enumerate(item.wrong):
            if name.startswith("this is "):
                path = Path(folder) / f"mistake_{k}.py"
                path.write_text(chapter.mistaken(item, old, new), encoding="utf-8")
                answer = watched(item, lambda path=path: item.examine(load(path)), path, seconds)
                said.setdefault(answer.message, name)
    return said


def load(path: Path) -> ModuleType:
    """The learner's file as a module, under its plain name."""
    simulate_numba()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulate_numba() -> None:
    """In the simulator, let ``from numba.cuda import grid`` bring our simulator's words: Numba's has none."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        cuda = importlib.import_module("minigrad.cuda_kernels.simulator").cuda
        words = {name: getattr(cuda, name) for name in (*vars(cuda), "grid", "gridsize")}
        vars(importlib.import_module("numba.cuda")).update(words)


def watched(item: Exercise | None, work: Any, path: Path, seconds: float) -> Answer:
    """What becomes of a check, or of loading a file, within the time limit: never an exception."""

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
        state, message = verdict(item, error, path)
    return Answer(item.number if item else "", state, message, printed.getvalue()[:1000])


def verdict(item: Exercise | None, error: BaseException, path: Path) -> tuple[str, str]:
    """The state and the words for what a check raised; of the learner's lines, one of the exercise is shown."""
    if isinstance(error, Wrong):
        return "wrong", str(error)
    if isinstance(error, NotImplementedError) and str(error).startswith("exercise "):
        asked = str(error).removeprefix("exercise ")
        return "missing", "not written yet" if item and asked == item.number else f"needs exercise {asked} first"
    if isinstance(error, SyntaxError):
        return "wrong", f"line {error.lineno}: {error.msg}: {(error.text or '').strip()}"
    stacks = [traceback.extract_tb(error.__traceback__)]
    if isinstance(error, Endless):  # perhaps in a thread that the check waits for
        stacks += map(traceback.extract_stack, sys._current_frames().values())
    frames = [f for stack in stacks for f in stack if path.parents[1] in Path(f.filename).parents]
    names = [name.rpartition(".")[2] for name in item.names] if item else []
    frames = [f for f in frames if f.name in names and path.name in (Path(f.filename).name, "cell")] or frames
    what = str(error) if isinstance(error, Endless) else f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        what = "it ends the program (sys.exit)"
    if isinstance(error, KeyboardInterrupt):
        what = "interrupted"
    notes = {"'NoneType'": " (a function that returned nothing?)", "not iterable": " (one where several are expected?)"}
    what += next((note for words, note in notes.items() if words in what), "")
    if not frames:
        return "wrong", f"the {'check' if item else 'page'} could not use what it got: {what}"
    name = Path(frames[-1].filename).name
    place = f"{name}, " if name.startswith("chapter_") and name != path.name else ""
    return "wrong", f"{place}line {frames[-1].lineno}: {what}: {frames[-1].line}"


if __name__ == "__main__":
    main()
