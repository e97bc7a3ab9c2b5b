"""Says in a terminal, before the libraries are imported, that this takes a second, and several on a busy machine.

The next line is written over it. Ctrl-C ends an example in one line from here on: see ``minigrad/interrupt.py``.
"""

import sys

WORD = "loading"

if sys.stderr.isatty():
    print(WORD, end="\r", file=sys.stderr, flush=True)

import minigrad  # noqa: E402, F401
