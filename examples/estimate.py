"""What a training run will need, before it begins: memory and time, from its sizes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence

import numpy as np
from char_run import Settings
from command_line import UsageError

import minigrad
from minigrad.device import CPU, Device
from minigrad.dtypes import is_half
from minigrad.models import GPT2Config, gpt2_memory
from minigrad.tools.free_memory import BLOCK_SECONDS, free_memory, in_words

PROCESS = 300 << 20  # bytes of Python, the libraries and the kernels
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

    def needed(n: int) -> int:
        return ranks * step_bytes(settings, vocab_size, n, device)

    check(settings, needed, settings.batch_size, device, advice, world_size)
    if (seconds := settings.n_layer * BLOCK_SECONDS) > 3:
        print(f"making {settings.n_layer:,} layers takes about {duration(seconds)}")


def announced(config: GPT2Config, parameters: int, batch_size: int, steps: int, device: Device = CPU) -> str:
    """The memory and the time of a training, in words; UsageError if it does not fit into the free memory.

    ``config`` has the sizes of the transformer, whatever its parts are.
    """

    def needed(n: int) -> int:
        return PROCESS + gpt2_memory(config, n).peak

    check(config, needed, batch_size, device, [])
    flops = steps * batch_size * config.block_size * flops_per_token(config, parameters)
    at_best = f", {duration(flops / cpu_flops())} at best" if device.type == "cpu" else ""
    return f"about {in_words(needed(batch_size))} of memory{at_best}"


def announced_mlp(widths: Sequence[int], rows: int, steps: int, data: int = 0, asleep: float = 0.0) -> str:
    """The same of linear layers between ``widths`` numbers, for steps of ``rows`` rows out of ``data`` (0: those) by
    AdamW, that also sleep for some seconds. A row has a product, an activation and a gradient of each
    width, and the data need 40 bytes a row."""
    weights = sum((a + 1) * b for a, b in itertools.pairwise(widths))
    needed = PROCESS + 16 * weights + 12 * rows * sum(widths) + 40 * max(rows, data)
    free = free_memory(CPU)
    if free is not None and needed > free:
        raise UsageError(
            f"{weights:,} parameters and {max(rows, data):,} rows need about {in_words(needed)} of memory, and "
            f"{in_words(free)} are free on cpu; take narrower layers or fewer rows"
        )
    seconds = 6 * weights * rows * steps / cpu_flops() + asleep
    return f"{weights:,} parameters; about {in_words(needed)} of memory, {duration(seconds)} at best"


def check(
    sizes: Settings | GPT2Config, needed: Callable[[int], int], batch_size: int, device: Device, advice: list[str],
    parts: int = 1,
) -> None:  # fmt: skip
    """Raise UsageError if a step does not fit, with a batch that does; ``needed`` says the bytes of a part of it."""
    free = free_memory(device)
    if free is None or needed(batch_size // parts) <= free:
        return
    smaller = [n for n in (2**k for k in range(20, -1, -1)) if n * parts < batch_size]
    fits = next((n for n in smaller if needed(n) <= free), None)
    advice = [*([] if fits is None else [f"--batch-size {fits * parts} fits"]), *advice]
    raise UsageError(
        f"a step of {sizes.n_layer} layers, {sizes.n_embd} channels and {batch_size} sequences of "
        f"{sizes.block_size} needs about {in_words(needed(batch_size // parts))} of memory, and {in_words(free)} are "
        f"free on {device}; " + ("; ".join(advice) or "take fewer layers, channels or tokens")
    )


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


def seconds_at_least(settings: Settings, parameters: int) -> float:
    """The time of the steps' products on this CPU, at the speed of a large product."""
    tokens = settings.steps * settings.grad_accum * settings.batch_size * settings.block_size
    return tokens * flops_per_token(settings, parameters) / cpu_flops()


def cpu_flops() -> float:
    """Operations a second of products of NumPy's on all threads: the best of some that are small enough for one thread,
    as several would wait for each other where another program has the cores; and no kernel is compiled."""
    x = np.ones((96, 96), np.float32)
    best, end = float("inf"), time.perf_counter() + 0.1
    while time.perf_counter() < end:
        before = time.perf_counter()
        x @ x
        best = min(best, time.perf_counter() - before)
    return 2 * len(x) ** 3 / best * minigrad.get_num_threads()


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"
