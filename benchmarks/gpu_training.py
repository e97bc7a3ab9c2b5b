"""Training steps of a GPT-2 124M for ``gpu_report.py``: this library and PyTorch, in float32 and in bfloat16."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import gpu_timing
from train_step_contenders import (
    BETAS,
    LR,
    MAX_NORM,
    WEIGHT_DECAY,
    Minigrad,
    Preset,
    Step,
    TorchAutocast,
    TorchEager,
    minigrad_gpt,
)

from minigrad import cuda as devices
from minigrad.cuda_kernels.platform import memory

Result = dict[str, Any]

GPT2_124M = Preset(n_layer=12, n_head=12, n_embd=768, block_size=1024, batch_size=64, vocab_size=50304)
GOALS = {"tokens_per_second": 250_000, "next": 400_000, "llm.c on an H100": 468_000}


class MinigradAutocast(Minigrad):
    """This library, within autocast to bfloat16."""

    captured = False  # as a CUDA graph

    @classmethod
    def build(cls, preset: Preset, threads: int, device: str = "cpu") -> tuple[str, Step]:  # type: ignore[override]
        """The version, and a function that makes one step and returns its loss."""
        import minigrad
        from minigrad.distributed import SimpleTrainer, TrainingConfig
        from minigrad.optim import AdamW, decay_groups

        model = minigrad_gpt(preset).to(device)
        optimizer = AdamW(decay_groups(model.named_parameters(), WEIGHT_DECAY), lr=LR, betas=BETAS)
        trainer = SimpleTrainer.with_optimizer(TrainingConfig(max_grad_norm=MAX_NORM), optimizer)
        tokens, targets = (minigrad.from_numpy(array).to(device) for array in preset.batch())

        def loss_of(x: Any, y: Any) -> Any:
            with minigrad.autocast(device, minigrad.bfloat16):
                return model.loss(x, y)

        def step() -> float:
            loss = loss_of(tokens, targets)
            metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item())
            assert metrics is not None
            return metrics.loss

        if not cls.captured:
            return minigrad.__version__, step
        graph = trainer.capture(loss_of, model.named_parameters())

        def launch() -> float:
            metrics = graph(tokens, targets).result()
            assert metrics is not None
            return metrics.loss

        return minigrad.__version__, launch


class MinigradGraph(MinigradAutocast):
    """The same, the whole step as one CUDA graph."""

    captured = True


class TorchCompiledAutocast(TorchAutocast):
    """PyTorch's torch.compile, within autocast to bfloat16."""

    compiled = True


# Names in the report: the contender, the limit that it is held against, and its goals.
CONTENDERS: dict[str, tuple[Any, str, Result]] = {
    "GPT-2 124M bf16": (MinigradAutocast, "matrix rate bfloat16", GOALS),
    "GPT-2 124M bf16, CUDA graph": (MinigradGraph, "matrix rate bfloat16", GOALS),
    "GPT-2 124M bf16, PyTorch eager": (TorchAutocast, "matrix rate bfloat16", {}),
    "GPT-2 124M bf16, torch.compile": (TorchCompiledAutocast, "matrix rate bfloat16", {}),
    "GPT-2 124M": (Minigrad, "matrix rate", {}),
    "GPT-2 124M, PyTorch eager": (TorchEager, "matrix rate", {}),
}


def flops(preset: Preset) -> int:
    """Of a step: 6 for each weight and token, and 6 C T for each layer and token (causal attention)."""
    C, T, layers = preset.n_embd, preset.block_size, preset.n_layer
    weights = (preset.vocab_size + T) * C + layers * (12 * C * C + 13 * C) + 2 * C
    return preset.tokens * (6 * weights + 6 * layers * C * T)


def train(name: str, preset: Preset, count: int, free: Callable[[], None]) -> Iterator[Result]:
    """Steps of GPT-2 with the largest batch that fits, of 64, 32, 16, ... sequences."""
    contender, rate, goals = CONTENDERS[name]
    out_of_memory: Any = memory.OutOfMemoryError
    device_of: Any = devices
    if issubclass(contender, TorchEager):
        torch = gpu_timing.torch_with_cuda()
        if torch is None:
            yield {"skipped": "PyTorch with CUDA is not installed"}
            return
        out_of_memory, device_of = torch.OutOfMemoryError, torch.cuda
    while (found := _steps(preset, count, contender, out_of_memory, device_of)) is None:
        free()
        if preset.batch_size == 1:
            raise RuntimeError("a batch of one sequence does not fit into the memory")
        preset = dataclasses.replace(preset, batch_size=preset.batch_size // 2)
    seconds, losses, version = found
    rate_of_tokens = preset.tokens / seconds
    yield {
        "batch": f"{preset.batch_size} x {preset.block_size}",
        "ms": 1e3 * seconds,
        "flops": flops(preset),
        "rate": rate,
        "tokens_per_second": rate_of_tokens,
        "peak_gib": device_of.max_memory_allocated() / 2**30,
        "losses": losses,
        "version": version,
    }
    if goals:
        yield {"goals": goals, "met": rate_of_tokens >= goals["tokens_per_second"]}


def _steps(preset: Preset, count: int, contender: Any, out_of_memory: type[Exception], device_of: Any) -> Any:
    """(median seconds of a step, losses, version), None if the memory does not suffice."""
    device_of.reset_peak_memory_stats()
    try:
        version, step = contender.build(preset, os.cpu_count() or 1, "cuda")
        losses = [step() for _ in range(count)]
        times = []
        for _ in range(count):
            device_of.synchronize()
            started = time.perf_counter()
            losses.append(step())
            device_of.synchronize()
            times.append(time.perf_counter() - started)
    except out_of_memory:
        return None
    return statistics.median(times), losses, version
