"""Folds of x (outer, n, inner) over n with an associative operation: sum, product, maximum, minimum.

``rows``: inner = 1, a warp or a block for each row, 128-bit loads. ``columns``: a thread for each output, or ``height``
threads that share one. Either may take a part of n for each block; the parts' results are then folded again. What is
added to what depends on the sizes only, so that a result has the same bits at each run and on each card.
"""

from typing import Any, NamedTuple

import numpy as np

from ..platform.toolbox import THREADS, Array, Kernel, cuda, empty, kernel
from ..pointwise.rules import larger_of, smaller_of
from ..ptx import ptx
from .collective import across_block, add, down_column
from .rows import ceil_div, power_of_two, quotient

ROW = 16  # longer rows have a warp
ROW_PART = 8192  # elements of a row that are worth a block
COLUMN_PART = 32  # elements that are worth a thread
FOLD_BLOCKS = 1024  # more parts are not needed to fill a card


class Fold(NamedTuple):
    """The kernels of one operation from one dtype to another."""

    rows: Kernel
    columns: Kernel
    width: int  # elements of a 128-bit load


def multiply(x: Any, y: Any) -> Any:
    """x y."""
    return x * y


_LOADS = {2: ptx.load_constant2, 4: ptx.load_constant4, 16: ptx.load_constant16}


def _tree(width: int, combine: Any, wide: Any) -> Any:
    """The device function that combines ``width`` values (a power of 2) in pairs, these in pairs, ..."""
    if width == 1:
        return lambda v: wide(v[0])
    half, middle = _tree(width // 2, combine, wide), width // 2
    return lambda v: combine(half(v[:middle]), half(v[middle:]))


def _fold(name: str, word: str, target: str, wide: Any, combine: Any, identity: Any) -> Fold:
    """``word`` and ``target``: of a kernel's signature, from which and to which; ``wide``: the dtype of the results."""
    width = {"bits8": 16, "int32": 4, "float32": 4}.get(word, 2)
    load, of_row, of_column = _LOADS[width], across_block(combine, again=False), down_column(combine)
    within = _tree(width, combine, wide)

    @kernel(
        f"{word}*, {target}*, int64 x3, int32", registers=48, name=f"{name}_rows_{word}_{target}", vector_loads=True
    )
    def rows(x, y, outer, n, part, vectors):
        """y[row, p] = fold of x[row, p part : (p + 1) part], p = blockIdx.y."""
        partial = cuda.shared.array(32, wide)
        row = np.int64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y
        total = wide(identity)
        if row < outer:
            start = cuda.blockIdx.y * part
            stop = min(n, start + part)
            x_row = row * n
            step = cuda.blockDim.x
            j = start + cuda.threadIdx.x
            if vectors:
                j = start + cuda.threadIdx.x * width
                while j + step * width + width <= stop:
                    a = within(load(x, x_row + j))
                    b = within(load(x, x_row + j + step * width))
                    total = combine(total, combine(a, b))
                    j += 2 * step * width
                if j + width <= stop:
                    total = combine(total, within(load(x, x_row + j)))
                j = stop - (stop - start) % width + cuda.threadIdx.x
            while j < stop:
                total = combine(total, wide(x[x_row + j]))
                j += step
        total = of_row(total, partial)
        if row < outer and cuda.threadIdx.x == 0:
            y[row * cuda.gridDim.y + cuda.blockIdx.y] = total

    @kernel(f"{word}*, {target}*, int64 x4", registers=48, name=f"{name}_columns_{word}_{target}")
    def columns(x, y, outputs, n, inner, part):
        """y[o, p, i] = fold of x[o, p part : (p + 1) part, i], p = blockIdx.y; outputs = outer inner."""
        partial = cuda.shared.array(THREADS, wide)
        place, height = cuda.threadIdx.y, cuda.blockDim.y
        output = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        total = wide(identity)
        o = quotient(output, inner)
        i = output - o * inner
        if output < outputs:
            start = cuda.blockIdx.y * part
            stop = min(n, start + part)
            at = (o * n + start + place) * inner + i
            step = height * inner
            j = start + place
            while j + 3 * height < stop:
                a = combine(wide(x[at]), wide(x[at + step]))
                b = combine(wide(x[at + 2 * step]), wide(x[at + 3 * step]))
                total = combine(total, combine(a, b))
                at += 4 * step
                j += 4 * height
            while j < stop:
                total = combine(total, wide(x[at]))
                at += step
                j += height
        total = of_column(total, partial)
        if output < outputs and place == 0:
            y[(o * cuda.gridDim.y + cuda.blockIdx.y) * inner + i] = total

    return Fold(rows, columns, width)


def _folds() -> dict[tuple[str, str, str], Fold]:
    found = {}
    for word in ("float32", "float64", "int64"):
        wide = np.dtype(word).type
        found["sum", word, word] = _fold("sum", word, word, wide, add, 0)
        found["prod", word, word] = _fold("prod", word, word, wide, multiply, 1)
    for word, target in (("int32", "int64"), ("bits8", "int64"), ("bits8", "float32"), ("bits8", "float64")):
        found["sum", word, target] = _fold("sum", word, target, np.dtype(target).type, add, 0)
    for word in ("float32", "float64", "int64", "int32", "bits8"):
        wide = np.int32 if word == "bits8" else np.dtype(word).type
        lowest, highest = limits_of(word)
        found["max", word, word] = _fold("max", word, word, wide, larger_of, lowest)
        found["min", word, word] = _fold("min", word, word, wide, smaller_of, highest)
    return found


def limits_of(word: str) -> tuple[Any, Any]:
    """The least and the largest value of a word of a kernel's signature."""
    if word == "bits8":
        return 0, 255
    if word.startswith("float"):
        return -np.inf, np.inf
    limits = np.iinfo(word)
    return int(limits.min), int(limits.max)


FOLDS: dict[tuple[str, str, str], Fold] = _folds()


def word_of(dtype: np.dtype[Any]) -> str:
    """The word by which ``FOLDS`` knows a dtype."""
    return "bits8" if dtype.itemsize == 1 else dtype.name


def fold(name: str, x: Array, outer: int, n: int, inner: int, dtype: np.dtype[Any]) -> Array:
    """The fold ``name`` of contiguous x, seen as (outer, n, inner), over n -> (outer * inner,) of ``dtype``."""
    chosen = FOLDS[name, word_of(x.dtype), word_of(dtype)]
    outputs = outer * inner
    if inner == 1 and n > ROW:
        parts = max(1, min(n // ROW_PART, FOLD_BLOCKS // max(outer, 1)))
        part = ceil_div(ceil_div(n, parts), THREADS) * THREADS
        parts = ceil_div(n, part)
        threads = (THREADS, 1) if min(part, n) > 32 * 32 else (32, min(8, power_of_two(outer)))
        vectors = int(x.pointer % 16 == 0 and (outer == 1 or n % chosen.width == 0))
        run, width, numbers = chosen.rows, threads[1], (outer, n, part, vectors)
    else:
        threads, parts, part = column_plan(outputs, n, inner)
        run, width, numbers = chosen.columns, threads[0], (outputs, n, inner, part)
    y = empty(outputs * parts, dtype, x.device)
    run.launch((ceil_div(outputs, width), parts), x, y, *numbers, threads=threads)
    return y if parts == 1 else fold(name, y, outer, parts, inner, dtype)


def column_plan(outputs: int, n: int, inner: int) -> tuple[tuple[int, int], int, int]:
    """(width, height) of a block, the number of parts of n, and a part's length, for a kernel like ``columns``.

    ``width`` threads have neighbouring outputs, and ``height`` of them share one.
    """
    if n <= ROW:
        return (min(THREADS, power_of_two(outputs)), 1), 1, max(n, 1)
    width = power_of_two(min(inner, 32))
    height = min(THREADS // width, power_of_two(ceil_div(n, 4)))
    parts = max(1, min(n // (height * COLUMN_PART), 2 * FOLD_BLOCKS // max(ceil_div(outputs, width), 1)))
    part = ceil_div(n, parts)
    return (width, height), ceil_div(n, part), part
