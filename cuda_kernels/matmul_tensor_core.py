"""Matrix products on tensor cores, with the functions of ``matmul.py`` and its rules of shapes.

Operands are float16 or bfloat16, or float32, which is rounded to tf32 (10 bits of mantissa) and so is for callers who
ask for it; sums and epilogues are float32, and y is rounded once, or stays float32. An operand is read where it lies,
transposed or not, if its rows or columns begin at multiples of 16 bytes; others are copied to such places first.

Which tiles, and into how many parts the sums are divided, depends on shapes only, so results do too. The kernels need
compute capability 8.0: ``takes`` says whether a device has it; for older ones the operations widen half floats, and the
kernels of ``product.py`` multiply them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import memory
from .array import DeviceArray, contiguous, empty
from .matmul import _arguments, _broadcast, _expand, _merge
from .strided_copy import copy_into
from .tensor_core_epilogue import ADD, BIAS, CAPABILITY, GELU, SLOPE, SUM_PARTS, VECTOR
from .tensor_core_product import LINE, tiles_of

ENOUGH_TILES = 100  # to keep most of a GPU's 80 to 150 multiprocessors at work
BLOCKS = 264  # what divided sums aim at: two on each of 132
SHORTEST_PART = 256  # steps of a divided sum
MOST_DIVIDED = 2**31  # elements of a product whose sums may be divided


def takes(device: int) -> bool:
    """Whether the device has the instructions."""
    return memory.capability(device) >= CAPABILITY


def matmul(a: DeviceArray, b: DeviceArray, bias: DeviceArray | None = None, dtype: Any = None) -> DeviceArray:
    """a b (+ bias): (..., M, K), (..., K, N), (N,) to (..., M, N), a new array of ``dtype`` (default: of a's).

    The operands are of one dtype; ``dtype`` is that or float32. Raises ValueError if the shapes do not fit, TypeError
    for other dtypes.
    """
    a, b, shape = _broadcast(a, b)
    y = empty(shape, a.dtype if dtype is None else np.dtype(dtype), a.device)
    _multiply(y, a, b, bias=bias)
    return y


def matmul_gelu(a: DeviceArray, b: DeviceArray, bias: DeviceArray | None = None) -> tuple[DeviceArray, DeviceArray]:
    """(gelu(h), h) of h = matmul(a, b, bias), the GELU of "tanh"; its gradient needs h."""
    a, b, shape = _broadcast(a, b)
    y, before = empty(shape, a.dtype, a.device), empty(shape, a.dtype, a.device)
    _multiply(y, a, b, bias=bias, before=before, epilogue=GELU)
    return y, before


def matmul_gelu_slope(a: DeviceArray, b: DeviceArray, before: DeviceArray) -> DeviceArray:
    """matmul(a, b) times the derivative of GELU at ``before``: the gradient of what a linear layer's GELU was of."""
    a, b, shape = _broadcast(a, b)
    y = empty(shape, a.dtype, a.device)
    _multiply(y, a, b, before=_like(y, before, "before"), epilogue=SLOPE)
    return y


def matmul_residual(
    a: DeviceArray, b: DeviceArray, residual: DeviceArray, bias: DeviceArray | None = None
) -> DeviceArray:
    """residual + matmul(a, b, bias), for a residual of the product's shape and dtype."""
    a, b, shape = _broadcast(a, b)
    y = empty(shape, a.dtype, a.device)
    _multiply(y, a, b, bias=bias, residual=_like(y, residual, "residual"), epilogue=ADD)
    return y


def add_matmul(y: DeviceArray, a: DeviceArray, b: DeviceArray) -> None:
    """y += matmul(a, b) in one pass: gradients that accumulate. y is C-contiguous, of a's dtype or float32."""
    a, b, shape = _broadcast(a, b)
    if y.shape != shape or not y.contiguous:
        raise ValueError(f"add_matmul of {a!r} and {b!r} to {y!r}: expected a C-contiguous array {shape}")
    _multiply(y, a, b, residual=y, epilogue=ADD)


def _like(y: DeviceArray, x: DeviceArray, name: str) -> DeviceArray:
    if x.shape != y.shape or x.dtype != y.dtype:
        raise ValueError(f"{name} is {x!r}; expected shape {y.shape} and dtype {y.dtype.name}, the product's")
    return contiguous(x)


# Operands -------------------------------------------------------------------------------------------------------------


def _multiply(
    y: DeviceArray,
    a: DeviceArray,
    b: DeviceArray,
    bias: DeviceArray | None = None,
    residual: DeviceArray | None = None,
    before: DeviceArray | None = None,
    epilogue: int = 0,
) -> None:
    """y = a b with an epilogue; all of the same leading dimensions, y, residual and before C-contiguous."""
    if a.dtype != b.dtype or (a.dtype.name, y.dtype.name) not in SUM_PARTS:
        raise TypeError(
            f"tensor cores multiply two arrays of one dtype, bfloat16, float16 or float32, to that or float32; "
            f"got {a.dtype.name} and {b.dtype.name} to {y.dtype.name}"
        )
    if bias is not None:
        if bias.shape != b.shape[-1:] or bias.dtype != a.dtype:
            raise ValueError(
                f"matmul: bias is {bias!r}; expected {b.shape[-1:]} of {a.dtype.name}, one for each column"
            )
        bias, epilogue = contiguous(bias), epilogue | BIAS
    if not y.size:
        return
    (a, a_kind), (b, b_kind) = _readable(a, -1), _readable(b, -2)
    bias, residual, before = (x if x is not None else other for x, other in ((bias, a), (residual, y), (before, y)))
    if y.shape[-1] % 4 == 0 and all(x.pointer % (4 * x.itemsize) == 0 for x in (y, bias, residual, before)):
        epilogue |= VECTOR
    _multiply_batch(y, a, b, (bias, residual, before), a_kind + b_kind, epilogue)


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
    aligned = _expand(aligned.swapaxes(-1, -2) if transposed else aligned, x.shape[:-2])
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


def _multiply_batch(
    y: DeviceArray,
    a: DeviceArray,
    b: DeviceArray,
    others: tuple[DeviceArray, DeviceArray, DeviceArray],
    kinds: str,
    epilogue: int,
) -> None:
    batch = _merge(y.shape[:-2], a.steps, b.steps)
    if len(batch) > 2:  # rare: leading dimensions that the operands share in no order
        bias, residual, before = others
        for i in range(y.shape[0]):
            _multiply_batch(y[i], a[i], b[i], (bias, residual[i], before[i]), kinds, epilogue)
        return
    (M, N), K = y.shape[-2:], a.shape[-1]
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
        tiles.launch(grid, y, a, b, *others, *_arguments(M, N, K, a, b, batch, epilogue), *sizes)
        return
    parts = empty((splits, M, N), np.float32, y.device)
    arguments = _arguments(M, N, K, a, b, batch, epilogue & VECTOR)
    tiles_of(operand, "float32", side, kinds).launch(grid, parts, a, b, others[0], parts, parts, *arguments, *sizes)
    groups = M * -(-N // 4)
    SUM_PARTS[operand, out].launch(-(-groups // 256), y, parts, *others, M, N, splits, epilogue)
