"""Drawings as text: curves, pictures, graphs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .exercise import Array

SHADES = " .:-=+*#%@"


def curve(*lines: Sequence[float], width: int = 60, height: int = 12) -> str:
    """One or more rows of numbers as curves, each with a sign of its own: ``*``, ``o``, ``+``."""
    rows = [np.interp(np.linspace(0, len(y) - 1, width), np.arange(len(y)), y) for y in lines]
    low, high = float(np.min(rows)), float(np.max(rows))
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


def walk(view: Any) -> str:
    """The places of a view's memory, and which of its elements stands there, counted row by row."""
    offsets = [view.start + int(np.dot(index, view.strides)) for index in np.ndindex(*view.shape)]
    visits = {place: turn for turn, place in enumerate(offsets)}
    rows = {"place": range(len(view.memory)), "turn": [visits.get(place, "-") for place in range(len(view.memory))]}
    return "\n".join(f"{name:8}" + "".join(f"{entry:>4}" for entry in row) for name, row in rows.items())


def graph(end: Any, names: dict[Any, str]) -> str:
    """What a number or tensor was computed from, as an indented list; what stands there twice is shared."""
    lines: list[str] = []

    def add(vertex: Any, depth: int) -> None:
        lines.append("  " * depth + names.get(vertex, type(vertex).__name__))
        for parent in vertex.parents():
            add(parent, depth + 1)

    add(end, 0)
    return "\n".join(lines)
