"""Matrix products without tensor cores: which kernel of ``product.py`` computes which shapes.

    up to SMALL multiply-adds, and integers    small: a launch costs more than the product
    few rows or columns, both read along k     dot: a warp for each element
    everything else                            tiled: the largest tiles of which there are enough to fill a GPU

Where the tiles are few and the sums long (the gradient of a weight: small M and N, K tokens) the sums are divided into
parts, which a second kernel adds in order. All choices depend on shapes and strides only, so results do too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import product, tiled_product
from .array import DeviceArray, contiguous, empty
from .matmul_operands import Merged, Product, arguments, batches, merge
from .product import GELU, SLOPE

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
SMALL = 1 << 19  # multiply-adds
LONG = 1024  # a sum that one thread should not compute alone
FEW = 4  # rows or columns that waste most of a tile
ENOUGH_TILES = 100  # to keep most of a GPU's 80 to 150 multiprocessors at work
BLOCKS = 264  # what divided sums aim at: two on each of 132
SHORTEST_PART = 256  # steps of a divided sum
MOST_ELEMENTS = 2**31 - 1  # of y in a launch


def multiply(p: Product) -> None:
    """Compute a product of arrays of one dtype, one of ``product.SMALL``; integers take no step but BIAS."""
    if p.y.size > MOST_ELEMENTS:
        half = p.y.shape[0] // 2
        multiply(p.part(slice(None, half)))
        multiply(p.part(slice(half, None)))
        return
    for part, batch in batches(p, 2):
        _multiply(part, batch)


def is_small(p: Product) -> bool:
    """Whether the number of launches is all that counts."""
    K = p.a.shape[-1]
    return p.y.size * K <= SMALL and K <= LONG


def is_thin(p: Product) -> bool:
    """Whether it has so few rows or columns that reading the operands is most of the work."""
    return min(p.y.shape[-2:]) <= FEW


def _multiply(p: Product, batch: Merged) -> None:
    y, a, b = p.y, p.a, p.b
    bias, other = _others(p)
    if y.dtype not in FLOATS or is_small(p):
        threads = min(128, -(-y.size // 32) * 32)
        sizes = arguments(p, batch, p.epilogue)
        product.SMALL[y.dtype].launch(-(-y.size // threads), y, a, b, bias, other, *sizes, y.size, threads=threads)
    elif is_thin(p) and p.a.shape[-1] >= 32 and a.steps[-1] == b.steps[-2] == 1:
        wide = y.dtype == np.float32 and _aligned(a, -1) and _aligned(b, -2)
        kernel = product.WIDE_DOT if wide else product.DOT[y.dtype]
        kernel.launch(-(-y.size // 4), y, a, b, bias, other, *arguments(p, batch, p.epilogue), y.size)
    else:
        _multiply_tiles(p)


def _aligned(x: DeviceArray, along: int) -> bool:
    """Whether x can be read 128 bits at once along this one of its last two dimensions."""
    other = [step for axis, step in enumerate(x.steps) if axis != x.ndim + along and x.shape[axis] > 1]
    return (
        (x.steps[along] == 1 or x.shape[along] == 1)
        and x.shape[along] % 4 == 0
        and all(step % 4 == 0 for step in other)
        and x.pointer % 16 == 0
    )


# Tiles ----------------------------------------------------------------------------------------------------------------


def _multiply_tiles(p: Product) -> None:
    a, b = (x if 1 in x.steps[-2:] else contiguous(x) for x in (p.a, p.b))
    p = p._replace(a=a, b=b)
    y, (M, N, K), (bias, other) = p.y, p.sizes, _others(p)
    batch = merge(y.shape[:-2], a.steps, b.steps)
    count = y.size // (M * N)
    T, splits = plan(M, N, K, count, y.dtype)
    side = 16 * T
    row_tiles, column_tiles = -(-M // side), -(-N // side)
    chunk = -(-K // splits // 64) * 64 if splits > 1 else K
    splits = -(-K // chunk) if splits > 1 else 1
    kernel = tiled_product.TILED[y.dtype, T]
    later = p.epilogue & (GELU | SLOPE)  # in a pass of their own, over the product and its bias
    if T == 8:
        kinds = "".join(
            "k" if _aligned(x, k) else "o" if _aligned(x, o) else "-" for x, k, o in ((a, -1, -2), (b, -2, -1))
        )
        kernel = tiled_product.WIDE.get(kinds, kernel)
        if kinds == "kk" and p.needs(GELU) and splits == 1:
            kernel, later = tiled_product.WIDE_GELU, 0
    target, fused = y, p.epilogue & ~later
    if splits > 1:
        target, fused, later = empty((splits, M, N), y.dtype, y.device), 0, p.epilogue
    elif later & GELU:
        target = other
    grid = count * splits * row_tiles * column_tiles
    sizes = arguments(p, batch, fused)
    kernel.launch(grid, target, a, b, bias, other, *sizes, row_tiles, column_tiles, splits, chunk)
    if later or splits > 1:
        finish(p, target, splits, later)


def finish(p: Product, parts: DeviceArray, splits: int, epilogue: int) -> None:
    """y = the sum of so many parts of y's size and dtype, one after the other in memory, and steps of the epilogue."""
    y = p.y
    bias, other = _others(p)
    product.SUM_PARTS[y.dtype].launch(-(-y.size // 256), y, parts, bias, other, y.size, y.shape[-1], splits, epilogue)


def _others(p: Product) -> tuple[DeviceArray, DeviceArray]:
    """What the kernels take as bias, and as the residual or what is before GELU; y where there is none."""
    other = next((x for x in (p.residual, p.before) if x is not None), p.y)
    return p.y if p.bias is None else p.bias, other


def plan(M: int, N: int, K: int, count: int, dtype: Any) -> tuple[int, int]:
    """(T, splits): tiles of 16 T rows and columns, and into how many parts the sums of one matrix are divided."""
    choices = [8, 4, 2] if dtype == np.float32 else [4, 2]
    for T in choices:
        side = 16 * T
        tiles = count * -(-M // side) * -(-N // side)
        splits = 1 if count > 1 else max(1, min(BLOCKS // tiles, K // SHORTEST_PART))
        if tiles * splits >= ENOUGH_TILES and min(M, N) > side // 2:
            return T, splits
    return T, splits
