"""Folds whose state is a pair: the first largest value with its index (argmax, argmin), maximum and sum (logsumexp).

    argmax:     (v, k) is the larger v, of equal ones the smaller k; NaN is larger than all
    logsumexp:  (m, s) stands for s e^m:  (m, s) + (m', s') = (M, s e^(m - M) + s' e^(m' - M)),  M = max(m, m')

A block of (width, height) threads: ``height`` of them share an output and join their pairs by a tree in shared memory.
Long n is taken in parts, whose pairs are folded again.
"""

from typing import Any

import numpy as np

from ..platform.toolbox import THREADS, Array, Kernel, cuda, empty, kernel, math
from ..pointwise.rules import larger_of as larger
from .collective import PAIR, down_column, of_pairs
from .fold import column_plan, limits_of, word_of
from .rows import ceil_div, quotient


def add_exponentials(m: Any, s: Any, other_m: Any, other_s: Any) -> Any:
    """(M, S) with S e^M = s e^m + s' e^m'; m and m' may be infinite."""
    e = math.exp(-math.fabs(m - other_m))
    if m == other_m:
        return m, s + other_s
    if other_m > m:
        return other_m, s * e + other_s
    return larger(m, other_m), s + other_s * e


def _first(before: Any) -> Any:
    """The device function to the pair whose value is ``before`` the other, of equal ones that of the smaller index."""

    def first(v: Any, k: Any, other_v: Any, other_k: Any) -> Any:
        nan, other_nan = v != v, other_v != other_v
        tie = (v == other_v or (nan and other_nan)) and other_k < k
        if tie or (before(other_v, v) and not nan) or (other_nan and not nan):
            return other_v, other_k
        return v, k

    return first


first_largest: Any = _first(lambda x, y: x > y)
first_smallest: Any = _first(lambda x, y: x < y)


def _pair_fold(
    name: str, word: str, wide: Any, second: Any, combine: Any, first: Any, none: Any, finish: Any
) -> Kernel:
    """``first`` and ``none``: the state of no value. ``second``: the dtype of the state's second half."""
    counts, of_column, other = second is np.int64, down_column(of_pairs(combine), PAIR), second.__name__

    @kernel(f"{word}*, {other}*, {word}*, {other}*, int64 x4, int32 x2", registers=64, name=f"{name}_{word}")
    def pair_fold(x, x2, y, y2, outputs, n, inner, part, pairs, last):
        """y2[o, p, i] = fold of x[o, p part : (p + 1) part, i]; ``pairs``: of (x, x2); y unless ``last``."""
        firsts = cuda.shared.array(THREADS, wide)
        seconds = cuda.shared.array(THREADS, second)
        place, height = cuda.threadIdx.y, cuda.blockDim.y
        output = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        a, b = wide(first), second(none)
        o = quotient(output, inner)
        i = output - o * inner
        if output < outputs:
            start = cuda.blockIdx.y * part
            stop = min(n, start + part)
            at = (o * n + start + place) * inner + i
            j = start + place
            while j < stop:
                value = wide(x[at])
                if pairs:
                    a, b = combine(a, b, value, x2[at])
                elif counts:
                    a, b = combine(a, b, value, second(j))
                else:
                    a, b = combine(a, b, value, second(1))
                at += height * inner
                j += height
        a, b = of_column((a, b), (firsts, seconds))
        if output < outputs and place == 0:
            target = (o * cuda.gridDim.y + cuda.blockIdx.y) * inner + i
            if last:
                y2[target] = finish(a, b)
            else:
                y[target], y2[target] = a, b

    return pair_fold


_NO_INDEX = np.iinfo(np.int64).max


def _pair_folds() -> dict[tuple[str, str], Kernel]:
    found, index_of = {}, lambda v, k: k
    for word in ("float32", "float64", "int64", "int32", "bits8"):
        wide = np.int32 if word == "bits8" else np.dtype(word).type
        low, high = limits_of(word)
        found["argmax", word] = _pair_fold("argmax", word, wide, np.int64, first_largest, low, _NO_INDEX, index_of)
        found["argmin", word] = _pair_fold("argmin", word, wide, np.int64, first_smallest, high, _NO_INDEX, index_of)
    for real in (np.float32, np.float64):
        states = add_exponentials, -np.inf, 0, lambda m, s: m + math.log(s)
        found["logsumexp", real.__name__] = _pair_fold("logsumexp", real.__name__, real, real, *states)
    return found


PAIR_FOLDS: dict[tuple[str, str], Kernel] = _pair_folds()


def pair_fold(name: str, x: Array, outer: int, n: int, inner: int, x2: Array | None = None) -> Array:
    """argmax, argmin (int64) or logsumexp (x's dtype) of contiguous x (outer, n, inner) over n -> (outer * inner,).

    ``x2``: the second halves of the pairs whose first ones are x.
    """
    outputs = outer * inner
    (width, height), parts, part = column_plan(outputs, n, inner)
    dtype = x.dtype if name == "logsumexp" else np.dtype(np.int64)
    y2 = empty(outputs * parts, dtype, x.device)
    y = y2 if parts == 1 and dtype == x.dtype else empty(outputs * parts if parts > 1 else 0, x.dtype, x.device)
    PAIR_FOLDS[name, word_of(x.dtype)].launch(
        (ceil_div(outputs, width), parts),
        *(x, y2 if x2 is None else x2, y, y2, outputs, n, inner, part, int(x2 is not None), int(parts == 1)),
        threads=(width, height),
    )
    return y2 if parts == 1 else pair_fold(name, y, outer, parts, inner, y2)
