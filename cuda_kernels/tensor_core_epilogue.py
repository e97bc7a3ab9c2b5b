"""What happens to the sums of a product on tensor cores on their way to y, and the sum of a divided product's parts.

The steps are those of ``matmul_operands.py``. y, residual and before are of one dtype, the operands' or float32; bias
is of the operands'. A thread has 4 columns of a row.

The exponential and the division are the fast ones, of 2^-22 relative error, which half floats do not see.
"""

from __future__ import annotations

import math as python_math
from typing import Any

import numpy as np

from . import ptx
from .language import cuda, device_function, libdevice
from .launch import Kernel, kernel
from .product import ADD, BIAS, CUBIC, GELU, SLOPE, TWICE

VECTOR = 16  # a further bit of an epilogue: 4 columns lie at a multiple of 4
CAPABILITY = (8, 0)  # the oldest compute capability with tensor cores for these dtypes
PAIRS = [  # of the operands, of y
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float16", "float16"),
    ("float16", "float32"),
    ("float32", "float32"),
]
f32: type[np.float32] = np.float32
EXPONENT = np.float32(-TWICE / python_math.log(2))
U1, U2, U3 = np.float32(TWICE), np.float32(3 * CUBIC), np.float32(CUBIC)


@device_function
def _sigmoid(s: Any) -> Any:
    """sigmoid(2 u(s))."""
    return libdevice.fast_fdividef(f32(1), f32(1) + ptx.exp2_approx(EXPONENT * s * (f32(1) + U3 * s * s)))


@device_function
def _gelu(s: Any) -> Any:
    return s * _sigmoid(s)


@device_function
def _gelu_slope(s: Any) -> Any:
    half = _sigmoid(s)
    return half + s * half * (f32(1) - half) * U1 * (f32(1) + U2 * s * s)


def conversions(word: str) -> tuple[Any, Any]:
    """``widen``, of an element to float32, and ``narrow``, of two float32 to elements."""
    if word == "float32":

        @device_function
        def same(x):
            return x

        @device_function
        def both(x, y):
            return x, y

        return same, both
    widen = ptx.bfloat16_to_float if word == "bfloat16" else ptx.float16_to_float
    pack = ptx.pack_bfloat16 if word == "bfloat16" else ptx.pack_float16

    @device_function
    def halves(x, y):
        word = pack(x, y)
        return np.uint16(word & np.uint32(0xFFFF)), np.uint16(word >> np.uint32(16))

    return widen, halves


def _four(word: str) -> tuple[Any, Any]:
    """``get`` and ``put``: up to 4 elements, all at once with ``vector``."""
    widen, narrow = conversions(word)

    @device_function
    def get(p, i, count, vector):
        if vector:
            v = ptx.load4(p, i)
            return widen(v[0]), widen(v[1]), widen(v[2]), widen(v[3])
        zero = f32(0)
        return (
            widen(p[i]) if count > 0 else zero,
            widen(p[i + 1]) if count > 1 else zero,
            widen(p[i + 2]) if count > 2 else zero,
            widen(p[i + 3]) if count > 3 else zero,
        )

    @device_function
    def put(p, i, values, count, vector):
        first, second = narrow(values[0], values[1]), narrow(values[2], values[3])
        if vector:
            ptx.store4(p, i, (first[0], first[1], second[0], second[1]))
        else:
            if count > 0:
                p[i] = first[0]
            if count > 1:
                p[i + 1] = first[1]
            if count > 2:
                p[i + 2] = second[0]
            if count > 3:
                p[i + 3] = second[1]

    return get, put


FOUR = {word: _four(word) for word in ("bfloat16", "float16", "float32")}


def epilogue_of(operand: str, out: str) -> Any:
    """``finish``, which takes 4 sums and their place to y."""
    (get_bias, _), (get, put) = FOUR[operand], FOUR[out]

    @device_function
    def finish(s, place, column, count, y, bias, residual, before, epilogue):
        vector = epilogue & VECTOR != 0
        if epilogue & BIAS:
            v = get_bias(bias, column, count, vector)
            s = s[0] + v[0], s[1] + v[1], s[2] + v[2], s[3] + v[3]
        if epilogue & GELU:
            put(before, place, s, count, vector)
            s = _gelu(s[0]), _gelu(s[1]), _gelu(s[2]), _gelu(s[3])
        if epilogue & SLOPE:
            v = get(before, place, count, vector)
            s = (
                s[0] * _gelu_slope(v[0]), s[1] * _gelu_slope(v[1]),
                s[2] * _gelu_slope(v[2]), s[3] * _gelu_slope(v[3]),
            )  # fmt: skip
        if epilogue & ADD:
            v = get(residual, place, count, vector)
            s = s[0] + v[0], s[1] + v[1], s[2] + v[2], s[3] + v[3]
        put(y, place, s, count, vector)

    return finish


def _sum_parts(operand: str, out: str) -> Kernel:
    finish = epilogue_of(operand, out)
    get, _ = FOUR["float32"]

    @kernel(
        f"{out}*", "float32*", f"{operand}*", f"{out}*", f"{out}*", "uint32", "uint32", "int32", "int32",
        threads=256, registers=36, name=f"sum_parts_{operand}_{out}", capability=CAPABILITY,
    )  # fmt: skip
    def sum_parts(y, parts, bias, residual, before, M, N, splits, epilogue):
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
                v = get(parts, place + np.int64(split) * M * N, left, vector)
                s = s[0] + v[0], s[1] + v[1], s[2] + v[2], s[3] + v[3]
            finish(s, place, column, left, y, bias, residual, before, epilogue)

    return sum_parts


SUM_PARTS = {pair: _sum_parts(*pair) for pair in PAIRS}
