"""How elementwise kernels see arrays: few dimensions, and groups of elements along the innermost one.

Worked out on the host, once for each set of shapes and strides. Inputs are broadcast to the output's shape (stride 0),
and the dimensions are put in the order of the output's strides. Those of size 1 are dropped, and neighbours that follow
on one another in all arrays become one. A kernel sees up to five dimensions; what has more, or too many groups for
32-bit numbers, is cut along its outermost dimension into several launches.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from ..platform.array import contiguous_strides, merged

MIDDLE = 3  # dimensions of a kernel between the outermost and the innermost
MOST_GROUPS = 2**31

GATHER, VECTOR, NUMBER, SAME = 0, 1, 2, 3  # how a kernel reads an input

Layout = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides in bytes, itemsize
Dimension = tuple[int, tuple[int, ...]]  # size; steps in elements of the output and the inputs


class LayoutPart(NamedTuple):
    """A launch. ``offsets`` (bytes from the first elements) and ``modes`` are the inputs', then the output's."""

    groups: int
    arguments: tuple[int, ...]
    offsets: tuple[int, ...]
    modes: tuple[int, ...]


class LaunchPlan(NamedTuple):
    """The output's shape, size and strides (None: C order), and the launches."""

    shape: tuple[int, ...]
    size: int
    strides: tuple[int, ...] | None
    parts: tuple[LayoutPart, ...]


@functools.lru_cache(maxsize=8192)
def plan(
    width: int, inputs: tuple[Layout | None, ...], out: tuple[tuple[int, ...], tuple[int, ...]] | None, itemsize: int
) -> LaunchPlan:
    """The launches for threads of ``width`` elements; None stands for a number.

    ``out`` (shape and strides) is given where the result goes into an existing array; ``itemsize`` is its elements'.
    Raises ValueError where shapes do not broadcast.
    """
    shapes = [x[0] for x in inputs if x is not None]
    try:
        shape = np.broadcast_shapes(*shapes)
        fits = out is None or np.broadcast_shapes(shape, out[0]) == out[0]
    except ValueError:
        fits = False
    if not fits:
        into = "" if out is None else f" into {out[0]}"
        raise ValueError(f"operands could not be broadcast together with shapes {' '.join(map(str, shapes))}{into}")
    shape, strides = out or (shape, _kept_order(shape, inputs, itemsize))
    size = math.prod(shape)
    if not size:
        return LaunchPlan(shape, 0, None, ())
    itemsizes = [itemsize, *(1 if x is None else x[2] for x in inputs)]
    steps = [_steps(shape, (shape, contiguous_strides(shape, itemsize) if strides is None else strides, itemsize))]
    steps += [_steps(shape, x) for x in inputs]
    parts: list[LayoutPart] = []
    _divide(width, _collapse(shape, steps), [0] * len(steps), itemsizes, parts)
    return LaunchPlan(shape, size, strides, tuple(parts))


def _kept_order(shape: tuple[int, ...], inputs: tuple[Layout | None, ...], itemsize: int) -> tuple[int, ...] | None:
    """Strides in the order of the inputs of full shape if all have the same one, dense and not C's; else None."""
    full = [x for x in inputs if x is not None and x[0] == shape]
    if not full or any(a * full[0][2] != b * x[2] for x in full for a, b in zip(x[1], full[0][1], strict=True)):
        return None
    order = sorted(range(len(shape)), key=lambda i: -full[0][1][i])
    expected, found = full[0][2], [0] * len(shape)
    for i in reversed(order):
        if shape[i] != 1 and full[0][1][i] != expected:
            return None
        found[i] = expected // full[0][2] * itemsize
        expected *= shape[i]
    return None if order == list(range(len(shape))) else tuple(found)


def _steps(shape: tuple[int, ...], x: Layout | None) -> list[int]:
    """Steps in elements along each dimension of ``shape``, to which ``x`` is broadcast."""
    if x is None:
        return [0] * len(shape)
    missing = len(shape) - len(x[0])
    return [0] * missing + [0 if n == 1 else stride // x[2] for n, stride in zip(x[0], x[1], strict=True)]


def _collapse(shape: tuple[int, ...], steps: list[list[int]]) -> list[Dimension]:
    """The dimensions from outermost to innermost, at least one."""
    order = sorted(range(len(shape)), key=lambda i: -abs(steps[0][i]))
    found = merged((shape[i], *(s[i] for s in steps)) for i in order)
    return [(n, tuple(step)) for n, *step in found] or [(1, (0,) * len(steps))]


def _divide(
    width: int, dimensions: list[Dimension], offsets: list[int], itemsizes: list[int], parts: list[LayoutPart]
) -> None:
    """Append the launches for ``dimensions``, at ``offsets`` in bytes."""
    (n, step), *rest = dimensions
    groups = math.prod(d[0] for d in dimensions[:-1]) * -(-dimensions[-1][0] // width)
    if len(dimensions) <= MIDDLE + 2 and groups < MOST_GROUPS:
        parts.append(_part(width, dimensions, groups, offsets))
        return
    middle = 1 if len(dimensions) > MIDDLE + 2 else n // 2 // width * width or n // 2
    for start in range(n) if middle == 1 else (0, middle):
        end = start + 1 if middle == 1 else (middle if start == 0 else n)
        inner = rest if end - start == 1 and rest else [(end - start, step), *rest]
        moved = [o + start * s * size for o, s, size in zip(offsets, step, itemsizes, strict=True)]
        _divide(width, inner, moved, itemsizes, parts)


def _part(width: int, dimensions: list[Dimension], groups: int, offsets: list[int]) -> LayoutPart:
    *above, (inner, step) = dimensions
    zeros = (0,) * len(step)
    outermost = above[0][1] if above else zeros
    middle: list[Any] = []
    for n, steps in reversed(above[1:]):
        middle += [n, *steps]
    middle += [1, *zeros] * (MIDDLE - len(above[1:]))
    modes = []
    for j, s in enumerate(step):
        aligned = all(steps[j] % 4 == 0 for _, steps in above)
        modes.append(VECTOR if s == 1 and aligned and width == 4 else SAME if s == 0 and width == 4 else GATHER)
    arguments = (groups, -(-inner // width), inner, *step, len(above), *outermost, *middle)
    return LayoutPart(groups, arguments, (*offsets[1:], offsets[0]), (*modes[1:], modes[0]))
