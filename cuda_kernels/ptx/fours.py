"""Four neighbouring elements at a time: by one access where they have up to 4 bytes, by two where they have 8."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..platform.language import device_function
from . import ptx


class Fours(NamedTuple):
    """Device functions (p, i) -> values, and (p, i, values), as those of ``ptx.py``."""

    load: Any
    load_constant: Any
    store: Any


@device_function
def _load(p: Any, i: Any) -> Any:
    a, b = ptx.load2(p, i), ptx.load2(p, i + 2)
    return a[0], a[1], b[0], b[1]


@device_function
def _load_constant(p: Any, i: Any) -> Any:
    a, b = ptx.load_constant2(p, i), ptx.load_constant2(p, i + 2)
    return a[0], a[1], b[0], b[1]


@device_function
def _store(p: Any, i: Any, values: Any) -> None:
    ptx.store2(p, i, (values[0], values[1]))
    ptx.store2(p, i + 2, (values[2], values[3]))


@device_function
def load_inside(p: Any, i: Any, step: Any, count: Any, zero: Any) -> Any:
    """4 elements, each ``step`` from the one before: the first ``count`` of them, and zeros."""
    return (
        p[i] if count > 0 else zero,
        p[i + step] if count > 1 else zero,
        p[i + 2 * step] if count > 2 else zero,
        p[i + 3 * step] if count > 3 else zero,
    )


def fours(itemsize: int) -> Fours:
    """Those for elements of ``itemsize`` bytes."""
    if itemsize < 8:
        return Fours(ptx.load4, ptx.load_constant4, ptx.store4)
    return Fours(_load, _load_constant, _store)
