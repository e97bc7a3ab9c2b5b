"""Time text generation with a key-value cache on the CPU, minigrad beside PyTorch eager.

    python benchmarks/generate_cpu.py --preset S
    python benchmarks/generate_cpu.py --preset M --rounds 20 --json benchmarks/results/generate_cpu_M.json

The same GPT-2 with the same weights continues one token until the context is full, in float32. It samples, with
temperature 0.8 and from the 20 most likely tokens. Contenders take turns, and ratios within a round count (see
``turns.py``). Before, each generates greedily, and these texts must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from generate_contenders import CONTENDERS, PRESETS
from turns import conditions, contest, median_seconds, print_ratios, ratios, take_turns, those_that_run


def compare(names: list[str], preset: str, batch: int, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Run the rounds and return the report."""
    new = batch * (PRESETS[preset].block_size - 1)
    report: dict[str, Any] = {"preset": preset, "batch": batch, **conditions(threads, rounds)}
    with contest("generate_contenders.py", names, [preset, str(batch)], threads) as contenders:
        for c in contenders[1:]:
            if c.ready["greedy"] != contenders[0].ready["greedy"]:
                raise SystemExit(f"{c.name} does another computation: its most likely text differs from minigrad's")
        answers = take_turns(contenders, rounds, seconds)
        report["contenders"] = {
            c.name: {
                "version": c.ready["version"],
                "tokens_per_second": new / median_seconds(answers[c.name]),
                "microseconds_per_token": 1e6 * median_seconds(answers[c.name]) / new,
                "peak_megabytes": answers[c.name][-1]["peak_megabytes"],
                "first_text_seconds": c.ready["first_text_seconds"],
            }
            for c in contenders
        }
    report["speed_of_minigrad_against"] = {name: ratios(answers[name], answers["minigrad"]) for name in names[1:]}
    return report


def show(report: dict[str, Any]) -> None:
    """Print the report as a table."""
    print(
        f"preset {report['preset']}, batch {report['batch']}, {report['threads']} threads, {report['machine']['cpu']}, "
        f"{report['rounds']} rounds"
    )
    print(f"load average {report['load_average']:.1f}: nothing else should run on this machine meanwhile")
    print(f"{'':14}{'version':>14}{'tokens/s':>11}{'us/token':>10}{'peak MB':>9}{'first text s':>14}")
    for name, c in report["contenders"].items():
        print(
            f"{name:14}{c['version']:>14}{c['tokens_per_second']:11,.0f}{c['microseconds_per_token']:10.0f}"
            f"{c['peak_megabytes']:9.0f}{c['first_text_seconds']:14.2f}"
        )
    print_ratios(report)


def main() -> None:
    """Parse the flags, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(PRESETS), default="S")
    parser.add_argument("--batch", type=int, default=1, help="texts at once (default 1)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="(default: all cores)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (default 2)")
    parser.add_argument("--json", type=Path, help="write the report here as well")
    args = parser.parse_args()
    names = those_that_run(["torch-eager"], CONTENDERS)
    report = compare(names, args.preset, args.batch, args.threads, args.rounds, args.seconds)
    show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
