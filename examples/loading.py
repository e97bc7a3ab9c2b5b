"""Says in a terminal, before the libraries are imported, that this takes a second, and several on a busy machine.

The next line is written over it.
"""

import sys

WORD = "loading"

if sys.stderr.isatty():
    print(WORD, end="\r", file=sys.stderr, flush=True)
