"""``python -m minigrad.distributed.train``: entrenar's train command."""

import sys

from minigrad.distributed.train.command import main

if __name__ == "__main__":
    sys.exit(main())
