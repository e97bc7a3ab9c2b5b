"""What a training run will need, before it begins: memory and time, from its sizes."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from char_run import Settings
from command_line import UsageError, flag

import minigrad
from minigrad.device import CPU, Device
from minigrad.dtypes import is_half
from minigrad.models import GPT2Config, gpt2_memory
from minigrad.tools.free_memory import BLOCK_SECONDS, free_memory, in_words

Widths = tuple[Sequence[int], int, int]  # of the layers; the rows of a step, and of all data
PROCESS = 300 << 20  # bytes of Python, the libraries and the kernels
LAYER = 1e-4  # seconds of the host for a linear layer in a step, forward, backward and update; a block has four
SAVING = 7  # times the weights, while a checkpoint is written: copies of weights and moments, and of the files


def check_memory(settings: Settings, vocab_size: int, device: Device, world_size: int = 1) -> None:
    """Raise UsageError for a step that does not fit into the free memory, with a micro-batch that does.

    A Llama counts as the GPT-2 of its sizes. Says so where it will take long to make a model that fits.
    """
    world_size = 1 if settings.reproducible else world_size  # which does not part micro-batches
    ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1)) if device.type == "cpu" else 1  # that share the memory
    advice = ["--preset tiny is for trying it"] if getattr(settings, "preset", "tiny") != "tiny" else []
    if device.type == "cpu" and settings.family == "gpt2":
        advice.append("--device cuda trains on a GPU")

    def needed(batch_size: int, **sizes: int) -> int:
        smaller = dataclasses.replace(settings, **sizes)
        if sizes and smaller.n_embd % smaller.n_head:
            return sys.maxsize
        return ranks * step_bytes(smaller, vocab_size, -(-batch_size // world_size), device)

    check(settings, needed, ("batch_size", "block_size", "n_layer", "n_embd"), settings.batch_size, device, advice)
    if (seconds := settings.n_layer * BLOCK_SECONDS) > 3:
        print(f"making {settings.n_layer:,} layers takes about {duration(seconds)}")


def announced(
    config: GPT2Config, parameters: int, batch_size: int, steps: int, device: Device = CPU, sizes: Sequence[str] = ()
) -> str:
    """The memory and the time of a training, in words; UsageError if it does not fit into the free memory.

    ``config`` has the sizes of the transformer, whatever its parts are; ``sizes`` are those that flags can change.
    """

    def needed(batch_size: int, **smaller: int) -> int:
        return PROCESS + gpt2_memory(dataclasses.replace(config, **smaller), batch_size).peak

    check(config, needed, ("batch_size", *sizes), batch_size, device, [])
    flops = steps * batch_size * config.block_size * flops_per_token(config, parameters)
    time_needed = f", {at_most(flops, 4 * config.n_layer * steps)}" if device.type == "cpu" else ""
    return f"about {in_words(needed(batch_size))} of memory{time_needed}"


def announced_mlp(sizes: Callable[..., Widths], flags: dict[str, int], steps: int, asleep: float = 0.0) -> str:
    """The same of linear layers, for steps by AdamW that also sleep for some seconds. ``sizes(**flags)`` are the widths
    of the layers, the rows of a step, and those of all data. A row has a product, an activation and a gradient of each
    width, and the data need 40 bytes a row."""

    def parameters(widths: Sequence[int]) -> int:
        return sum((a + 1) * b for a, b in itertools.pairwise(widths))

    def needed(**flags: int) -> int:
        widths, rows, data = sizes(**flags)
        return PROCESS + 16 * parameters(widths) + 12 * rows * sum(widths) + 40 * data

    widths, rows, data = sizes(**flags)
    weights, free = parameters(widths), free_memory(CPU)
    if free is not None and needed(**flags) > free:
        raise UsageError(
            f"{weights:,} parameters and {data:,} rows need about {in_words(needed(**flags))} of memory, and "
            f"{in_words(free)} are free on cpu; {fitting(needed, flags, free) or 'there is no smaller one'}"
        )
    time_needed = at_most(6 * weights * rows * steps, (len(widths) - 1) * steps, asleep)
    return f"{weights:,} parameters; about {in_words(needed(**flags))} of memory, {time_needed}"


def check(
    sizes: Any, needed: Callable[..., int], names: Sequence[str], batch_size: int, device: Device, advice: list[str]
) -> None:
    """Raise UsageError if a step does not fit, with flags that do; ``needed`` says its bytes, and ``names`` are of
    sizes that flags can change."""
    free, flags = free_memory(device), {"batch_size": batch_size}
    if free is None or needed(**flags) <= free:
        return
    flags |= {name: getattr(sizes, name) for name in names if name not in flags}
    advice = [fits for fits in [fitting(needed, flags, free)] if fits] + advice
    raise UsageError(
        f"a step of {sizes.n_layer} layers, {sizes.n_embd} channels and {batch_size} sequences of "
        f"{sizes.block_size} needs about {in_words(needed(batch_size))} of memory, and {in_words(free)} are "
        f"free on {device}; " + ("; ".join(advice) or "take a smaller model")
    )


def fitting(needed: Callable[..., int], flags: dict[str, int], free: int) -> str:
    """A flag with the largest power of two that fits, or all of them, halved until they do; "" where nothing fits."""
    for name, value in flags.items():
        powers = (2**k for k in range(value.bit_length() - 1, -1, -1) if 2**k < value)
        if (fits := next((n for n in powers if needed(**{**flags, name: n}) <= free), None)) is not None:
            return f"{flag(name)} {fits} fits"
    for k in range(1, max(flags.values()).bit_length()):
        smaller = {name: max(1, value >> k) for name, value in flags.items()}
        if needed(**smaller) <= free:
            return " ".join(f"{flag(name)} {value}" for name, value in smaller.items()) + " fit"
    return ""


def at_most(flops: float, layers: int, asleep: float = 0.0) -> str:
    """How long steps take, in words: four times the time of their products and of the host for that many linear layers,
    for the other operations, validation and samples. Large products are faster than those that are measured here, so
    it is often a quarter of that; beside other programs it is more."""
    seconds = 4 * (flops / cpu_flops() + layers * LAYER) + asleep
    return "some seconds" if seconds < 5 else f"at most about {duration(seconds)} on a free CPU, often a quarter"


def step_bytes(settings: Settings, vocab_size: int, batch_size: int, device: Device = CPU) -> int:
    """The peak of a training step of ``batch_size`` sequences, and of saving beside it, about."""
    sizes = (settings.block_size, settings.n_layer, settings.n_head, settings.n_embd)
    config = GPT2Config(vocab_size, *sizes, checkpoint_blocks=getattr(settings, "checkpoint_blocks", False))
    dtype = getattr(minigrad, getattr(settings, "dtype", "float32"))
    if device.type == "cuda":
        return PROCESS + gpt2_memory(config, max(1, batch_size), dtype=dtype).peak
    whole = gpt2_memory(config, max(1, batch_size))  # a CPU computes in float32; a captured step holds halves beside it
    return PROCESS + whole.peak * (2 if is_half(dtype) else 1) + SAVING * whole.weights


def flops_per_token(settings: Settings | GPT2Config, parameters: int) -> int:
    """Operations of a training step, for each token: 6 N + 12 L T C (Chowdhery et al., "PaLM", 2022, appendix B).

    N counts the weights that are multiplied with: all but the position embedding, which is only added (the token
    embedding is the head). Each is one multiplication and one addition forward, and twice that backward. Scores and
    sums of attention are 2 T C each forward, and twice that backward, in each of L layers. What causal attention leaves
    out is counted, and what is computed twice with --checkpoint-blocks is not.
    """
    weights = parameters - settings.block_size * settings.n_embd
    return 6 * weights + 12 * settings.n_layer * settings.block_size * settings.n_embd


def time_of(settings: Settings, parameters: int) -> str:
    """How long the run's steps take on this CPU; half dtypes, which it computes in float32, take twice as long."""
    batches, dtype = settings.steps * settings.grad_accum, getattr(minigrad, getattr(settings, "dtype", "float32"))
    flops = batches * settings.batch_size * settings.block_size * flops_per_token(settings, parameters)
    return at_most(flops * (2 if is_half(dtype) else 1), 4 * settings.n_layer * batches)


def cpu_flops() -> float:
    """Operations a second of NumPy's products on all threads: of some that one thread computes, as several would wait
    for each other where another program has the cores; and no kernel is compiled."""
    x = np.ones((16, 64, 64), np.float32)
    count, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < 0.1:
        x @ x
        count += 1
    return 2 * x.size * x.shape[-1] * count / seconds * minigrad.get_num_threads()


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"
