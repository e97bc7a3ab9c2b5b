"""Train on replicas that are not equally fast, in lockstep and with a cadence that lets nobody wait.

    python examples/heterogeneous_training.py                ten seconds; draws who computed when, as text or a picture
    python examples/heterogeneous_training.py --slow-down 5  a replica that is five times slower

Two replicas are threads, and one is made slower by sleeping. In lockstep (policy SYNC) the fast one waits after each
batch. With policy CADENCE both compute for the same time and are averaged then: the fast one does three batches while
the slow one does one, and neither waits.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import loading  # noqa: F401  # first
import numpy as np
from command_line import Parser, UsageError, run_cli
from estimate import announced_mlp

import minigrad
from minigrad import nn
from minigrad.distributed import AveragingPolicy, DdpBuilder, EventKind, Timeline, TrainedState
from minigrad.nn import functional as F
from minigrad.optim import AdamW

PICTURE = "runs/heterogeneous_training.png"
LOCKSTEP, CADENCE = AveragingPolicy.SYNC, AveragingPolicy.CADENCE
COLORS = {EventKind.BATCH: "tab:blue", EventKind.IDLE: "tab:orange"}


def main() -> int:
    """Parse the flags, train twice, compare, draw."""
    parser = Parser(__doc__)
    parser.add_argument("--epochs", type=int, default=6, help="epochs (default 6)")
    parser.add_argument("--samples", type=int, default=960, help="samples of an epoch (default 960)")
    parser.add_argument("--batch-size", type=int, default=16, help="samples of a replica's batch (default 16)")
    parser.add_argument(
        "--sleep-ms", type=float, default=10.0, help="what a batch takes at least on the fast replica (default 10)"
    )
    parser.add_argument("--slow-down", type=float, default=3.0, help="how much slower the other one is (default 3)")
    parser.add_argument("--anchor", type=int, default=5, help="batches of the slow replica per average (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="of samples and weights (default 0)")
    parser.add_argument("--width", type=int, default=72, help="columns of the drawing, 0 for none (default 72)")
    parser.add_argument("--png", default=PICTURE, metavar="FILE", help=f"of the picture (default {PICTURE})")
    args = parser.parse()
    least = {"epochs": 1, "samples": 1, "batch_size": 1, "sleep_ms": 0, "slow_down": 1, "anchor": 1}
    for name, value in {**least, "seed": 0, "width": 0}.items():
        if not getattr(args, name) >= value:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(args, name)}, expected at least {value}")
    if args.samples < 2 * args.batch_size:
        raise UsageError(f"--samples is {args.samples}, expected at least two batches of {args.batch_size}")
    batches, slow = args.epochs * (args.samples // args.batch_size), args.slow_down
    asleep = args.sleep_ms / 1e3 * batches * (slow / 2 + slow / (1 + slow))  # in lockstep, and with a cadence
    flags = {"samples": args.samples, "batch_size": args.batch_size}
    print(announced_mlp(lambda samples, batch_size: ((2, 32, 2), batch_size, samples), flags, 2 * batches, asleep))

    # A run of two batches first: the kernels' compilation, at their first use ever, would count as a slow batch.
    few = {**vars(args), "epochs": 1, "samples": 2 * args.batch_size, "sleep_ms": 0.0}
    train(LOCKSTEP, Timeline(), SimpleNamespace(**few))
    waits, timelines = {}, {}
    for policy in (LOCKSTEP, CADENCE):
        timelines[policy] = Timeline()
        began = time.perf_counter()
        state, losses = train(policy, timelines[policy], args)
        seconds = time.perf_counter() - began
        waits[policy] = report(policy, state, losses, seconds)
        if args.width:
            print(timelines[policy].draw(args.width), end="\n\n")
    picture(timelines, Path(args.png))
    print(f"waiting: {waits[LOCKSTEP]:.1f} % of the time in lockstep, {waits[CADENCE]:.1f} % with a cadence")
    return 0


def train(policy: AveragingPolicy, timeline: Timeline, args: Any) -> tuple[TrainedState, list[float]]:
    """Learn to tell points inside a circle from those outside; the run's state, and the loss of each epoch."""
    rng = np.random.default_rng(args.seed)
    x = rng.uniform(-1, 1, (args.samples, 2)).astype(np.float32)
    inside = ((x**2).sum(1) < 0.5).astype(np.int64)
    minigrad.manual_seed(args.seed)

    def loss_of(model: nn.Module, batch: Any) -> minigrad.Tensor:
        slow = threading.current_thread().name == "replica-1"
        time.sleep(args.sleep_ms / 1e3 * (args.slow_down if slow else 1))
        points, labels = batch
        return F.cross_entropy(model(points), labels)

    handle = DdpBuilder(
        lambda: nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)),
        lambda parameters: AdamW(parameters, lr=1e-2),
        loss_of,
        dataset=(x, inside),
        batch_size=args.batch_size,
        num_epochs=args.epochs,
        replicas=2,
        policy=policy,
        anchor=args.anchor,
        lr_scale_ratio=0.0,
        divergence_threshold=None,  # the guard would average more often where the weights move fast, as at the start
        seed=args.seed,
        timeline=timeline,
    ).run()
    losses = []
    while (metrics := handle.next_metrics()) is not None:
        losses.append(metrics.avg_loss)
    return handle.join(), losses


def report(policy: AveragingPolicy, state: TrainedState, losses: list[float], seconds: float) -> float:
    """Print how a run went; how much of the replicas' time was waiting, in percent."""
    run = state.report
    assert run is not None
    print(f"{policy.name}: {seconds:.1f} s, loss {losses[0]:.3f} -> {losses[-1]:.3f}, {run.averages} averages")
    print(f"  batches        {run.batches[0]} and {run.batches[1]}")
    counts = run.count_history
    settled = counts[len(counts) // 3 : -1] or counts  # ElChe has measured by then; the last one ends the run
    fast, slow = (sum(count[rank] for count in settled) / len(settled) for rank in (0, 1))
    first = ", ".join(f"{a}:{b}" for a, b in counts[:6])
    ratio = f", which is {fast / slow:.2f}:1" if slow else ""
    print(f"  per average    {first}, ... settled at {fast:.1f}:{slow:.1f}{ratio}")
    print(f"  wanted         {run.counts[0]}:{run.counts[1]}, by what was measured")
    waited, computed = sum(run.waited_ms), sum(run.compute_ms)
    print(f"  waited         {run.waited_ms[0] / 1e3:.2f} s and {run.waited_ms[1] / 1e3:.2f} s")
    return 100 * waited / (waited + computed)


def picture(timelines: dict[AveragingPolicy, Timeline], file: Path, seconds: float = 1.0) -> None:
    """The first second of each run as a picture, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed (pip install matplotlib)")
        return
    figure = Figure(figsize=(10, 4), layout="tight")
    for axes, (policy, timeline) in zip(figure.subplots(len(timelines), sharex=True), timelines.items()):
        begin = min(e.at_ms for e in timeline.events if e.kind is EventKind.BATCH)
        shown = [e for e in timeline.events if begin <= e.at_ms < begin + 1e3 * seconds]
        for kind, color in COLORS.items():
            for rank in timeline.ranks:
                spans = [(e.at_ms - begin, e.duration_ms) for e in shown if e.kind is kind and e.rank == rank]
                axes.broken_barh(spans, (rank - 0.4, 0.8), color=color, linewidth=0)
        for e in shown:
            if e.kind is EventKind.SYNC_END:
                axes.axvline(e.at_ms - begin, color="black", linewidth=0.3)
        axes.set_title(f"{policy.name}: blue computes, orange waits, a line is an average", fontsize=9)
        axes.set_yticks([0, 1], ["fast", "slow"])
        axes.invert_yaxis()  # the fast one above, as in the text
        axes.set_xlim(0, 1e3 * seconds)
    axes.set_xlabel("milliseconds")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    print(f"picture: {file}")


if __name__ == "__main__":
    run_cli(main)
