"""How ``gpu_report.py`` takes the time: medians of CUDA events, and what the card itself reaches, to compare with."""

from __future__ import annotations

import importlib
import importlib.util
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.cuda_kernels import elementwise
from minigrad.cuda_kernels.platform import launch, libcuda, limits, memory, streams
from minigrad.cuda_kernels.platform.array import empty, from_host, full
from minigrad.cuda_kernels.platform.language import SIMULATED, cuda
from minigrad.cuda_kernels.platform.launch import kernel
from minigrad.cuda_kernels.products.record import problem
from minigrad.dtypes import as_dtype

Call = Callable[[], Any]
Timer = Callable[[Sequence[Call]], float]

L2_BYTES = 38  # CUdevice_attribute
HEAD_START = 1 << 28  # bytes cleared before each measurement, while the host is already queueing the calls
SAMPLE_SECONDS = 2e-3
SIDE = 8192  # of the matrices that measure the matrix rate


def median_seconds(calls: Sequence[Call], seconds: float = 0.1) -> float:
    """Seconds of GPU time for a call. ``calls`` do the same on arrays of their own, together larger than the L2 cache.

    All calls run once to compile and to warm up. A sample is as many rounds of them as take a few milliseconds, between
    two events. While the GPU clears other memory the host gets ahead of it. So what Python costs is not in the time,
    unless the kernels are shorter than that.
    """
    for call in calls:
        call()
    memory.synchronize()
    other = empty(HEAD_START, np.uint8)
    start, end = streams.Event(enable_timing=True), streams.Event(enable_timing=True)

    def sample(rounds: int) -> float:
        memory.clear(other.pointer, other.nbytes)
        start.record()
        for _ in range(rounds):
            for call in calls:
                call()
        end.record()
        return start.elapsed_time(end) * 1e-3

    round_seconds = max(sample(1), 1e-6)
    if round_seconds > seconds:  # long enough to be exact
        return round_seconds / len(calls)
    rounds = max(1, math.ceil(SAMPLE_SECONDS / round_seconds))
    count = min(max(5, round(seconds / (rounds * round_seconds))), 25)
    return statistics.median(sample(rounds) for _ in range(count)) / (rounds * len(calls))


def sets(nbytes: int) -> int:
    """How many copies of arrays of so many bytes exceed the L2 cache twice."""
    if SIMULATED:
        return 2
    return 1 + 2 * libcuda.device_attribute(L2_BYTES, memory.current_device()) // max(nbytes, 1)


def copy_rate() -> float:
    """Bytes per second, read and written, of the driver's copy within the device."""
    return limits.copy_bandwidth(memory.current_device())


def multiply_add_rate(timer: Timer, blocks: int, n: int) -> float:
    """Operations per second of `launch.multiply_adds`: ``blocks`` of 256 threads, 16 n each, each counted twice."""
    y = empty(256 * blocks, np.float32)
    return 32 * n * y.size / timer([lambda: launch.multiply_adds.launch(blocks, y, n, 0.5)])


def matrix_rate(timer: Timer, side: int = SIDE, word: str = "float32") -> tuple[float, str] | None:
    """Operations per second of a product by cuBLAS, and through which library; None where there is none.

    ``word``: the operands' dtype, or "tf32".
    """
    for module, product in (("torch", _torch_product), ("cupy", _cupy_product), ("minigrad", _our_product)):
        if importlib.util.find_spec(module):
            try:
                return 2 * side**3 / timer([product(side, word)]), f"cuBLAS through {module}, {side} x {side}"
            except Exception as error:  # a PyTorch without CUDA, no cuBLAS for CuPy
                print(f"no matrix rate by {module}: {error}", file=sys.stderr)
    return None


def torch_with_cuda() -> Any:
    """PyTorch, or None where it is not installed or has no CUDA."""
    if SIMULATED or importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if torch.cuda.is_available() else None


def _torch_product(side: int, word: str) -> Call:
    import torch

    dtype = getattr(torch, "float32" if word == "tf32" else word)
    a, b = (torch.randn(side, side, device="cuda", dtype=dtype) for _ in range(2))

    def call() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = word == "tf32"
        return a @ b

    return call


def _cupy_product(side: int, word: str) -> Call:
    import cupy

    if word != "float32":
        raise ValueError(f"CuPy is asked for float32 only, not {word}")
    a, b = (cupy.ones((side, side), cupy.float32) for _ in range(2))
    return lambda: a @ b


def _our_product(side: int, word: str) -> Call:
    from minigrad.cuda_kernels.products import cublaslt

    a, b, y = (full((side, side), 1, np.float32) for _ in range(3))
    if word not in ("float32", "tf32"):
        a, b, y = (elementwise.cast(x, as_dtype(word)) for x in (a, b, y))
    p = problem(y, a, b)
    return lambda: cublaslt.multiply(p, word == "tf32")


@kernel("float32*", "float32*", "float32*", "int64", threads=32, registers=16)
def add_three(x: Any, y: Any, z: Any, n: Any) -> None:
    """z = x + y: a launch with three arrays, as small as can be."""
    i = cuda.grid(1)
    if i < n:
        z[i] = x[i] + y[i]


def launch_seconds(launches: int = 500) -> float:
    """Host time of a launch with three arrays: the least of ten rounds of fewer than the driver's queue holds."""
    x = from_host(np.ones(32, np.float32))
    y, z = from_host(np.ones(32, np.float32)), empty(32, np.float32)
    best = float("inf")
    for _ in range(11):  # the first one compiles
        memory.synchronize()
        started = time.perf_counter()
        for _ in range(launches):
            add_three.launch(1, x, y, z, 32)
        best = min(best, (time.perf_counter() - started) / launches)
    memory.synchronize()
    return best
