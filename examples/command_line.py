"""The command line of every example: flags, the nearest one for a misspelt one, errors as one line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import loading  # noqa: F401  # before minigrad, whose import takes a second

import minigrad
from minigrad.data import DataError
from minigrad.device import Device
from minigrad.env import fit
from minigrad.serialization import CheckpointError

BAR = "{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}, {remaining} left{postfix}]"  # for tqdm

# Scripts that are also commands of an installed minigrad; minigrad/__main__.py runs them under these names.
COMMANDS = {"train_char_gpt.py": "minigrad train", "sample.py": "minigrad sample"}

# Words of flags that others use, and ours.
SYNONYMS = {
    "epoch": "step", "iter": "step", "iteration": "step", "learning": "lr", "dim": "embd", "hidden": "embd",
    "width": "embd", "depth": "layer", "context": "block", "gpu": "device", "accumulation": "accum",
}  # fmt: skip


class UsageError(ValueError):
    """The command line cannot be followed."""


class RunError(RuntimeError):
    """The run cannot go on; the message says what is left of it."""


class Filled(argparse.HelpFormatter):
    """Fills the description's paragraphs to the terminal's width; those of commands stay lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = functools.partial(textwrap.fill, width=width, break_on_hyphens=False, break_long_words=False)
        parts = [
            part.split("\n") if re.search("^(    |minigrad |python )", part, re.M) else [part]
            for part in text.split("\n\n")
        ]
        return "\n\n".join("\n".join(fill(line, subsequent_indent=" " * 8 * (len(p) > 1)) for line in p) for p in parts)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with the nearest flag for a misspelt one."""

    def __init__(self, description: str | None) -> None:
        if description and is_command():
            mention = r"python examples/(\w+\.py)([^\n]*?)(  +|$)"
            description = re.sub(mention, as_command, description, flags=re.MULTILINE)
        super().__init__(description=description, formatter_class=Filled, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise the message as UsageError."""
        raise UsageError(f"{message} ({self.prog} --help lists the flags)")

    def parse(self) -> argparse.Namespace:
        """The parsed command line; unknown flags are refused with a suggestion."""
        known, unknown = self.parse_known_args()
        if unknown:
            near = nearest(unknown[0].split("=")[0], list(self._option_string_actions))
            self.error(f"unknown argument {unknown[0]}" + (f"; did you mean {near[0]}?" if near else ""))
        return known

    def add_settings(self, settings: Any) -> None:
        """A flag for each field of a dataclass; those not given are absent from the namespace.

        The field's default gives type and default, its metadata's ``help`` the text.
        """
        for field in dataclasses.fields(settings):
            kind = type(field.default)
            text = f"{field.metadata['help']} (default {field.default})"
            options: dict[str, Any] = {"type": kind, "metavar": kind.__name__}
            if kind is bool:
                options = {"action": argparse.BooleanOptionalAction}
            self.add_argument(flag(field.name), default=argparse.SUPPRESS, help=text, **options)


def nearest(name: str, flags: list[str]) -> list[str]:
    """The flags that an unknown one may mean, the likeliest first: by its beginning, a word of it, or its letters."""
    words = {SYNONYMS.get(word.rstrip("s"), word.rstrip("s")) for word in name.strip("-").split("-")} - {"n", ""}
    same = [flag for flag in flags if words & {word.rstrip("s") for word in flag.strip("-").split("-")}]
    begun = [flag for flag in flags if flag.startswith(name)]
    return begun or same or difflib.get_close_matches(name, flags, 1, cutoff=0.75)


def is_command() -> bool:
    """Whether this script runs as a command of ``minigrad``."""
    return sys.argv[0] in COMMANDS.values()


def as_command(line: re.Match[str]) -> str:
    """A line of a script's help, with the command for the script; what follows two spaces keeps its column."""
    script, arguments, gap = line.groups()
    name = COMMANDS.get(script, f"python examples/{script}")
    return name + arguments + (gap and gap + " " * (len(f"python examples/{script}") - len(name)))


def how_to_run(script: str, *arguments: object) -> str:
    """What to type to run a script of this folder, in the way in which this one was run."""
    if is_command() and script in COMMANDS:
        return shlex.join([*COMMANDS[script].split(), *map(str, arguments)])
    folder = Path(__file__ if is_command() else sys.argv[0]).parent
    return shlex.join(["python", str(folder / script), *map(str, arguments)])


def as_typed() -> str:
    """The command that this run was started by."""
    return shlex.join([*(sys.argv[0].split() if is_command() else ["python", sys.argv[0]]), *sys.argv[1:]])


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def run_cli(main: Callable[[], int]) -> NoReturn:
    """Run a script's main; errors that a user can mend become one line, with exit code 2 (input) or 1 (the run)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # progress is seen in pipes too, and no character stops a run
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    try:
        code = main()
    except (UsageError, DataError, CheckpointError, ModuleNotFoundError) as error:
        code = complain(error, 2)
    except RunError as error:
        code = complain(error, 1)
    except BrokenPipeError:  # nobody reads on, as with ``| head``; what is left to write is dropped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        code = complain(describe(error), 1)
    except MemoryError as error:
        code = complain(f"not enough memory: {error}", 1)
    except KeyboardInterrupt as error:
        code = complain(str(error) or "interrupted", 130)
    sys.exit(code)


def complain(message: object, code: int) -> int:
    """Print ``error: message`` as one line, which a terminal breaks between words, and return the exit code.

    There, the command that goes on with a run has a line of its own, to be copied.
    """
    text = str(message).partition("\n  at ")[0]  # without the line of the script, which is no news to its user
    told, to_go_on, command = f"error: {' '.join(text.split())}".partition("To go on: ")
    between = "\n  " if to_go_on and sys.stderr.isatty() else ""
    print(fit(told + (to_go_on.strip() if between else to_go_on), sys.stderr) + between + command, file=sys.stderr)
    return code


def describe(error: Exception) -> str:
    """What happened, and to which file, without an error number and the line of the script."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).partition("\n  at ")[0]


def choose_device(name: str) -> Device:
    """The device, known to work; raises UsageError otherwise."""
    try:
        return minigrad.zeros(1).to(device=name).device
    except (RuntimeError, NotImplementedError) as error:
        raise UsageError(f"--device {name}: {error}") from error
