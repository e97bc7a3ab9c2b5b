"""y[...] = x between arrays of one shape and dtype, at any strides.

On the host the dimensions are put in the order of y's strides, and those that follow on one another in both arrays
become one. A run of elements that lies together in both is cut into words of up to 16 bytes. What is left is one of
four cases:

* one run: the driver's own copy;
* runs (the inner dimension is kept): an elementwise kernel, with a thread for each word;
* x's runs lie along another dimension than y's: the tiled transposes of ``transposes.py``;
* no runs: the same, where words are elements.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from ..platform import memory
from ..platform.array import Array, merged
from ..pointwise.pointwise import Pointwise, floating
from ..pointwise.rules import same
from .transposes import PADDED_TILES, TILE_SIDE, WIDE_TILES

SHORTEST, LEAST = 16, 4096  # below these lengths and sizes tiles do not pay
MOST_LAUNCHES = 64  # of transposes, where several outer dimensions are left
MOST_BLOCKS = 65535  # of a grid's second and third size
WIDTHS: dict[int, np.dtype[Any]] = {n: np.dtype(f"uint{8 * n}") for n in (1, 2, 4, 8)}


_COPY = {n: Pointwise("copy", same, floating, 1, eager=(word.name,), lazy=(), width=1) for n, word in WIDTHS.items()}
_COPY[16] = Pointwise("copy_fours", same, floating, 1, eager=("uint32",), lazy=())


class Dimension(NamedTuple):
    """Size, and strides in bytes."""

    n: int
    sy: int
    sx: int


def copy_into(y: Array, x: Array) -> None:
    """y[...] = x; equal shapes and dtypes, any strides; no position of y occurs twice, and x does not overlap y.

    Raises ValueError if shapes or dtypes differ.
    """
    if y.shape != x.shape or y.dtype != x.dtype:
        got = f"{y.dtype} {y.shape} and {x.dtype} {x.shape}"
        raise ValueError(f"copy_into takes arrays of one shape and dtype: got {got}")
    if not y.size:
        return
    dimensions, run = list(collapse(y.shape, y.strides, x.strides)), y.itemsize
    if dimensions and dimensions[-1].sy == dimensions[-1].sx == run:
        run *= dimensions.pop().n
    if not dimensions:
        memory.copy_across(y.pointer, x.pointer, run)
    elif run > y.itemsize or not _transpose(y, x, dimensions):
        width = widest_word(run, [y.pointer, x.pointer, *(d.sy for d in dimensions), *(d.sx for d in dimensions)])
        step = 4 if width == 16 else width
        dimensions.append(Dimension(run // step, step, step))
        shape, sy, sx = zip(*dimensions, strict=True)
        source, target = (Array(a.memory, shape, WIDTHS[step], s, a.pointer) for a, s in ((x, sx), (y, sy)))
        _COPY[width](source, out=target)


@functools.lru_cache(maxsize=8192)
def collapse(shape: tuple[int, ...], sy: tuple[int, ...], sx: tuple[int, ...]) -> tuple[Dimension, ...]:
    """The dimensions from y's largest stride to its smallest, without those of size 1, neighbours merged."""
    order = sorted(zip(shape, sy, sx, strict=True), key=lambda d: (-abs(d[1]), -abs(d[2])))
    return tuple(Dimension(*d) for d in merged(order))


def _transpose(y: Array, x: Array, dimensions: list[Dimension]) -> bool:
    """Copy through tiles if the inner dimension of x is another one than y's and both are long enough; else False."""
    itemsize = y.itemsize
    inner = [d for d in dimensions if d.sx == itemsize]
    if len(dimensions) < 2 or dimensions[-1].sy != itemsize or not inner:
        return False
    across, down = inner[-1], dimensions[-1]  # the inner dimensions of x and of y
    *outer, matrices = [Dimension(1, 0, 0), *(d for d in dimensions if d is not across and d is not down)]
    launches = math.prod(d.n for d in outer)
    if min(across.n, down.n) < SHORTEST or across.n * down.n * matrices.n < LEAST or launches > MOST_LAUNCHES:
        return False
    places = (y.pointer, x.pointer, across.sy, down.sx, *(s for d in (*outer, matrices) for s in d[1:]))
    per_access = 16 // itemsize
    if itemsize in WIDE_TILES and not (across.n % per_access or down.n % per_access or any(p % 16 for p in places)):
        chosen, side = WIDE_TILES[itemsize]
    else:
        chosen, side = PADDED_TILES[itemsize], TILE_SIDE
    grid = (-(-across.n // side), -(-down.n // side), matrices.n)
    if max(grid[1:]) > MOST_BLOCKS:
        return False
    steps = [stride // itemsize for stride in (across.sy, down.sx, matrices.sy, matrices.sx)]
    for place in np.ndindex(*(d.n for d in outer)):
        here = y.pointer + sum(i * d.sy for i, d in zip(place, outer, strict=True))
        there = x.pointer + sum(i * d.sx for i, d in zip(place, outer, strict=True))
        pair = words_from(y, here, itemsize), words_from(x, there, itemsize)
        chosen.launch(grid, *pair, down.n, across.n, *steps)
    return True


def words_from(x: Array, pointer: int, width: int) -> Array:
    """x's memory from an address on, as words of a width, for a kernel's pointer."""
    return Array(x.memory, (x.nbytes // width,), WIDTHS[width], (width,), pointer)


def widest_word(run: int, places: list[int]) -> int:
    """The widest word, in bytes, of which the run and all distances between runs are multiples."""
    width = 16
    while run % width or any(place % width for place in places):
        width //= 2
    return width
