"""What a device was measured to reach, and a launch's speed in per cent of it, for ``MINIGRAD_DEBUG=2``."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from . import memory
from .array import empty
from .language import cuda, cupy

COPIED = 1 << 28  # bytes that the measuring copy reads, and writes
RATE_BLOCKS, RATE_TURNS = 4096, 2048  # of the measuring multiply-adds: 34 billion


def multiply_adds(y: Any, n: Any, x: Any) -> None:
    """Sixteen independent sums in registers, so that only the multiply-adds cost time."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = x
    r0 = r1 = r2 = r3 = r4 = r5 = r6 = r7 = -x
    for _ in range(n):
        s0, s1, s2, s3 = s0 * x + x, s1 * x + x, s2 * x + x, s3 * x + x
        s4, s5, s6, s7 = s4 * x + s0, s5 * x + s1, s6 * x + s2, s7 * x + s3
        r0, r1, r2, r3 = r0 * x + x, r1 * x + x, r2 * x + x, r3 * x + x
        r4, r5, r6, r7 = r4 * x + r0, r5 * x + r1, r6 * x + r2, r7 * x + r3
    total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + r0 + r1 + r2 + r3 + r4 + r5 + r6 + r7
    y[cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x] = total


def compared(nbytes: int, flops: int, seconds: float, launch: Callable[..., None]) -> str:
    """GB/s in per cent of a copy's, or TFLOP/s in per cent of multiply-adds; ``launch`` starts ``multiply_adds``.

    Multiply-adds are those of float32 in registers, so tensor cores reach more than 100 per cent of them.
    """
    device = memory.current_device()
    moved = f"{nbytes / seconds * 1e-9:.1f} GB/s"
    if flops:
        share = 100 * flops / seconds / multiply_add_rate(device, launch)
        return f"{flops / seconds * 1e-12:.2f} TFLOP/s, {share:.0f} % of this card's float32 rate, {moved}"
    return f"{moved}, {100 * nbytes / seconds / copy_bandwidth(device):.0f} % of this card's copy"


@functools.cache
def copy_bandwidth(device: int) -> float:
    """Bytes per second, read and written, of the driver's own copy within the device; measured once."""
    with memory.on_device(device):
        source, target = memory.allocate(COPIED, device), memory.allocate(COPIED, device)
        return 2 * COPIED / _seconds(lambda: memory.copy_across(target.pointer, source.pointer, COPIED))


@functools.cache
def multiply_add_rate(device: int, launch: Callable[..., None]) -> float:
    """Operations per second of float32 multiply-adds in registers, each counted twice; measured once."""
    with memory.on_device(device):
        y = empty(256 * RATE_BLOCKS, np.float32)
        return 32 * RATE_TURNS * y.size / _seconds(lambda: launch(RATE_BLOCKS, y, RATE_TURNS, 0.5))


def _seconds(run: Callable[[], None]) -> float:
    """The least time of five runs on the device."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    best = float("inf")
    for _ in range(5):
        start.record()
        run()
        end.record()
        end.synchronize()
        best = min(best, cupy.cuda.get_elapsed_time(start, end) * 1e-3)
    return best
