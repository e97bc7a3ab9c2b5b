"""What a kernel does in the simulator, instruction by instruction: ``report.py`` counts it.

Lanes of a warp that come to the same instruction in the same turns of all loops around it make one ``Request``. So
lanes that took different ways meet again where the ways do, and no order of the threads changes what is counted.
"""

import dis
import functools
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ..simulated_memory import WARP, Pointer, SimulationError, Stamp, flat

OURS = str(Path(__file__).parents[1])
SECTOR, BANK, BANKS = 32, 4, 32  # bytes of the smallest transfer, bytes of a bank, banks
MOST = 500_000  # requests that a report keeps
Line = tuple[str, int]


class Request:
    """One instruction of a warp: for each lane that takes part an address, a number of bytes, and when."""

    def __init__(self, kind: str, line: Line, block: tuple[int, ...], warp: int, key: tuple[int, ...]) -> None:
        self.kind: str = kind  # "global load", "shared store", "warp shfl_xor_sync", ...
        self.line: Line = line
        self.block: tuple[int, ...] = block
        self.warp: int = warp
        self.key: tuple[int, ...] = key  # turns and places: sorted, the order of the program
        self.lanes: dict[int, tuple[int, int, Stamp]] = {}

    @property
    def nbytes(self) -> int:
        """The bytes that the lanes ask for, each byte once."""
        return len({byte for address, n, _ in self.lanes.values() for byte in range(address, address + n)})

    @property
    def cost(self) -> int:
        """Sectors of 32 bytes in global memory; passes over the banks in shared memory."""
        if self.kind.startswith("global"):
            return len({s for a, n, _ in self.lanes.values() for s in range(a // SECTOR, -(-(a + n) // SECTOR))})
        return sum(self._passes(lanes) for lanes in self._phases())

    @property
    def ideal(self) -> int:
        """The least that so many bytes may cost."""
        return -(-self.nbytes // SECTOR) if self.kind.startswith("global") else len(self._phases())

    def _phases(self) -> list[list[int]]:
        """Lanes that the banks serve at once: 32 of up to 4 bytes, 16 of 8, 8 of 16."""
        widest = max(nbytes for _, nbytes, _ in self.lanes.values())
        phases: dict[int, list[int]] = defaultdict(list)
        for lane in self.lanes:
            phases[lane * max(widest, BANK) // (BANK * BANKS)].append(lane)
        return list(phases.values())

    def _passes(self, lanes: list[int]) -> int:
        """The most different words of one bank; each atomic operation counts, also on one word."""
        words = [w for a, n, _ in map(self.lanes.__getitem__, lanes) for w in range(a // BANK, -(-(a + n) // BANK))]
        return int(np.bincount([w % BANKS for w in (words if self.kind.endswith("atomic") else set(words))]).max())


@functools.cache
def loops(code: CodeType) -> list[tuple[int, int]]:
    """The first and last instruction of each loop, the outer ones first."""
    last: dict[int, int] = {}
    for step in dis.get_instructions(code):
        if step.opcode in (*dis.hasjrel, *dis.hasjabs) and step.argval <= step.offset:
            last[step.argval] = step.offset
    return sorted(last.items(), key=lambda loop: (loop[0], -loop[1]))


@functools.cache
def choices(code: CodeType) -> dict[int, int]:
    """Where a part of a line begins that is chosen (``a if c else b``, ``if c: a``, ``a and b``), and its line."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "NOT_TAKEN"]
    starts, line, lines = dict(dis.findlinestarts(code)), 0, {}
    found: dict[int, int] = {}
    for step in steps:
        line = lines[step.offset] = starts.get(step.offset) or line
    for step, after in itertools.pairwise(steps):
        if "JUMP" in step.opname and "_IF_" in step.opname:
            found |= {way: lines[way] for way in (after.offset, step.argval) if lines[way] == lines[step.offset]}
    ends = {step.offset for step in steps if "CONST" in step.opname and step.argval is None}  # a return without a value
    return {way: line for way, line in found.items() if way not in ends}


class _Call:
    """A function that a thread runs: in which turn of each loop it is."""

    def __init__(self, trace: "Trace", code: CodeType) -> None:
        self.trace = trace
        self.loops = loops(code)
        self.choices = choices(code)
        self.outermost: bool = code is trace.code
        self.turns: list[int] = [0] * len(self.loops)
        self.before: int = -1  # the instruction at which the last line began

    def line(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        """A line begins, or what a choice within a line has chosen."""
        here = frame.f_lasti
        if event == "line":
            frame.f_trace_opcodes = frame.f_lineno in self.choices.values()
            for i, (first, last) in enumerate(self.loops):
                # A jump backwards is seen where it goes to, or, in a loop of one line, where it comes from.
                turns = here == last or (here == first and self.before != last)
                self.turns[i] = self.turns[i] + turns if first <= here <= last else 0
            self.before = here
        if event == "line" or (event == "opcode" and here in self.choices):
            self.trace.note("step", 0, 0, frame)
        return self.line

    def key(self, here: int) -> tuple[int, ...]:
        """Where the thread is; ``here``: the instruction."""
        key: tuple[int, ...] = (here,)
        for (first, last), turn in zip(reversed(self.loops), reversed(self.turns)):
            if first <= here <= last:
                key = (first, turn, *key)
        return key


class KernelArray(Pointer):
    """A NumPy array as a kernel's argument: global memory with a shape."""

    __slots__ = ("dtype", "ndim", "shape", "size")

    def __init__(self, view: np.ndarray, base: int, shape: tuple[int, ...]) -> None:
        super().__init__(view, base)
        self.shape: tuple[int, ...] = shape
        self.dtype: Any = view.dtype
        self.size: int = math.prod(shape)
        self.ndim: int = len(shape)

    def __len__(self) -> int:
        return self.shape[0]

    def _flat(self, index: Any) -> int:
        return flat(index, self.shape, "an array")

    def __getitem__(self, index: Any) -> Any:
        if self.ndim > 1 and index.__class__ is not tuple:  # a row
            row = flat(index, self.shape[:1], "an array") * (self.size // self.shape[0])
            return KernelArray(self.view, self.base + row, self.shape[1:])
        return super().__getitem__(self._flat(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(self._flat(index), value)

    def update(self, i: Any, change: Callable[[Any], Any]) -> Any:
        """As a pointer's."""
        return super().update(self._flat(i), change)


class Trace:
    """The requests of one launch, by block, warp, key and kind."""

    def __init__(self, function: Any) -> None:
        self.requests: dict[tuple[Any, ...], Request] = {}
        self.grid: tuple[int, int, int] = (0, 0, 0)  # so far it has not run
        self.threads: tuple[int, int, int] = (0, 0, 0)
        self.shared_bytes: int = 0  # of a block
        # by space: name, address, shape and bytes of an element
        self.arrays: dict[str, list[tuple[str, int, tuple[int, ...], int]]] = {"global": [], "shared": []}
        self.barriers: int = 0  # of all blocks
        self.now: Any = None  # ``now.block`` runs
        self.code: CodeType = function.__code__

    def note(self, kind: str, address: int, nbytes: int, frame: FrameType | None = None) -> None:
        """The running thread comes to an instruction, or to a line."""
        block, line = self.now.block, None
        thread = block.current
        here: FrameType | None = frame or sys._getframe(1)
        key: tuple[int, ...] = ()
        while here is not None:
            call = getattr(here.f_trace, "__self__", None)
            if call.__class__ is _Call:
                key = call.key(here.f_lasti) + key
                line = line or (here.f_code.co_filename, here.f_lineno)
                if call.outermost:
                    break
            here = here.f_back
        place = block.index, thread.warp.number, key, kind
        found = self.requests.get(place)
        if found is None:
            if len(self.requests) == MOST:
                raise SimulationError(f"more than {MOST:,} steps and requests: an endless loop, or too large a launch")
            found = self.requests[place] = Request(kind, line or ("", 0), block.index, thread.warp.number, key)
        if thread.lane in found.lanes:  # of the elements of a vector
            first, before, _ = found.lanes[thread.lane]
            address, nbytes = min(first, address), before + nbytes
        found.lanes[thread.lane] = address, nbytes, block.stamp

    def enter(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        """For ``sys.settrace``: the kernel begins, or it calls a function that is no twin."""
        file, caller = frame.f_code.co_filename, getattr(frame.f_back, "f_trace", None)
        inside = isinstance(getattr(caller, "__self__", None), _Call) and not file.endswith("_twins.py")
        if frame.f_code is not self.code and (file.startswith(OURS) or not inside):
            return None
        return _Call(self, frame.f_code).line

    def ended(self, block: Any) -> None:
        """A block ran to its end."""
        self.barriers += block.epoch
        self.shared_bytes = len(block.dynamic) + sum(a.values.nbytes for a in block.shared if a.declared[0])
        own = [(a.start, a.shape, a.values.itemsize) for a in block.shared]
        self.arrays["shared"] = [(f"shared array {i}", *array) for i, array in enumerate(own, 1)]

    def of(self, space: str) -> list[Request]:
        """The requests to one space, each warp's in the order of the program."""
        found = [request for request in self.requests.values() if request.kind.startswith(space)]
        return sorted(found, key=lambda request: (request.block[::-1], request.warp, request.key))

    def races(self) -> Iterator[tuple[Request, Request, int, int, int]]:
        """Two requests, a lane of each, and the address that they use without a barrier between; once for two lines."""
        for space in ("shared", "global"):
            uses: dict[Any, dict[Any, Any]] = defaultdict(dict)
            requests = self.of(space)
            step = min((n for r in requests for _, n, _ in r.lanes.values()), default=1)
            for request in requests:
                for lane, (address, nbytes, stamp) in request.lanes.items():
                    for unit in range(address // step, (address + nbytes - 1) // step + 1):
                        place = unit, request.block if space == "shared" else None
                        uses[place].setdefault((request.block, stamp, request.kind, request.line), (request, lane))
            seen = set()
            for (unit, _), found in uses.items():
                for one, (a, la) in found.items() if len({(use[0], use[1].thread) for use in found}) > 1 else ():
                    for other, (b, lb) in found.items() if one[2].endswith(("store", "atomic")) else ():
                        lines = frozenset((a.line, b.line))
                        if lines not in seen and _clash(one, other):
                            seen.add(lines)
                            yield a, b, la, lb, unit * step


def _clash(one: Any, other: Any) -> bool:
    """Whether nothing orders a write and another use of the same memory."""
    (block, a, kind, _), (other_block, b, other_kind, _) = one, other
    if (block, a.thread) == (other_block, b.thread) or (kind == other_kind and kind.endswith("atomic")):
        return False
    same_warp = a.thread // WARP == b.thread // WARP
    return block != other_block or (a.epoch == b.epoch and not (same_warp and a.warp_epoch != b.warp_epoch))
