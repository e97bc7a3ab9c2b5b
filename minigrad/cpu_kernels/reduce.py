"""Reductions: folds and scans along any axes; the plain ones for other layouts.

One source is a kernel for each fold (``vector_math.py`` has their steps). Half floats are read as they are, and folded
in float32.
"""

import functools
import math
from typing import Any

import numpy as np

from ..plain_kernels import reduce as plain
from ..plain_kernels.arrays import is_half
from ..plain_kernels.elementwise import quiet
from . import elementwise
from .movement import contiguous
from .toolbox.formula import as_launches, formula
from .toolbox.product_loops import fold_columns
from .toolbox.program_code import converts_halves
from .toolbox.register_tile import keep_alive, operand, pointer, whole_vectors
from .toolbox.strided_copy import FEW, copied
from .toolbox.threads import TaskKernel, recording, shares, task_kernel
from .toolbox.tracing import FLOAT32, supports_half
from .toolbox.vector_math import (
    DISTANCES,
    LARGEST,
    NUMBERS,
    POWERS,
    PRODUCT,
    SMALLEST,
    SQUARED_DISTANCES,
    SQUARES,
    SUM,
    combined,
    folded,
    moves,
    rounded,
    widened,
)

LINE = 64  # columns, of which tasks get multiples
PART = 1024  # and how many they scan at once, at most
NARROW = 4  # elements of rows that are folded as columns, if there are many
BLOCK, STRIP = 16384, 256  # elements of a row that one task folds, and of a column that are folded on their own


def _fold(name: str, fold: int) -> tuple[TaskKernel, TaskKernel]:
    """The kernels of a fold, of rows and of columns."""
    shifted = DISTANCES <= fold <= POWERS

    @task_kernel(name=f"{name}_rows")
    def rows(task, tasks, x, y, shift):
        """y[i, b] = the fold of block b of row i of x, about shift[i, 0]."""
        whole_vectors()
        count, blocks = y.shape
        columns = x.shape[1]
        for part in range(task * count * blocks // tasks, (task + 1) * count * blocks // tasks):
            i, b = part // blocks, part % blocks
            block = x[i, b * BLOCK : min(columns, (b + 1) * BLOCK)]
            y[i, b] = folded(fold, block, y, shift[i, 0] if shifted else y.dtype.type(0))

    @task_kernel(name=f"{name}_columns")
    def columns(task, tasks, x, y, shift):
        """y (outer, inner) = the fold of x (outer, n, inner) over n, about shift: strips of n first, then these."""
        outer, n, inner = x.shape
        lines, part = (inner + LINE - 1) // LINE, np.empty(inner, y.dtype)
        unit, units = task * outer * lines // tasks, (task + 1) * outer * lines // tasks
        while unit < units:
            i, line = unit // lines, unit % lines
            start, end = line * LINE, min(inner, (line + units - unit) * LINE)
            unit += lines - line
            total, about = y[i, start:end], pointer(shift[i, start:] if shifted else part)
            for strip in range(0, n, STRIP):
                source, height = pointer(x[i, strip, start:]), min(STRIP, n - strip)
                fold_columns(fold, source, inner, height, end - start, pointer(part), about)
                for c in range(total.shape[0]):
                    total[c] = combined(fold, total[c], part[c]) if strip else part[c]
        keep_alive((part,))

    return rows, columns


def _scan(name: str, fold: int) -> TaskKernel:
    """The kernel of folds of the first 1, 2, ... values; of extrema also their places, and those of all values."""
    placed = fold >= LARGEST

    @task_kernel(name=f"{name}_scan")
    def scan(task, tasks, x, y, places, like, backward):
        """y[i, k, c] = the fold of x[i, : k + 1, c], ``backward`` of x[i, k:, c], in the dtype of ``like``.

        Of extrema the place, too, of equals the last one; of y (outer, 1, inner), of all values, the first one.
        """
        whole_vectors()
        outer, n, inner = x.shape
        running, lines = y.shape[1] > 1 or n == 1, (inner + LINE - 1) // LINE
        total, place = np.empty(min(inner, PART), like.dtype), np.empty(min(inner, PART), np.int64)
        unit, units = task * outer * lines // tasks, (task + 1) * outer * lines // tasks
        while unit < units:
            i, line = unit // lines, unit % lines
            start, end = line * LINE, min(inner, (line + units - unit) * LINE, line * LINE + PART)
            unit += (end - start + LINE - 1) // LINE
            if inner == 1 and placed and not running:
                row = x.reshape(outer, n)[i]
                top, j = folded(fold, row, like, 0), 0
                while widened(row[j], like) != top and (top == top or widened(row[j], like) == widened(row[j], like)):
                    j += 1
                y[i, 0, 0], places[i, 0, 0] = rounded(top, y), j
            elif inner == 1:
                now, at = widened(x[i, n - 1 if backward else 0, 0], like), 0
                for k in range(n):
                    j = n - 1 - k if backward else k
                    number = widened(x[i, j, 0], like)
                    now = combined(fold, now, number) if k or placed else now
                    y[i, j, 0] = rounded(now, y)
                    if placed:
                        places[i, j, 0] = at = j if moves(number, now, now, True) else at
            else:
                for k in range(n):
                    j = n - 1 - k if backward else k
                    row = x[i, j, start:end]
                    for c in range(end - start):
                        number = widened(row[c], like)
                        before = total[c]
                        total[c] = now = combined(fold, before, number) if k else number
                        if placed:
                            place[c] = j if k == 0 or moves(number, before, now, running) else place[c]
                    if running or k == n - 1:
                        to = j if running else 0
                        for c in range(end - start):
                            y[i, to, start + c] = rounded(total[c], y)
                        if placed:
                            places[i, to, start:end] = place[: end - start]
        keep_alive((total, place))

    return scan


def _scanned(fold: int, function: Any, x: Any, axis: int, *, backward: bool = False, running: bool = True) -> Any:
    """The scan of an array along an axis, and the places of extrema; what ``function`` says of others."""
    layout = _layout(x.shape, x.dtype, None, (axis,), True)
    if layout is None or x.dtype.char in "iB?":
        return function(x, axis)
    shape, wide, reads, key, sizes, *_ = layout
    shape, size = (x.shape, sizes) if running else (shape, (sizes[0], 1, sizes[2]))
    placed, total = fold >= LARGEST, "d" if fold < LARGEST and wide.kind == "f" else wide.char
    x = x if x.flags.carray else operand(contiguous(x))
    y = np.empty(shape, x.dtype)
    x, bits = x.view(reads), y.view(reads)
    places = np.empty(shape if placed else (0, 0, 0), np.int64)
    arrays = x.reshape(sizes), bits.reshape(size), places.reshape(size) if placed else places, _NOTHING[total]
    _SCANS[fold].launch(key, min(shares(x.size), sizes[0] * -(-sizes[2] // LINE)), *arrays, backward)
    return (y, places) if placed else y


@functools.lru_cache(4096)
def _layout(shape: tuple[int, ...], given: Any, wanted: Any, axes: tuple[int, ...], keepdim: bool) -> Any:
    """Of a contiguous array, and the last neighbours among its axes: the result's shape and dtype, the dtype that
    kernels read, their key, (outer, n, inner), these axes if there are others, and what stands for no shift. None for
    what no kernel folds.
    """
    dtype = np.dtype(wanted) if wanted else FLOAT32 if is_half(given) else given
    folds = dtype.char in "fdlq" and (is_half(given) or given.char in "fdlqiB?")
    folds = folds and (dtype.kind == "f" or given.kind in "iub")
    folds = folds and (given.char != "e" or converts_halves())
    if 0 in shape or not axes or not folds:
        return None
    result = tuple([1 if axis in axes else n for axis, n in enumerate(shape) if keepdim or axis not in axes])
    long = [axis for axis in axes if shape[axis] > 1]
    shape, long = (shape, long) if long else ((1, *shape), [0])  # nothing to fold
    first, end = max(long), max(long) + 1
    while first and (first - 1 in axes or shape[first - 1] == 1):
        first -= 1
    reads = given if not is_half(given) else np.dtype(np.int16 if given.kind == "f" else np.uint16)
    sizes = math.prod(shape[:first]), math.prod(shape[first:end]), math.prod(shape[end:])
    rest = tuple(range(first, end)) if min(long) < first else None
    return result, dtype, reads, reads.char + dtype.char, sizes, rest, _NOTHING[dtype.char]


def _folded(fold: int, x: np.ndarray, axes: Any, keepdim: bool, dtype: Any = None, shift: Any = None) -> Any:
    """A fold over axes of a contiguous array, in an order that depends on the shape only; about ``shift``, which has
    the axes as size 1.
    """
    x = copied(x) if x.nbytes < FEW and not x.flags.c_contiguous else x
    flags, given = x.flags, x.dtype
    layout = _layout(x.shape, given, dtype, axes, keepdim)
    if layout is None or not (flags.c_contiguous and flags.aligned):
        x = elementwise.cast(x, FLOAT32) if is_half(given) else x
        return getattr(plain, NAMES[fold])(x, axes, keepdim, *((dtype,) if dtype else ()))
    shape, dtype, reads, key, (outer, n, inner), rest, about = layout
    if rest:
        if shift is not None:
            shift = _copy(shift, [1 if i in rest else m for i, m in enumerate(x.shape)])
        return _folded(fold if fold >= PRODUCT else SUM, _folded(fold, x, rest, True, dtype, shift), axes, keepdim)
    y, (of_rows, of_columns) = np.empty(shape, dtype), _FOLDS[fold]
    x = x if flags.writeable else operand(x)
    x = x if reads is given else x.view(reads)
    if inner == 1 and n <= NARROW and outer >= BLOCK:
        x, outer, inner = copied(x.reshape(outer, n).T), 1, outer
    about = about if shift is None else shift.reshape(outer, inner)
    if inner > 1:
        tasks = min(shares(x.size, 2 * BLOCK), outer * -(-inner // LINE))
        of_columns.launch(key, tasks, x.reshape(outer, n, inner), y.reshape(outer, inner), about)
        return y
    rows = x.reshape(outer, n)
    while n > BLOCK:
        n = -(-n // BLOCK)
        rows, parts = np.empty((outer, n), dtype), rows
        of_rows.launch(key, min(shares(parts.size), rows.size), parts, rows, about)
        key, about, of_rows = 2 * dtype.char, _NOTHING[dtype.char], _FOLDS[fold if fold >= PRODUCT else SUM][0]
    of_rows.launch(key, min(shares(outer * n), outer) if outer > 1 else 1, rows, y.reshape(outer, 1), about)
    return y


def _copy(x: np.ndarray, shape: Any) -> np.ndarray:
    """A copy, to which x broadcasts; as a launch where these are noted."""
    if recording.launches is not None:
        return copied(np.broadcast_to(x, shape), 0)
    y = np.empty(shape, x.dtype)
    y[...] = x
    return y


NAMES = "sum sum_of_squares nansum distances squared_distances powers prod max min".split()
_FOLDS = [_fold(name, fold) for fold, name in enumerate(NAMES)]
_SCANS = {fold: _scan(NAMES[fold], fold) for fold in (SUM, PRODUCT, LARGEST, SMALLEST)}
_NOTHING = {char: np.empty((0, 0), char) for char in "fdlq"}
_mean_about = formula(quiet(lambda total, count, first: first + total / count))
_logarithm = formula(quiet(lambda total, top: np.where(abs(top) < math.inf, np.log(total) + top, top)))


def _place(x: np.ndarray, axis: int | None, keepdim: bool, largest: bool) -> np.ndarray:
    if axis is None or not x.ndim:
        x = elementwise.cast(x, FLOAT32) if is_half(x.dtype) else x
        return (plain.argmax if largest else plain.argmin)(x, axis, keepdim)
    places = reduce.extremes(x, axis, largest, False)[1]
    return places if keepdim else places.reshape(x.shape[:axis] + x.shape[axis + 1 :])


def _computed(function: Any, way: Any, *arguments: Any, **options: Any) -> Any:
    """The plain function, computed in this way."""
    return functools.update_wrapper(functools.partial(way, *arguments, **options), function)


class reduce(plain):
    """Reductions over ``axes``, a tuple of non-negative ints, or along one axis; sums and products in a ``dtype``."""

    supports_half: Any = staticmethod(supports_half)
    sum_of_squares: Any = _computed(plain.sum_of_squares, _folded, SQUARES)
    prod: Any = _computed(plain.prod, _folded, PRODUCT)
    max: Any = _computed(plain.max, _folded, LARGEST)
    min: Any = _computed(plain.min, _folded, SMALLEST)
    nansum: Any = _computed(plain.nansum, _folded, NUMBERS)
    argmax: Any = _computed(plain.argmax, _place, largest=True)
    argmin: Any = _computed(plain.argmin, _place, largest=False)
    cumsum: Any = _computed(plain.cumsum, _scanned, SUM, plain.cumsum)
    reverse_cumsum: Any = _computed(plain.reverse_cumsum, _scanned, SUM, plain.reverse_cumsum, backward=True)
    cumprod: Any = _computed(plain.cumprod, _scanned, PRODUCT, plain.cumprod)

    def sum(x: np.ndarray, axes: tuple[int, ...], keepdim: bool, dtype: Any = None) -> np.ndarray:
        """Sum over ``axes`` in ``dtype`` (default: that of x, float32 of half floats)."""
        if x.dtype.char == "?" and len(axes) == x.ndim and not keepdim and dtype and np.dtype(dtype).kind in "iu":
            return np.asarray(np.count_nonzero(x), dtype)
        return _folded(SUM, x, axes, keepdim, dtype)

    def logsumexp(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """log(sum(exp(x))) over ``axes``, shifted by the maximum so that it cannot overflow."""
        x, layout = contiguous(x), _layout(x.shape, x.dtype, None, axes, keepdim)
        if layout is None:
            return plain.logsumexp(elementwise.cast(x, FLOAT32) if is_half(x.dtype) else x, axes, keepdim)
        top = reduce.max(x, axes, True)
        total = _folded(POWERS, x, axes, True, shift=top)
        return as_launches(_logarithm)(total, top).reshape(layout[0])

    def moments(x: np.ndarray, axes: tuple[int, ...], sums: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The plain one's mean and sum of squared distances."""
        x, layout = contiguous(x), _layout(x.shape, x.dtype, None, axes, True)
        if layout is None:
            return plain.moments(x, axes, sums)
        first = x[tuple([slice(1 if i in axes else None) for i in range(x.ndim)])]
        first = as_launches(elementwise.cast)(first, FLOAT32) if is_half(x.dtype) else _copy(first, first.shape)
        total = _folded(DISTANCES, x, axes, True, shift=first)
        mean = as_launches(_mean_about)(total, float(x.size // first.size), first)
        about = as_launches(elementwise.cast)(mean, sums) if sums else mean
        return mean, _folded(SQUARED_DISTANCES, x, axes, True, sums, shift=about)

    def mean(x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
        """Mean over ``axes``; NaN for an empty one."""
        count = math.prod([x.shape[axis] for axis in axes]) or math.nan
        y = _folded(SUM, x, axes, keepdim)
        return np.true_divide(y, count, y) if recording.launches is None else elementwise.div.at_any_size(y, count)

    def extremes(x: np.ndarray, axis: int, largest: bool, running: bool) -> tuple[np.ndarray, np.ndarray]:
        """The plain one's values and places."""
        function = functools.partial(plain.extremes, largest=largest, running=running)
        return _scanned(LARGEST if largest else SMALLEST, function, x, axis, running=running)
