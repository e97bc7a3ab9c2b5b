"""Rotary position embedding: the D / 2 pairs of a row at position p are rotated by the angles p base^(-2j / D).

    (a, b) -> (a cos - b sin, a sin + b cos)

Pair j is (x[2j], x[2j + 1]) if ``interleaved``, else (x[j], x[j + D/2]). The gradient is the rotation by the negative
angles. Angles are computed in float64: at position 10^6 float32 would be off by 0.06.

A thread rotates one pair, or four, which it reads and writes 128 bits at once where sizes and addresses allow it.

Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021).
"""

import functools
import math as python_math
from typing import Any

import numpy as np

from .platform import recording
from .platform.array import Array, contiguous, empty, from_host, merged
from .platform.toolbox import Kernel, cuda, kernel, libdevice
from .pointwise.pointwise import Pointwise
from .pointwise.rules import of_numbers
from .ptx import ptx

ROPE_THREADS = 128
ROPE_REALS = (np.float32, np.float64)


# pi / 2 in three parts, the first two of 33 bits: whole quarter turns are taken off an angle without losing its digits.
QUARTER = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
QUARTERS_PER_RADIAN, HALVES_PER_RADIAN = 2 / python_math.pi, 1 / python_math.pi


def _of_angle(name: str) -> Pointwise:
    """cos or sin of a position times a frequency, in float64."""
    of_half_turns, wide = getattr(libdevice, f"{name}pi"), np.dtype(np.float64)

    def of_angle(position, frequency):
        angle = position * frequency
        quarters = libdevice.rint(angle * QUARTERS_PER_RADIAN)
        rest = cuda.fma(-quarters, QUARTER[0], angle)
        rest = cuda.fma(-quarters, QUARTER[2], cuda.fma(-quarters, QUARTER[1], rest))
        return of_half_turns(0.5 * (quarters - 4.0 * libdevice.rint(0.25 * quarters)) + rest * HALVES_PER_RADIAN)

    words = [f"int64 float64 to {real.__name__}" for real in ROPE_REALS]
    return Pointwise(name, of_numbers(of_angle), lambda *kinds: (wide,) * 3, 2, eager=words, lazy=(), width=1)


def turned(a: Any, b: Any, c: Any, s: Any) -> Any:
    """The pair (a, b) rotated by the angle whose cosine and sine are c and s."""
    return a * c - b * s, a * s + b * c


def _rotate(real: Any, wide: bool) -> Kernel:
    word = np.dtype(real).name
    count = 4 if wide else 1

    @kernel(
        f"{word}* x4, uint32 x4, int64 x6, int32",
        threads=ROPE_THREADS, registers=40, vector_loads=wide, of=word + "_wide" * wide,
    )  # fmt: skip
    def rotate(y, x, cos, sin, n, pieces, n1, n2, x0, x1, x2, t0, t1, t2, interleaved):
        """y (rows, D) contiguous; x and the tables by the steps of their up to three dimensions of rows (.., n1, n2).

        n: threads, ``pieces`` of ``count`` pairs for each row.
        """
        i = np.uint32(cuda.grid(1))
        if i < n:
            row = np.uint32(i // pieces)
            j = np.int64(i - row * pieces) * count
            outer = np.uint32(row // n2)
            i2 = np.int64(row - outer * n2)
            i0 = np.uint32(outer // n1)
            i1 = np.int64(outer - i0 * n1)
            half = np.int64(pieces) * count
            source = np.int64(i0) * x0 + i1 * x1 + i2 * x2
            table = np.int64(i0) * t0 + i1 * t1 + i2 * t2 + j
            target = np.int64(row) * (2 * half)
            first, second = (2 * j, 2 * j + count) if interleaved else (j, j + half)
            if wide:
                p, q = ptx.load_constant4(x, source + first), ptx.load_constant4(x, source + second)
                c, s = ptx.load_constant4(cos, table), ptx.load_constant4(sin, table)
                if interleaved:
                    a0, a1 = turned(p[0], p[1], c[0], s[0])
                    a2, a3 = turned(p[2], p[3], c[1], s[1])
                    b0, b1 = turned(q[0], q[1], c[2], s[2])
                    b2, b3 = turned(q[2], q[3], c[3], s[3])
                else:
                    a0, b0 = turned(p[0], q[0], c[0], s[0])
                    a1, b1 = turned(p[1], q[1], c[1], s[1])
                    a2, b2 = turned(p[2], q[2], c[2], s[2])
                    a3, b3 = turned(p[3], q[3], c[3], s[3])
                ptx.store4(y, target + first, (a0, a1, a2, a3))
                ptx.store4(y, target + second, (b0, b1, b2, b3))
            else:
                a, b = turned(x[source + first], x[source + second], cos[table], sin[table])
                y[target + first], y[target + second] = a, b

    return rotate


_COS, _SIN = _of_angle("cos"), _of_angle("sin")
_ROTATE = {np.dtype(real): _rotate(real, False) for real in ROPE_REALS}
_ROTATE_WIDE = _rotate(np.float32, True)
MOST_PAIRS = 2**31 - 1  # pairs of a launch


# Launchers ------------------------------------------------------------------------------------------------------------


def tables(positions: Array, dim: int, base: float, dtype: Any) -> tuple[Array, Array]:
    """Cosine and sine (*positions.shape, dim / 2) of the angles, rounded to ``dtype``."""
    return angle_tables(positions, float(base) ** (np.arange(0, dim, 2) / -max(dim, 1)), dtype)


def angle_tables(positions: Array, frequencies: np.ndarray, dtype: Any) -> tuple[Array, Array]:
    """`tables` of the angles positions * frequencies; frequencies (dim / 2,) float64."""
    found = _on_device(frequencies.astype(np.float64).tobytes(), positions.device)
    if recording.current() is not None:
        recording.current().keep.append(found)
    positions = positions.reshape(*positions.shape, 1)
    return _COS(positions, found, dtype=np.dtype(dtype)), _SIN(positions, found, dtype=np.dtype(dtype))


@functools.lru_cache(maxsize=64)
def _on_device(numbers: bytes, device: int) -> Array:
    """float64 numbers, which are copied once."""
    with recording.outside():
        return from_host(np.frombuffer(numbers), device)


def rotate(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """x (..., D); cos and sin (..., D / 2) of x's dtype, their leading sizes broadcast to those of x -> y (..., D).

    Rows of x may lie at any strides; they are copied if they are not contiguous themselves.
    """
    y = empty(x.shape, x.dtype, x.device)
    if not y.size:
        return y
    x = x if x.steps[-1] == 1 else contiguous(x)
    _rotate_rows(y, x, contiguous(cos), contiguous(sin), interleaved)
    return y


def _rotate_rows(y: Array, x: Array, cos: Array, sin: Array, interleaved: bool) -> None:
    """y = the rotation of x; y, cos and sin contiguous."""
    half = x.shape[-1] // 2
    missing = x.ndim - cos.ndim
    table_steps = [0] * missing + [0 if n == 1 else step for n, step in zip(cos.shape[:-1], cos.steps)]
    rows = merged(zip(x.shape[:-1], x.steps, table_steps))
    if len(rows) > 3 or python_math.prod(x.shape[:-1]) * half > MOST_PAIRS:
        for i in range(x.shape[0]):  # rare: dimensions in no common order, or too many elements for one launch
            c, s = (t[i if t.shape[0] > 1 else 0] if missing == 0 else t for t in (cos, sin))
            _rotate_rows(y[i], x[i], c, s, interleaved)
        return
    (_, x0, t0), (n1, x1, t1), (n2, x2, t2) = [(1, 0, 0)] * (3 - len(rows)) + rows
    steps = (x0, x1, x2)
    wide = x.dtype == np.float32 and half % 4 == 0 and x.pointer % 16 == 0 and all(step % 4 == 0 for step in steps)
    kernel_ = _ROTATE_WIDE if wide else _ROTATE[x.dtype]
    pieces = half // 4 if wide else half
    n = y.size // (2 * half) * pieces
    kernel_.launch_each(n, y, x, cos, sin, n, pieces, n1, n2, *steps, t0, t1, t2, int(interleaved))
