"""Whether what is about to be made fits into the memory there is: asked before anything is made."""

import contextlib
import os
from pathlib import Path
from typing import Any

from .. import cuda
from ..device import CPU, Device
from ..errors import bad_value

resource: Any = None
with contextlib.suppress(ImportError):  # Windows has none
    import resource

BLOCK = 16_000  # bytes of Python's objects for a block of a model, at least
BLOCK_SECONDS = 0.003  # to make them, about


def free_memory(device: Device = CPU) -> int | None:
    """Bytes that a program can have: of the GPU, or of the machine, or of the container; None where nobody tells."""
    if device.type == "cuda":
        return cuda.mem_get_info(device)[0]
    found = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
        group = Path("/sys/fs/cgroup")
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
        used = int((group / "memory.current").read_text()) - int(cached)
        found.append(int((group / "memory.max").read_text()) - used)
    except (OSError, KeyError, ValueError):  # not Linux, or no limit ("max")
        if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if resource is not None and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        pages = Path("/proc/self/statm")
        found.append(limit - (int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0))
    return min(found, default=None)


def check_model_fits(config: Any, bytes_each: int, device: Device = CPU, ranks: int = 1, tokens: int = 0) -> str:
    """The least memory, in words, of a language model with so many bytes a number: of the embedding's matrix, and those
    that each layer has at least, on each of the ranks that share it. ValueError where that is more than is free.

    ``tokens`` are those of a micro-batch. For each, every layer keeps its input in float32, and without
    ``checkpoint_blocks`` four times that at least.

    What a file or a flag claims may be any integer: this takes no longer for a large one.
    """
    layer = 2 * config.head_size * (config.n_head + config.n_kv_head) + 2 * (config.n_inner or 4 * config.n_embd)
    least = config.n_embd * (config.vocab_size + config.n_layer * layer)
    kept = tokens * config.n_layer * config.n_embd * (4 if config.checkpoint_blocks else 16)
    free, needed = free_memory(device), ranks * (least * bytes_each + config.n_layer * BLOCK + kept)
    on = device if ranks == 1 else f"{device} for {ranks} ranks"
    with_batch = f" with {tokens} tokens a micro-batch" if tokens else ""
    if free is not None and needed > free:
        size = f"at least {_billions(least)} billion parameters and need {in_words(needed)} of memory{with_batch}"
        model = f"{config.n_layer} layers of {config.n_embd} channels"
        raise bad_value(f"{model} have {size}, of which {in_words(free)} are free on {on}")
    return in_words(needed)


def in_words(count: int) -> str:
    """Bytes as people say them."""
    return f"{_billions(count)} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def _billions(count: int) -> str:
    return f"{min(count, 10**300) / 1e9:{',.1f' if count < 10**21 else '.0e'}}"
