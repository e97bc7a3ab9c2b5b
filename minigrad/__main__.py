"""usage: minigrad COMMAND [flags]

  minigrad train   train a character-level GPT, on Python's own documentation or any text
  minigrad sample  write text with a trained one
  minigrad watch   a page in the browser that shows runs, while they train and after
  minigrad learn   a course in ten chapters that checks what you write
  minigrad env     what this installation can use, and the command that would mend the rest

minigrad train --help and the like list the flags. minigrad --version prints the version."""

# ``minigrad train`` and ``minigrad sample`` are the scripts ``examples/train_char_gpt.py`` and ``examples/sample.py``:
# an installation brings the examples along. They are imported when they are asked for, as scripts import each other:
# from their folder. ``minigrad`` is also ``python -m minigrad``.

from __future__ import annotations

import difflib
import importlib
import sys
from pathlib import Path

from . import __version__, env

SCRIPTS = {"train": "train_char_gpt", "sample": "sample"}
WINGS = {"watch": "tools.watch", "learn": "learn"}
COMMANDS = (*SCRIPTS, *WINGS, "env")


def main() -> int:
    """Do what the command line says; returns the exit code, 2 for one that cannot be followed."""
    command, *arguments = sys.argv[1:] or [""]
    if command in ("-h", "--help"):
        print(__doc__)
        return 0
    if command == "--version":
        print(f"minigrad {__version__}")
        return 0
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        said = f"unknown command {command}" if command else "no command"
        guess = f"; did you mean {near[0]}?" if near else ""
        return refuse(f"{said}{guess} (minigrad --help lists the commands: {', '.join(COMMANDS)})")
    if command in WINGS:
        return int(importlib.import_module(f"{__package__}.{WINGS[command]}.command").main(arguments))
    if command == "env":
        if arguments in (["-h"], ["--help"]):
            print(env.__doc__)
            return 0
        return refuse(f"minigrad env takes no arguments, not {arguments[0]}") if arguments else env.main()
    return run_script(SCRIPTS[command], f"minigrad {command}", arguments)


def run_script(script: str, name: str, arguments: list[str]) -> int:
    """Run one of the examples as if it had been called by this name; it exits by itself."""
    package = Path(__file__).resolve().parent
    folders = (package / "examples", package.parent / "examples")  # installed from a wheel, from a checkout
    folder = next((folder for folder in folders if (folder / f"{script}.py").is_file()), None)
    if folder is None:
        return refuse(f"{folders[0] / script}.py is missing; install minigrad again")
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(folder))
    module = importlib.import_module(script)
    module.run_cli(module.main)
    return 0


def refuse(message: str) -> int:
    """Print an error as one line; returns the exit code."""
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
