"""Drawings as text: curves, pictures, graphs, tables, and what meets, branches off or lies side by side."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from .exercise import Array

SHADES = " .:-=+*#%@"


def curve(*lines: Sequence[float], width: int = 60, height: int = 12) -> str:
    """One or more rows of numbers as curves, each with a sign of its own: ``*``, ``o``, ``+``."""
    rows = [np.interp(np.linspace(0, len(y) - 1, width), np.arange(len(y)), y) for y in lines]
    low, high = float(np.min(rows)) + 0.0, float(np.max(rows))  # never -0.0
    cells = np.full((height, width), " ")
    for sign, row in zip("*o+", rows):
        places = np.rint((high - row) / ((high - low) or 1.0) * (height - 1)).astype(int)
        cells[places, np.arange(width)] = sign
    edges = {0: f"{high:8.3g}", height - 1: f"{low:8.3g}"}
    return "\n".join(f"{edges.get(k, ''):>8} |{''.join(row)}".rstrip() for k, row in enumerate(cells))


def shades(picture: Array) -> str:
    """A matrix as characters, from the lowest number, `` ``, to the highest, ``@``."""
    low, high = float(picture.min()), float(picture.max())
    level = (picture - low) / ((high - low) or 1.0) * (len(SHADES) - 1)
    return "\n".join("".join(SHADES[round(x)] for x in row).rstrip() for row in level)


def table(*rows: Sequence[Any], gap: int = 2) -> str:
    """Rows of anything, a column for each place: the first column to the left, the others to the right."""
    columns = list(zip_longest(*[[str(entry) for entry in row] for row in rows], fillvalue=""))
    widths = [max(map(len, column)) for column in columns]
    sides = "<" + ">" * len(widths)
    lines = [[f"{entry:{side}{width}}" for entry, side, width in zip(row, sides, widths)] for row in zip(*columns)]
    return "\n".join((" " * gap).join(line).rstrip() for line in lines)


def walk(view: Any) -> str:
    """The places of a view's memory, and which of its elements stands there, counted row by row."""
    offsets = [view.start + int(np.dot(index, view.strides)) for index in np.ndindex(*view.shape)]
    visits = {place: turn for turn, place in enumerate(offsets)}
    places = range(len(view.memory))
    return table(["place", *places], ["turn", *(visits.get(place, "-") for place in places)])


def cells(rows: int, columns: int, sign: Callable[[int, int], Any]) -> str:
    """A matrix with ``sign(i, j)`` in row i and column j."""
    return table(*[[sign(i, j) for j in range(columns)] for i in range(rows)], gap=1)


def beside(**drawings: str) -> str:
    """Drawings side by side, each below its name."""
    columns = [[name.replace("_", " "), *drawing.splitlines()] for name, drawing in drawings.items()]
    widths = [max(map(len, lines)) for lines in columns]
    rows = zip_longest(*columns, fillvalue="")
    return "\n".join("    ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def meet(ends: Sequence[str], *way: str, back: bool = False) -> str:
    """Several that come together, and the way from there on; ``back``: against the arrows, from its end to them all."""
    width, middle = max(map(len, ends)), (len(ends) - 1) // 2
    rows = [f"{end:{width}} {'<-' if back else '--'}+" for end in ends]
    rows[middle] += "".join(f"{'<--' if back else '-->'} {step} " for step in way)
    return "\n".join(row.rstrip() for row in rows)


def chain(*steps: str | tuple[str, ...]) -> str:
    """Steps below each other; those of a tuple are done beside the way, and their result is added to it."""
    lines: list[str] = []
    for step in steps:
        if isinstance(step, str):
            lines += [step, "  |"]
        else:
            beside = " -> ".join(step)
            lines += [f"  |--- {beside} ---+", f"  + <--{'-' * len(beside)}----+", "  |"]
    return "\n".join(lines[:-1])


def graph(end: Any, names: dict[Any, str]) -> str:
    """What a number or tensor was computed from, as an indented list; what stands there twice is shared."""
    lines: list[str] = []

    def add(vertex: Any, depth: int) -> None:
        lines.append("  " * depth + names.get(vertex, type(vertex).__name__))
        for parent in vertex.parents():
            add(parent, depth + 1)

    add(end, 0)
    return "\n".join(lines)
