"""A number of a run over its steps: kept whole, shown in as many points as a picture has room for."""

import math
from array import array
from typing import Any

import numpy as np

POINTS = 500  # of a curve: about one in a pixel
STEP, SECONDS, VALUE = range(3)


class Series:
    """Values in order of their step, each with the seconds of training before it."""

    def __init__(self) -> None:
        self.columns: tuple[array[float], ...] = (array("d"), array("d"), array("d"))

    def __len__(self) -> int:
        return len(self.columns[STEP])

    def add(self, step: float, seconds: float, value: float) -> None:
        """Append a value. One of an earlier step begins again there: the run was restarted from an older checkpoint."""
        self.cut(step)
        for column, number in zip(self.columns, (step, seconds, value)):
            column.append(number)

    def reached(self, step: float) -> bool:
        """Whether it has a value of this step or of a later one."""
        return bool(self) and self.columns[STEP][-1] >= step

    def cut(self, step: float) -> None:
        """Forget the values of this step and of later ones."""
        while self.reached(step):
            for column in self.columns:
                column.pop()

    def last(self) -> float | None:
        """The newest value, None if that is not finite."""
        value = self.columns[VALUE][-1] if self else math.nan
        return value if math.isfinite(value) else None

    def least(self) -> float | None:
        """The smallest finite value."""
        return min(filter(math.isfinite, self.columns[VALUE]), default=None)

    def shown(self, axis: int = STEP, start: float = -math.inf, end: float = math.inf) -> dict[str, list[float]]:
        """The curve from ``start`` to ``end`` of an axis, and a point more on each side, in at most POINTS points.

        Of many values a point is the mean of neighbours, with their ``low`` and ``high``: no peak is lost. NaN and
        infinities have no place in a curve.
        """
        table = np.array(self.columns)
        table = table[:, np.isfinite(table[VALUE])]
        first = max(0, np.searchsorted(table[axis], start) - 1)
        table = table[:, first : np.searchsorted(table[axis], end, "right") + 1]
        count = table.shape[1]
        if count <= POINTS:
            return {"step": table[STEP].tolist(), "seconds": _short(table[SECONDS]), "value": _short(table[VALUE])}
        edges = np.linspace(0, count, POINTS + 1).astype(int)
        begins, lasts = edges[:-1], edges[1:] - 1
        means = np.add.reduceat(table[VALUE], begins) / np.diff(edges)
        return {
            "step": table[STEP][lasts].tolist(),
            "seconds": _short(table[SECONDS][lasts]),
            "value": _short(means),
            "low": _short(np.minimum.reduceat(table[VALUE], begins)),
            "high": _short(np.maximum.reduceat(table[VALUE], begins)),
        }


def _short(values: Any) -> list[float]:
    """Seven digits of each number: more are not seen, and would be sent."""
    return [float(f"{value:.7g}") for value in values.tolist()]
