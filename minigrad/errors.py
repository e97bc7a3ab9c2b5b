"""The line of the user's program in the messages of errors.

A traceback through a library ends far from the mistake. ``raise located(ValueError(...))`` adds the place of the call
that led into minigrad: the first frame outside of the package. The stack is read only when there is something to raise.
"""

from __future__ import annotations

import linecache
import os
import sys
from typing import TypeVar

E = TypeVar("E", bound=Exception)
OURS = (__name__.partition(".")[0], "functools", "contextlib", "threading", "concurrent")
"""The latter four call us back: between our own frames, or in a thread that has no line of the user's."""


def user_line() -> str | None:
    """``file:line: source`` of the call that led into minigrad, or None where there is none."""
    frame = sys._getframe(1)
    while str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    name, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(name, line, frame.f_globals).strip()
    inside = name.startswith(os.getcwd() + os.sep)
    return f"{os.path.relpath(name) if inside else name}:{line}" + (f": {source}" if source else "")


def operation() -> str:
    """``name: `` of the public function or method that asked for a check, or nothing where there is none."""
    frame = sys._getframe(1)
    module = frame.f_globals["__name__"]  # of the check itself
    while str(frame.f_globals.get("__name__")).partition(".")[0] in OURS and frame.f_back is not None:
        name = frame.f_code.co_name
        if frame.f_globals["__name__"] != module and not name.startswith(("_", "<", "forward")):
            return f"{name}: "
        frame = frame.f_back
    return ""


def located(error: E) -> E:
    """The error, its message followed by the line of the user's call."""
    if isinstance(error, LocatedError):
        return error
    line = user_line()
    if line is not None and error.args and isinstance(error.args[0], str):
        place = f"\n  at {line}"
        message = error.args[0].replace(place, "")  # it may quote an error that has its place
        error.args = (message + place, *error.args[1:])
    return error


class LocatedError(ValueError):
    """A ValueError whose text ends with the line of the user's call, wherever in minigrad it is raised.

    Attributes:
        args: the message alone.
        place: what follows it in the text: a new line, and ``at file:line: source``; or nothing.
    """

    place: str

    def __init__(self, message: str) -> None:
        line = user_line()
        self.place = f"\n  at {line}" if line else ""
        super().__init__(message.replace(self.place, "") if line else message)  # it may quote an error of this line

    def __str__(self) -> str:
        return super().__str__() + self.place
