"""The entries of ``gpu_report.py``, and the process that measures them.

As a script it reads the name of an entry from each line of its input and answers each by one line of JSON. An error is
an answer as well. The report starts a new process when this one ends, hangs, or has lost the GPU to a failed kernel.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gpu_cases
import gpu_ladders
import gpu_products
import gpu_timing
import gpu_training
import numpy as np
from gpu_case import CHECK, FULL, TINY, Case, Sizes
from gpu_timing import torch_with_cuda
from train_step_contenders import Preset

import minigrad
from minigrad.cuda_kernels.platform import memory
from minigrad.cuda_kernels.platform.array import DeviceArray, copy, from_host, to_host
from minigrad.cuda_kernels.platform.language import SIMULATED
from minigrad.dtypes import bfloat16, is_floating

ANSWER = "entry "  # before the JSON, since libraries print as well
MOST_SETS = 16

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
    tuned: int | None = None  # shapes of products, all of them where None


REAL = Scale(FULL, CHECK, gpu_timing.median_seconds, gpu_training.GPT2_124M, gpu_timing.SIDE, 4096, 500, 5)


def rehearsal(timer: gpu_timing.Timer) -> Scale:
    """Everything once, as small as can be."""
    return Scale(TINY, TINY, timer, Preset(1, 2, 16, 8, 2, 11), 2, 1, 2, 1, 1)


def once(calls: Sequence[Callable[[], Any]]) -> float:
    """A timer that calls, and takes no time: a rehearsal's milliseconds mean nothing."""
    for call in calls:
        call()
    return 1e-3


# Kernels --------------------------------------------------------------------------------------------------------------


def measure(case: Case, scale: Scale) -> Iterator[Result]:
    """The error, the time, the work and PyTorch's time of one case, each as soon as it is known."""
    kernels = minigrad.Device("cuda").kernels
    if (reason := case.missing(kernels)) is not None:
        yield {"skipped": reason}
        return
    error = largest_error(case, scale.check, kernels)
    yield {"max_rel_err": error, "right": error <= case.tolerance, "rate": case.rate}
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
            tensors = [[tensor_of(torch, x).to("cuda") for x in host] for _ in range(count)]
            yield {"torch_ms": 1e3 * scale.timer([case.torch(torch, *each) for each in tensors])}
        except Exception as error:
            yield {"torch_error": words(error)}


def tensor_of(torch: Any, x: np.ndarray) -> Any:
    """A tensor of PyTorch over a NumPy array's memory; bfloat16 too."""
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == bfloat16 else torch.from_numpy(x)


def shapes_of(arrays: Sequence[np.ndarray]) -> str:
    """``65536x768 float32, 768 float32``; the first three of many."""
    shown = ["x".join(map(str, x.shape)) + f" {x.dtype.name}" for x in arrays[:3]]
    return ", ".join(shown) + (f" and {len(arrays) - 3} more" if len(arrays) > 3 else "")


def largest_error(case: Case, sizes: Sizes, kernels: Any, dtype: Any = np.float32) -> float:
    """The largest difference to the result of float64, over the largest absolute value of that result."""
    host = [x.astype(dtype) if x.dtype == np.float32 else x for x in case.inputs(sizes, np.random.default_rng(1))]
    wide = [x.astype(np.float64) if is_floating(x.dtype) else x for x in host]
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
    packages += ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
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
    yield {"skipped": "the simulator has no copy rate"} if SIMULATED else {"bytes_per_second": gpu_timing.copy_rate()}


def matrix_rate(scale: Scale) -> Iterator[Result]:
    """The card's float32 products by cuBLAS, which kernels that multiply are held against; else its multiply-adds."""
    own = gpu_timing.multiply_add_rate(scale.timer, scale.blocks, scale.side)
    yield {"multiply_add_flops_per_second": own}
    rate, by = gpu_timing.matrix_rate(scale.timer, scale.side) or (own, "multiply-adds in registers; no cuBLAS")
    yield {"flops_per_second": rate, "by": by}


def tensor_core_rate(scale: Scale, word: str) -> Iterator[Result]:
    """The card's products of another dtype by cuBLAS."""
    found = gpu_timing.matrix_rate(scale.timer, scale.side, word)
    if found is None:
        yield {"skipped": "neither PyTorch with CUDA nor cuBLASLt is installed"}
    else:
        yield {"flops_per_second": found[0], "by": found[1]}


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
        *(
            Entry("limits", rate, None, lambda s, word=word: tensor_core_rate(s, word))
            for word, rate in gpu_products.RATES.items()
            if word != "float32"
        ),
        Entry("host", "launch with three arrays", None, launch_cost),
        Entry("host", "x + y of small tensors", None, tensor_add_cost),
        *of_cases,
        Entry("compile", "first results", None, compile_time),
        *(
            Entry("training", name, None, lambda s, name=name: gpu_training.train(name, s.gpt, s.steps, free))
            for name in gpu_training.CONTENDERS
        ),
        *(
            Entry("tune", f"engines of {word}", None, lambda s, word=word: tune(word, s))
            for word in gpu_products.DTYPES
        ),
    ]


def tune(word: str, scale: Scale) -> Iterator[Result]:
    """Which engine is faster for the products of a dtype."""
    return gpu_products.tune(minigrad.Device("cuda").kernels, word, scale.full, scale.timer, scale.tuned)


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
    scale = rehearsal(once) if SIMULATED else REAL
    for line in sys.stdin:
        result = answer(known[line.strip()], scale)
        result["lost_gpu"] = not usable()
        print(ANSWER + json.dumps(result), flush=True)


if __name__ == "__main__":
    serve()
