"""usage: minigrad learn [list | start N | run N | check N | solution N.K] [--folder DIR] [--hint] [--notebook]

  minigrad learn                 the chapters, and what you have solved
  minigrad learn start 2         write the file of chapter 2, never over one of yours; --notebook: as a notebook
  minigrad learn run 2           run the code of the chapter's page with your file, as far as you have solved it;
                                 it has no time limit: Ctrl-C ends it
  minigrad learn check 2         check your file, exercise by exercise (check 2.3: one); --hint: with hints,
                                 one at the first try that fails, one more with each further try
  minigrad learn solution 2.3    show how the library does it, after a question

Your files are in the folder minigrad-course, or where --folder says. It needs no network. The chapters are to be read
in order, but each can be done alone: what you have not solved of the chapters before is ours."""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..env import fit
from .course import SIMULATED, Chapter, chapters, library_lines
from .exercise import Exercise
from .folder import PROGRESS, CourseError, Folder
from .judge import Answer, environment, judge, lay_out

SIMULATOR_NEEDS = 'runs its kernels in the simulator, which needs: pip install "minigrad-cuda[learn]"'


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ``CourseError``."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise CourseError(f"{message} (minigrad learn --help)")


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code: 1 if a check failed, 2 for what cannot be done."""
    parser = Parser(prog="minigrad learn", add_help=False)
    parser.add_argument("command", nargs="?", default="list")
    parser.add_argument("number", nargs="?", default="")
    parser.add_argument("--folder", type=Path)
    for flag in ("--hint", "--notebook", "--help"):
        parser.add_argument(flag, action="store_true")
    try:
        if "-h" in arguments or (given := parser.parse_args(arguments)).help:
            print(__doc__)
            return 0
        here = Path(PROGRESS).exists()
        folder = Folder(given.folder or Path("." if here else "minigrad-course"))
        if given.command == "list":
            return overview(folder)
        if given.command not in ("start", "run", "check", "solution"):
            raise CourseError(f"unknown command {given.command}; list, start, run, check and solution are the commands")
        chapter, exercises = named(given.number)
        without = chapter.number in SIMULATED and importlib.util.find_spec("greenlet") is None
        if without and given.command in ("run", "check"):
            raise CourseError(f"chapter {chapter.number} {SIMULATOR_NEEDS}")
        if given.command == "start":
            print(f"First: chapter {chapter.number} {SIMULATOR_NEEDS}\n" * without, end="")
            return start(folder, chapter, given.notebook)
        if given.command == "run":
            return run(folder, chapter)
        if given.command == "check":
            return check(folder, chapter, exercises, given.hint)
        return solution(folder, chapter, exercises)
    except CourseError as error:
        print(fit(f"error: {error}", sys.stderr), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads the output has enough of it, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def named(number: str) -> tuple[Chapter, list[Exercise]]:
    """The chapter and the exercises that ``"2"`` or ``"2.3"`` names."""
    first = number.partition(".")[0]
    known = chapters()
    if not first.isdecimal() or int(first) not in known:
        said = f"there is no chapter {number}" if number else "a chapter is missing"
        raise CourseError(f"{said}; the chapters are {min(known)} to {max(known)}, and exercises are named like 2.3")
    chapter = known[int(first)]
    exercises = [item for item in chapter.exercises if number in (first, item.number)]
    if not exercises:
        last = chapter.exercises[-1].number
        raise CourseError(f"there is no exercise {number}; those of chapter {first} are {first}.1 to {last}")
    return chapter, exercises


def overview(folder: Folder) -> int:
    """List the chapters with what is solved."""
    for number, chapter in chapters().items():
        done, of = len(folder.passed(chapter)), len(chapter.exercises)
        print(f"{number:3}  {chapter.title:60} {'solved' if done == of else f'{done} of {of} exercises'}")
    print(f"\nYour folder is {folder.path.resolve()}. `minigrad learn start N` begins a chapter.")
    return 0


def start(folder: Folder, chapter: Chapter, notebook: bool) -> int:
    """Write a chapter's file."""
    path = folder.add(chapter, notebook)
    folder.save()
    print(f"Chapter {chapter.number}: {chapter.title}\nread   {path if notebook else chapter.page}")
    print(f"write  {path}: {len(chapter.exercises)} exercises, each marked `your code here`")
    print(f"check  minigrad learn check {chapter.number}")
    print(f"run    minigrad learn run {chapter.number}: the page's code, with your file and the chapters before it")
    print("On the page, `# -> 7` after a line is its value, and the box below a block is what it prints.")
    print("`3 of 7 exercises` in the list, and `passed`, say what your last check found.")
    return 0


def run(folder: Folder, chapter: Chapter) -> int:
    """Run the code of a chapter's page, in a process of its own."""
    earlier, source = folder.earlier(chapter), folder.source(chapter)
    with tempfile.TemporaryDirectory(prefix="minigrad-learn-") as place:
        (file,) = lay_out(Path(place), chapter, earlier, [source])
        command = [sys.executable, "-m", f"{__package__}.page", str(chapter.number), str(file)]
        return subprocess.call(command, env=environment(chapter, PYTHONPATH=place))


def check(folder: Folder, chapter: Chapter, exercises: Sequence[Exercise], hint: bool) -> int:
    """Check the learner's file, exercise by exercise."""
    source, earlier = folder.source(chapter), folder.earlier(chapter)
    print(f"Chapter {chapter.number}: {chapter.title} ({folder.file(chapter)})")
    for number in dict.fromkeys(map(int, re.findall(r"^(?:from|import) chapter_(\d+)", source, re.MULTILINE))):
        ours = "ours (yours is not solved, or has changed since it passed)"
        print(f"  chapter {number}: {'yours' if number in earlier else ours}")
    answers = judge(chapter, [(source, [item.number for item in exercises])], earlier)
    if answers[0].state == "broken":
        print(f"  {answers[0].message}")
        return 1
    for item, answer in zip(exercises, answers):
        shown = hint and (answer.state == "wrong" or len(exercises) == 1)
        folder.note(item.number, answer.state, shown)
        report(folder, item, answer, shown)
    folder.note_file(chapter, source)
    folder.save()
    failed = [answer for answer in answers if answer.state != "passed"]
    if not failed and len(exercises) < len(chapter.exercises):
        print(f"{len(folder.passed(chapter))} of {len(chapter.exercises)} exercises of the chapter are solved.")
    elif not failed and chapter.number + 1 in chapters():
        print(f"All passed. Read the end of the chapter; then: minigrad learn start {chapter.number + 1}")
    return 1 if failed else 0


def report(folder: Folder, item: Exercise, answer: Answer, hint: bool) -> None:
    """Print an answer, and the hints for as many tries as there were."""
    first, *rest = answer.message.splitlines() or [""]
    said = {"passed": "passed", "missing": first, "wrong": "wrong"}[answer.state]
    print(f"  {item.number}  {', '.join(item.names):50} {said}")
    wrong = answer.state == "wrong"
    lines = [first, *rest, *(f"printed: {line}" for line in answer.printed.splitlines()[:10])] if wrong else []
    hints = [f"hint {k + 1} of {len(item.hints)}: {text}" for k, text in enumerate(item.hints)]
    if hint and answer.state != "passed":
        lines += hints[: max(1, folder.tries(item.number))]
    elif wrong:
        lines += ["--hint gives a hint, and a further one with each try"]
    print("".join(f"       {line}\n" for line in lines), end="")


def solution(folder: Folder, chapter: Chapter, exercises: Sequence[Exercise]) -> int:
    """Show the library's lines and the solution of an exercise, if the learner says yes."""
    if len(exercises) != 1:
        raise CourseError(f"which exercise? for example {chapter.number}.1")
    (item,) = exercises
    done, tries = item.number in folder.state["passed"], folder.tries(item.number)
    print(f"{'You have solved it' if done else f'You have tried {tries} times'}. Show it? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return 0
    note = item.library.partition("  # ")[2]
    path, number, lines = library_lines(item.library)
    print(f"\nThe library has it in {path}, line {number}{note and f' ({note})'}:\n\n{lines}")
    print(f"\nIn the chapter's words:\n\n{chapter.solution_of(item)}")
    return 0
