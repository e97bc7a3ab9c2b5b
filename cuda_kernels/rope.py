"""Rotary position embedding: the D / 2 pairs of a row at position p are rotated by the angles p base^(-2j / D).

    (a, b) -> (a cos - b sin, a sin + b cos)

Pair j is (x[2j], x[2j + 1]) if ``interleaved``, else (x[j], x[j + D/2]). The gradient is the rotation by the negative
angles. Angles are computed in float64: at position 10^6 float32 would be off by 0.06.

As an elementwise operation: a number times its cosine, plus the other one of its pair times its sine, with a sign.

Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021).
"""

import functools
import math
from typing import Any

import numpy as np

from .platform import recording
from .platform.array import Array, empty, from_host
from .platform.language import cuda, libdevice
from .pointwise.pointwise import Pointwise, floating
from .pointwise.rules import of_numbers

REALS = ("float32", "float64")

# pi / 2 in three parts, the first two of 33 bits: whole quarter turns are taken off an angle without losing its digits.
QUARTER = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
QUARTERS_PER_RADIAN, HALVES_PER_RADIAN = 2 / math.pi, 1 / math.pi


def _of_angle(name: str) -> Pointwise:
    """cos or sin of a position times a frequency, in float64."""
    of_half_turns, wide = getattr(libdevice, f"{name}pi"), np.dtype(np.float64)

    def of_angle(position, frequency):
        angle = position * frequency
        quarters = libdevice.rint(angle * QUARTERS_PER_RADIAN)
        rest = cuda.fma(-quarters, QUARTER[0], angle)
        rest = cuda.fma(-quarters, QUARTER[2], cuda.fma(-quarters, QUARTER[1], rest))
        return of_half_turns(0.5 * (quarters - 4.0 * libdevice.rint(0.25 * quarters)) + rest * HALVES_PER_RADIAN)

    words = [f"int64 float64 to {real}" for real in REALS]
    return Pointwise(name, of_numbers(of_angle), lambda *kinds: (wide,) * 3, 2, eager=words, lazy=(), width=1)


_COS, _SIN = _of_angle("cos"), _of_angle("sin")
_TURNED = of_numbers(lambda x, other, cos, sin, sign: x * cos + other * (sign * sin))
_ROTATE = Pointwise("rotate", _TURNED, floating, 5, eager=REALS, lazy=(), registers=48)


# Launchers ------------------------------------------------------------------------------------------------------------


def tables(positions: Array, dim: int, base: float, dtype: Any) -> tuple[Array, Array]:
    """Cosine and sine (*positions.shape, dim / 2) of the angles, rounded to ``dtype``."""
    return angle_tables(positions, float(base) ** (np.arange(0, dim, 2) / -max(dim, 1)), dtype)


def angle_tables(positions: Array, frequencies: np.ndarray, dtype: Any) -> tuple[Array, Array]:
    """`tables` of the angles positions * frequencies; frequencies (dim / 2,) float64."""
    found = _on_device(frequencies.astype(np.float64), positions.device)
    positions = positions.reshape(*positions.shape, 1)
    return _COS(positions, found, dtype=np.dtype(dtype)), _SIN(positions, found, dtype=np.dtype(dtype))


def _on_device(numbers: np.ndarray, device: int) -> Array:
    """These numbers, which are copied once."""
    found = _copied(numbers.tobytes(), numbers.dtype, device)
    if recording.current() is not None:
        recording.current().keep.append(found)
    return found


@functools.lru_cache(maxsize=64)
def _copied(numbers: bytes, dtype: np.dtype[Any], device: int) -> Array:
    with recording.outside():
        return from_host(np.frombuffer(numbers, dtype), device)


def rotate(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """x (..., D); cos and sin (..., D / 2) of x's dtype, their leading sizes broadcast to those of x -> y (..., D).

    Any strides.
    """
    y, half = empty(x.shape, x.dtype, x.device), x.shape[-1] // 2
    pairs, single, axis = ((half, 2), (half, 1), -1) if interleaved else ((2, half), (1, half), -2)
    seen, turned = (a.reshape(*a.shape[:-1], *pairs) for a in (x, y))
    others = seen.seen(lambda a: np.flip(a, axis))
    cos, sin = (table.reshape(*table.shape[:-1], *single) for table in (cos, sin))
    sign = _on_device(np.array([-1, 1], x.dtype), x.device).reshape((2,) if interleaved else (2, 1))
    _ROTATE(seen, others, cos, sin, sign, out=turned)
    return y
