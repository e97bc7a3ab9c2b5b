"""``python -m minigrad.cuda_kernels.inspect``."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
