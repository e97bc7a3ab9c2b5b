"""Four neighbouring elements at a time: by one access where they have up to 4 bytes, by two where they have 8."""

from typing import Any, NamedTuple

from . import ptx


class Fours(NamedTuple):
    """Device functions (p, i) -> values, and (p, i, values), as those of ``ptx.py``."""

    load: Any
    load_constant: Any
    store: Any


def _twice(load2: Any) -> Any:
    return lambda p, i: load2(p, i) + load2(p, i + 2)


def _store(p: Any, i: Any, values: Any) -> None:
    ptx.store2(p, i, values[:2])
    ptx.store2(p, i + 2, values[2:])


def each(function: Any, inputs: int = 1) -> Any:
    """The device function of 4 values, or of twice 4: of each, or each pair, what a device function makes of it."""
    if inputs == 1:
        return lambda x: (function(x[0]), function(x[1]), function(x[2]), function(x[3]))
    return lambda x, y: (function(x[0], y[0]), function(x[1], y[1]), function(x[2], y[2]), function(x[3], y[3]))


add4: Any = each(lambda x, y: x + y, 2)
"""The sums of 4 values and 4."""


def load_inside(p: Any, i: Any, step: Any, count: Any, zero: Any) -> Any:
    """4 elements, each ``step`` from the one before: the first ``count`` of them, and zeros."""
    return (
        p[i] if count > 0 else zero,
        p[i + step] if count > 1 else zero,
        p[i + 2 * step] if count > 2 else zero,
        p[i + 3 * step] if count > 3 else zero,
    )


def store_inside(p: Any, i: Any, count: Any, values: Any) -> None:
    """The first ``count`` of 4 values, one by one."""
    for e in range(4):
        if e < count:
            p[i + e] = values[e]


def fours(itemsize: int) -> Fours:
    """Those for elements of ``itemsize`` bytes."""
    if itemsize < 8:
        return Fours(ptx.load4, ptx.load_constant4, ptx.store4)
    return Fours(_twice(ptx.load2), _twice(ptx.load_constant2), _store)


def storer_inside(itemsize: int) -> Any:
    """The device function that stores 4 values from ``first`` on as far as ``n`` reaches: at once but for the last."""
    store = fours(itemsize).store

    def store_four(p: Any, first: Any, n: Any, values: Any) -> None:
        if first + 4 <= n:
            store(p, first, values)
        else:
            store_inside(p, first, n - first, values)

    return store_four
