"""Time a whole GPT training step on the CPU, minigrad beside PyTorch, JAX and tinygrad.

    python benchmarks/train_step_cpu.py --preset S
    python benchmarks/train_step_cpu.py --preset M --rounds 20 --json results.json
    python benchmarks/train_step_cpu.py --against torch-eager torch-compile jax tinygrad --rounds 6
    python benchmarks/train_step_cpu.py --preset X --model user --captured
    python benchmarks/train_step_cpu.py --preset M --bf16

A step is forward, backward, clipping by the global norm and AdamW, in float32, through each library's public interface.
Sizes, initial weights, tokens and threads are the same, and the first losses must agree. Machines are noisy, so no
absolute time counts: contenders take turns, and ratios within a round count (see ``turns.py``). Those that are not
installed are skipped. tinygrad uses one thread and its steps are slow: take few rounds.

With ``--model user`` our model has PyTorch's source, with ``--captured`` a step is one launch. Their variants are also
contenders for ``--against``.

With ``--bf16`` products are of operands rounded to bfloat16: minigrad's by ``set_float32_matmul_precision("medium")``,
PyTorch's by autocast.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from train_step_contenders import BFLOAT16_CONTENDERS, CONTENDERS, PRESETS
from turns import conditions, contest, median_seconds, print_ratios, ratios, take_turns, those_that_run


def compare(names: list[str], preset: str, products: str, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Run the rounds and return the report."""
    report: dict[str, Any] = {"preset": preset, "products": products, **conditions(threads, rounds)}
    with contest("train_step_contenders.py", names, [preset, products], threads) as contenders:
        check_losses({c.name: c.ready["losses"] for c in contenders}, 1e-4 if products == "float32" else 1e-2)
        answers = take_turns(contenders, rounds, seconds)
        report["contenders"] = {
            c.name: {
                "version": c.ready["version"],
                "median_milliseconds": 1e3 * median_seconds(answers[c.name]),
                "tokens_per_second": PRESETS[preset].tokens / median_seconds(answers[c.name]),
                "peak_megabytes": answers[c.name][-1]["peak_megabytes"],
                "first_step_seconds": c.ready["first_step_seconds"],
                "first_losses": c.ready["losses"],
            }
            for c in contenders
        }
    report["speed_of_minigrad_against"] = {name: ratios(answers[name], answers[names[0]]) for name in names[1:]}
    return report


def check_losses(losses: dict[str, list[float]], tolerance: float = 1e-4) -> None:
    """End with an error unless the first losses agree to ``tolerance``: else the contenders do not do the same work."""
    first, ours = next(iter(losses.items()))
    for name, theirs in losses.items():
        if not all(abs(a - b) <= tolerance * abs(a) for a, b in zip(ours, theirs, strict=True)):
            raise SystemExit(f"{name} does another computation: its first losses are {theirs}, those of {first} {ours}")


def show(report: dict[str, Any]) -> None:
    """Print the report as a table."""
    print(
        f"preset {report['preset']}, products in {report['products']}, {report['threads']} threads, "
        f"{report['machine']['cpu']}, {report['rounds']} rounds"
    )
    print(f"load average {report['load_average']:.1f}: nothing else should run on this machine meanwhile")
    print(f"{'':23}{'version':>14}{'ms/step':>10}{'tokens/s':>11}{'peak MB':>9}{'first step s':>14}")
    for name, c in report["contenders"].items():
        print(
            f"{name:23}{c['version']:>14}{c['median_milliseconds']:10.2f}{c['tokens_per_second']:11,.0f}"
            f"{c['peak_megabytes']:9.0f}{c['first_step_seconds']:14.2f}"
        )
    print_ratios(report)


def main() -> None:
    """Parse the flags, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(PRESETS), default="S")
    parser.add_argument(
        "--against", nargs="+", choices=list(CONTENDERS), default=["torch-eager"], help="(default eager)"
    )
    parser.add_argument(
        "--model", choices=["library", "user"], default="library", help="our GPT2, or one written by hand"
    )
    parser.add_argument("--captured", action="store_true", help="our steps are captured")
    parser.add_argument("--bf16", action="store_true", help="round the operands of products; only torch-eager competes")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="of each contender (default: all cores)"
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (default 2)")
    parser.add_argument("--json", type=Path, help="write the report here as well")
    args = parser.parse_args()
    contenders, products = (BFLOAT16_CONTENDERS, "bfloat16") if args.bf16 else (CONTENDERS, "float32")
    if strangers := set(args.against) - set(contenders):
        parser.error(f"--bf16 is not there for {', '.join(sorted(strangers))}")
    ours = "minigrad" + ("-user" if args.model == "user" else "") + ("-captured" if args.captured else "")
    if args.bf16 and ours != "minigrad":
        parser.error("--bf16 is of the library's model, and not captured")
    names = those_that_run(args.against, contenders, ours)
    report = compare(names, args.preset, products, args.threads, args.rounds, args.seconds)
    show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
