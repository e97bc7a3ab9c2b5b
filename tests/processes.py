"""Python processes that tests wait for."""

import os
import subprocess
import sys

NOTHING = {}


def python(*arguments: object, env=NOTHING, **options) -> subprocess.CompletedProcess[str]:
    """``python *arguments`` when it has ended, with its output as text. ``options`` are those of subprocess.run."""
    command = [sys.executable, *map(str, arguments)]
    variables = {**os.environ, "PYTHONUTF8": "1", **env}
    fixed = {"capture_output": True, "encoding": "utf-8", "timeout": 300, "input": ""}
    return subprocess.run(command, env=variables, **{**fixed, **options})
