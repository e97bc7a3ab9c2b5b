"""``python -m minigrad.cuda_kernels.inspect [kernel ...]``: what the kernels become, without a GPU.

Each kernel (default: all; a word selects those whose name contains it, a Python file its own) is compiled for the
architectures of ``--arch`` (default: sm_80 and sm_90), assembled by ``ptxas`` and read back by ``nvdisasm``. A
line for each shows registers, shared memory, spills, 128-bit loads, tensor-core instructions (matrix products, LDSM:
loads of their operands from shared memory, LDGSTS and TMA: asynchronous copies to it) and float64 instructions;
``--sass`` adds a line that counts every instruction. The exit status is 1 if a kernel breaks its budget: more registers
than it states, a spill, local memory, or float64 arithmetic in a kernel without float64 arguments. The status is also 1
without a 128-bit load or one of the ``instructions``, where the kernel states them. A loss that the assembler warns of
breaks the budget, too (asynchronous products, wgmma, that it lets wait for one another). So does an instruction of a
whole warp that not all of its lanes may reach (``divergence.py``).

``--warm`` compiles them into the cache instead, for this machine's GPU where there is one: a program that launches them
later need not. What the cache holds does not depend on the machine, so it may be filled on another one and carried.

``--simulate NAME [program.py]`` runs a program in the simulator (default: small calls of the families and of the
ladders). For each kernel of the name it prints what the warps of its first launch did (docs/simulator.md). The name of
a family stands for the kernels that its small call launches.

The tools come with ``pip install "minigrad-cuda[inspect]"``, or with NVIDIA's toolkit on the PATH.
"""

import argparse
import functools
import importlib
import importlib.util
import itertools
import multiprocessing
import operator
import os
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ..platform import compiler, libcuda, memory
from ..platform.launch import KERNELS, LAZY_KERNELS
from ..platform.toolbox import SIMULATED, Kernel, from_host
from ..simulator import WarpReport, simulator
from ..simulator.instrument.trace import Trace
from . import divergence


@dataclass(frozen=True)
class Report:
    """What one kernel became on one architecture. Bytes, except for counts of instructions."""

    kernel: Kernel
    arch: str
    registers: int
    shared: int
    local: int
    spills: int
    instructions: Counter[str]
    warnings: tuple[str, ...]
    divergent: tuple[str, ...]

    def count(self, *prefixes: str) -> int:
        """Instructions whose name begins with one of these."""
        return sum(n for name, n in self.instructions.items() if name.startswith(prefixes))

    @property
    def vector_loads(self) -> int:
        """Loads of 128 bits from device memory."""
        wide = [n for name, n in self.instructions.items() if name.startswith(("LDG", "LD.E")) and ".128" in name]
        return sum(wide) + self.count("LDGSTS")

    @property
    def tensor_cores(self) -> int:
        """Matrix instructions."""
        return self.count("HMMA", "HGMMA", "IMMA", "DMMA")

    @property
    def float64(self) -> int:
        """Instructions of float64 arithmetic."""
        return self.count(
            "DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "MUFU.RCP64", "MUFU.RSQ64", "F2F.F64", "F2F.F32.F64"
        )

    def faults(self) -> list[str]:
        """Where the kernel breaks its budget."""
        found = []
        if self.registers > self.kernel.registers:
            found.append(f"{self.registers} registers, {self.kernel.registers} are stated")
        if self.spills:
            found.append(f"{self.spills} bytes of spills")
        if (self.local or self.count("LDL", "STL")) and not self.kernel.slow_path:
            found.append(f"{self.local} bytes of local memory")
        if self.float64 and not self.kernel.slow_path and not any("float64" in w for w in self.kernel.signature):
            found.append(f"{self.float64} float64 instructions")
        if self.kernel.vector_loads and not self.vector_loads:
            found.append("no 128-bit load")
        found += self.warnings
        found += [f"not all lanes of a warp may come to {name}" for name in self.divergent]
        found += [f"no {name}" for name in self.kernel.instructions if not self.count(name)]
        return found

    def __str__(self) -> str:
        return (
            f"{self.kernel.name:<44} {self.arch:<6} registers {self.registers:>3}  shared {self.shared:>6}  "
            f"spills {self.spills:>4}  LDG.128 {self.vector_loads:>3}  "
            f"MMA {self.tensor_cores:>3}  LDSM {self.count('LDSM'):>3}  LDGSTS {self.count('LDGSTS'):>3}  "
            f"TMA {self.count('UTMALDG'):>2}  "
            f"f64 {self.float64:>3}"
        )


def load_all(lazy: bool = False, files: Sequence[str] = ()) -> dict[str, Kernel]:
    """Import all kernel families and ``files``; the kernels by name, with ``lazy`` also those made when first used."""
    package = importlib.import_module("minigrad.cuda_kernels")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith(("__main__", "_intrinsics", "_twins")):
            importlib.import_module(module.name)
    for path in files:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python file")
        sys.path.insert(0, str(Path(path).resolve().parent))  # where it may import from, as a script may
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    for make in LAZY_KERNELS.values() if lazy else ():
        make()
    return KERNELS


def tool(name: str) -> str:
    """The path of an NVIDIA tool: of a wheel, else on the PATH. Raises FileNotFoundError with the remedy."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec is not None else ():
        for path in sorted(Path(root).glob(f"*/bin/{name}")):
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f'{name} was not found: pip install "minigrad-cuda[inspect]", or put it on the PATH')
    return found


def reports(kernels: Sequence[Kernel], capability: tuple[int, int]) -> list[Report]:
    """Compile kernels of one architecture and read what they became. Each tool runs once for all: starts take long."""
    arch, texts = compiler.architecture(kernels[0], capability), [compiler.to_ptx(k, capability) for k in kernels]
    with tempfile.TemporaryDirectory() as folder:
        sources, cubin = [Path(folder, f"{kernel.symbol}.ptx") for kernel in kernels], Path(folder, "all.cubin")
        for source, text in zip(sources, texts):  # variables and device functions of all have names of their own
            source.write_text(re.sub(r"\b_(?:_cudart|cudapy|ZN)\w+", rf"\g<0>_{source.stem}", text))
        log = _run(tool("ptxas"), f"-arch={arch}", "-v", "-O3", *map(str, sources), "-o", str(cubin))
        sass = _run(tool("nvdisasm"), "-c", "-ndf", str(cubin))  # without an analysis of branches
    logs = dict(re.findall(r"entry function '(\w+)'(.*?)(?=Compiling|\Z)", log, re.DOTALL))
    code = dict(re.findall(r"\n\.text\.(\w+):(.*?)(?=\n\.text\.|\Z)", sass, re.DOTALL))
    losses = re.findall(compiler.LOSS_WARNING, log)  # they name the kernel
    return [_read(k, arch, ptx, logs[k.symbol], code[k.symbol], losses) for k, ptx in zip(kernels, texts)]


def _read(kernel: Kernel, arch: str, ptx: str, log: str, sass: str, losses: list[str]) -> Report:
    instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", sass)
    return Report(
        kernel,
        arch,
        registers=_number(r"Used (\d+) registers", log),
        shared=_number(r"(\d+) bytes smem", log) + kernel.shared_bytes,
        local=_number(r"(\d+) bytes stack frame", log),
        spills=_number(r"(\d+) bytes spill stores", log) + _number(r"(\d+) bytes spill loads", log),
        instructions=Counter(instructions),
        warnings=tuple(loss for loss in losses if f"'{kernel.symbol}'" in loss or " function '" not in loss),
        divergent=tuple(dict.fromkeys(divergence.divergent(ptx))),
    )


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stderr or done.stdout}")
    return done.stdout + done.stderr


def _number(pattern: str, text: str) -> int:
    return int(found[1]) if (found := re.search(pattern, text)) else 0


def simulate(words: Sequence[str]) -> int:
    """The command ``--simulate``: the kernels whose names contain a word, as a program launches them."""
    if not SIMULATED:
        command = [sys.executable, "-m", __name__, "--simulate", *words]
        return subprocess.run(command, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, check=False).returncode
    programs = [word for word in words if word.endswith(".py")]
    asked = re.compile("|".join(re.escape(word) for word in words if word not in programs) or "$^")
    traces = {kernel: Trace(kernel.function) for kernel in load_all(True).values()}
    runs = [("", functools.partial(runpy.run_path, program, run_name="__main__")) for program in programs]
    for of, call in runs or _samples():
        new = {k.function: t for k, t in traces.items() if not t.grid[0] and asked.search(f"{k.name} {of}")}
        simulator.watched.update(new)
        call()
        simulator.watched.clear()
    first = sorted(traces.items(), key=lambda found: ".ladders." in found[0].function.__module__)
    ran = [WarpReport(kernel.name, trace, kernel.registers) for kernel, trace in first if trace.requests]
    print(*ran, sep="\n\n")
    if not ran:
        known = ", ".join(k.name for k in traces if asked.search(k.name)) or "no kernel has such a name"
        print(f"no launch of {' or '.join(words)} ({known}): --simulate NAME program.py runs yours", file=sys.stderr)
    return 0 if ran else 1


def _samples() -> Iterator[tuple[str, Callable[[], object]]]:
    """A small call of each family, and of each step of the ladders, with its name."""
    package, rng = importlib.import_module("minigrad.cuda_kernels"), np.random.default_rng(0)
    shapes: list[int | tuple[int, ...]] = [(24, 24), (24, 24), 24, 2048, (1, 2, 48, 64)]
    x, y, row, line, q = (from_host(rng.standard_normal(shape, np.float32)) for shape in shapes)
    rows = from_host(np.arange(24))
    optimizers = ("adagrad", 1, 3), ("adamw", 2, 7), ("lamb", 2, 8), ("sgd", 1, 6)  # states, columns of scalars
    calls: list[tuple[str, tuple[object, ...]]] = [
        *(("ladders.ladder_softmax.softmax", (step, x)) for step in range(1, 5)),
        *(("ladders.ladder_reduction.reduce", (step, line)) for step in range(2, 6)),
        *(("ladders.ladder_matmul.multiply", (step, x, y)) for step in package.ladders.ladder_matmul.STEPS),
        *((f"ladders.ladder_transpose.{step}.launch", (1, y, x, *[24] * 4, 0, 0)) for step in ("naive", "tile")),
        *((f"{o}.step", (package.adamw.Table([x], *[[y]] * n), [y], np.ones((1, m)))) for o, n, m in optimizers),
        ("comparison.isnan trigonometry.asinh grad_norm.sum_of_squares", (x,)),
        ("elementwise.add linear.forward matmul.matmul", (x, y)),
        ("softmax.forward movement.tril", (x, -1)),
        ("embedding.forward indexing.index", (x, rows)),
        ("reduce.sum", (x, (1,), False)),
        ("gelu.forward", (x, "none")),
        ("dropout.forward", (x, 0.1, 0, 0)),
        ("random.uniform", ((24, 24), np.float32, 0, 0)),
        ("layer_norm.forward", (x, None, None, 1e-5)),
        ("rms_norm.forward", (x, row, 1e-5)),
        ("rope.rotate", (x, x[:, :12], x[:, 12:], False)),
        ("cross_entropy.forward", (x, rows, (-100, 0.0, None))),
        ("linear_cross_entropy.forward", (x, y, rows, -100, 24.0, (True, True))),
        ("attention.forward", (q, q, q, (True, 0.125, 0.0, 0, 0))),
    ]
    for names, arguments in calls:
        for name in names.split():
            yield name, functools.partial(operator.attrgetter(name)(package), *arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. 0 if all kernels keep their budgets."""
    parser = argparse.ArgumentParser(
        prog="python -m minigrad.cuda_kernels.inspect", description=__doc__.split("\n\n")[1]
    )
    parser.add_argument("kernels", nargs="*", help="words of kernel names, or Python files (default: all kernels)")
    parser.add_argument("--arch", nargs="+", type=_capability, metavar="sm_NN", help="default: sm_80 sm_90")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile (default: CPUs)")
    parser.add_argument("--lazy", "--later", action="store_true", help="also kernels that are made when first used")
    parser.add_argument("--sass", action="store_true", help="count each instruction too")
    parser.add_argument("--simulate", action="store_true", help="run them in the simulator, and count what they do")
    parser.add_argument("--warm", action="store_true", help="only fill the cache of compiled kernels")
    options = parser.parse_args(arguments)
    if options.simulate:
        return simulate(options.kernels)
    if SIMULATED:
        parser.error("NUMBA_ENABLE_CUDASIM is set: the simulator compiles nothing; unset it")
    capabilities = options.arch or (_devices() if options.warm else []) or [(8, 0), (9, 0)]
    if importlib.util.find_spec("numba_cuda") is None:
        parser.error('numba_cuda is not installed: pip install "minigrad-cuda[inspect]"')
    files = [word for word in options.kernels if word.endswith(".py")]
    for path in files:
        if not Path(path).is_file():
            parser.error(f"there is no file {path}")
    words = [f"{Path(word).stem}." if word in files else word for word in options.kernels]
    chosen = [k for name, k in load_all(options.lazy, files).items() if not words or any(w in name for w in words)]
    if not chosen:
        parser.error(f"no kernel's name contains {' or '.join(options.kernels)}")
    if not options.warm:
        tool("ptxas"), tool("nvdisasm")  # said here, once, if they are missing
    groups: dict[tuple[str, tuple[int, int]], list[str]] = {}
    for k, capability in itertools.product(chosen, capabilities):
        if capability == k.capability if k.only else capability >= k.capability:
            groups.setdefault((compiler.architecture(k, capability), capability), []).append(k.name)
    if not groups:
        parser.error(f"none of these kernels is for {' or '.join('sm_{}{}'.format(*c) for c in capabilities)}")
    # Neighbours share device functions.
    work = [(names[i : i + 8], at) for (_, at), names in groups.items() for i in range(0, len(names), 8)]
    broken, total = 0, sum(len(names) for names, _ in work)
    does = _kept if options.warm else functools.partial(_described, sass=options.sass)
    jobs, spawn = min(options.jobs, len(work)), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, initializer=load_all, initargs=(options.lazy, files)) as pool:
        done = itertools.chain.from_iterable(pool.map(does, work))
        # disable=None: where nobody watches
        for text, faults in tqdm(done, total=total, unit="kernel", disable=None if options.warm else True):
            print(text, end="", flush=True)
            broken += faults
    warmed = f"{total} compiled kernels in {compiler.cache_folder()}"
    print(warmed if options.warm else f"{len(chosen)} kernels, {broken} over budget")
    return 1 if broken else 0


def _capability(arch: str) -> tuple[int, int]:
    match = re.fullmatch(r"sm_(\d+)(\d)", arch)
    if match is None:
        raise argparse.ArgumentTypeError(f"{arch}: expected a name like sm_80")
    return int(match.group(1)), int(match.group(2))


def _devices() -> list[tuple[int, int]]:
    """The compute capabilities of this machine's GPUs; none without a driver."""
    try:
        count = libcuda.driver().devices
    except OSError:
        return []
    return sorted({memory.capability(i) for i in range(count)})


def _kept(work: tuple[list[str], tuple[int, int]]) -> list[tuple[str, int]]:
    """Compile kernels, unless the cache has them."""
    for name in work[0]:
        compiler.to_cubin(KERNELS[name], work[1])
    return [("", 0)] * len(work[0])


def _described(work: tuple[list[str], tuple[int, int]], sass: bool) -> list[tuple[str, int]]:
    """The lines about each kernel on one architecture, and the number of its faults."""
    described = []
    for found in reports([KERNELS[name] for name in work[0]], work[1]):
        counts, faults = ", ".join(f"{name} {n}" for name, n in sorted(found.instructions.items())), found.faults()
        lines = [str(found), *[f"    {counts}"] * sass, *(f"    over budget: {fault}" for fault in faults)]
        described.append(("".join(f"{line}\n" for line in lines), len(faults)))
    return described
