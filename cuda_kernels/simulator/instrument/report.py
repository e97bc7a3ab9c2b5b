"""``simulate`` runs any kernel function of yours and reports what its warps did; docs/simulator.md states the model."""

import contextlib
import html
import importlib
import inspect
import json
import linecache
import math as python_math
import operator
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .. import simulated_cuda, simulator
from ..simulated_memory import POISON, WARP, SimulationError
from .trace import OURS, KernelArray, Line, Request, Trace

REGISTERS, WARPS, BLOCKS, SHARED = 65536, 64, 32, 233472  # of a multiprocessor of compute capability 9.0
ASSUMED_REGISTERS = 32  # of a thread, where nothing is stated: so many do not limit the occupancy


class Traffic(NamedTuple):
    """What all requests of a kind cost: sectors in global memory, passes over the banks in shared memory."""

    requests: int
    lanes: int
    nbytes: int
    cost: int
    ideal: int


def occupancy(threads: int, registers: int, shared_bytes: int) -> tuple[int, str]:
    """The warps that a multiprocessor holds at once, of 64, and what limits them."""
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // 256) * 256
    limits = {
        "warps": WARPS // warps,
        "blocks": BLOCKS,
        "registers": REGISTERS // of_warp // 4 * 4 // warps,
        "shared memory": SHARED // (-(-(shared_bytes + 1024) // 128) * 128),
    }
    limit = min(limits, key=limits.__getitem__)
    return limits[limit] * warps, limit


class WarpReport:
    """What the warps of a launch did. ``print`` it, or look at ``html()``; a notebook shows that by itself."""

    def __init__(self, name: str, trace: Trace, registers: int | None = None) -> None:
        self.name: str = name
        self.trace: Trace = trace
        self.registers: int = registers or ASSUMED_REGISTERS
        self.stated: str = "assumed" if registers is None else "stated"
        self.requests: list[Request] = trace.of("global") + trace.of("shared")
        self.steps: list[Request] = trace.of("step")
        self.barriers: int = trace.barriers  # all blocks' together
        self.races: list[str] = [self._race(*found) for found in trace.races()]
        self.shared_bytes: int = trace.shared_bytes  # of a block
        self.occupancy: int
        self.limit: str
        self.occupancy, self.limit = occupancy(python_math.prod(trace.threads), self.registers, self.shared_bytes)

    def traffic(self, kind: str, line: int | None = None) -> Traffic:
        """Of ``"global load"``, ``"shared"``, ...: all, or those of one line of the source."""
        found = [r for r in self.requests if r.kind.startswith(kind) and line in (None, r.line[1])]
        columns = ((1, len(r.lanes), sum(n for _, n, _ in r.lanes.values()), r.cost, r.ideal) for r in found)
        return Traffic(*map(sum, zip((0, 0, 0, 0, 0), *columns)))

    @property
    def bank_conflicts(self) -> int:
        """Passes over the banks of shared memory beyond the least."""
        shared = self.traffic("shared")
        return shared.cost - shared.ideal

    def instructions(self, name: str) -> int:
        """How often a warp executed ``shfl_xor_sync``, ``mma_bfloat16``, ``ldmatrix``, ..."""
        return len([r for r in self.trace.of("warp") if r.kind.split()[1].startswith(name)])

    @property
    def divergent(self) -> dict[Line, int]:
        """The lines to which, or to a chosen part of which, a warp came with a part of its lanes, and how often."""
        threads = python_math.prod(self.trace.threads)
        return Counter(step.line for step in self.steps if len(step.lanes) < min(WARP, threads - step.warp * WARP))

    def _race(self, a: Request, b: Request, lane: int, other: int, address: int) -> str:
        does = {"load": "reads", "store": "writes", "atomic": "updates"}
        one, two = (
            f"thread {r.warp * WARP + i} of block {r.block} {does[r.kind.split()[1]]} it at {shown(r.line)}"
            for r, i in ((a, lane), (b, other))
        )
        order = "without a barrier between" if a.block == b.block else "and blocks have no order"
        return f"race on {self._element(a.kind, address)}: {one}, and {two}, {order}"

    def _element(self, kind: str, address: int) -> str:
        for name, first, shape, itemsize in self.trace.arrays[kind.split()[0]]:
            place = (address - first) // itemsize
            if 0 <= place < python_math.prod(shape):
                return f"{name}[{', '.join(str(i) for i in np.unravel_index(place, shape))}]"
        return f"{kind.split()[0]} address {address:#x}"

    def __str__(self) -> str:
        warps = -(-python_math.prod(self.trace.threads) // WARP)
        lines = [f"{self.name}: grid {self.trace.grid}, block {self.trace.threads}, {warps} warps a block"]
        for kind in sorted({r.kind for r in self.requests}):
            requests, lanes, nbytes, cost, ideal = self.traffic(kind)
            unit = "sectors" if kind.startswith("global") else "passes"
            counts = f"{requests:>6} requests {lanes:>7} lanes {nbytes:>8} bytes {cost:>6} {unit:<7}"
            each = f"{cost / requests:5.2f} a request, least {ideal / requests:.2f}"
            lines.append(f"  {kind + 's':<14} {counts} {each}")
        lines.append(f"  bank conflicts {self.bank_conflicts}, barriers {self.barriers}")
        others = sorted({r.kind.split()[1] for r in self.trace.of("warp")} - {"block"})
        lines += [f"  {name} {self.instructions(name)}" for name in others]
        partial = sum(self.divergent.values())
        lines.append(f"  divergence: {partial} of {len(self.steps)} steps of warps with a part of their lanes")
        lines += [f"    {count:>6} at {shown(line)}" for line, count in self.divergent.items()]
        lines += [f"  {race}" for race in self.races] or ["  no races"]
        used = f"{self.registers} registers a thread, {self.stated}; {self.shared_bytes} bytes of shared memory a block"
        lines.append(f"  occupancy {self.occupancy} of {WARPS} warps: limited by {self.limit} ({used})")
        return "\n".join(lines)

    def html(self, block: tuple[int, int, int] = (0, 0, 0), warp: int = 0) -> str:
        """A page without a network that draws the accesses of one warp, a step at a time."""
        own = sorted((r for r in self.requests if (r.block, r.warp) == (block, warp)), key=lambda r: r.key)
        lanes = [[[lane, *access[:2]] for lane, access in sorted(r.lanes.items())] for r in own]
        about = [dict(kind=r.kind, line=shown(r.line), cost=r.cost, ideal=r.ideal) for r in own]
        steps = [{**step, "lanes": found} for step, found in zip(about, lanes)]
        data = json.dumps({"title": f"{self.name}, block {block}, warp {warp}", "text": str(self), "steps": steps})
        page = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
        return page.replace("{DATA}", data.replace("<", "\\u003c"))

    def _repr_html_(self) -> str:
        return f'<iframe width="100%" height="620" style="border:0" srcdoc="{html.escape(self.html())}"></iframe>'


def shown(line: Line) -> str:
    """A line's file, number and text."""
    file, number = line
    return f"{Path(file).name}:{number} `{linecache.getline(file, number).strip()}`"


def simulate(
    kernel: Callable[..., None],
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    *arguments: Any,
    registers: int | None = None,
    shared_bytes: int = 0,
) -> WarpReport:
    """Run ``kernel`` on ``grid`` blocks of ``block`` threads and report what it did.

    ``arguments``: NumPy arrays, which the kernel may change, and numbers. The kernel is a Python function in the words
    of ``numba.cuda``, which are the simulator's meanwhile, as is ``math`` in the kernel's module. ``registers``: of a
    thread, for the occupancy; the compiler knows them, the simulator does not. ``shared_bytes``: dynamic shared memory.
    Raises SimulationError, with the line, for what a GPU leaves undefined and for the kernel's own errors; races are
    in the report.
    """
    function: Any = getattr(kernel, "py_func", kernel)
    try:
        names = list(inspect.signature(function).bind(*arguments).arguments)
        trace, given, copies = Trace(function), list(arguments), []
    except (AttributeError, TypeError) as error:
        raise SimulationError(f"simulate(kernel, grid, block, *arguments) with {kernel!r} as kernel: {error}") from None
    sizes: list[Any] = [size if isinstance(size, tuple) else (size,) for size in (grid, block)]
    whole = all(isinstance(n, int | np.integer) and n > 0 for size in sizes for n in size)
    if not whole or max(map(len, sizes)) > 3 or python_math.prod(sizes[1]) > 1024:
        raise SimulationError(f"a grid of {grid!r} blocks of {block!r} threads: 1 to 3 numbers each, 1 to 1024 threads")
    for i, x in enumerate(arguments):
        if isinstance(x, np.ndarray):
            room = np.full(x.nbytes + 256, POISON, np.uint8)
            start = -room.ctypes.data % 256
            view = room[start : start + x.nbytes].view(x.dtype)
            view[:] = x.reshape(-1)
            copies.append((x, view))
            given[i] = KernelArray(view, 0, x.shape or (1,))
            name = names[min(i, len(names) - 1)]  # the last may be *names
            trace.arrays["global"].append((name, view.ctypes.data, x.shape or (1,), x.itemsize))
    of_grid, of_block = ((*size, 1, 1)[:3] for size in sizes)
    try:
        with simulator.running, _words(function):
            simulator.run(function, of_grid, of_block, shared_bytes, tuple(given), trace)
    except Exception as error:
        if isinstance(error, NotImplementedError) and "pure-python" not in str(error):
            raise  # by the kernel itself: it is not written yet
        said = str(error) if isinstance(error, SimulationError) else f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == "greenlet":
            said += ', which the simulator needs: pip install "minigrad-cuda[learn]"'
        raise SimulationError(_place(error) + said) from None
    for x, view in copies:
        x[...] = view.reshape(x.shape)
    return WarpReport(function.__name__, trace, registers)


class _Words(ModuleType):
    """``numba.cuda`` while a kernel is simulated, for all who hold the module."""

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name) if name.startswith("_") else getattr(simulated_cuda.cuda, name)


@contextlib.contextmanager
def _words(function: Any) -> Iterator[None]:
    """The simulator's words for those of ``numba.cuda``; in the module, for imports, ``math`` and what is compiled."""
    numba_cuda, names, ours = importlib.import_module("numba.cuda"), function.__globals__, simulated_cuda.cuda
    dispatcher = sys.modules.get("numba.cuda.dispatcher")  # what is compiled is of its class, but for Numba's simulator
    compiled: Any = dispatcher.CUDADispatcher if dispatcher else type(numba_cuda.jit(device=True)(_place))
    known = {n: v for n, v in vars(numba_cuda).items() if n in {*vars(ours), "grid", "gridsize"}}
    words = {id(python_math): simulated_cuda.math, **{id(v): getattr(ours, n) for n, v in known.items()}}
    before = {n: v for n, v in names.items() if id(v) in words or hasattr(v, "py_func")}
    numbas = numba_cuda.__class__, compiled.__call__
    try:
        names.update({n: words[id(v)] if id(v) in words else v.py_func for n, v in before.items()})
        numba_cuda.__class__, compiled.__call__ = _Words, property(operator.attrgetter("py_func"))
        yield
    finally:
        numba_cuda.__class__, compiled.__call__ = numbas
        names.update(before)


def _place(error: BaseException) -> str:
    """The line of the kernel where it was raised, if it was there."""
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    kernels = [line for line in lines if not re.search(rf"^{re.escape(OURS)}|_twins\.py$|site-packages", line[0])]
    return f"{shown(kernels[-1])}: " if kernels else ""
