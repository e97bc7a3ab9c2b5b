"""Python processes that tests wait for."""

import contextlib
import os
import subprocess
import sys

NOTHING = {}


def python(*arguments: object, env=NOTHING, returncode: int | None = None, **options):
    """``python *arguments`` when it has ended, as it should: with ``returncode``, or None for any. Output is text.

    ``options`` are those of subprocess.run.
    """
    command = [sys.executable, *map(str, arguments)]
    variables = {**os.environ, "PYTHONUTF8": "1", **env}
    fixed = {"capture_output": True, "encoding": "utf-8", "timeout": 300, "input": ""}
    done: subprocess.CompletedProcess[str] = subprocess.run(command, env=variables, **{**fixed, **options})
    assert returncode in (None, done.returncode), done.stdout + done.stderr
    return done


@contextlib.contextmanager
def writing(path):
    """While the block runs, another process, whose number it gets and whose command has control characters, writes a
    run's metrics.jsonl."""
    program = "#\x1b\nimport sys, minigrad.metrics_log as m; log = m.JsonLinesLog(sys.argv[1]); print(flush=1); input()"
    with subprocess.Popen([sys.executable, "-c", program, path], stdin=-1, stdout=-1) as other:
        other.stdout.readline()
        yield other.pid
        other.kill()
