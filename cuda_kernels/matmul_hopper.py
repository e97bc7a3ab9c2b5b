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
SHORTEST_PART = 512  # steps of a divided sum
MOST_DIVIDED = 2**31  # elements of a product whose sums may be divided
MOST = 2**31 - 512  # of a dimension: indices, and those that reach over an edge, are int32


def takes_device(device: int) -> bool:
    """Whether the device has the instructions."""
    return memory.capability(device) == CAPABILITY


def takes(p: Product) -> bool:
    """Whether ``multiply`` computes this product."""
    if not takes_device(p.y.device) or p.a.dtype != p.b.dtype or p.a.dtype.name not in ("bfloat16", "float16"):
        return False
    if (p.a.dtype.name, p.y.dtype.name) not in SUM_PARTS or not p.y.size or not p.a.shape[-1]:
        return False
    if max(p.sizes) > MOST or len(merge(p.y.shape[:-2], p.a.steps, p.b.steps)) > 1:
        return False
    return _map(p, p.a, -1, ROWS) is not None and _map(p, p.b, -2, COLUMNS[0]) is not None


def multiply(p: Product) -> None:
    """Compute the product; bias is of the operands' dtype, residual and before of y's, which is that or float32.

    Raises ValueError for a product that ``takes`` refuses.
    """
    if not takes(p):
        raise ValueError(
            f"TMA and wgmma take no product of {p.a!r} and {p.b!r} to {p.y!r} on compute capability "
            f"{'.'.join(map(str, memory.capability(p.y.device)))}; expected 9.0, bfloat16 or float16 elements, "
            "neighbours along one of the last two dimensions, and addresses and other steps of multiples of 16 bytes. "
            "matmul takes all products"
        )
    arrays = [x for x in (p.y, p.bias, p.residual, p.before) if x is not None]
    vector = p.y.shape[-1] % 4 == 0 and all(x.pointer % (4 * x.itemsize) == 0 for x in arrays)
    _multiply(p, p.epilogue | VECTOR * vector)


def _map(p: Product, x: DeviceArray, k_axis: int, rows: int) -> tuple[TensorMap, str, int] | None:
    """How TMA reads an operand in tiles of so many rows or columns: (map, kind, whether it has several matrices)."""
    batch = merge(p.y.shape[:-2], x.steps, (0,) * (p.y.ndim - 2))
    if len(batch) > 1:
        return None
    count, step, _ = batch[0] if batch else (1, 0, 0)
    matrices = count if step else 1
    for kind, along in (("k", k_axis), ("o", -3 - k_axis)):
        across = -3 - along
        if x.steps[along] != 1 and x.shape[along] > 1:
            continue
        # A dimension of size 1 may have any step, which nobody takes; the driver wants a proper one.
        row = x.strides[across] if x.shape[across] > 1 else _rounded(x.shape[along] * x.itemsize)
        far = step * x.itemsize if matrices > 1 else _rounded(row * x.shape[across])
        box = (64, rows if kind == "k" else DEPTH, 1)
        sizes = (x.shape[along], x.shape[across], matrices)
        found = TensorMap(x.pointer, x.dtype.name, sizes, (row, far), box, x.device)
        if found.problem() is None:
            return found, kind, int(matrices > 1)
    return None


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def plan(M: int, N: int, K: int, count: int) -> tuple[int, int]:
    """(columns, splits): the tiles' columns, and into how many parts the sums of one matrix are divided.

    Blocks walk tiles in rounds of one for each multiprocessor. Tiles of 256 columns read less of a for each product,
    and are taken where rounds of the others do not end earlier. Sums are divided where one round does not fill half of
    the device.
    """
    best: tuple[float, int, int] | None = None
    for columns in COLUMNS:
        tiles = count * -(-M // ROWS) * -(-N // columns)
        divisible = count == 1 and M * N < MOST_DIVIDED and 2 * tiles <= MULTIPROCESSORS
        splits = max(1, min(MULTIPROCESSORS // tiles, K // SHORTEST_PART)) if divisible else 1
        rounds = -(-tiles * splits // MULTIPROCESSORS)
        time = rounds * (columns + 32) / splits  # of a slice of k: what is multiplied, and what does not shrink with it
        if best is None or time < best[0]:
            best = time, columns, splits
    assert best is not None
    return best[1:]


def _multiply(p: Product, epilogue: int) -> None:
    y, (M, N, K) = p.y, p.sizes
    count = y.size // (M * N)
    columns, splits = plan(M, N, K, count)
    left, right = _map(p, p.a, -1, ROWS), _map(p, p.b, -2, columns)
    assert left is not None and right is not None  # by takes
    (a_map, a_kind, a_matrices), (b_map, b_kind, b_matrices) = left, right
    bias, residual, before = (x if x is not None else y for x in (p.bias, p.residual, p.before))
    bias = p.a if p.bias is None else bias
    row_tiles, column_tiles = -(-M // ROWS), -(-N // columns)
    chunk = -(-K // splits // DEPTH) * DEPTH
    splits = -(-K // chunk)
    tiles = count * splits * row_tiles * column_tiles
    sizes = M, N, K, a_matrices, b_matrices
    rest = row_tiles, column_tiles, splits, chunk, tiles
    operand, out = p.a.dtype.name, y.dtype.name
    grid = min(tiles, multiprocessors(y.device))
    kinds = a_kind + b_kind
    if splits == 1:
        kernel = tiles_of(operand, out, columns, kinds)
        kernel.launch(grid, a_map, b_map, y, bias, residual, before, *sizes, epilogue, *rest)
        return
    parts = empty((splits, M, N), np.float32, y.device)
    kernel = tiles_of(operand, "float32", columns, kinds)
    kernel.launch(grid, a_map, b_map, parts, bias, parts, parts, *sizes, epilogue & VECTOR, *rest)
    groups = M * -(-N // 4)
    SUM_PARTS[operand, out].launch(-(-groups // 256), y, parts, bias, residual, before, M, N, splits, epilogue)


@functools.cache
def multiprocessors(device: int) -> int:
    """How many blocks run at a time: one on each."""
    return 2 if SIMULATED else libcuda.device_attribute(libcuda.MULTIPROCESSORS, device)
