"""``python -m minigrad.distributed.launch``: the launcher of ``job/launch.py`` under the name that users type."""

import sys

from .job.launch import main

if __name__ == "__main__":
    sys.exit(main())
