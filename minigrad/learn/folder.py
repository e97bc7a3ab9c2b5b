"""A learner's folder: the chapters' files, and what is solved."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from ..files.durable import replace_file
from .course import Chapter, chapters, file_of_notebook

PROGRESS = "minigrad-learn.json"


class CourseError(Exception):
    """What cannot be done, in one line for the learner."""


class Folder:
    """The files of one learner. What is solved is kept in ``minigrad-learn.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[str, Any] = {"passed": [], "tries": {}, "files": {}}
        try:
            text = (path / PROGRESS).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, UnicodeDecodeError) as error:
            raise CourseError(f"{path / PROGRESS} cannot be read: {error}") from error
        try:
            kept = json.loads(text)
            kinds = {name: type(value) for name, value in kept.items()}
        except (ValueError, AttributeError):
            kinds = {}
        whole = kinds == {name: type(value) for name, value in self.state.items()}
        if not whole or {*map(type, kept["passed"])} - {str} or {*map(type, kept["tries"].values())} - {int}:
            raise CourseError(f"{path / PROGRESS} is damaged; move it away, and check your chapters again")
        self.state = kept

    def save(self) -> None:
        """Write what is solved, all or nothing."""
        self._write(self.path / PROGRESS, json.dumps(self.state, indent=1) + "\n")

    def add(self, chapter: Chapter, notebook: bool) -> Path:
        """Write a chapter's file, but never over one that is there."""
        for path in self.path.glob(f"{chapter.module}.*"):
            if path.suffix in (".py", ".ipynb"):  # also the other kind: a check takes one of them
                raise CourseError(f"{path} is there already, and stays as it is; move it away to begin again")
        path = self.path / f"{chapter.module}.{'ipynb' if notebook else 'py'}"
        stubs = chapter.stubs()
        self._write(path, json.dumps(chapter.notebook(stubs), indent=1) if notebook else stubs)
        return path

    def file(self, chapter: Chapter) -> Path:
        """The learner's file of a chapter, or else the notebook."""
        found = [self.path / f"{chapter.module}.{kind}" for kind in ("py", "ipynb")]
        there = [path for path in found if path.is_file()]
        if not there:
            raise CourseError(f"{found[0]} is not there; `minigrad learn start {chapter.number}` writes it")
        return there[0]

    def source(self, chapter: Chapter) -> str:
        """The text of the learner's file."""
        path = self.file(chapter)
        try:
            text = path.read_text(encoding="utf-8")
            return file_of_notebook(text) if path.suffix == ".ipynb" else text
        except (OSError, UnicodeDecodeError) as error:
            raise CourseError(f"{path} cannot be read: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CourseError(f"{path} is no notebook: {error}") from error

    def note(self, exercise: str, state: str, hint: bool) -> None:
        """Note the state of an answer. A try is a wrong one, or a hint that was asked for before the first line."""
        others = [number for number in self.state["passed"] if number != exercise]
        self.state["passed"] = sorted([*others, exercise] if state == "passed" else others)
        self.state["tries"][exercise] = self.tries(exercise) + (state == "wrong" or (hint and state == "missing"))

    def tries(self, exercise: str) -> int:
        """How often a check of the exercise has failed."""
        return int(self.state["tries"].get(exercise, 0))

    def passed(self, chapter: Chapter) -> list[str]:
        """The exercises of a chapter that have passed."""
        return [item.number for item in chapter.exercises if item.number in self.state["passed"]]

    def note_file(self, chapter: Chapter, source: str) -> None:
        """Note whether all of a chapter passes with this text of its file: later chapters build upon it then."""
        if len(self.passed(chapter)) == len(chapter.exercises):
            self.state["files"][str(chapter.number)] = digest(source)
        else:
            self.state["files"].pop(str(chapter.number), None)

    def earlier(self, chapter: Chapter) -> dict[int, str]:
        """The learner's files of earlier chapters, by number: those that are solved and have not changed since."""
        found = {}
        for number in range(1, chapter.number):
            with contextlib.suppress(CourseError):  # a file that is gone is not solved
                text = self.source(chapters()[number])
                if digest(text) == self.state["files"].get(str(number)):
                    found[number] = text
        return found

    def _write(self, path: Path, text: str) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            replace_file(path, [text.encode()])
        except OSError as error:
            raise CourseError(f"{path} cannot be written: {error.strerror}") from error


def digest(text: str) -> str:
    """The sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
