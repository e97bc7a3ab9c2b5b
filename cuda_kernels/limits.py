"""What a device was measured to reach, and a launch's speed in per cent of it, for ``MINIGRAD_DEBUG=2``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import memory

if TYPE_CHECKING:
    from .launch import Kernel

COPIED = 1 << 28  # bytes that the measuring copy reads, and writes


def describe(kernel: Kernel, grid: tuple[int, int, int], args: tuple[Any, ...], seconds: float) -> str:
    """One line: kernel, grid, microseconds, TFLOP/s if it states its operations, else GB/s and per cent of a copy's."""
    nbytes, flops = kernel.work(args)
    speed = f"{flops / seconds * 1e-12:.2f} TFLOP/s, " if flops else ""
    rate = nbytes / seconds
    limit = copy_bandwidth(memory.current_device())
    return (
        f"{kernel.name} grid {grid} {seconds * 1e6:.1f} us, {speed}{rate * 1e-9:.1f} GB/s, "
        f"{100 * rate / limit:.0f} % of this card's copy"
    )


@functools.cache
def copy_bandwidth(device: int) -> float:
    """Bytes per second, read and written, of the driver's own copy within the device; measured once."""
    import cupy

    with memory.on_device(device):
        source, target = memory.allocate(COPIED, device), memory.allocate(COPIED, device)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        best = float("inf")
        for _ in range(5):
            start.record()
            memory.copy_across(target.pointer, source.pointer, COPIED)
            end.record()
            end.synchronize()
            best = min(best, cupy.cuda.get_elapsed_time(start, end) * 1e-3)
    return 2 * COPIED / best
