"""Kernels in a check: they run in the simulator, and what it finds wrong is an answer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..cuda_kernels.simulator import SimulationError, WarpReport, simulate
from .exercise import Array, Wrong, require, same


def run(what: str, kernel: Callable[..., None], grid: Any, block: Any, *arguments: Any) -> WarpReport:
    """The report of a launch. Raises ``Wrong`` for what a GPU leaves undefined, and for races."""
    try:
        report = simulate(kernel, grid, block, *arguments)
    except SimulationError as error:
        raise Wrong(f"{what}\n{error}") from None
    require(not report.races, "\n".join([what, *report.races[:1]]))
    return report


def empty(*shape: int) -> Array:
    """float32 that nobody wrote yet: NaN, as fresh memory in the simulator."""
    return np.full(shape, np.nan, np.float32)


def costs(what: str, report: WarpReport, kind: str, most: int, why: str) -> None:
    """Raise ``Wrong`` with the reason if the requests of a kind cost more sectors or passes than ``most``."""
    found = report.traffic(kind).cost
    unit = "sectors of 32 bytes" if kind.startswith("global") else "passes over the banks"
    accesses = f"{kind}s" if " " in kind else f"accesses to {kind} memory"
    require(found <= most, f"{what}\n{accesses} took {found} {unit}, {most} are enough: {why}")


def written(what: str, got: Array, want: Array, tolerance: float = 1e-5) -> None:
    """``same`` for a kernel's result; what no thread wrote is said first."""
    places = np.argwhere(np.isnan(got) & ~np.isnan(want))
    if len(places):
        first = ", ".join(str(int(i)) for i in places[0])
        raise Wrong(f"{what}\nexpected {got.size} numbers\ngot      {len(places)} elements that are not a number, "
                    f"the first at [{first}]: no thread wrote there, or it read what nobody wrote")  # fmt: skip
    wrong = np.argwhere(~np.isclose(got, want, rtol=0, atol=tolerance * np.max(np.abs(want), initial=1.0)))
    if len(wrong) and got.size > 40:
        place = tuple(int(i) for i in wrong[0])
        what += f"\n{len(wrong)} of {got.size} elements are wrong, the first at {list(place)}: "
        what += f"{got[place]:.6g} instead of {want[place]:.6g}"
    same(what, got, want, tolerance)


def picture(report: WarpReport, kind: str, step: int = 0) -> str:
    """A request of the first warp as text: the lanes that ask for each word of a sector, or of the banks."""
    asked = [r for r in report.requests if r.kind == kind and r.warp == 0 and r.block == (0, 0, 0)][step]
    wide = 8 if kind.startswith("global") else 32
    lanes: dict[int, list[int]] = {}
    for lane, (address, nbytes, _) in sorted(asked.lanes.items()):
        for word in range(address // 4, (address + nbytes) // 4):
            lanes.setdefault(word, []).append(lane)
    lines = [f"{kind} of {len(asked.lanes)} lanes: {asked.cost}, the least is {asked.ideal}"]
    rows = sorted({word // wide for word in lanes})
    for row in rows[:4]:
        words = [lanes.get(word, []) for word in range(row * wide, row * wide + wide)]
        cells = [f"{here[0]}{'+' if len(here) > 1 else ''}" if here else "" for here in words]
        name = "sector" if wide == 8 else "banks"
        lines.append(f"{name} +{(row - rows[0]) * wide * 4:<5}" + "".join(f"{cell:.>4}" for cell in cells))
    return "\n".join(lines + [f"... and {len(rows) - 4} more"] * (len(rows) > 4))
