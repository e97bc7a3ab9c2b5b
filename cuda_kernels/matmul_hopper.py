"""Matrix products of half floats by TMA and wgmma: which products they take, and which tiles compute them.

The kernels are those of ``hopper_product.py``, for compute capability 9.0 (H100, H200) and no other. TMA reads an
operand where it lies, transposed or not, if

    its elements are neighbours along k, or along the other one of its last two dimensions,
    its address and its steps along all other dimensions are multiples of 16 bytes (8 elements), and
    its leading dimensions are one at most, of any step, or it is the same for all of them.

``takes`` says whether that is so for a product; nothing is copied to make it so, because the kernels of
``matmul_tensor_core.py`` take the others. Which tiles, and into how many parts the sums are divided, depends on shapes
only, so results do too.
"""

from __future__ import annotations

import functools

import numpy as np

from . import libcuda, memory
from .array import DeviceArray, empty
from .hopper_product import CAPABILITY, COLUMNS, DEPTH, ROWS, tiles_of
from .language import SIMULATED
from .matmul_operands import Product, merge
from .tensor_core_epilogue import SUM_PARTS, VECTOR
from .tensor_map import TensorMap

MULTIPROCESSORS = 132  # of an H100: what plans fill, so that they are the same on all devices
CYCLES = {256: 1024, 128: 640}  # of a slice of a tile: what the tensor cores need, and for 128 a loss on top
FINISH = 12  # cycles for each column of a tile, after its slices
LAUNCH, TRAFFIC = 5000, 2000  # of a divided sum: cycles of the second launch, and bytes that memory moves in a cycle
SHORTEST_PART, MOST_PARTS = 512, 32  # steps of a divided sum; parts
MOST_DIVIDED = 2**31  # elements of a product whose sums may be divided
MOST = 2**31 - 512  # of a dimension and of all rows: indices, and those that reach over an edge, are int32

Read = tuple[TensorMap, str, int]  # an operand: its map, along what it lies, whether it has several matrices


def takes_device(device: int) -> bool:
    """Whether the device has the instructions."""
    return memory.capability(device) == CAPABILITY


def takes(p: Product) -> bool:
    """Whether ``multiply`` computes this product."""
    return _operands(p, COLUMNS[0]) is not None


def multiply(p: Product) -> bool:
    """Compute the product if ``takes`` says so; whether it did.

    bias is of the operands' dtype, residual and before of y's, which is that or float32.
    """
    columns, splits = plan(*p.sizes, p.y.size // max(1, p.y.shape[-2] * p.y.shape[-1]))
    operands = _operands(p, columns)
    if operands is None:
        return False
    _launch(p, *operands, columns, splits)
    return True


def _operands(p: Product, columns: int) -> tuple[Read, Read] | None:
    """How TMA reads a and b in tiles of so many columns; None where it cannot."""
    if not takes_device(p.y.device) or p.a.dtype != p.b.dtype or p.a.dtype.name not in ("bfloat16", "float16"):
        return None
    if (p.a.dtype.name, p.y.dtype.name) not in SUM_PARTS or not p.y.size or not p.a.shape[-1]:
        return None
    if max(*p.sizes, p.y.size // p.y.shape[-1]) > MOST:
        return None
    if p.y.ndim > 3 and len(merge(p.y.shape[:-2], p.a.steps, p.b.steps)) > 1:
        return None
    left, right = _read(p, p.a, -1, ROWS), _read(p, p.b, -2, columns)
    return None if left is None or right is None else (left, right)


def _read(p: Product, x: DeviceArray, k_axis: int, rows: int) -> Read | None:
    """How TMA reads an operand in tiles of so many rows (of a) or columns (of b)."""
    return _found(x.pointer, x.dtype.name, x.shape, x.steps, p.y.shape[:-2], k_axis, rows, x.device)


@functools.lru_cache(maxsize=4096)
def _found(
    pointer: int,
    dtype: str,
    shape: tuple[int, ...],
    steps: tuple[int, ...],
    leading: tuple[int, ...],
    k_axis: int,
    rows: int,
    device: int,
) -> Read | None:
    batch = merge(leading, steps, (0,) * len(leading))
    if len(batch) > 1:
        return None
    count, step, _ = batch[0] if batch else (1, 0, 0)
    matrices = count if step else 1
    for kind, along in (("k", k_axis), ("o", -3 - k_axis)):
        across = -3 - along
        if steps[along] != 1 and shape[along] > 1:
            continue
        # A dimension of size 1 may have any step, which nobody takes; the driver wants a proper one.
        row = 2 * steps[across] if shape[across] > 1 else _rounded(2 * shape[along])
        far = 2 * step if matrices > 1 else _rounded(row * shape[across])
        box = (64, rows if kind == "k" else DEPTH, 1)
        found = TensorMap(pointer, dtype, (shape[along], shape[across], matrices), (row, far), box, device)
        if found.problem() is None:
            return found, kind, int(matrices > 1)
    return None


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


@functools.lru_cache(maxsize=4096)
def plan(M: int, N: int, K: int, count: int) -> tuple[int, int]:
    """(columns, splits): the tiles' columns, and into how many parts the sums of one matrix are divided.

    The least estimated time: blocks walk tiles in rounds of one for each multiprocessor.
    """
    found: list[tuple[int, int, int]] = []
    for columns in COLUMNS:
        tiles = count * -(-M // ROWS) * -(-N // columns)
        divisible = count == 1 and M * N < MOST_DIVIDED and M * MOST_PARTS <= MOST
        most = min(MOST_PARTS, K // SHORTEST_PART) if divisible else 1
        for splits in range(1, max(1, most) + 1):
            rounds = -(-tiles * splits // MULTIPROCESSORS)
            cycles = rounds * (-(-K // splits // DEPTH) * CYCLES[columns] + FINISH * columns)
            if splits > 1:
                cycles += LAUNCH + 4 * (splits + 1) * M * N // TRAFFIC
            found.append((cycles, -columns, splits))
    _, columns, splits = min(found)
    return -columns, splits


def _launch(p: Product, left: Read, right: Read, columns: int, splits: int) -> None:
    (a_map, a_kind, a_matrices), (b_map, b_kind, b_matrices) = left, right
    y, (M, N, K) = p.y, p.sizes
    arrays = [x for x in (y, p.bias, p.residual, p.before) if x is not None]
    vector = VECTOR * (N % 4 == 0 and all(x.pointer % (4 * x.itemsize) == 0 for x in arrays))
    residual, before = (x if x is not None else y for x in (p.residual, p.before))
    bias = p.a if p.bias is None else p.bias
    row_tiles, column_tiles = -(-M // ROWS), -(-N // columns)
    chunk = -(-K // splits // DEPTH) * DEPTH
    splits = -(-K // chunk)
    tiles = y.size // (M * N) * splits * row_tiles * column_tiles
    sizes = M, N, K, a_matrices, b_matrices
    rest = row_tiles, column_tiles, splits, chunk, tiles
    operand, out, kinds = p.a.dtype.name, y.dtype.name, a_kind + b_kind
    grid = min(tiles, multiprocessors(y.device))
    if splits == 1:
        kernel = tiles_of(operand, out, columns, kinds)
        kernel.launch(grid, a_map, b_map, y, bias, residual, before, *sizes, p.epilogue | vector, *rest)
        return
    parts = empty((splits, M, N), np.float32, y.device)
    kernel = tiles_of(operand, "float32", columns, kinds)
    kernel.launch(grid, a_map, b_map, parts, bias, parts, parts, *sizes, vector, *rest)
    groups = M * -(-N // 4)
    sum_parts = SUM_PARTS[operand, out]
    sum_parts.launch(-(-groups // 256), y, parts, bias, residual, before, M, N, splits, p.epilogue | vector)


@functools.cache
def multiprocessors(device: int) -> int:
    """How many blocks run at a time: one on each."""
    return 2 if SIMULATED else libcuda.device_attribute(libcuda.MULTIPROCESSORS, device)
