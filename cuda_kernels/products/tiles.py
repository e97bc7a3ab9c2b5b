"""Tiles of a product, for all engines: how operands are read, how sums are divided, which block computes which tile.

Where tiles are few and sums long (the gradient of a weight: small M and N, K tokens) the sums are divided into parts,
which a second kernel adds in order (``epilogue.py``). All depends on shapes and strides only, so results do too.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..platform.launch import LAZY_KERNELS
from ..platform.toolbox import Array, Kernel
from .record import Problem

KINDS = ("kk", "ko", "ok", "oo")  # along what a and b are read: k, or the other of their last two dimensions
ENOUGH_TILES = 100  # to keep most of a GPU's 80 to 150 multiprocessors at work
BLOCKS = 264  # what divided sums aim at: two on each of 132
SHORTEST_PART = 256  # steps of a divided sum
MOST_DIVIDED = 2**31  # elements of a product whose sums may be divided
SLICE = 64  # a part of a sum is a multiple of it: at least the depth of an engine's slices
GROUP = 8  # rows of tiles that blocks walk together, so that the slices of b that they share are found in L2

# What kernels take after their arrays: sizes, steps in elements, the batch, the epilogue; also ``ProductTiles``.
WORDS = "int32 x3, int64 x4, uint32, int64 x4, int32"
TILE_WORDS = "uint32 x3, int32"


Sides = Sequence[int]
Pairs = Sequence[tuple[str, str]]  # of dtypes, of the operands and of y


class ProductTiles(NamedTuple):
    """Rows and columns of tiles of a matrix, the parts of its sums, and the steps of k of a part."""

    rows: int
    columns: int
    splits: int
    chunk: int


def divide(p: Problem, rows: int, columns: int, splits: int) -> ProductTiles:
    """The product in tiles of so many rows and columns, its sums in about so many parts."""
    M, N, K = p.sizes
    chunk = -(-K // splits // SLICE) * SLICE if splits > 1 else K
    return ProductTiles(-(-M // rows), -(-N // columns), -(-K // chunk) if splits > 1 else 1, chunk)


def plan(M: int, N: int, K: int, count: int, sides: Sides) -> tuple[int, int]:
    """(side, splits): the largest of these tiles that keep all processors busy, and the parts of one matrix's sums."""
    side, splits = 0, 1
    for side in sides:
        tiles = count * -(-M // side) * -(-N // side)
        splits = 1 if count > 1 or M * N >= MOST_DIVIDED else max(1, min(BLOCKS // tiles, K // SHORTEST_PART))
        if tiles * splits >= ENOUGH_TILES and min(M, N) > side // 2:
            break
    return side, splits


def along(x: Array, k_axis: int, whole: int = 1) -> str:
    """Along what 16 bytes of x at a time can be read: "k", "o" for the other of the last two dimensions, or "".

    That dimension's size is a multiple of ``whole``.
    """
    elements = 16 // x.itemsize
    for kind, axis in (("k", k_axis % x.ndim), ("o", (-3 - k_axis) % x.ndim)):
        axes = enumerate(zip(x.shape, x.steps))
        fits = all([n == 1 or (step == 1 if i == axis else step % elements == 0) for i, (n, step) in axes])
        if not x.size or (fits and x.pointer % 16 == 0 and x.shape[axis] % whole == 0):
            return kind
    return ""


def declare(name: str, tiles_of: Callable[..., Kernel], dtypes: Pairs, sizes: Sides, eager: Sides) -> None:
    """Make an engine's kernels for dtypes (of operands, of y), sizes of tiles and all kinds: the ``eager`` sizes now.

    Others are made when they are first used. So are those of float16, which are bfloat16's but for one instruction.
    """
    for (operand, out), size, kinds in itertools.product(dtypes, sizes, KINDS):
        if size in eager and operand != "float16":
            tiles_of(operand, out, size, kinds)
        else:
            make = functools.partial(tiles_of, operand, out, size, kinds)
            LAZY_KERNELS[f"{name}.tiles_{operand}_{out}_{size}_{kinds}"] = make


def start(matrix: Any, inner: Any, outer_step: Any, inner_step: Any) -> Any:
    """Where a matrix of the batch begins."""
    outer = matrix // inner
    return np.int64(outer) * outer_step + np.int64(matrix - outer * inner) * inner_step


def tile_at(
    tile: Any, row_tiles: Any, column_tiles: Any, splits: Any, chunk: Any, K: Any, rows: Any, columns: Any
) -> Any:
    """Which sums a tile is of: (part, matrix, first row, first column, first k, the k after the last).

    Tiles go down GROUP rows of tiles, then to the next column of tiles.
    """
    per_matrix = np.uint32(row_tiles * column_tiles)
    part = np.uint32(tile // per_matrix)
    rest = np.uint32(tile - part * per_matrix)
    matrix = np.uint32(part // splits)
    group = np.uint32(rest // np.uint32(GROUP * column_tiles))
    rest = np.uint32(rest - group * np.uint32(GROUP * column_tiles))
    height = np.uint32(min(np.uint32(GROUP), np.uint32(row_tiles - group * np.uint32(GROUP))))
    column = np.uint32(rest // height)
    row = np.int32((group * np.uint32(GROUP) + rest - column * height) * np.uint32(rows))
    k = np.int32(np.int32(part - matrix * splits) * chunk)
    return part, matrix, row, np.int32(column * np.uint32(columns)), k, np.int32(min(K, np.int32(k + chunk)))
