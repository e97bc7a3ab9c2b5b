"""usage: minigrad COMMAND [flags]

  minigrad train     train a character-level GPT, on Python's own documentation or any text
  minigrad sample    write text with a trained one
  minigrad watch     a page in the browser that shows runs, while they train and after
  minigrad learn     a course in ten chapters that checks what you write
  minigrad examples  what else there is to run; minigrad examples addition runs one of them
  minigrad env       what this installation can use, and the command that would mend the rest

minigrad train --help and the like list the flags. minigrad --version prints the version."""

# ``minigrad train`` and ``minigrad sample`` are the scripts ``examples/train_char_gpt.py`` and ``examples/sample.py``:
# an installation brings the examples along. They are imported when they are asked for, as scripts import each other:
# from their folder. ``minigrad`` is also ``python -m minigrad``.

import ast
import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from . import __version__, env

SCRIPTS = {"train": "train_char_gpt", "sample": "sample"}
WINGS = {"watch": "tools.watch", "learn": "learn"}
COMMANDS = (*SCRIPTS, *WINGS, "examples", "env")


def main() -> int:
    """Do what the command line says; returns the exit code, 2 for one that cannot be followed."""
    try:
        code = follow(*(sys.argv[1:] or ["--help"]))
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on, as with ``| head``; what is left to write is dropped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    return code


def follow(command: str, *arguments: str) -> int:
    """Run a command; returns the exit code."""
    if command in ("-h", "--help"):
        print(__doc__)
        return 0
    if command == "--version":
        print(f"minigrad {__version__}")
        return 0
    if command not in COMMANDS:
        return unknown(f"unknown command {command}", command, COMMANDS)
    if command in WINGS:
        return int(importlib.import_module(f"{__package__}.{WINGS[command]}.command").main([*arguments]))
    if command == "env":
        if arguments in (("-h",), ("--help",)):
            print(env.__doc__)
            return 0
        return refuse(f"minigrad env takes no arguments, not {arguments[0]}") if arguments else env.main()
    folder = examples_folder()
    if not (folder / "train_char_gpt.py").is_file():
        return refuse(f"{folder / 'train_char_gpt.py'} is missing; install minigrad again")
    if command == "examples":
        return run_example(folder, arguments)
    return run_script(folder / f"{SCRIPTS[command]}.py", f"minigrad {command}", arguments)


def examples_folder() -> Path:
    """Where the scripts are: within an installed minigrad, beside the one of a checkout."""
    package = Path(__file__).resolve().parent
    return next((f for f in (package / "examples", package.parent / "examples") if f.is_dir()), package / "examples")


def run_example(folder: Path, arguments: tuple[str, ...]) -> int:
    """List the examples, or run the one that is named; ``train_`` may be left out."""
    scripts = {path.stem: path for path in sorted(folder.glob("*.py")) if "run_cli(main)" in path.read_text("utf-8")}
    if not arguments or arguments[0] in ("-h", "--help"):
        about = {name: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for name, path in scripts.items()}
        print("usage: minigrad examples NAME [flags]\n")
        for name, text in about.items():
            print(env.fit(f"  {name:<24}{str(text).splitlines()[0]}", indent=26))
        return 0
    name, *flags = arguments
    found = [stem for stem in scripts if stem in (name, f"train_{name}")] or [stem for stem in scripts if name in stem]
    if len(found) != 1:
        names = sorted(stem.removeprefix("train_") for stem in found or scripts)
        return unknown(f"{name} is {'several' if found else 'none'} of the examples", name, names)
    return run_script(scripts[found[0]], str(scripts[found[0]]), flags)


def run_script(script: Path, name: str, arguments: Iterable[str]) -> int:
    """Run one of the examples as if it had been called by this name; it exits by itself."""
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(script.parent))
    module = importlib.import_module(script.stem)
    module.run_cli(module.main)
    return 0


def unknown(problem: str, name: str, names: Iterable[str]) -> int:
    """Print what is wrong with a name, which one may have been meant, and which there are; returns the exit code."""
    guess = "".join(f"; did you mean {near}?" for near in difflib.get_close_matches(name, [*names], 1))
    return refuse(f"{problem}{guess or ';'} there are {', '.join(names)}")


def refuse(message: str) -> int:
    """Print an error as one line; returns the exit code."""
    print(env.fit(f"error: {message}", sys.stderr), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
