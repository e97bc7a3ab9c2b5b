"""The entries of ``gpu_report.py``, and the process that measures them.

As a script it reads the name of an entry from each line of its input and answers each by one line of JSON. An error is
an answer as well. The report starts a new process when this one ends, hangs, or has lost the GPU to a failed kernel.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gpu_cases
import gpu_ladders
import gpu_timing
import numpy as np
from gpu_cases import CHECK, FULL, TINY, Case, Sizes
from train_step_contenders import Minigrad, Preset, TorchEager

import minigrad
from minigrad import cuda as devices
from minigrad.cuda_kernels import memory
from minigrad.cuda_kernels.array import DeviceArray, copy, from_host, to_host
from minigrad.cuda_kernels.language import SIMULATED

ANSWER = "entry "  # before the JSON, since libraries print as well
MOST_SETS = 16
GPT2_124M = Preset(n_layer=12, n_head=12, n_embd=768, block_size=1024, batch_size=16, vocab_size=50304)

Result = dict[str, Any]


class Scale(NamedTuple):
    """How large everything is: ``REAL`` for the report, ``REHEARSAL`` for the tests, which time nothing."""

    full: Sizes
    check: Sizes
    timer: gpu_timing.Timer
    gpt: Preset
    side: int  # of the matrix rate's matrices
    blocks: int
    launches: int
    steps: int  # of training, timed; before them as many that are not


REAL = Scale(FULL, CHECK, gpu_timing.median_seconds, GPT2_124M, gpu_timing.SIDE, 4096, 500, 5)


def rehearsal(timer: gpu_timing.Timer) -> Scale:
    """Everything once, as small as can be."""
    return Scale(TINY, TINY, timer, Preset(1, 2, 16, 8, 2, 11), 2, 1, 2, 1)


# Kernels --------------------------------------------------------------------------------------------------------------


def measure(case: Case, scale: Scale) -> Iterator[Result]:
    """The error, the time, the work and PyTorch's time of one case, each as soon as it is known."""
    kernels = minigrad.Device("cuda").kernels
    yield {"max_rel_err": largest_error(case, scale.check, kernels)}
    host = case.inputs(scale.full, np.random.default_rng(0))
    nbytes, flops = (None if f is None else f(scale.full) for f in (case.nbytes, case.flops))
    yield {"shapes": shapes_of(host), "bytes": nbytes, "flops": flops}
    arrays = [[from_host(x) for x in host]]
    count = min(gpu_timing.sets(sum(x.nbytes for x in host)), MOST_SETS)
    arrays += [[copy(x) for x in arrays[0]] for _ in range(count - 1)]
    yield {"sets": count, "ms": 1e3 * scale.timer([case.ours(kernels, *each) for each in arrays])}
    del arrays
    free()
    if case.torch is not None and (torch := torch_with_cuda()) is not None:
        try:
            tensors = [[torch.from_numpy(x).to("cuda") for x in host] for _ in range(count)]
            yield {"torch_ms": 1e3 * scale.timer([case.torch(torch, *each) for each in tensors])}
        except Exception as error:
            yield {"torch_error": words(error)}


def shapes_of(arrays: Sequence[np.ndarray]) -> str:
    """``65536x768 f4, 768 f4``; the first three of many."""
    shown = ["x".join(map(str, x.shape)) + f" {x.dtype.str[1:]}" for x in arrays[:3]]
    return ", ".join(shown) + (f" and {len(arrays) - 3} more" if len(arrays) > 3 else "")


def largest_error(case: Case, sizes: Sizes, kernels: Any, dtype: Any = np.float32) -> float:
    """The largest difference to the result of float64, over the largest absolute value of that result."""
    host = [x.astype(dtype) if x.dtype.kind == "f" else x for x in case.inputs(sizes, np.random.default_rng(1))]
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in host]
    found = _as_tuple(case.ours(kernels, *(from_host(x) for x in host))())
    expected = _as_tuple(case.exact(*wide))
    if len(found) != len(expected):
        raise ValueError(f"{case.name}: {len(found)} results, {len(expected)} were expected")
    return max(relative_error(_host(y), np.asarray(e, np.float64)) for y, e in zip(found, expected))


def relative_error(y: np.ndarray, expected: np.ndarray) -> float:
    """max |y - expected| / max |expected|; infinite where the shapes differ or a result is not finite."""
    y = y.astype(np.float64)
    if y.shape != expected.shape or not np.isfinite(y).all():
        return float("inf")
    largest = np.abs(expected).max(initial=0.0)
    return float(np.abs(y - expected).max(initial=0.0) / (largest or 1.0))


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _host(x: Any) -> np.ndarray:
    return to_host(x) if isinstance(x, DeviceArray) else np.asarray(x)


def torch_with_cuda() -> Any:
    """PyTorch, or None where it is not installed or has no CUDA."""
    if SIMULATED or importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if torch.cuda.is_available() else None


def free() -> None:
    """Give the memory of dropped arrays back to the driver, so that the other library can have it."""
    gc.collect()
    memory.empty_cache(0)
    if "torch" in sys.modules and (torch := torch_with_cuda()) is not None:
        torch.cuda.empty_cache()


# The card and the host ------------------------------------------------------------------------------------------------


def machine(scale: Scale) -> Iterator[Result]:
    """Names and versions."""
    root = Path(__file__).resolve().parent.parent
    packages = ("minigrad-cuda", "numba", "numba-cuda", "numpy", "cupy-cuda12x", "cupy-cuda13x", "torch", "llvmlite")
    yield {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        **{name: version for name in packages if (version := _version(name))},
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "commit": _output("git", "-C", str(root), "rev-parse", "HEAD"),
        "uncommitted_files": len((_output("git", "-C", str(root), "status", "--porcelain") or "").splitlines()),
    }
    yield {
        "gpu": memory.device_name(0),
        "capability": ".".join(map(str, memory.capability(0))),
        "memory_gib": round(memory.mem_get_info(0)[1] / 2**30, 1),
    }
    if not SIMULATED:
        import cupy

        yield {"cuda_of_driver": cupy.cuda.runtime.driverGetVersion(), "cuda": cupy.cuda.runtime.runtimeGetVersion()}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def copy_rate(scale: Scale) -> Iterator[Result]:
    """The driver's copy, which kernels that move data are held against."""
    if SIMULATED:
        raise RuntimeError("the simulator has no copy rate")
    yield {"bytes_per_second": gpu_timing.copy_rate()}


def matrix_rate(scale: Scale) -> Iterator[Result]:
    """The card's float32 products by cuBLAS, which kernels that multiply are held against; else its multiply-adds."""
    own = gpu_timing.multiply_add_rate(scale.timer, scale.blocks, scale.side)
    yield {"multiply_add_flops_per_second": own}
    rate, by = gpu_timing.matrix_rate(scale.timer, scale.side) or (own, "multiply-adds in registers; no cuBLAS")
    yield {"flops_per_second": rate, "by": by}


def launch_cost(scale: Scale) -> Iterator[Result]:
    """Host time of a launch."""
    yield {"us": 1e6 * gpu_timing.launch_seconds(scale.launches), "goal_us": 5.0}


def tensor_add_cost(scale: Scale) -> Iterator[Result]:
    """Host time of ``x + y`` for small tensors: method, graph, dispatch, memory, launch."""
    x, y = (minigrad.from_numpy(np.ones(32, np.float32)).to("cuda") for _ in range(2))
    yield {"us": 1e6 * host_seconds(lambda: x + y, scale.launches, memory.synchronize)}
    if (torch := torch_with_cuda()) is not None:
        a, b = (torch.ones(32, device="cuda") for _ in range(2))
        yield {"torch_us": 1e6 * host_seconds(lambda: a + b, scale.launches, torch.cuda.synchronize)}


def host_seconds(call: Callable[[], Any], count: int, synchronize: Callable[[], Any]) -> float:
    """Seconds that the host spends on a call that does not wait; the least of five rounds."""
    best = float("inf")
    for _ in range(6):
        synchronize()
        started = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - started) / count)
    synchronize()
    return best


FIRST_RESULTS = """
import time
import numpy
import minigrad
started = time.perf_counter()
x = minigrad.from_numpy(numpy.eye(64, dtype=numpy.float32)).to("cuda")
((x @ x + x) * 2).softmax(1).sum().item()
print(time.perf_counter() - started)
"""


def compile_time(scale: Scale) -> Iterator[Result]:
    """Seconds to the first results of a product, a sum, a scaling, a softmax and a reduction in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold_seconds", "cached_seconds"):
            environment = {**os.environ, "MINIGRAD_CACHE_DIR": folder}
            done = subprocess.run(
                [sys.executable, "-c", FIRST_RESULTS], capture_output=True, text=True, env=environment, check=False
            )
            if done.returncode:
                raise RuntimeError(f"the process ended with code {done.returncode}: {done.stderr[-800:]}")
            yield {name: float(done.stdout.split()[-1])}
        yield {"kernels": len(list(Path(folder).rglob("*.cubin")))}


# Training -------------------------------------------------------------------------------------------------------------


def training(scale: Scale, contender: Any, out_of_memory: type[Exception], device_of: Any) -> Iterator[Result]:
    """Steps of GPT-2 with the largest batch that fits, of 16, 8, 4, ... sequences."""
    preset = scale.gpt
    while (found := _steps(preset, scale.steps, contender, out_of_memory, device_of)) is None:
        free()
        if preset.batch_size == 1:
            raise RuntimeError("a batch of one sequence does not fit into the memory")
        preset = dataclasses.replace(preset, batch_size=preset.batch_size // 2)
    seconds, losses, version = found
    yield {
        "batch": f"{preset.batch_size} x {preset.block_size}",
        "ms": 1e3 * seconds,
        "tokens_per_second": preset.tokens / seconds,
        "peak_gib": device_of.max_memory_allocated() / 2**30,
        "losses": losses,
        "version": version,
    }


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


def our_training(scale: Scale) -> Iterator[Result]:
    """Module, AdamW, SimpleTrainer."""
    return training(scale, Minigrad, memory.OutOfMemoryError, devices)


def torch_training(scale: Scale) -> Iterator[Result]:
    """PyTorch's eager mode, with fused AdamW and scaled_dot_product_attention."""
    torch = torch_with_cuda()
    if torch is None:
        raise RuntimeError("PyTorch with CUDA is not installed")
    return training(scale, TorchEager, torch.OutOfMemoryError, torch.cuda)


# Entries --------------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A line of the report: its part, its name, its goal in per cent, and what measures it, piece by piece."""

    part: str
    name: str
    goal: float | None
    measure: Callable[[Scale], Iterator[Result]]


def entries() -> list[Entry]:
    """All of them, in the order of measuring."""
    of_cases = [
        Entry(part, case.name, case.goal, lambda scale, case=case: measure(case, scale))
        for part, cases in (("kernels", gpu_cases.CASES), ("ladders", gpu_ladders.cases()))
        for case in cases
    ]
    return [
        Entry("machine", "machine", None, machine),
        Entry("limits", "copy rate", None, copy_rate),
        Entry("limits", "matrix rate", None, matrix_rate),
        Entry("host", "launch with three arrays", None, launch_cost),
        Entry("host", "x + y of small tensors", None, tensor_add_cost),
        *of_cases,
        Entry("compile", "first results", None, compile_time),
        Entry("training", "GPT-2 124M", None, our_training),
        Entry("training", "GPT-2 124M, PyTorch eager", None, torch_training),
    ]


def answer(entry: Entry, scale: Scale) -> Result:
    """What was measured of an entry; with ``error`` where it did not come to its end."""
    result: Result = {}
    try:
        for piece in entry.measure(scale):
            result.update(piece)
    except Exception as error:
        result["error"] = words(error)
    return result


def words(error: BaseException) -> str:
    """An error as the report shows it: its type and the beginning of its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def usable() -> bool:
    """Whether the GPU still works: a kernel that failed makes it refuse everything else of this process."""
    try:
        free()
        memory.synchronize()
        return bool((to_host(from_host(np.ones(3, np.float32))) == 1).all())
    except Exception:
        return False


def serve() -> None:
    """Answer until the input ends."""
    known = {entry.name: entry for entry in entries()}
    for line in sys.stdin:
        result = answer(known[line.strip()], REAL)
        result["lost_gpu"] = not usable()
        print(ANSWER + json.dumps(result), flush=True)


if __name__ == "__main__":
    serve()
