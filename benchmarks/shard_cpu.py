"""Time sharded states on CPU processes: our three stages of ZeRO beside PyTorch's, with Gloo, in the same processes.

    python benchmarks/shard_cpu.py --json benchmarks/results/shard_cpu.json

A step (forward, backward, AdamW, no clipping) of the same GPT, in turns, as in ddp_cpu.py. PyTorch's contenders are
DDP, DDP with ZeroRedundancyOptimizer (which shares the moments), and FSDP2, which keeps the weights whole from forward
to backward (reshard_after_forward=False) or gathers them again (True).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import time
from typing import Any

from ddp_cpu import HAS_TORCH, Contest, Turn, connect_torch, finish, flags_of, launched, parser_of
from train_step_contenders import LR, PRESETS, WEIGHT_DECAY, Preset, minigrad_gpt, torch_adamw, torch_gpt
from turns import cpu_name

import minigrad
from minigrad.distributed import (
    BucketedTrainer,
    Communicator,
    DistributedTrainer,
    ShardedTrainer,
    SimpleTrainer,
    TrainingConfig,
    init_process_group,
    mean_over_ranks,
)

RIVALS = {  # what each stage is compared with: what shares as much
    "stage 1": ("DistributedTrainer", "torch DDP", "torch ZeroRedundancyOptimizer"),
    "stage 2": ("DistributedTrainer", "torch DDP", "torch FSDP2, weights kept"),
    "stage 3": ("DistributedTrainer", "torch DDP", "torch FSDP2"),
}


def ours(comm: Communicator, preset: Preset) -> dict[str, Turn]:
    """A step of each of our trainers, which returns its loss."""
    tokens, targets = (minigrad.from_numpy(array) for array in preset.batch())
    config = TrainingConfig(LR, WEIGHT_DECAY, max_grad_norm=None)

    def turn(trainer: SimpleTrainer) -> Turn:
        model = minigrad_gpt(preset)
        if isinstance(trainer, ShardedTrainer):
            trainer.shard(model)

        def step() -> float:
            loss = model.loss(tokens, targets)
            metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item())
            assert metrics is not None
            return metrics.loss

        def overlapped() -> float:
            loss = model.loss(tokens, targets)
            return float(trainer.backward_and_step(loss, model.named_parameters()).loss)  # type: ignore[attr-defined]

        return overlapped if isinstance(trainer, BucketedTrainer) else step

    turns = {"alone": turn(SimpleTrainer(config)), "DistributedTrainer": turn(DistributedTrainer(config, comm))}
    turns["BucketedTrainer"] = turn(BucketedTrainer(config, comm))
    return turns | {f"stage {stage}": turn(ShardedTrainer(config, comm, stage=stage)) for stage in (1, 2, 3)}


def theirs(comm: Communicator, preset: Preset) -> dict[str, Turn]:
    """The same of PyTorch's."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    x, y = (torch.from_numpy(array) for array in preset.batch())
    mesh = init_device_mesh("cpu", (comm.world_size,))

    def turn(model: Any, optimizer: Any) -> Turn:
        def step() -> float:
            loss = model(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return float(loss.item())

        return step

    def ddp() -> Any:
        return DistributedDataParallel(torch_gpt(preset), gradient_as_bucket_view=True)

    def fsdp(again: bool) -> Turn:
        model = torch_gpt(preset)
        for block in model.h:
            fully_shard(block, mesh=mesh, reshard_after_forward=again)
        fully_shard(model, mesh=mesh, reshard_after_forward=again)
        return turn(model, torch_adamw(model))

    alone, plain, shared = torch_gpt(preset), ddp(), ddp()
    adamw = torch_adamw(shared)
    groups = [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in adamw.param_groups]
    options = {"lr": LR, "betas": adamw.defaults["betas"], "fused": True}
    zero = ZeroRedundancyOptimizer(groups, torch.optim.AdamW, parameters_as_bucket_view=True, **options)
    return {
        "torch alone": turn(alone, torch_adamw(alone)),
        "torch DDP": turn(plain, torch_adamw(plain)),
        "torch ZeroRedundancyOptimizer": turn(shared, zero),
        "torch FSDP2, weights kept": fsdp(False),
        "torch FSDP2": fsdp(True),
    }


def work(args: argparse.Namespace) -> None:
    """One rank: the steps in turns; rank 0 writes the report."""
    preset = dataclasses.replace(PRESETS[args.preset], batch_size=args.sequences)
    with init_process_group() as comm:
        dist = connect_torch(comm) if HAS_TORCH else None
        turns = ours(comm, preset) | (theirs(comm, preset) if dist is not None else {})
        contest = Contest(comm, turns, repeats=1)
        before = os.getloadavg()[0]
        contest.play(args.rounds)
        sent = {}
        for name in ("DistributedTrainer", *RIVALS):
            begin = comm.stats.wire_bytes
            turns[name]()
            sent[name] = float(comm.stats.wire_bytes - begin)
        report = {
            "ranks": comm.world_size,
            "model": dataclasses.asdict(preset),
            "parameters": minigrad_gpt(preset).num_parameters(),
            "rounds": args.rounds,
            "milliseconds": contest.medians(),
            "deviations": contest.deviations(),
            "wire_bytes": mean_over_ranks(comm, sent),
            "speed_against": {
                name: {other: contest.speed_against(name, other) for other in others if other in turns}
                for name, others in RIVALS.items()
            },
            "load_average": [before, os.getloadavg()[0]],
            "machine": {"cpu": cpu_name(), "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")},
            "versions": {"minigrad": minigrad.__version__},
        }
        if dist is not None:
            import torch

            report["versions"]["torch"] = torch.__version__
            comm.barrier()
            dist.destroy_process_group()
        if comm.rank == 0:
            args.worker.write_text(json.dumps(report, indent=1) + "\n")


def show(report: dict[str, Any]) -> None:
    """Print the report as a table."""
    m, load = report["model"], report["load_average"]
    print(
        f"{report['ranks']} ranks with one thread each, {report['machine']['cpu']}, "
        f"load average {load[0]:.1f} to {load[1]:.1f}\n"
        f"GPT of {report['parameters']:,} parameters, {m['batch_size']} x {m['block_size']} tokens a rank"
    )
    print(f"{'step, ms':>30}{'median':>10}{'MAD':>8}")
    for name, ms in report["milliseconds"].items():
        against = ", ".join(f"{r:.2f} of {other}'s" for other, r in report["speed_against"].get(name, {}).items())
        print(f"{name:>30}{ms:10.1f}{report['deviations'][name]:8.1f}" + (f"   speed {against}" if against else ""))


def main() -> None:
    """Parse the flags, start the ranks, print the report."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    if args.worker is not None:
        work(args)
        return
    finish(launched(__file__, args.ranks, flags_of(args)), args.json, show)


if __name__ == "__main__":
    main()
