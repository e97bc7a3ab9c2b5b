"""``python -m minigrad.distributed.plan``: the planner of ``job/plan.py`` under the name that users type."""

import sys

from .job.plan import main

if __name__ == "__main__":
    sys.exit(main())
