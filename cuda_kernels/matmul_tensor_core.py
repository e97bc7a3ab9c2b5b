"""Matrix products on tensor cores: copies of what they cannot read, and which kernel computes which shapes.

Operands are float16 or bfloat16, or float32, which is rounded to tf32 (10 bits of mantissa) and so is for callers who
ask for it; sums and epilogues are float32, and y is rounded once, or stays float32. An operand is read where it lies,
transposed or not, if its rows or columns begin at multiples of 16 bytes; others are copied to such places first.

Which tiles, and into how many parts the sums are divided, depends on shapes only, so results do too. The kernels need
compute capability 8.0: ``takes`` says whether a device has it; for older ones the operations widen half floats, and the
kernels of ``product.py`` multiply them.
"""

from __future__ import annotations

import numpy as np

from . import memory
from .array import DeviceArray, empty
from .matmul_operands import Merged, Product, arguments, batches, expand
from .strided_copy import copy_into
from .tensor_core_epilogue import CAPABILITY, SUM_PARTS, VECTOR
from .tensor_core_product import LINE, tiles_of

ENOUGH_TILES = 100  # to keep most of a GPU's 80 to 150 multiprocessors at work
BLOCKS = 264  # what divided sums aim at: two on each of 132
SHORTEST_PART = 256  # steps of a divided sum
MOST_DIVIDED = 2**31  # elements of a product whose sums may be divided


def takes(device: int) -> bool:
    """Whether the device has the instructions."""
    return memory.capability(device) >= CAPABILITY


def multiply(p: Product) -> None:
    """Compute a product of half floats, or of float32 that are rounded to tf32; y is of their dtype or float32.

    bias is of the operands' dtype, residual and before of y's. Raises TypeError for other dtypes.
    """
    if p.a.dtype != p.b.dtype or (p.a.dtype.name, p.y.dtype.name) not in SUM_PARTS:
        raise TypeError(
            f"tensor cores multiply two arrays of one dtype, bfloat16, float16 or float32, to that or float32; "
            f"got {p.a.dtype.name} and {p.b.dtype.name} to {p.y.dtype.name}"
        )
    (a, a_kind), (b, b_kind) = _readable(p.a, -1), _readable(p.b, -2)
    for part, batch in batches(p._replace(a=a, b=b), 2):
        _multiply(part, batch, a_kind + b_kind)


# Operands -------------------------------------------------------------------------------------------------------------


def _kind(x: DeviceArray, k_axis: int) -> str:
    """Along what 16 bytes of x at a time can be copied: "k", "o" for the other of the last two dimensions, or ""."""
    elements = 16 // x.itemsize
    if not x.size:
        return "k"
    for kind, along in (("k", k_axis), ("o", -3 - k_axis)):
        fits = [
            n == 1 or (step == 1 if axis == x.ndim + along else step % elements == 0)
            for axis, (n, step) in enumerate(zip(x.shape, x.steps, strict=True))
        ]
        if all(fits) and x.pointer % 16 == 0:
            return kind
    return ""


def _readable(x: DeviceArray, k_axis: int) -> tuple[DeviceArray, str]:
    """x, or a copy whose rows begin at multiples of 16 bytes, and its kind."""
    kind = _kind(x, k_axis)
    if kind:
        return x, kind
    transposed = x.steps[-2] == 1
    once = x.view(tuple(1 if step == 0 else n for n, step in zip(x.shape[:-2], x.steps)) + x.shape[-2:], x.strides)
    once = once.swapaxes(-1, -2) if transposed else once
    n, elements = once.shape[-1], 16 // x.itemsize
    room = empty((*once.shape[:-1], -(-n // elements) * elements), x.dtype, x.device)
    aligned = room.view(once.shape, room.strides)
    copy_into(aligned, once)
    aligned = expand(aligned.swapaxes(-1, -2) if transposed else aligned, x.shape[:-2])
    return aligned, _kind(aligned, k_axis)


# Launches -------------------------------------------------------------------------------------------------------------


def plan(M: int, N: int, K: int, count: int) -> tuple[int, int]:
    """(side, splits): the tiles' side, and into how many parts the sums of one matrix are divided."""
    side, splits = 64, 1
    for side in (128, 64):
        tiles = count * -(-M // side) * -(-N // side)
        splits = 1 if count > 1 or M * N >= MOST_DIVIDED else max(1, min(BLOCKS // tiles, K // SHORTEST_PART))
        if tiles * splits >= ENOUGH_TILES and min(M, N) > side // 2:
            break
    return side, splits


def _multiply(p: Product, batch: Merged, kinds: str) -> None:
    y, a, b, (M, N, K) = p.y, p.a, p.b, p.sizes
    bias, residual, before = _others(p)
    vector = _vector(p)
    count = y.size // (M * N)
    side, splits = plan(M, N, K, count)
    row_tiles, column_tiles = -(-M // side), -(-N // side)
    chunk = -(-K // splits // LINE) * LINE if splits > 1 else K
    splits = -(-K // chunk) if splits > 1 else 1
    operand, out = a.dtype.name, y.dtype.name
    grid = count * splits * row_tiles * column_tiles
    sizes = row_tiles, column_tiles, splits, chunk
    if splits == 1:
        tiles = tiles_of(operand, out, side, kinds)
        tiles.launch(grid, y, a, b, bias, residual, before, *arguments(p, batch, p.epilogue | vector), *sizes)
        return
    parts = empty((splits, M, N), np.float32, y.device)
    tiles = tiles_of(operand, "float32", side, kinds)
    tiles.launch(grid, parts, a, b, bias, parts, parts, *arguments(p, batch, vector), *sizes)
    finish(p, parts, splits, p.epilogue)


def finish(p: Product, parts: DeviceArray, splits: int, epilogue: int) -> None:
    """y = the sum of so many float32 parts of y's size, one after the other in memory, and steps of the epilogue."""
    N = p.y.shape[-1]
    rows = p.y.size // N
    kernel = SUM_PARTS[p.a.dtype.name, p.y.dtype.name]
    grid = -(-rows * -(-N // 4) // 256)
    kernel.launch(grid, p.y, parts, *_others(p), rows, N, splits, epilogue | _vector(p))


def _vector(p: Product) -> int:
    """The bit VECTOR, where the arrays of the epilogue allow it."""
    arrays = [x for x in (p.y, p.bias, p.residual, p.before) if x is not None]
    fits = p.y.shape[-1] % 4 == 0 and all(x.pointer % (4 * x.itemsize) == 0 for x in arrays)
    return VECTOR if fits else 0


def _others(p: Product) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """bias, residual and before as the kernels take them: any array of that dtype where there is none."""
    bias, residual, before = (
        x if x is not None else instead for x, instead in ((p.bias, p.a), (p.residual, p.y), (p.before, p.y))
    )
    return bias, residual, before
