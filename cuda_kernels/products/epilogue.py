"""What happens to the sums of a product on their way to y, and the sum of a divided product's parts, for all engines.

The steps are those of ``record.py``. Without tensor cores they are exact (``steps_of``), for an element at a time, and
all arrays are of one dtype. On tensor cores (``store_of``) a thread has 4 columns of a row; y and other are of one
dtype, the operands' or float32, and bias is of the operands'. The exponential and the division are then the fast ones,
of 2^-22 relative error, which half floats do not see.
"""

import math as python_math
from typing import Any

import numpy as np

from minigrad.plain_kernels.elementwise import GELU_CUBIC, GELU_SLOPE, gelu as plain

from ..platform.memory import TENSOR_CORES
from ..platform.toolbox import Array, Kernel, cuda, empty, kernel, libdevice
from ..pointwise.conversion import conversions
from ..pointwise.formulas import of_formula
from ..ptx import ptx
from ..ptx.fours import add4, each, load_inside, store_inside
from .record import ADD, BIAS, GELU, SLOPE, Problem

VECTOR = 16  # a further bit of an epilogue: 4 columns lie at a multiple of 4
# Dtypes of the operands and of y, on tensor cores.
PAIRS = [(word, out) for word in ("bfloat16", "float16") for out in (word, "float32")] + [("float32", "float32")]
f32: type[np.float32] = np.float32
ONE: Any = 1
EXPONENT = np.float32(-GELU_SLOPE / python_math.log(2))
U1, U2, U3 = np.float32(GELU_SLOPE), np.float32(3 * GELU_CUBIC), np.float32(GELU_CUBIC)


Target = tuple[Array, Array, Array, int]  # where sums go, bias, other and the epilogue


def whole(p: Problem) -> Target:
    """y and the whole epilogue, with the bit VECTOR where the arrays allow it. Missing bias or other is any array."""
    y, bias, other = p.y, p.bias, p.other
    arrays = [x for x in (y, bias, other) if x is not None]
    vector = VECTOR * (p.sizes[1] % 4 == 0 and all(x.pointer % (4 * x.itemsize) == 0 for x in arrays))
    return y, p.a if bias is None else bias, y if other is None else other, p.epilogue | vector


def target(p: Problem, splits: int) -> Target:
    """That, or an array for so many parts of divided sums, float32 for half floats. Their epilogue comes later."""
    _, bias, _, epilogue = found = whole(p)
    if splits == 1:
        return found
    parts = empty((splits, *p.sizes[:2]), np.float64 if p.y.dtype.itemsize == 8 else np.float32, p.y.device)
    return parts, bias, parts, epilogue & VECTOR


# One element ----------------------------------------------------------------------------------------------------------


def steps_of(real: Any) -> Any:
    """``finish``, which makes the element of y at ``place`` of a sum. Integers have no step but BIAS."""
    if np.dtype(real).kind != "f":

        def finish_integer(s, place, column, bias, other, epilogue):
            return s + bias[column] if epilogue & BIAS else s

        return finish_integer
    gelu = of_formula(lambda s: plain.forward(s, "tanh"))(real)
    slope = of_formula(lambda s: plain.backward(ONE, s, "tanh"))(real)

    def finish(s, place, column, bias, other, epilogue):
        if epilogue & BIAS:
            s += bias[column]
        if epilogue & GELU:
            other[place] = s
            s = gelu(s)
        if epilogue & SLOPE:
            s *= slope(other[place])
        if epilogue & ADD:
            s += other[place]
        return s

    return finish


def _sum_parts(real: Any) -> Kernel:
    word = np.dtype(real).name
    finish = steps_of(real)

    @kernel(f"{word}* x4, uint32 x2, int32 x2", registers=32, of=word)
    def sum_parts(y, parts, bias, other, n, N, splits, epilogue):
        """parts (splits, n), y (n,) of rows of N."""
        i = cuda.grid(1)
        if i < n:
            s = parts[i]
            for split in range(1, splits):
                s += parts[i + np.int64(split) * n]
            y[i] = finish(s, i, np.uint32(i) % N, bias, other, epilogue)

    return sum_parts


SUM_PARTS = {np.dtype(real): _sum_parts(real) for real in (np.float32, np.float64)}


def finish(p: Problem, parts: Array, splits: int, epilogue: int) -> None:
    """y = the sum of so many parts of y's size and dtype, one after the other in memory, then steps of an epilogue."""
    y, bias, other, _ = whole(p)
    SUM_PARTS[y.dtype].launch_each(y.size, y, parts, bias, other, y.size, p.sizes[1], splits, epilogue)


# Four columns, on tensor cores ----------------------------------------------------------------------------------------


def _sigmoid(s: Any) -> Any:
    """sigmoid(2 u(s))."""
    return libdevice.fast_fdividef(f32(1), f32(1) + ptx.exp2_approx(EXPONENT * s * (f32(1) + U3 * s * s)))


def _times_slope(s: Any, v: Any) -> Any:
    """s gelu'(v)."""
    half = _sigmoid(v)
    return s * (half + v * half * (f32(1) - half) * U1 * (f32(1) + U2 * v * v))


_gelu4: Any = each(lambda s: s * _sigmoid(s))
_times_slope4: Any = each(_times_slope, 2)


def _four(word: str) -> tuple[Any, Any]:
    """``get`` and ``put``: up to 4 elements, all at once with ``vector``."""
    widen, narrow = conversions(word)
    widen4: Any = each(widen)
    zero: Any = f32(0) if word == "float32" else np.uint16(0)

    def get(p, i, count, vector):
        return widen4(ptx.load4(p, i) if vector else load_inside(p, i, 1, count, zero))

    def put(p, i, values, count, vector):
        first, second = narrow(values[0], values[1]), narrow(values[2], values[3])
        four = first[0], first[1], second[0], second[1]
        if vector:
            ptx.store4(p, i, four)
        else:
            store_inside(p, i, count, four)

    return get, put


FOUR = {word: _four(word) for word in ("bfloat16", "float16", "float32")}


def store_of(operand: str, out: str) -> Any:
    """``store``, which takes 4 sums and their place to y."""
    (get_bias, _), (get, put) = FOUR[operand], FOUR[out]

    def store(s, place, column, count, y, bias, other, epilogue):
        vector = epilogue & VECTOR != 0
        if epilogue & BIAS:
            s = add4(s, get_bias(bias, column, count, vector))
        if epilogue & GELU:
            put(other, place, s, count, vector)
            s = _gelu4(s)
        elif epilogue & SLOPE:
            s = _times_slope4(s, get(other, place, count, vector))
        elif epilogue & ADD:
            s = add4(s, get(other, place, count, vector))
        put(y, place, s, count, vector)

    return store


def _sum_parts4(operand: str, out: str) -> Kernel:
    store = store_of(operand, out)
    get, _ = FOUR["float32"]

    @kernel(
        f"{out}*, float32*, {operand}*, {out}*, uint32 x2, int32 x2",
        registers=36, capability=TENSOR_CORES, of=f"{operand}_{out}",
    )  # fmt: skip
    def sum_parts(y, parts, bias, other, M, N, splits, epilogue):
        """y (M, N) = the sum of parts (splits, M, N), with an epilogue."""
        i = np.uint32(cuda.grid(1))
        groups = np.uint32((N + np.uint32(3)) // np.uint32(4))
        row = np.uint32(i // groups)
        if row < M:
            column = np.int64((i - row * groups) * np.uint32(4))
            left = np.int32(N - column)
            place = np.int64(row) * N + column
            vector = N % np.uint32(4) == 0
            s = get(parts, place, left, vector)
            for split in range(1, splits):
                s = add4(s, get(parts, place + np.int64(split) * M * N, left, vector))
            store(s, place, column, left, y, bias, other, epilogue)

    return sum_parts


SUM_PARTS4 = {pair: _sum_parts4(*pair) for pair in PAIRS}


def finish4(p: Problem, parts: Array, splits: int) -> None:
    """y = the sum of so many float32 parts of y's size, one after the other in memory, then the epilogue."""
    (y, *others, epilogue), N = whole(p), p.sizes[1]
    rows, run = y.size // N, SUM_PARTS4[p.a.dtype.name, y.dtype.name]
    run.launch_each(rows * -(-N // 4), y, parts, *others, rows, N, splits, epilogue)
