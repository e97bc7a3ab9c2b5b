"""The time from starting Python to the end of the first training step, with an empty and with a filled kernel cache.

    python benchmarks/first_step.py

Runs ``examples/train_char_gpt.py`` in a process of its own. Its ``metrics.jsonl`` has a first line as soon as the first
step is done.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_char_gpt.py"


def first_step(cache: Path, run: Path) -> float:
    """Seconds until the example has made its first step, with its kernels in ``cache``."""
    command = [sys.executable, str(EXAMPLE), "--out", str(run)]
    environment = {**os.environ, "MINIGRAD_CACHE_DIR": str(cache)}
    metrics = run / "metrics.jsonl"
    started = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None:
                raise SystemExit(f"{EXAMPLE.name} ended with code {process.returncode} before its first step")
            time.sleep(0.005)
        return time.perf_counter() - started
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each kind; medians are printed")
    repeat = parser.parse_args().repeat
    cold, warm = [], []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(first_step(Path(folder) / "cache", Path(folder) / "cold"))
            # The killed run may have been compiling its validation; one more run completes the cache.
            first_step(Path(folder) / "cache", Path(folder) / "again")
            warm.append(first_step(Path(folder) / "cache", Path(folder) / "warm"))
    for name, times in (("cold", cold), ("warm", warm)):
        print(f"{name} kernel cache: {statistics.median(times):.1f} s (from {min(times):.1f} to {max(times):.1f})")


if __name__ == "__main__":
    main()
