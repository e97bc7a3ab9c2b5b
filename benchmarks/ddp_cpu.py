"""Time data-parallel training on CPU processes: our all-reduce and trainers beside PyTorch's Gloo and DDP.

    python benchmarks/ddp_cpu.py
    python benchmarks/ddp_cpu.py --ranks 2 --preset M --sequences 2 --json results.json

Every rank is one process with one thread that holds all contenders. They take turns, so that whatever else the machine
does meets all of them; what counts are ratios. PyTorch is left out where it is not installed.

Two tables. First the all-reduce of float32 buffers, beside a copy within memory of the same size. Then a whole training
step (forward, backward, all-reduce, AdamW, no clipping) of the same GPT, where "alone" is the step without other ranks:
what a trainer takes longer than that is the communication that nothing hides. In the turns of "Trainer.setup" all other
ranks sleep, while rank 0 trains as many replicas, one thread each, on the sequences of all ranks.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from train_step_contenders import LR, PRESETS, WEIGHT_DECAY, Preset, minigrad_gpt, torch_adamw, torch_gpt
from turns import cpu_name

import minigrad
from minigrad.distributed import (
    BucketedTrainer,
    Communicator,
    DistributedTrainer,
    FusedDistributedOptimizer,
    FusedOptimizerConfig,
    SimpleTrainer,
    Trainer,
    TrainingConfig,
    all_gather_bytes,
    init_process_group,
    mean_over_ranks,
)
from minigrad.optim import AdamW, AdamWConfig

SIZES = {"4 KB": 4 * 2**10, "1 MB": 2**20, "25 MB": 25 * 2**20}
HAS_TORCH = importlib.util.find_spec("torch") is not None

Turn = Callable[[], object]


class Contest:
    """Functions that take turns; each turn begins on all ranks at once and lasts until the slowest has ended."""

    def __init__(self, comm: Communicator, turns: dict[str, Turn], repeats: int) -> None:
        self.comm, self.turns, self.repeats = comm, turns, repeats
        self.seconds: dict[str, list[float]] = {name: [] for name in turns}
        self.hidden: dict[str, list[float]] = {name: [] for name in turns}

    def play(self, rounds: int) -> None:
        """One uncounted turn for each, then the rounds, every other one in reverse order."""
        for number in range(-1, rounds):
            for name in list(self.turns)[:: 1 if number % 2 == 0 else -1]:
                self.comm.barrier()
                stats = dataclasses.replace(self.comm.stats)
                began = time.perf_counter()
                for _ in range(self.repeats):
                    self.turns[name]()
                self.comm.barrier()
                seconds = (time.perf_counter() - began) / self.repeats
                if number >= 0:
                    self.seconds[name].append(seconds)
                    busy = self.comm.stats.busy_s - stats.busy_s
                    self.hidden[name].append(1 - (self.comm.stats.waited_s - stats.waited_s) / busy if busy else 0.0)

    def medians(self) -> dict[str, float]:
        """Milliseconds of each, averaged over the ranks."""
        mine = {name: 1e3 * statistics.median(values) for name, values in self.seconds.items()}
        return mean_over_ranks(self.comm, mine)

    def deviations(self) -> dict[str, float]:
        """The median absolute deviation of each in milliseconds, averaged over the ranks."""
        mine = {}
        for name, values in self.seconds.items():
            middle = statistics.median(values)
            mine[name] = 1e3 * statistics.median(abs(value - middle) for value in values)
        return mean_over_ranks(self.comm, mine)

    def speed_against(self, name: str, other: str) -> float:
        """The median over the rounds of other's time divided by name's."""
        pairs = zip(self.seconds[other], self.seconds[name])
        return mean_over_ranks(self.comm, {name: statistics.median(a / b for a, b in pairs)})[name]


def connect_torch(comm: Communicator) -> Any:
    """``torch.distributed`` with Gloo, one thread."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = all_gather_bytes(comm, f"tcp://127.0.0.1:{port}".encode())[0].decode()
    dist.init_process_group("gloo", init_method=address, rank=comm.rank, world_size=comm.world_size)
    return dist


def time_all_reduce(comm: Communicator, dist: Any, rounds: int) -> dict[str, Any]:
    """Milliseconds of each contender for each size."""
    report: dict[str, Any] = {}
    for label, size in SIZES.items():
        ours = minigrad.zeros(size // 4)
        source, target = np.zeros(size // 4, np.float32), np.zeros(size // 4, np.float32)

        def copy(target: np.ndarray = target, source: np.ndarray = source) -> None:
            np.copyto(target, source)

        turns: dict[str, Turn] = {"minigrad": lambda t=ours: comm.all_reduce(t), "memcpy": copy}  # type: ignore[misc]
        if dist is not None:
            import torch

            theirs = torch.zeros(size // 4)
            turns["gloo"] = lambda t=theirs: dist.all_reduce(t)  # type: ignore[misc]
        contest = Contest(comm, turns, repeats=max(1, min(200, 2**24 // size)))
        contest.play(rounds)
        report[label] = {"milliseconds": contest.medians()}
        if dist is not None:
            report[label]["speed_against_gloo"] = contest.speed_against("minigrad", "gloo")
    return report


def time_steps(comm: Communicator, dist: Any, preset: Preset, rounds: int, reproducible: bool) -> dict[str, Any]:
    """Milliseconds per step of each trainer, and the share of our communication that was hidden; and of a comparison
    of the ranks' weights and moments by their hashes."""
    tokens, targets = (minigrad.from_numpy(array) for array in preset.batch())
    config = TrainingConfig(LR, WEIGHT_DECAY, max_grad_norm=None)
    fused = FusedOptimizerConfig(AdamWConfig(LR, weight_decay=WEIGHT_DECAY))

    def ours(trainer: SimpleTrainer) -> Turn:
        model = minigrad_gpt(preset)

        def step() -> None:
            loss = model.loss(tokens, targets)
            trainer.step(model.named_parameters(), loss.backward(), loss.item())

        def overlapped() -> None:
            trainer.backward_and_step(model.loss(tokens, targets), model.named_parameters())  # type: ignore[attr-defined]

        return overlapped if isinstance(trainer, BucketedTrainer) else step

    def replicas() -> Turn:
        if comm.rank:
            return lambda: None  # the barrier after it sleeps
        trainer = Trainer.setup(
            minigrad_gpt(preset),
            lambda device: minigrad_gpt(preset),
            lambda params: AdamW(params, lr=LR, weight_decay=WEIGHT_DECAY),
            devices=["cpu"] * comm.world_size,
        )
        x, y = (minigrad.cat([t] * comm.world_size) for t in (tokens, targets))
        return lambda: trainer.step(lambda model, x, y: model.loss(x, y), x, y)

    distributed = DistributedTrainer(config, comm)
    turns = {
        "alone": ours(SimpleTrainer(config)),
        "DistributedTrainer": ours(distributed),
        "BucketedTrainer": ours(BucketedTrainer(config, comm)),
        "FusedDistributedOptimizer": ours(FusedDistributedOptimizer(fused, comm)),
    }
    if reproducible:
        turns["reproducible"] = ours(DistributedTrainer(dataclasses.replace(config, reproducible=True), comm))
    turns["Trainer.setup"] = replicas()
    turns["comparison of hashes"] = lambda: distributed.assert_replicas_identical(
        [p for group in distributed.optimizer.param_groups for p in group["params"]]
    )
    if dist is not None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        x, y = (torch.from_numpy(array) for array in preset.batch())

        def theirs(model: Any) -> Turn:
            optimizer = torch_adamw(model)

            def step() -> None:
                loss = model(x, y)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()

            return step

        turns["torch alone"] = theirs(torch_gpt(preset))
        turns["torch DDP"] = theirs(DistributedDataParallel(torch_gpt(preset), gradient_as_bucket_view=True))
    contest = Contest(comm, turns, repeats=1)
    contest.play(rounds)
    report: dict[str, Any] = {"milliseconds": contest.medians(), "deviations": contest.deviations()}
    trainers = [name for name in turns if name.endswith(("Trainer", "Optimizer"))]
    report["hidden_share"] = mean_over_ranks(comm, {name: statistics.median(contest.hidden[name]) for name in trainers})
    if dist is not None:
        all_of_ours = [*trainers, "Trainer.setup"]
        report["speed_against_torch_ddp"] = {name: contest.speed_against(name, "torch DDP") for name in all_of_ours}
    return report


def work(args: argparse.Namespace) -> None:
    """One rank: run both parts; rank 0 writes the report."""
    preset = dataclasses.replace(PRESETS[args.preset], batch_size=args.sequences)
    with init_process_group() as comm:
        dist = connect_torch(comm) if HAS_TORCH else None
        report = {
            "ranks": comm.world_size,
            "threads_per_rank": minigrad.get_num_threads(),
            "model": dataclasses.asdict(preset),
            "parameters": minigrad_gpt(preset).num_parameters(),
            "all_reduce": time_all_reduce(comm, dist, 3 * args.rounds),
            "step": time_steps(comm, dist, preset, args.rounds, args.reproducible),
            "load_average": os.getloadavg()[0],
            "machine": {"cpu": cpu_name(), "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")},
            "versions": {"minigrad": minigrad.__version__, "communicator": type(comm).__name__},
        }
        if dist is not None:
            import torch

            report["versions"]["torch"] = torch.__version__
            comm.barrier()
            dist.destroy_process_group()
        if comm.rank == 0:
            args.worker.write_text(json.dumps(report, indent=1) + "\n")


def launched(script: str, ranks: int, flags: list[str]) -> dict[str, Any]:
    """What rank 0 of ``script`` has written to the file that ``--worker`` names; ranks have one thread each."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.json")
        launch = [sys.executable, "-m", "minigrad.distributed.launch", "-n", str(ranks), "--threads-per-rank", "1"]
        if code := subprocess.run([*launch, script, *flags, "--worker", str(file)]).returncode:
            raise SystemExit(code)
        return dict(json.loads(file.read_text()))


def show(report: dict[str, Any]) -> None:
    """Print the report as tables."""
    print(
        f"{report['ranks']} ranks with {report['threads_per_rank']} thread each, {report['machine']['cpu']}, "
        f"load average at the end {report['load_average']:.1f}"
    )
    names = list(next(iter(report["all_reduce"].values()))["milliseconds"])
    print(f"\n{'all-reduce, ms':>16}" + "".join(f"{name:>12}" for name in names))
    for label, row in report["all_reduce"].items():
        line = f"{label:>16}" + "".join(f"{row['milliseconds'][name]:12.3f}" for name in names)
        ratio = row.get("speed_against_gloo")
        print(line + (f"   {ratio:.2f} times Gloo's speed" if ratio else ""))
    m, step = report["model"], report["step"]
    print(f"\nGPT of {report['parameters']:,} parameters, {m['batch_size']} x {m['block_size']} tokens per rank")
    print(f"{'step, ms':>28}{'median':>10}{'MAD':>8}{'hidden':>10}{'speed / torch DDP':>20}")
    for name, ms in step["milliseconds"].items():
        hidden = step["hidden_share"].get(name)
        ratio = step.get("speed_against_torch_ddp", {}).get(name)
        share = f"{100 * hidden:8.0f} %" if hidden is not None else f"{'':>10}"
        line = f"{name:>28}{ms:10.1f}{step['deviations'][name]:8.1f}{share}"
        print(line + f"{ratio:20.2f}" if ratio else line.rstrip())


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """The flags of a benchmark on ranks; ``launched`` sets ``--worker`` for these."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(PRESETS), default="M", help="the model (default M)")
    parser.add_argument("--sequences", type=int, default=2, help="of a rank's micro-batch (default 2)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the report here as well")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)  # where the report of the ranks goes
    return parser


def flags_of(args: argparse.Namespace) -> list[str]:
    """Those that the ranks get as well."""
    return ["--preset", args.preset, "--sequences", str(args.sequences), "--rounds", str(args.rounds)]


def main() -> None:
    """Parse the flags, start the ranks, print the report."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--reproducible", action="store_true", help="time DistributedTrainer with reproducible=True, too"
    )
    args = parser.parse_args()
    if args.worker is not None:
        work(args)
        return
    report = launched(__file__, args.ranks, [*flags_of(args), *["--reproducible"] * args.reproducible])
    finish(report, args.json, show)


def finish(report: dict[str, Any], json_file: Path | None, show: Callable[[dict[str, Any]], None]) -> None:
    """Print the report with ``show``, and write it."""
    if not HAS_TORCH:
        print("PyTorch is not installed: nothing to compare with (pip install torch)")
    show(report)
    if json_file:
        json_file.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
