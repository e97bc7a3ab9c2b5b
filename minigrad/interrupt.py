"""Ctrl-C ends a command, or an example, in one line and with exit code 130, also while the libraries are imported."""

import os
import sys
from types import TracebackType


def is_ours(program: str) -> bool:
    """Whether a program, by its path or as ``-m``, is the command ``minigrad``, a module of it, or an example."""
    if program == "-m":
        words = zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
        return any(flag == "-m" and word.partition(".")[0] == "minigrad" for flag, word in words)
    if not program or sys.flags.interactive:
        return False
    beside = os.path.join(os.path.dirname(program), "train_char_gpt.py")
    return os.path.basename(program) in ("minigrad", "minigrad-cuda") or os.path.isfile(beside)


def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python calls for an error that nobody caught."""
    if not issubclass(kind, KeyboardInterrupt):
        return _previous(kind, error, trace)
    print(f"error: {str(error) or 'interrupted'}", file=sys.stderr)
    raise SystemExit(130)


_previous = sys.excepthook
if is_ours(sys.argv[0] if sys.argv else ""):
    sys.excepthook = hook
