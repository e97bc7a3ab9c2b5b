"""y[...] = x between arrays of one shape and dtype, at any strides.

On the host the dimensions are put in the order of y's strides, those that follow on one another in both arrays become
one, and a run of elements that lies together in both is cut into words of up to 16 bytes. What is left is
y[i0 sy0 + ... + i4 sy4] = x[i0 sx0 + ... + i4 sx4] on words, one of four cases:

* one run: the driver's own copy;
* runs (the inner dimension is kept): a thread for each word, of 16 bytes where the addresses allow it;
* x's runs lie along another dimension than y's: the tiled transposes of ``transposes.py``;
* no runs: a thread for each element, neighbours writing neighbours.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from ..platform import memory
from ..platform.array import Array, merged
from ..platform.language import cuda, device_function
from ..platform.launch import Kernel, kernel
from ..ptx import ptx
from .transposes import PADDED_TILES, TILE_SIDE, WIDE_TILES

RANK = 5  # dimensions of a kernel
MOST_WORDS = 2**31 - 1  # of a launch, whose places are 32-bit numbers
SHORTEST, LEAST = 16, 4096  # below these lengths and sizes tiles do not pay
MOST_LAUNCHES = 64  # of transposes, where several outer dimensions are left
MOST_BLOCKS = 65535  # of a grid's second and third size
WIDTHS: dict[int, np.dtype[Any]] = {n: np.dtype(f"uint{8 * n}") for n in (1, 2, 4, 8)}


@device_function
def places_of(i: Any, n1: Any, n2: Any, n3: Any, n4: Any, sy: Any, sx: Any) -> Any:
    """Where element i of five dimensions (.., n1, n2, n3, n4) lies at the strides sy, and at sx."""
    rest = np.uint32(i)
    outer = rest // n4
    i4 = np.int64(rest - outer * n4)
    to, source = i4 * sy[4], i4 * sx[4]
    if outer > 0:  # else the other places are all 0
        rest, outer = outer, outer // n3
        i3 = np.int64(rest - outer * n3)
        to += i3 * sy[3]
        source += i3 * sx[3]
        if outer > 0:
            rest, outer = outer, outer // n2
            i2 = np.int64(rest - outer * n2)
            to += i2 * sy[2]
            source += i2 * sx[2]
            if outer > 0:
                rest, outer = outer, outer // n1
                i1, i0 = np.int64(rest - outer * n1), np.int64(outer)
                to += i1 * sy[1] + i0 * sy[0]
                source += i1 * sx[1] + i0 * sx[0]
    return to, source


def _strided(bits: int, vector: bool) -> Kernel:
    """The copy of words of ``bits``; with ``vector`` each of them is two, and strides still count single ones."""

    @kernel(
        f"bits{bits}* x2, uint32 x{RANK}, int64 x{2 * RANK}",
        registers=20, name=f"copy_{bits * (1 + vector)}_bits", vector_loads=vector,
    )  # fmt: skip
    def copy_words(y, x, n, n1, n2, n3, n4, sy0, sy1, sy2, sy3, sy4, sx0, sx1, sx2, sx3, sx4):
        i = cuda.grid(1)
        if i < n:
            to, source = places_of(i, n1, n2, n3, n4, (sy0, sy1, sy2, sy3, sy4), (sx0, sx1, sx2, sx3, sx4))
            if vector:
                ptx.store2(y, to, ptx.load2(x, source))
            else:
                y[to] = x[source]

    return copy_words


_COPY = {width: _strided(8 * width, False) for width in (1, 2, 4, 8)} | {16: _strided(64, True)}


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
        raise ValueError(
            f"copy_into takes arrays of one shape and dtype: got {y.dtype} {y.shape} and {x.dtype} {x.shape}"
        )
    if y.size:
        _copy(y, x, y.pointer, x.pointer, collapse(y.shape, y.strides, x.strides))


def collapse(shape: tuple[int, ...], sy: tuple[int, ...], sx: tuple[int, ...]) -> list[Dimension]:
    """The dimensions from y's largest stride to its smallest, without those of size 1, neighbours merged."""
    order = sorted(zip(shape, sy, sx, strict=True), key=lambda d: (-abs(d[1]), -abs(d[2])))
    return [Dimension(*d) for d in merged(order)]


def _copy(y: Array, x: Array, to: int, source: int, dimensions: list[Dimension]) -> None:
    """Copy from address ``source`` to address ``to``, in parts along the outer dimension if one launch cannot."""
    if len(dimensions) > RANK or (len(dimensions) > 1 and math.prod(d.n for d in dimensions) > MOST_WORDS):
        (n, sy, sx), *inner = dimensions
        parts = n if len(dimensions) > RANK or n == 1 else 2
        cuts = [n * part // parts for part in range(parts + 1)]
        for start, end in itertools.pairwise(cuts):
            part = inner if end - start == 1 else [Dimension(end - start, sy, sx), *inner]
            _copy(y, x, to + start * sy, source + start * sx, part)
        return
    run = y.itemsize
    if dimensions and dimensions[-1].sy == dimensions[-1].sx == run:
        run *= dimensions.pop().n
    if not dimensions:
        memory.copy_across(to, source, run)
        return
    if run == y.itemsize and _transpose(y, x, to, source, dimensions):
        return
    width = _word(run, [to, source, *(d.sy for d in dimensions), *(d.sx for d in dimensions)])
    if width < run:
        dimensions.append(Dimension(run // width, width, width))
    _launch(y, x, to, source, width, dimensions)


def _transpose(y: Array, x: Array, to: int, source: int, dimensions: list[Dimension]) -> bool:
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
    places = (to, source, across.sy, down.sx, *(s for d in (*outer, matrices) for s in d[1:]))
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
        here = to + sum(i * d.sy for i, d in zip(place, outer, strict=True))
        there = source + sum(i * d.sx for i, d in zip(place, outer, strict=True))
        pair = words_from(y, here, itemsize), words_from(x, there, itemsize)
        chosen.launch(grid, *pair, down.n, across.n, *steps)
    return True


def words_from(x: Array, pointer: int, width: int) -> Array:
    """x's memory from an address on, as words of a width, for a kernel's pointer."""
    return Array(x.memory, (x.nbytes // width,), WIDTHS[width], (width,), pointer)


def _word(run: int, places: list[int]) -> int:
    """The widest word, in bytes, of which the run and all distances between runs are multiples."""
    width = 16
    while run % width or any(place % width for place in places):
        width //= 2
    return width


def _launch(y: Array, x: Array, to: int, source: int, width: int, dimensions: list[Dimension]) -> None:
    n, *rest = [Dimension(1, 0, 0)] * (RANK - len(dimensions)) + dimensions
    itemsize, words = min(width, 8), math.prod(d.n for d in dimensions)
    steps = [stride // itemsize for strides in zip(*(d[1:] for d in (n, *rest)), strict=True) for stride in strides]
    pair = words_from(y, to, itemsize), words_from(x, source, itemsize)
    _COPY[width].launch_each(words, *pair, words, *(d.n for d in rest), *steps)
