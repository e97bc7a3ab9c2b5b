"""How long a save holds up training: all in the step, or only a copy, and the files beside the next steps.

    python benchmarks/checkpoint_stall.py
    python benchmarks/checkpoint_stall.py --ranks 2 --width 1024 --layers 12 --rounds 9 --json results.json

Ranks train a GPT-2 in a stage of ShardedTrainer, one thread each. Ways to save take turns, so that whatever else the
machine does meets all of them; what counts are ratios. A turn is a save and the steps after it. "stall" is how long the
call of the save takes, on the slower rank. "slower" is what the steps after it take longer than those without a save:
the writing needs a core, too.

    whole     save_distributed_checkpoint: states and weights are gathered, rank 0 writes all
    shares    save_sharded_checkpoint: each rank writes its share, and the step waits
    beside    AsyncCheckpointer.save_sharded: the step waits for the copy
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from turns import cpu_name

import minigrad
from minigrad.distributed import (
    AsyncCheckpointer,
    Communicator,
    ShardedTrainer,
    init_process_group,
    mean_over_ranks,
    save_distributed_checkpoint,
    save_sharded_checkpoint,
)
from minigrad.distributed.comm.communicator import all_gather_json
from minigrad.models import GPT2, GPT2Config


def main() -> int:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12, help="after each save")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", default=None, help="where checkpoints go (default: a temporary folder)")
    parser.add_argument("--json", default=None, metavar="FILE")
    options = parser.parse_args()
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        launch = [
            sys.executable,
            "-m",
            "minigrad.distributed.launch",
            "-n",
            str(options.ranks),
            "--threads-per-rank",
            "1",
        ]
        return subprocess.run([*launch, *sys.argv]).returncode
    with init_process_group() as comm, tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(all_gather_json(comm, scratch)[0])
        report = measure(comm, options, folder)
        if comm.rank == 0:
            print(json.dumps(report, indent=1))
            if options.json:
                Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
        comm.barrier()
    return 0


def measure(comm: Communicator, options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Medians over the rounds, in milliseconds."""
    minigrad.manual_seed(1)
    model = GPT2(GPT2Config(1024, 64, options.layers, options.width // 64, options.width))
    trainer = ShardedTrainer(None, comm, stage=options.stage)
    trainer.broadcast_params(model.named_parameters())
    trainer.shard(model)
    tokens = minigrad.from_numpy(np.random.default_rng(comm.rank).integers(0, 1024, (1, 64)))

    def steps() -> float:
        began = time.perf_counter()
        for _ in range(options.steps):
            trainer.backward_and_step(model.loss(tokens, tokens), model.named_parameters())
        comm.barrier()
        return time.perf_counter() - began

    checkpoints = AsyncCheckpointer()

    def whole() -> None:
        arrays, meta = trainer.state_dict(model.named_parameters())
        trainer.gather_full_params()
        state = {"step": trainer.global_step, "trainer": meta}
        weights = {name: x.numpy() for name, x in model.state_dict().items()}
        save_distributed_checkpoint(comm, folder, {"model": weights, "trainer": arrays}, state)
        trainer.release_params()

    ways: dict[str, Callable[[], object]] = {
        "none": lambda: None,
        "whole": whole,
        "shares": lambda: save_sharded_checkpoint(folder, model, trainer, {"step": trainer.global_step}),
        "beside": lambda: checkpoints.save_sharded(folder, model, trainer, {"step": trainer.global_step}),
    }
    stalls: dict[str, list[float]] = {name: [] for name in ways}
    after: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, options.rounds):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            comm.barrier()
            began = time.perf_counter()
            ways[name]()
            stall = max(all_gather_json(comm, time.perf_counter() - began))
            seconds = steps()
            checkpoints.wait()
            if number >= 0:
                stalls[name].append(1e3 * stall)
                after[name].append(1e3 * seconds)
    checkpoints.close()
    size = sum(file.stat().st_size for file in max(folder.glob("step-*")).iterdir())
    stall = {name: statistics.median(stalls[name]) for name in ways}
    slower = {name: statistics.median(b - a for a, b in zip(after["none"], after[name])) for name in ways}
    return {
        "machine": f"{cpu_name()}, {os.cpu_count()} cores",
        "ranks": comm.world_size,
        "stage": options.stage,
        "steps": options.steps,
        "rounds": options.rounds,
        "parameters": model.num_parameters(),
        "megabytes": round(size / 1e6, 1),
        "step_ms": statistics.median(after["none"]) / options.steps,
        "stall_ms": mean_over_ranks(comm, stall),
        "slower_ms": mean_over_ranks(comm, slower),
        "stall_share": {
            other: statistics.median(a / b for a, b in zip(stalls["beside"], stalls[other]))
            for other in ("whole", "shares")
        },
    }


if __name__ == "__main__":
    sys.exit(main())
