"""The code of a chapter's page, run with a learner's file: ``python -m minigrad.learn.page 2 FILE``."""

import ast
import code
import signal
import sys
from pathlib import Path
from typing import Any

from .course import BLOCK, chapters
from .judge import load, verdict


def main(number: str, file: str) -> int:
    """Run block after block, as typed at a prompt, until one fails; at a terminal a prompt follows, but not Ctrl-C."""
    page, failed = chapters()[int(number)].page.name, 0
    names: dict[str, Any] = {}
    try:
        names = vars(load(Path(file)))
        for block in BLOCK.findall(chapters()[int(number)].text):
            print(f"\n>>> {block.rstrip()}".replace("\n", "\n... ").replace("\n... >>>", "\n>>>"))
            for statement in ast.parse(block).body:
                exec(compile(ast.Interactive([statement]), page, "single"), names)
    except (Exception, KeyboardInterrupt) as error:
        print(f"here it ends: {verdict(None, error, Path(file))[1]}")
        failed = 130 if isinstance(error, KeyboardInterrupt) else 1
    if sys.stdin.isatty() and failed != 130:
        code.interact("Try what you like. All names from above are there; Ctrl-D ends it.", local=names, exitmsg="")
    return failed


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # who reads the output may have enough of it
    sys.exit(main(*sys.argv[1:]))
