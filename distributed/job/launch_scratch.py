"""The folders in shared memory that jobs keep their messages in, and what remains of jobs that were killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

SCRATCH = "minigrad-launch-"  # begins the name of a job's folder of shared memory


def lock(folder: str) -> int | None:
    """An open file that holds the folder's lock as long as this process lives; None if another has it."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def sweep(parent: str) -> None:
    """Remove what launchers have left that were killed: their folders' locks are free."""
    for folder in Path(parent).glob(SCRATCH + "*"):
        try:
            if time.time() - folder.stat().st_mtime > 60 and (file := lock(str(folder))) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(file)
        except OSError:
            continue  # it is another user's, or its launcher has just removed it
