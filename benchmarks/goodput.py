"""Kill ranks of a training, again and again, and see what it loses: ``--max-restarts`` of the launcher.

    python benchmarks/goodput.py                                      ten kills in 3,600 steps on two ranks
    python benchmarks/goodput.py --kills 3 --steps 90 -- --shard 2    fewer, of sharded states

train_char_gpt_ddp.py trains twice: undisturbed, and while a rank drawn from --seed gets SIGKILL, --kills times, spread
over the run. Nothing else is done by hand. Goodput is the share of the second run's time, from the launcher's start to
its end, in which the steps were made that count. What is lost is starts, steps that are made again, and the time until
the others notice. Both runs must end with the same weights, bit for bit. What follows ``--`` are flags of the script.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from turns import cpu_name

from minigrad.metrics_log import read_json_lines
from minigrad.serialization import load_checkpoint

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "train_char_gpt_ddp.py"


def main() -> int:
    """Parse the flags, train twice, print what was lost; 1 if the weights differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3600)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("flags", nargs="*", help="of train_char_gpt_ddp.py, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="goodput-") as scratch:
        folders = [Path(scratch, name) for name in ("undisturbed", "killed")]
        runs = [Job(options, folder).run(kills) for folder, kills in zip(folders, (0, options.kills))]
        same = weights(folders[0]) == weights(folders[1])
        restarts = len(re.findall(r"^launch: restart ", runs[1].text, re.M))
        report = {
            "machine": f"{cpu_name()}, {os.cpu_count()} cores",
            "steps": options.steps,
            "ranks": options.ranks,
            "flags": options.flags,
            "kills": runs[1].killed,
            "restarts": restarts,
            "seconds": [round(run.seconds, 1) for run in runs],
            "goodput": [round(useful(folder) / run.seconds, 4) for folder, run in zip(folders, runs)],
            "same_weights": same,
        }
    print(json.dumps(report, indent=1))
    return 0 if same and restarts == options.kills else 1


class Job:
    """One run of the launcher."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.killed, self.text = options, folder, list[str](), ""

    def run(self, kills: int) -> Job:
        """Run it to its end, with as many kills; returns itself. RuntimeError if it fails."""
        o = self.options
        command = [
            sys.executable,
            "-m",
            "minigrad.distributed.launch",
            "-n",
            str(o.ranks),
            "--max-restarts",
            str(kills),
        ]
        command += [str(SCRIPT), "--out", str(self.folder), "--steps", str(o.steps), "--save-every", str(o.save_every)]
        command += ["--sample-every", "0", *o.flags]
        draw, began = random.Random(o.seed), time.monotonic()
        log = self.folder.with_suffix(".log")
        with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as launcher:
            try:
                for number in range(kills):
                    step = o.steps * (number + draw.uniform(0.6, 1.0)) / (kills + 1)
                    while launcher.poll() is None and self.step() < step:
                        time.sleep(0.05)
                    self.kill(draw.randrange(o.ranks))
                code = launcher.wait()
            finally:
                launcher.terminate()
        self.seconds, self.text = time.monotonic() - began, log.read_text(errors="replace")
        if code:
            raise RuntimeError(f"the launcher ended with exit code {code}:\n{self.text[-4000:]}")
        return self

    def step(self) -> int:
        """The last step that the run has logged."""
        with contextlib.suppress(FileNotFoundError):
            return max((record.get("step", 0) for record in read_json_lines(self.folder / "metrics.jsonl")), default=0)
        return 0

    def kill(self, rank: int) -> None:
        """SIGKILL for the process of a rank."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                mine = str(self.folder).encode() in words and words[1:2] == [str(SCRIPT).encode()]
                if mine and f"OMPI_COMM_WORLD_RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    self.killed.append(f"rank {rank} after step {self.step()}")


def useful(folder: Path) -> float:
    """Seconds in which the steps were made that count: between the lines of metrics.jsonl that one start has written.

    Lines of steps that were lost are not there: the next start has removed them.
    """
    seconds, before = 0.0, None
    for record in read_json_lines(folder / "metrics.jsonl"):
        seconds += record["time"] - before if before is not None and "run" not in record else 0.0
        before = record["time"]
    return seconds


def weights(folder: Path) -> dict[str, bytes]:
    """The bits of the last checkpoint."""
    tensors = load_checkpoint(folder).tensors
    return {f"{file}/{name}": array.tobytes() for file, named in tensors.items() for name, array in named.items()}


if __name__ == "__main__":
    sys.exit(main())
