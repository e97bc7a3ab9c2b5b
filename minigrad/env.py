"""usage: minigrad env

Shows the versions, CPU, threads, kernel cache, devices and optional packages that this installation can use. For the
rest it shows the command that would mend it. It takes no arguments and changes nothing."""

# The functions return data; only ``main`` prints. Optional packages are imported in processes of their own, because a
# broken one may raise anything, start MPI, or take the process down.

import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from llvmlite import binding as llvm

__all__ = ["Status", "collect", "format_report", "main"]

_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bf16", "amx-bf16", "neon", "bf16", "sve", "sve2")
PROBE_TIMEOUT = 60.0  # seconds; importing a large package from a cold network disk takes long


@dataclass(frozen=True)
class Status:
    """Whether a device or an extra is usable; if not, why (``detail``) and the command that mends it (``remedy``)."""

    name: str
    usable: bool
    detail: str
    remedy: str = ""


Facts = dict[str, str]  # a section of the report, by what is told


def collect() -> dict[str, Facts | tuple[Status, ...]]:
    """Look at this process, the machine and the optional packages; no optional one can make it fail."""
    return {
        "versions": versions(),
        "cpu": cpu(),
        "threads": threads(),
        "kernel cache": kernel_cache(),
        "devices": devices(),
        "extras (optional)": extras(),
    }


def versions() -> Facts:
    """Versions of minigrad, Python and the packages that the base install needs."""
    found = {"minigrad": _version("minigrad-cuda") or "not installed (imported from a folder)"}
    found["Python"] = f"{platform.python_version()} ({platform.python_implementation()}, {platform.platform()})"
    for name in ("numpy", "ml_dtypes", "numba", "llvmlite", "tqdm"):
        found[name] = _version(name) or "not installed"
    return found


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu() -> Facts:
    """The processor as LLVM compiles for it."""
    present = {name for name, on in llvm.get_host_cpu_features().items() if on}
    features = ", ".join(name for name in _FEATURES if name in present)
    bits = 512 if "avx512f" in present else 256 if "avx" in present else 128
    return {
        "name": f"{_cpu_name()} (LLVM: {llvm.get_host_cpu_name()})",
        "features": features or "none that the kernels profit from",
        "vectors": f"{bits} bit: {bits // 32} float32",
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return platform.processor() or platform.machine()


def threads() -> Facts:
    """The thread pool of the kernels, why its layer is not TBB, and the BLAS of NumPy beside it."""
    import numba

    from .cpu_kernels.toolbox import threads as pool

    reason = ""
    if pool.LAYER != "tbb":
        if os.environ.get("NUMBA_THREADING_LAYER") == pool.LAYER:
            reason = f" (not tbb: NUMBA_THREADING_LAYER={pool.LAYER})"
        else:
            try:
                importlib.import_module("numba.np.ufunc.tbbpool")
                reason = " (not tbb: it could be loaded only later)"
            except ImportError as error:
                reason = f" (not tbb: TBB cannot be loaded ({error}): pip install tbb)"
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    name = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    size = numba.config.NUMBA_NUM_THREADS
    return {
        "layer": pool.LAYER + reason,
        "count": f"{pool.get_num_threads()} of a pool of {size} (NUMBA_NUM_THREADS), on {cores} cores",
        "BLAS": f"{name}; float32 and float64 products do not use it, they run on the pool above",
    }


def kernel_cache() -> Facts:
    """The folder of compiled CPU kernels and what lies in it."""
    from .cpu_kernels.toolbox import jit

    sizes = []
    for path in Path(jit.CACHE_DIRECTORY).rglob("*"):
        with contextlib.suppress(OSError):  # another process has just replaced it
            if path.is_file():
                sizes.append(path.stat().st_size)
    return {
        "folder": f"{jit.CACHE_DIRECTORY} (MINIGRAD_CACHE_DIR chooses another)",
        "size": f"{sum(sizes) / 1e6:.1f} MB in {len(sizes)} files",
    }


def devices() -> tuple[Status, ...]:
    """The devices that tensors can be on."""
    cores = os.cpu_count() or 1
    outcome, text = _isolated("from minigrad.cuda_kernels import availability; v = json.dumps(availability())")
    usable, reason = json.loads(text) if outcome == "found" else (False, f"asking for it failed ({text})")
    return Status("cpu", True, f"{cores} logical cores"), Status("cuda", usable, reason)


def extras() -> tuple[Status, ...]:
    """The extras of the distribution, and torch for the parity tests; each is really imported."""
    with ThreadPoolExecutor() as executor:
        found = dict(zip(_PROBES, executor.map(_probe, _PROBES, _PROBES.values()), strict=True))
    cuda = [found[name] for name in ("numba_cuda", "cupy", "NCCL")]
    ours = {name: _extra(name, found[probe]) for name, probe in _EXTRAS.items()}
    ours |= {"cuda12": _cuda_extra(12, cuda), "cuda13": _cuda_extra(13, cuda)}
    return *(ours[name] for name in sorted(ours)), _extra("torch", found["torch"])


_EXTRAS = {
    "bpe": "tokenizers", "browser": "playwright", "docs": "sphinx", "inspect": "minigrad.cuda_kernels.inspect",
    "learn": "greenlet", "mpi": "mpi4py", "plot": "matplotlib", "tensorboard": "tensorboardX", "test": "pytest",
    "yaml": "yaml",
}  # fmt: skip
"""By the name of an extra, what is imported of it."""
_PROBES = {
    "numba_cuda": """
import numba_cuda, numba.cuda, numpy
if numpy.lib.NumpyVersion(numpy.__version__) >= "2.5.0.dev0":
    raise RuntimeError(f"numba-cuda compiles no kernel with NumPy {numpy.__version__}; it needs numpy<2.5")
from minigrad.cuda_kernels.platform.availability import nvvm_problem
if problem := nvvm_problem():
    raise RuntimeError(problem)
v = numba_cuda.__version__
""",
    **{
        name: f"import {name}; v = {name}.__version__"
        for name in ("cupy", "greenlet", "tensorboardX", "tokenizers", "torch", "yaml")
    },
    "NCCL": """
from cupy.cuda import nccl
if not nccl.available:
    raise RuntimeError("libnccl cannot be loaded; no CuPy wheel contains it")
v = nccl.get_version()
""",
    "minigrad.cuda_kernels.inspect": """
import os
os.environ.pop("NUMBA_ENABLE_CUDASIM", None)  # the simulator compiles nothing
import numba_cuda
from minigrad.cuda_kernels.inspect import tool
tool("ptxas"), tool("nvdisasm")
v = f"with numba_cuda {numba_cuda.__version__}, ptxas and nvdisasm"
""",
    # MPI_Init is left out: it would start daemons and leave segments in shared memory.
    "mpi4py": """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
v = mpi4py.__version__ + ", " + MPI.Get_library_version().split(",")[0].strip()
""",
    "matplotlib": "import matplotlib.pyplot, matplotlib; v = matplotlib.__version__",
    "pytest": """
import pytest, greenlet, hypothesis, mypy, ruff
v = f"{pytest.__version__}, hypothesis {hypothesis.__version__}"
""",
    "playwright": "from importlib import metadata; import playwright.sync_api; v = metadata.version('playwright')",
    "sphinx": "import sphinx, furo, ipykernel, jupytext, myst_nb; v = sphinx.__version__",
}
"""By the name of a package, code that imports it and assigns its version to ``v``."""


def _probe(name: str, code: str) -> Status:
    """Whether code that imports the package ``name`` and assigns its version to ``v`` runs."""
    outcome, text = _isolated(code)
    if outcome == "found":
        return Status(name, True, f"{name} {text}")
    if outcome == "missing":
        return Status(name, False, f"{name} is not installed" if text == name else f"{name} needs {text}")
    return Status(name, False, f"{name} cannot be imported ({text})")


def _isolated(code: str) -> tuple[str, str]:
    """Run code in a process of its own: "found" and the ``v`` it assigned, "missing" and a module, "raised" and why."""
    program = (
        "import json\n"
        "try:\n"
        f"{textwrap.indent(code, '    ')}\n"
        "    print('\\nfound', v)\n"
        "except BaseException as error:\n"
        "    missing = error.name if isinstance(error, ModuleNotFoundError) else None\n"
        "    text = type(error).__name__ + ': ' + ' '.join(str(error).split())\n"
        "    print('\\nmissing ' + missing if missing else '\\nraised ' + text)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    try:
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "raised", f"no answer within {PROBE_TIMEOUT:g} s"
    for line in reversed(run.stdout.splitlines()):
        outcome, _, text = line.partition(" ")
        if outcome in ("found", "missing", "raised"):
            return outcome, text
    return "raised", f"it ended Python with exit code {run.returncode}"


def _cuda_extra(major: int, packages: list[Status]) -> Status:
    """cuda12 and cuda13 differ in the CuPy wheel (both import as ``cupy``) and in the driver that they need."""
    name, wheel = f"cuda{major}", f"cupy-cuda{major}x"
    problems = [part.detail for part in packages if not part.usable]
    if _version(wheel) is None and all(part.usable for part in packages if part.name == "cupy"):
        problems.insert(0, f"CuPy is installed, but not as {wheel}")
    remedies = [f'pip install "minigrad-cuda[{name}]"'] if problems else []
    found = ""
    try:
        driver = importlib.import_module("minigrad.cuda_kernels").driver()
        found = f"driver for CUDA {driver.cuda[0]}.{driver.cuda[1]}, {driver.devices} device(s)"
        if not driver.devices:
            problems.append("the NVIDIA driver shows no device")
            remedies.append("check nvidia-smi and CUDA_VISIBLE_DEVICES")
        elif driver.cuda < (major, 0):
            problems.append(f"the NVIDIA driver supports CUDA {driver.cuda[0]}.{driver.cuda[1]}, not {major}.0")
            remedies.append("update the driver (https://www.nvidia.com/drivers)")
    except OSError as error:
        problems.append(str(error))
        remedies.append("install the NVIDIA driver (https://www.nvidia.com/drivers)")
    if problems:
        return Status(name, False, "; ".join(problems), " and ".join(remedies))
    return Status(name, True, ", ".join([part.detail for part in packages] + [found]))


def _extra(name: str, part: Status) -> Status:
    remedy = "pip install torch" if name == "torch" else f'pip install "minigrad-cuda[{name}]"'
    return Status(name, part.usable, part.detail, "" if part.usable else remedy)


def format_report(sections: Mapping[str, Facts | tuple[Status, ...]]) -> str:
    """The report as text, one fact a line; a problem that several lines share, as a missing library, is told once."""
    lines: list[str] = []
    said: set[str] = set()
    for title, facts in sections.items():
        lines.append(title)
        if isinstance(facts, dict):
            lines += [f"  {name:<12} {fact}" for name, fact in facts.items()]
            continue
        for row in facts:
            # "NCCL needs cupy" and "cupy is not installed" are the same problem.
            problems = {re.sub(r": pip .*|.* needs | is not installed", "", p): p for p in row.detail.split("; ")}
            detail = "; ".join(problems[key] for key in problems if key not in said) or "as above"
            said.update(problems)
            lines.append(f"  {row.name:<12} {'usable' if row.usable else 'not usable'}: {detail}")
            if row.remedy:
                lines.append(f"  {'':<12} remedy: {row.remedy}")
    report = "\n".join(lines)
    here = (folder / "pyproject.toml" for folder in (Path(__file__).parents[1], Path.cwd()))
    checkout = any(file.is_file() and file.with_name("minigrad").is_dir() for file in here)
    return report.replace('pip install "minigrad-cuda[', 'pip install -e ".[') if checkout else report


def fit(text: str, file: TextIO | None = None, indent: int = 0) -> str:
    """Text whose lines are broken between words; if it goes to a ``file``, only where that is a terminal."""
    if file is not None and not file.isatty():
        return text
    margins: dict[str, Any] = {"width": shutil.get_terminal_size().columns - 1, "subsequent_indent": " " * indent}
    fill = textwrap.TextWrapper(**margins, break_long_words=False, break_on_hyphens=False).fill
    return "\n".join(map(fill, text.split("\n")))


def main() -> int:
    """Print the report."""
    print(fit(format_report(collect()), sys.stdout, 15))
    return 0


if __name__ == "__main__":
    sys.exit(main())
