"""``python -m minigrad.distributed.plan``: the planner of ``parallel/plan.py`` under the name that users type."""

import sys

from .parallel.plan import main

if __name__ == "__main__":
    sys.exit(main())
