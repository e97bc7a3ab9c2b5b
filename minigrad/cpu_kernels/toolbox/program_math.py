"""Exponentials, logarithms, tanh and the error function of float32, in steps that are instructions.

Programs compute these instead of NumPy's functions, whose loops are slow on machines without AVX-512. They are written
in NumPy's operators, for stand-ins (``array_program.py``). Their sums of products are contracted to FMA, and nothing is
reassociated: that would fold the pairs of constants that compensate errors, and the addition that rounds.

NaN gives NaN, infinities give the exact limit. Errors (measured in the tests): exp 2 ulp, also where it is subnormal;
expm1, log, log1p and tanh 3 ulp; erf 2e-7, erfc 6e-7 absolute and 3e-5 relative.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...plain_kernels.elementwise import of_each
from .vector_math import BIASED_MAGIC, E1, E2, E3, E4, E5, E6, LN2_HIGH, LN2_LOW, LOG2_E, float32

ZERO, HALF, ONE, TWO, INFINITY, NAN = float32(0.0, 0.5, 1.0, 2.0, math.inf, math.nan)
# Below EXP_MIN the result rounds to 0, above EXP_MAX to infinity; the clamp keeps n small enough for an exponent field.
EXP_MIN, EXP_MAX, EXPM1_MIN = float32(-104.0, 89.0, -30.0)


def _power_of_two(exponent: Any) -> Any:
    """2^n, of n + 127; what is above its eight bits is cut off."""
    return (exponent << 23).view(np.float32)


def _reduced(x: Any) -> tuple[Any, Any]:
    """e^x = 2^n (1 + p) with the bits of n + 127, and p."""
    rounded = x * LOG2_E + BIASED_MAGIC
    n = rounded - BIASED_MAGIC
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    return rounded.view(np.int32), (((((E6 * r + E5) * r + E4) * r + E3) * r + E2) * r + E1) * r


def _exp(x: Any) -> Any:
    bits, p = _reduced(np.maximum(np.minimum(x, EXP_MAX), EXP_MIN))
    first = (bits - BIASED_BITS) >> 1  # two factors, because 2^n itself may lie outside of normal numbers
    return (p + ONE) * _power_of_two(first + 127) * _power_of_two(bits - first)


BIASED_BITS = int(BIASED_MAGIC.view(np.int32))


def _expm1(x: Any) -> Any:
    bits, p = _reduced(np.maximum(np.minimum(x, EXP_MAX), EXPM1_MIN))
    half = _power_of_two(bits - 1)  # 2^n / 2: 2^128 is infinite
    return np.where(abs(x) < SMALLEST_NORMAL, x, (half * p + (half - HALF)) * TWO)


# tanh(x) = x + x^3 P(x^2) for |x| < 0.625 (Cephes' tanhf): there 1 - 2 / (e^2x + 1) would cancel.
TANH_SMALL = np.float32(0.625)
T4, T3, T2, T1, T0 = float32(
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1
)


def _tanh(x: Any) -> Any:
    magnitude = abs(x)
    s = x * x
    near_zero = ((((T4 * s + T3) * s + T2) * s + T1) * s + T0) * s * x + x
    tail = ONE - TWO / (ONE + _exp(TWO * magnitude))
    return np.copysign(np.where(magnitude < TANH_SMALL, near_zero, tail), x)


# Minimax fits (Lawson's iteration on Chebyshev nodes, this project's own):
# erf(x) = x P(x^2) for |x| < 1, error 1.2e-9; erfc(x) = exp(-Q(x)) for 1 <= x <= 4, error 1.3e-9. Past 4 erf is 1.
ERF_MAX = np.float32(4.0)
P6, P5, P4, P3, P2, P1, P0 = float32(
    7.889119297033e-05, -8.020841050893e-04, 5.189535208046e-03, -2.685444429517e-02,
    1.128360033036e-01, -3.761262595654e-01, 1.128379167096e00,
)  # fmt: skip
Q6, Q5, Q4, Q3, Q2, Q1, Q0 = float32(
    -1.915050379466e-04, 2.999549033120e-03, -2.205204914774e-02, 1.035669520497e-01,
    6.375999450683e-01, 1.127426147461e00, 2.564366441220e-04,
)  # fmt: skip


def _erf(x: Any) -> Any:
    t = np.minimum(abs(x), ERF_MAX)
    s = t * t
    near_zero = ((((((P6 * s + P5) * s + P4) * s + P3) * s + P2) * s + P1) * s + P0) * x
    tail = ONE - _exp(-((((((Q6 * t + Q5) * t + Q4) * t + Q3) * t + Q2) * t + Q1) * t + Q0))
    return np.where(t < ONE, near_zero, np.copysign(tail, x))


# erfc(x) = 2 exp(-x^2) k R(k), k = 1 / (1 + x / 2), for x >= 0: Abramowitz & Stegun's form 7.1.26 with a polynomial of
# degree 6 fitted as above. No cancellation where it is tiny.
R6, R5, R4, R3, R2, R1, R0 = float32(
    4.527205434389e-02, -1.819574939472e-01, 1.988086862678e-01, 1.661398712146e-02,
    1.413736961972e-01, 1.387215548179e-01, 1.411676258187e-01,
)  # fmt: skip


def _erfc(x: Any) -> Any:
    k = ONE / (ONE + HALF * abs(x))
    tail = TWO * _exp(-x * x) * k * ((((((R6 * k + R5) * k + R4) * k + R3) * k + R2) * k + R1) * k + R0)
    return np.where(x < ZERO, TWO - tail, tail)


# log(x) = n ln 2 + log(m), sqrt(1/2) <= m < sqrt 2; log(1 + f) = f - f^2 / 2 + f^3 P(f) after Cephes' logf (Moshier).
SMALLEST_NORMAL, SUBNORMAL_SCALE, SUBNORMAL_SHIFT = float32(2.0**-126, 2.0**25, 25.0)
HALF_ROOT_BITS = 0x3F3504F3  # of sqrt(1/2)
L8, L7, L6, L5, L4, L3, L2, L1, L0 = float32(
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip


def _log(x: Any) -> Any:
    small = x < SMALLEST_NORMAL
    bits = np.where(small, x * SUBNORMAL_SCALE, x).view(np.int32)
    exponent = (bits - HALF_ROOT_BITS) >> 23
    f = (bits - (exponent << 23)).view(np.float32) - ONE
    n = exponent.astype(np.float32) - np.where(small, SUBNORMAL_SHIFT, ZERO)
    s = f * f
    tail = ((((((((L8 * f + L7) * f + L6) * f + L5) * f + L4) * f + L3) * f + L2) * f + L1) * f + L0) * f * s
    y = f + (tail + n * LN2_LOW - HALF * s) + n * LN2_HIGH
    y = np.where(x < INFINITY, y, x)  # infinity and NaN
    return np.where(x > ZERO, y, np.where(x == ZERO, -INFINITY, np.where(x < ZERO, NAN, x)))


def _log1p(x: Any) -> Any:
    u = ONE + x
    lost = (x - (u - ONE)) / u  # by rounding
    return np.copysign(_log(u) + np.where((u > ZERO) & (x < INFINITY), lost, ZERO), x)


FLOAT32: dict[np.ufunc, Callable[..., Any]] = {
    np.exp: _exp, np.expm1: _expm1, np.log: _log, np.log1p: _log1p, np.tanh: _tanh,
    of_each[math.erf]: _erf, of_each[math.erfc]: _erfc,
}  # fmt: skip
"""By NumPy's function the one of float32 in its place."""
