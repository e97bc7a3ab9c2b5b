"""Time training steps of a dozen models written for torch and minigrad alike, on the CPU, captured and in Python.

    python benchmarks/user_models_cpu.py
    python benchmarks/user_models_cpu.py --models vae gru --rounds 12 --json results.json

A step is forward, backward and AdamW, in float32. The models are those of ``user_models.py``: nobody tuned for them,
and their source is the same for both libraries. Contenders take turns (``turns.py``), and the first losses must agree.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from train_step_contenders import Minigrad, Step, TorchEager
from train_step_cpu import check_losses
from turns import conditions, contest, median_seconds, ratios, take_turns, those_that_run
from user_models import MODELS, weights

LR = 1e-3


class Eager(Minigrad):
    """minigrad, in Python."""

    @classmethod
    def of_user(cls, name: str, threads: int) -> Step:
        """A function that makes one step and returns its loss."""
        import minigrad

        minigrad.set_num_threads(threads)
        model = MODELS[name].make(minigrad, minigrad.nn, minigrad.nn.functional)
        model.load_state_dict(dict(weights(model)), strict=False)
        optimizer = minigrad.optim.AdamW(model.parameters(), lr=LR)
        inputs = [minigrad.tensor(x) for x in MODELS[name].inputs(np.random.default_rng(0))]

        def step(*inputs: Any) -> Any:
            loss = model(*inputs)
            optimizer.step(loss.backward())
            return loss.detach()

        run = minigrad.cuda.graphed(step) if cls.captured else step
        return lambda: float(run(*inputs).item())


class Captured(Eager):
    """minigrad, the step captured."""

    captured = True


class Torch(TorchEager):
    """PyTorch, eager, with its fused AdamW."""

    @classmethod
    def of_user(cls, name: str, threads: int) -> Step:
        """A function that makes one step and returns its loss."""
        import torch

        torch.set_num_threads(threads)
        model = MODELS[name].make(torch, torch.nn, torch.nn.functional)
        model.load_state_dict({name: torch.from_numpy(x) for name, x in weights(model)}, strict=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
        inputs = [torch.from_numpy(x) for x in MODELS[name].inputs(np.random.default_rng(0))]

        def step() -> float:
            loss = model(*inputs)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return float(loss.item())

        return step


CONTENDERS: dict[str, Any] = {"captured": Captured, "eager": Eager, "torch": Torch}


def work(name: str, model: str, threads: int) -> None:
    """Serve the benchmark on standard input and output, as ``turns.Contender`` asks."""
    step = CONTENDERS[name].of_user(model, threads)
    losses = [step() for _ in range(4)]
    start = time.perf_counter()
    for _ in range(4):
        step()
    print(json.dumps({"losses": losses, "seconds": (time.perf_counter() - start) / 4}), flush=True)
    for line in sys.stdin:
        step()
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(json.dumps({"seconds": (time.perf_counter() - start) / int(line)}), flush=True)


def compare(names: list[str], model: str, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """The milliseconds of each contender, and the speeds of ours over PyTorch's."""
    with contest("user_models_cpu.py", names, ["--work", model], threads) as contenders:
        check_losses({c.name: c.ready["losses"] for c in contenders}, 1e-3)
        answers = take_turns(contenders, rounds, seconds)
    return {
        "milliseconds": {name: 1e3 * median_seconds(answers[name]) for name in names},
        "speed": {name: ratios(answers["torch"], answers[name]) for name in names if name != "torch"},
    }


def show(model: str, result: dict[str, Any]) -> None:
    """One line for a model."""
    times = "".join(f"{ms:10.2f}" for ms in result["milliseconds"].values())
    speeds = "".join(f"{speed['median']:10.2f}" for speed in result["speed"].values())
    print(f"{model:20}{times}{speeds}", flush=True)


def main() -> None:
    """Parse the flags, compare, print."""
    if "--work" in sys.argv:
        name, _, model, threads = sys.argv[1:]
        work(name, model, int(threads))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="(default: all cores)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn (default 0.5)")
    parser.add_argument("--json", type=Path, help="write the report here as well")
    args = parser.parse_args()
    names = those_that_run(list(CONTENDERS), CONTENDERS, "captured")
    if "torch" not in names:
        raise SystemExit("there is nothing to compare with")
    report: dict[str, Any] = conditions(args.threads, args.rounds)
    print(f"{report['machine']['cpu']}, {args.threads} threads, load {report['load_average']:.1f}; ms, then speeds")
    print(" " * 20 + "".join(f"{name:>10}" for name in [*names, *names[:-1]]))
    report["models"] = {}
    for model in args.models:
        result = report["models"][model] = compare(names, model, args.threads, args.rounds, args.seconds)
        show(model, result)
    speeds = {name: [r["speed"][name]["median"] for r in report["models"].values()] for name in names[:-1]}
    report["speed"] = {n: {"mean": statistics.geometric_mean(v), "least": min(v)} for n, v in speeds.items()}
    for name, speed in report["speed"].items():
        print(f"{name}: geometric mean {speed['mean']:.2f}, least {speed['least']:.2f}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
