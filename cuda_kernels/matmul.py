"""Matrix products ``y = a @ b (+ bias)``: which kernel of ``product.py`` computes which shapes.

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
from .product import ADD, BIAS, GELU

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
HALVES = ("bfloat16", "float16")
SMALL = 1 << 19  # multiply-adds
LONG = 1024  # a sum that one thread should not compute alone
FEW = 4  # rows or columns that waste most of a tile
ENOUGH_TILES = 100  # to keep most of a GPU's 80 to 150 multiprocessors at work
BLOCKS = 264  # what divided sums aim at: two on each of 132
SHORTEST_PART = 256  # steps of a divided sum
MOST_ELEMENTS = 2**31 - 1  # of y in a launch


def matmul(a: DeviceArray, b: DeviceArray, bias: DeviceArray | None = None) -> DeviceArray:
    """``np.matmul(a, b)`` for operands of at least two dimensions, plus ``bias`` on each row.

    Args:
        a: (..., M, K), b: (..., K, N); leading dimensions broadcast; any strides, nothing is copied to be transposed.
        bias: (N,), of the operands' dtype.

    Returns: a new C-contiguous array (..., M, N). Operands of different dtypes are cast to the one that holds both.

    float16 and bfloat16 go to ``matmul_tensor_core.py``, on devices that have the instructions.

    Raises ValueError if the shapes do not fit, TypeError for half floats on others: operations widen them before.
    """
    if a.dtype.name in HALVES and b.dtype == a.dtype and takes_halves(a):
        return _tensor_cores().matmul(a, b, bias)
    a, b, y = _prepare(a, b, bias)
    _multiply(y, a, b, bias, y, 0)
    return y


def takes_halves(x: DeviceArray) -> bool:
    """Whether x's device multiplies float16 and bfloat16 on tensor cores; on others they are widened before."""
    return bool(_tensor_cores().takes(x.device))


def _tensor_cores() -> Any:
    from . import matmul_tensor_core  # which uses this module

    return matmul_tensor_core


def matmul_gelu(a: DeviceArray, b: DeviceArray, bias: DeviceArray | None = None) -> tuple[DeviceArray, DeviceArray]:
    """(gelu(h), h) of h = matmul(a, b, bias), the GELU of "tanh"; its gradient needs h. float32 or float64."""
    a, b, y = _prepare(a, b, bias)
    if y.dtype not in FLOATS:
        raise TypeError(f"matmul_gelu of {y.dtype.name}; expected float32 or float64")
    before = empty(y.shape, y.dtype, y.device)
    _multiply(y, a, b, bias, before, GELU)
    return y, before


def add_matmul(y: DeviceArray, a: DeviceArray, b: DeviceArray) -> None:
    """y += matmul(a, b) in one pass: gradients that accumulate. y (..., M, N) is C-contiguous, of a's and b's dtype."""
    a, b, shape = _broadcast(a, b)
    if y.dtype not in FLOATS or not (a.dtype == b.dtype == y.dtype) or y.shape != shape or not y.contiguous:
        raise ValueError(
            f"add_matmul of {a!r} and {b!r} to {y!r}: expected a C-contiguous array {shape}, all float32 or all float64"
        )
    if a.shape[-1]:
        _multiply(y, a, b, None, y, ADD)


# Shapes ---------------------------------------------------------------------------------------------------------------


def _broadcast(a: DeviceArray, b: DeviceArray) -> tuple[DeviceArray, DeviceArray, tuple[int, ...]]:
    """a and b with the same leading dimensions, and the shape of their product."""
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul of {a.shape} and {b.shape}: expected (..., M, K) and (..., K, N) with the same K and "
            "broadcastable leading dimensions"
        )
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim + b.ndim > 4 else ()
    return _expand(a, batch), _expand(b, batch), (*batch, a.shape[-2], b.shape[-1])


def _expand(x: DeviceArray, batch: tuple[int, ...]) -> DeviceArray:
    leading = x.shape[:-2]
    if leading == batch:
        return x
    strides = [0 if n == 1 else stride for n, stride in zip(leading, x.strides)]
    padding = (0,) * (len(batch) - len(leading))
    return x.view((*batch, *x.shape[-2:]), (*padding, *strides, *x.strides[-2:]))


def _prepare(a: DeviceArray, b: DeviceArray, bias: DeviceArray | None) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """The operands, and their product's new array."""
    a, b, shape = _broadcast(a, b)
    if bias is not None and bias.shape != b.shape[-1:]:
        raise ValueError(f"matmul: bias of shape {bias.shape}, expected {b.shape[-1:]}, one value per column of b")
    dtype = a.dtype
    if b.dtype != dtype:
        from . import elementwise

        dtype = np.result_type(a.dtype, b.dtype)
        a, b = (x if x.dtype == dtype else elementwise.cast(x, dtype) for x in (a, b))
    if dtype not in product.SMALL:
        raise TypeError(f"matmul has no kernel for {dtype.name}; it has those of {', '.join(map(str, product.SMALL))}")
    return a, b, empty(shape, dtype, a.device)


def _multiply(
    y: DeviceArray, a: DeviceArray, b: DeviceArray, bias: DeviceArray | None, before: DeviceArray, epilogue: int
) -> None:
    """y = a b with an epilogue; all of the same leading dimensions, y and before C-contiguous."""
    M, N = y.shape[-2:]
    if not y.size:
        return
    batch = _merge(y.shape[:-2], a.steps, b.steps)
    if len(batch) > 2:  # rare: leading dimensions that the operands share in no order
        for i in range(y.shape[0]):
            _multiply(y[i], a[i], b[i], bias, before[i], epilogue)
        return
    if y.size > MOST_ELEMENTS:
        half = y.shape[0] // 2
        for part in (slice(None, half), slice(half, None)):
            pieces = (b if y.ndim == 2 else b[part]), bias, before[part], epilogue
            _multiply(y[part], a[part], *pieces)
        return
    if bias is not None:
        bias, epilogue = contiguous(bias), epilogue | BIAS
    K = a.shape[-1]
    count = y.size // (M * N)
    others = (y if bias is None else bias), before
    few = min(M, N) <= FEW and K >= 32 and a.steps[-1] == b.steps[-2] == 1
    short = K <= LONG or y.dtype not in FLOATS
    if y.dtype not in FLOATS or (y.size * K <= SMALL and short):
        arguments = _arguments(M, N, K, a, b, batch, epilogue)
        threads = min(128, -(-y.size // 32) * 32)
        product.SMALL[y.dtype].launch(-(-y.size // threads), y, a, b, *others, *arguments, y.size, threads=threads)
    elif few:
        arguments = _arguments(M, N, K, a, b, batch, epilogue)
        wide = y.dtype == np.float32 and _aligned(a, -1) and _aligned(b, -2)
        kernel = product.WIDE_DOT if wide else product.DOT[y.dtype]
        kernel.launch(-(-y.size // 4), y, a, b, *others, *arguments, y.size)
    else:
        _multiply_tiles(y, a, b, others, epilogue, batch, count)


def _merge(shape: tuple[int, ...], a_steps: tuple[int, ...], b_steps: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """The batch as few dimensions (size, step of a, step of b): neighbours of which the outer continues the inner."""
    merged: list[tuple[int, int, int]] = []
    for n, a_step, b_step in zip(shape, a_steps, b_steps):
        if n == 1:
            continue
        if merged and merged[-1][1] == n * a_step and merged[-1][2] == n * b_step:
            merged[-1] = (merged[-1][0] * n, a_step, b_step)
        else:
            merged.append((n, a_step, b_step))
    return merged


def _arguments(
    M: int, N: int, K: int, a: DeviceArray, b: DeviceArray, batch: list[tuple[int, int, int]], epilogue: int
) -> tuple[int, ...]:
    """What all product kernels take after the arrays."""
    _, a_outer, b_outer = batch[-2] if len(batch) == 2 else (1, 0, 0)
    inner, a_inner, b_inner = batch[-1] if batch else (1, 0, 0)
    return (M, N, K, *a.steps[-2:], *b.steps[-2:], inner, a_outer, a_inner, b_outer, b_inner, epilogue)


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


def _multiply_tiles(
    y: DeviceArray,
    a: DeviceArray,
    b: DeviceArray,
    others: tuple[DeviceArray, DeviceArray],
    epilogue: int,
    batch: list[tuple[int, int, int]],
    count: int,
) -> None:
    """_multiply by the tiled kernels; ``count`` matrices."""
    (M, N), K = y.shape[-2:], a.shape[-1]
    a, b = (x if 1 in x.steps[-2:] else contiguous(x) for x in (a, b))
    batch = _merge(y.shape[:-2], a.steps, b.steps)
    T, splits = plan(M, N, K, count, y.dtype)
    side = 16 * T
    row_tiles, column_tiles = -(-M // side), -(-N // side)
    chunk = -(-K // splits // 64) * 64 if splits > 1 else K
    splits = -(-K // chunk)
    target, final = y, epilogue
    if splits > 1:
        target, final = empty((splits, M, N), y.dtype, y.device), 0
    kernel = tiled_product.TILED[y.dtype, T]
    if T == 8:
        kinds = "".join(
            "k" if _aligned(x, k) else "o" if _aligned(x, o) else "-" for x, k, o in ((a, -1, -2), (b, -2, -1))
        )
        kernel = tiled_product.WIDE.get(kinds, kernel)
        if kinds == "kk" and final & GELU:
            kernel = tiled_product.WIDE_GELU
    fused = final & ~GELU if kernel is not tiled_product.WIDE_GELU else final
    if fused != final:  # GELU in a pass of its own, over the product and its bias
        target = others[1]
    arguments = _arguments(M, N, K, a, b, batch, fused)
    grid = count * splits * row_tiles * column_tiles
    kernel.launch(grid, target, a, b, *others, *arguments, row_tiles, column_tiles, splits, chunk)
    if target is not y:
        rest = epilogue if splits > 1 else GELU
        sum_parts = product.SUM_PARTS[y.dtype]
        sum_parts.launch(-(-y.size // 256), y, target, *others, y.size, N, splits, rest)


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
