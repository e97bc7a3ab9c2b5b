"""Write the list of the kernels that first steps need, minigrad/cpu_kernels/toolbox/known_kernels.txt.

    python benchmarks/known_kernels.py

Run it when kernels or their arguments change: a stale line costs a first step some time, and nothing else. Each program
runs in a process of its own, and all share a new cache. Seconds are those of a processor.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "minigrad/cpu_kernels/toolbox/known_kernels.txt"
STEP = ["--steps", "3", "--sample-every", "0"]
PROGRAMS = {
    "c": ["train_char_gpt.py", *STEP],
    "g": ["train_gpt2.py", "--preset", "tiny", *STEP],
    "l": ["train_llama_char.py", *STEP],
    "m": ["mlp_classifier.py"],
}


def record(out: str, program: list[str]) -> None:
    """Run an example here; write which kernels it needed, each with the seconds that it compiled."""
    from numba.core import event

    from minigrad.cpu_kernels.toolbox.compile_ahead import key_of
    from minigrad.cpu_kernels.toolbox.jit import TEAM, name_of

    seconds: dict[str, float] = {}
    started: list[float] = []

    class Timer(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            started.append(time.thread_time())

        def on_end(self, event: Any) -> None:
            dispatcher, types = event.data["dispatcher"], event.data["args"]
            seconds[key_of(name_of(dispatcher.py_func), types)] = time.thread_time() - started.pop()

    event.register("numba:compile", Timer())
    TEAM.most_helpers = 0
    sys.path.insert(0, str(ROOT / "examples"))
    sys.argv = program
    try:
        runpy.run_path(str(ROOT / "examples" / program[0]), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    needed = [key for key in (key_of(*kernel) for kernel in TEAM._needed) if "class(" not in key]  # no text of a type
    Path(out).write_text(json.dumps([[key, seconds.get(key, 0.0)] for key in needed]), encoding="ascii")


def main() -> None:
    """Run all programs and write the list."""
    known: dict[str, tuple[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for letter, program in PROGRAMS.items():
            out = Path(folder) / letter
            if program[0].startswith("train_"):
                program = [*program, "--out", f"{out}-run"]
            command = [sys.executable, __file__, "--record", str(out), *program]
            subprocess.run(command, env={**os.environ, "MINIGRAD_CACHE_DIR": f"{folder}/cache"}, check=True)
            for key, seconds in json.loads(out.read_text(encoding="ascii")):
                programs, known_seconds = known.get(key, ("", 0.0))
                known[key] = (programs + letter, known_seconds or seconds)
    rows = [f"{programs} {seconds:.2f} {key}\n" for key, (programs, seconds) in known.items()]
    LIST.write_text("".join(rows), encoding="ascii")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2], sys.argv[3:])
    else:
        argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
        main()
