"""Compare predictions of ``minigrad.distributed.plan`` with steps on 2 and 4 CPU ranks of this machine.

    python benchmarks/plan_cpu.py --json benchmarks/results/plan_cpu.json

Large products, copies in memory, an all-reduce of 25 MB and some of 4 KB take turns, on all ranks at once, with steps
of a GPT-2: replicas in each stage of ZeRO, two stages of a pipeline, and split layers. From the rates of the former
alone the latter are predicted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ddp_cpu import Contest, flags_of, launched, parser_of
from train_step_contenders import PRESETS, Preset, minigrad_gpt
from turns import cpu_name

import minigrad
from minigrad import Tensor, nn
from minigrad.distributed import (
    BucketedTrainer,
    ColumnParallelLinear,
    Communicator,
    CommunicatorGroup,
    LossKind,
    OptimizerKind,
    PipelineParallelTrainer,
    RowParallelLinear,
    ShardedTrainer,
    TensorParallelTrainer,
    TrainerConfig,
    TrainingConfig,
    init_process_group,
)
from minigrad.distributed.parallel.plan import Choice, Job, Machine, predict
from minigrad.models import GPT2Config
from minigrad.nn import functional as F

MICRO_BATCHES = 4  # of the pipeline
ROWS, COPIED, REDUCED, SMALL = 2048, 2**26, 25 * 2**20, 2**12  # of what is timed to know the machine
# Turns last about as long as steps: where other programs run, who has slept gets the core first, and short turns win.
TIMES = {"products": 8, "copies": 10, "all-reduce": 10, "messages": 200}


def rate_turns(comm: Communicator, preset: Preset) -> dict[str, Callable[[], object]]:
    """What is timed to know the machine, on all ranks at once, each some milliseconds long."""
    C = preset.n_embd
    x, w = minigrad.randn(ROWS, C), minigrad.randn(4 * C, C)
    source, target = np.ones(COPIED // 4, np.float32), np.ones(COPIED // 4, np.float32)
    large, small = minigrad.zeros(REDUCED // 4), minigrad.zeros(SMALL // 4)
    once: dict[str, Callable[[], object]] = {
        "products": minigrad.no_grad()(lambda: F.linear(x, w)),
        "copies": lambda: np.copyto(target, source),
        "all-reduce": lambda: comm.all_reduce(large),
        "messages": lambda: comm.all_reduce(small),
    }
    return {name: lambda name=name: [once[name]() for _ in range(TIMES[name])] for name in once}  # type: ignore[misc]


def machine_of(milliseconds: dict[str, float], ranks: int, preset: Preset) -> Machine:
    """The rates of these times: bytes read and written count for copies, bytes sent for the all-reduce."""
    seconds = {name: milliseconds[name] / 1e3 / times for name, times in TIMES.items()}
    near = 2 * (ranks - 1) / ranks * REDUCED / seconds["all-reduce"]
    return Machine(
        flops=2 * ROWS * 4 * preset.n_embd**2 / seconds["products"],
        memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks),
        bandwidth=2 * COPIED / seconds["copies"],
        near=near,
        far=near,
        node=ranks,
        latency=seconds["messages"] / (2 * (ranks - 1).bit_length()),
        overlap=0.0,  # what communicates takes its time from a core that computes
    )


# ---------------------------------------------------------------------- models in parts


class First(nn.Module):
    """Embeddings and some blocks of a GPT-2."""

    def __init__(self, model: Any, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.wte, self.wpe, self.h = model.wte, model.wpe, nn.ModuleList(blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(minigrad.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return x


class Last(nn.Module):
    """Other blocks, the last norm and a head."""

    def __init__(self, model: Any, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.h, self.ln_f = nn.ModuleList(blocks), model.ln_f
        self.head = nn.Linear(model.wte.weight.shape[1], model.wte.weight.shape[0], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


class SplitBlock(nn.Module):
    """A block whose layers are split over the ranks."""

    def __init__(self, preset: Preset, comm: Communicator) -> None:
        super().__init__()
        C, self.heads = preset.n_embd, preset.n_head // comm.world_size
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv = ColumnParallelLinear(C, 3 * C, comm, gather_output=False)
        self.proj = RowParallelLinear(C, C, comm, input_is_parallel=True)
        self.fc = ColumnParallelLinear(C, 4 * C, comm, gather_output=False)
        self.out = RowParallelLinear(4 * C, C, comm, input_is_parallel=True)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, -1))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


# ---------------------------------------------------------------------- steps

Case = tuple[Choice, int, Callable[[], object]]  # the choice, the sequences of all ranks, a step


def replicas(comm: Communicator, preset: Preset, stage: int) -> Case:
    """Each rank has the model, or shares its states."""
    tokens, targets = (minigrad.from_numpy(array) for array in preset.batch())
    model, config = minigrad_gpt(preset), TrainingConfig(max_grad_norm=None)
    trainer = ShardedTrainer(config, comm, stage=stage) if stage else BucketedTrainer(config, comm)
    if isinstance(trainer, ShardedTrainer):
        trainer.shard(model)
    batch = comm.world_size * preset.batch_size

    def step() -> None:
        trainer.backward_and_step(model.loss(tokens, targets), model.named_parameters())

    return Choice(comm.world_size, stage=stage, micro_batch=preset.batch_size), batch, step


def parts(comm: Communicator, preset: Preset, along: str) -> Case:
    """Two ranks have a model, as stages or split layers; with four there are two of them."""
    minigrad.manual_seed(0)  # weights that are not split are the same
    group = CommunicatorGroup(comm, data=comm.world_size // 2, **{along: 2})
    model, half = minigrad_gpt(preset), preset.n_layer // 2
    config = TrainerConfig(preset.batch_size, None, OptimizerKind.adamw(1e-3), LossKind.cross_entropy())
    count = MICRO_BATCHES if along == "pipeline" else 1
    batch = tuple(np.concatenate([array] * count) for array in preset.batch())
    trainer: PipelineParallelTrainer | TensorParallelTrainer
    if along == "pipeline":
        blocks = list(model.h)
        stage = Last(model, blocks[half:]) if group.pipeline.rank else First(model, blocks[:half])
        trainer = PipelineParallelTrainer(config, stage, group)
    else:
        blocks = [SplitBlock(preset, group.tensor) for _ in range(preset.n_layer)]
        trainer = TensorParallelTrainer(config, nn.Sequential(First(model, blocks), Last(model, [])), group)
    choice = Choice(group.data.world_size, micro_batch=preset.batch_size, **{along: 2})
    return choice, group.data.world_size * len(batch[0]), lambda: trainer.step(batch)


def work(args: argparse.Namespace) -> None:
    """One rank: measure the rates, then the steps; rank 0 writes both."""
    preset = dataclasses.replace(PRESETS[args.preset], batch_size=args.sequences)
    config = GPT2Config(preset.vocab_size, preset.block_size, preset.n_layer, preset.n_head, preset.n_embd)
    with init_process_group() as comm:
        cases = {f"stage {stage}": replicas(comm, preset, stage) for stage in range(4)}
        cases |= {along: parts(comm, preset, along) for along in ("pipeline", "tensor")}
        turns = rate_turns(comm, preset) | {name: step for name, (_, _, step) in cases.items()}
        contest = Contest(comm, turns, repeats=1)
        contest.play(args.rounds)
        milliseconds = contest.medians()
        machine = machine_of(milliseconds, comm.world_size, preset)
        steps = {}
        for name, (choice, batch, _) in cases.items():
            seconds = predict(Job(config, batch, "float32"), machine, choice).seconds
            facts = {"choice": dataclasses.asdict(choice), "batch": batch}
            steps[name] = {**facts, "measured": milliseconds[name] / 1e3, "predicted": seconds}
        if comm.rank == 0:
            report = {"ranks": comm.world_size, "machine": dataclasses.asdict(machine), "steps": steps}
            args.worker.write_text(json.dumps(report))


def main() -> None:
    """Parse the flags, start the ranks, print the comparison."""
    parser = parser_of(__doc__)
    args = parser.parse_args()
    if args.worker is not None:
        work(args)
        return
    report: dict[str, Any] = {
        "model": dataclasses.asdict(dataclasses.replace(PRESETS[args.preset], batch_size=args.sequences)),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d")},
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "runs": [],
    }
    for ranks in (2, 4):
        run = launched(__file__, ranks, flags_of(args))
        report["runs"].append(run)
        rates = ", ".join(f"{name} {value:.3g}" for name, value in run["machine"].items())
        print(f"\n{ranks} ranks: {rates}\n{'step, ms':>12}{'measured':>10}{'predicted':>11}{'ratio':>7}")
        for name, step in run["steps"].items():
            a, b = step["measured"], step["predicted"]
            print(f"{name:>12}{1e3 * a:10.1f}{1e3 * b:11.1f}{b / a:7.2f}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
