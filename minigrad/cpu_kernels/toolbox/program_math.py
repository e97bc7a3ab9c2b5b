"""Exponentials, logarithms, sine, tanh, the error function of float32, some of float64, in steps that are instructions.

Programs compute these instead of NumPy's functions, whose loops are slow on machines without AVX-512. They are written
in NumPy's operators, for stand-ins (``tracing.py``). Their sums of products are contracted to FMA, and nothing is
reassociated: that would fold the pairs of constants that compensate errors, and the addition that rounds.

NaN gives NaN, infinities give the exact limit. Errors (measured in the tests): exp 2 ulp, also where it is subnormal;
expm1, log, log1p and tanh 3 ulp; erf 2e-7, erfc 6e-7 absolute and 5e-6 relative. In float64 exp 1 ulp, erf 4 ulp, erfc
1e-15 absolute and 3e-13 relative. In both sin and cos 2 ulp, tan 4 ulp.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...plain_kernels.elementwise import of_each
from ...plain_kernels.random import SINE as SINE_FACTORS
from .numpy_loops import COSINE, SINE, mended
from .vector_math import EXPONENTIALS, LN2, float32

# Below the first the result rounds to 0, above the second to infinity; the clamp keeps n small enough for its field.
EXP_RANGE = {"f": (-104, 89), "d": (-746, 710)}


def _polynomial(factors: tuple[Any, ...], x: Any) -> Any:
    """The sum of powers of x times these factors, that of the highest power first."""
    return functools.reduce(lambda y, factor: y * x + factor, factors)


def _power_of_two(exponent: Any) -> Any:
    """2^n, of n and the exponent's bias; what is above the exponent's bits is cut off."""
    return (exponent << (23 if exponent.dtype.itemsize == 4 else 52)).view(f"f{exponent.dtype.itemsize}")


def _reduced(x: Any) -> tuple[Any, Any]:
    """e^x = 2^n (1 + p) with the bits of n and the bias, and p."""
    ln2_high, ln2_low, magic, *_, factors = EXPONENTIALS[x.dtype.char]
    rounded = x * (1 / LN2) + magic
    n = rounded - magic
    r = (x - n * ln2_high) - n * ln2_low
    return rounded.view(f"i{x.dtype.itemsize}"), _polynomial(factors, r) * r


def _exp(x: Any) -> Any:
    (least, most), (_, _, magic, _, bias, *_) = EXP_RANGE[x.dtype.char], EXPONENTIALS[x.dtype.char]
    bits, p = _reduced(np.maximum(np.minimum(x, most), least))
    first = (bits - int(np.asarray(magic).view(bits.dtype))) >> 1  # two factors, because 2^n itself may lie outside of
    return (p + 1) * _power_of_two(first + bias) * _power_of_two(bits - first)  # normal numbers


def _expm1(x: Any) -> Any:
    bits, p = _reduced(np.maximum(np.minimum(x, 89), -30))
    half = _power_of_two(bits - 1)  # 2^n / 2: 2^128 is infinite
    return np.where(abs(x) < 2.0**-126, x, (half * p + (half - 0.5)) * 2)


# tanh(x) = x + x^3 P(x^2) for |x| < 0.625 (Cephes' tanhf): there 1 - 2 / (e^2x + 1) would cancel.
TANH = float32(-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


def _tanh(x: Any) -> Any:
    magnitude = abs(x)
    s = x * x
    tail = 1 - 2 / (1 + _exp(2 * magnitude))
    return np.copysign(np.where(magnitude < 0.625, _polynomial(TANH, s) * s * x + x, tail), x)


# Minimax fits (Remez' iteration, this project's own), factors of the highest power first, of float32 and float64:
# erf(x) = x P(x^2) for |x| < 1, error 1.2e-9 and 7e-18; then 1 - erfc(x) does not cancel.
ERF: dict[str, tuple[Any, ...]] = {
    "f": float32(7.889119297e-05, -8.020841051e-04, 5.189535208e-03, -2.685444430e-02, 1.128360033e-01,
                 -3.761262596e-01, 1.128379167e00),
    "d": (-7.8011768516e-10, 1.37229685207e-08, -1.6209173785210e-07, 1.64475173516328e-06, -1.492474463258229e-05,
          1.2055295318651784e-04, -8.5483259896267083e-04, 5.2239776074218319e-03, -2.6866170643276000e-02,
          1.1283791670945252e-01, -3.7612638903183548e-01, 1.1283791670955126),
}  # fmt: skip
# erfc(x) = exp(-x^2) k R(2 k - 1), k = 1 / (1 + x / 3), for x >= 0: Abramowitz & Stegun's form 7.1.26, error 1.3e-7 and
# 6e-18. No cancellation where it is tiny.
ERFC: dict[str, tuple[Any, ...]] = {
    "f": float32(-9.7718339726e-04, -5.4332494505e-04, 8.9468980572e-03, 3.9879524453e-02, 1.0348725269e-01,
                 1.9673948195e-01, 2.9446487253e-01, 3.5800234882e-01),
    "d": (-4.74758007548e-10, 2.01233636616e-09, 6.47112283354e-10, -1.58585784187e-08, 1.35614825924e-08,
          7.70960294669e-08, -1.34248456221e-07, -3.32619874714e-07, 9.20773921359e-07, 1.582969008433e-06,
          -5.823141811785e-06, -1.01326977794709e-05, 3.58537392943670e-05, 9.22592781442924e-5, -1.827698842529469e-04,
          -1.0113539998846896e-03, -4.0413887682451481e-04, 8.9424115414501043e-03, 3.9842587095809685e-02,
          1.0348908730019088e-01, 1.9674278570136652e-01, 2.9446481772329453e-01, 3.5800230236277991e-01),
}  # fmt: skip


def _erf(x: Any) -> Any:
    near_zero = _polynomial(ERF[x.dtype.char], x * x) * x
    return np.where(abs(x) < 1, near_zero, np.copysign(1 - _erfc(abs(x)), x))


def _erfc(x: Any) -> Any:
    k = 1 / (1 + abs(x) * (1 / 3))
    bits, p = _reduced(np.maximum(-x * x, EXPONENTIALS[x.dtype.char][3]))
    tail = (p + 1) * _power_of_two(bits) * (k * _polynomial(ERFC[x.dtype.char], 2 * k - 1))
    return np.where(x < 0, 2 - tail, tail)


# log(x) = n ln 2 + log(m), sqrt(1/2) <= m < sqrt 2; log(1 + f) = f - f^2 / 2 + f^3 P(f) after Cephes' logf (Moshier).
LOG = float32(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
              2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip


def _log(x: Any) -> Any:
    small = x < 2.0**-126
    bits = np.where(small, x * 2.0**25, x).view(np.int32)
    exponent = (bits - 0x3F3504F3) >> 23  # the bits of sqrt(1/2)
    f = (bits - (exponent << 23)).view(np.float32) - 1
    n = exponent.astype(np.float32) - np.where(small, np.float32(25), np.float32(0))
    s = f * f
    y = f + (_polynomial(LOG, f) * f * s + n * EXPONENTIALS["f"][1] - 0.5 * s) + n * EXPONENTIALS["f"][0]
    y = np.where(x < math.inf, y, x)  # infinity and NaN
    return np.where(x > 0, y, np.where(x == 0, np.float32(-math.inf), np.where(x < 0, np.float32(math.nan), x)))


def _log1p(x: Any) -> Any:
    u = 1 + x
    lost = (x - (u - 1)) / u  # by rounding
    return np.copysign(_log(u) + np.where((u > 0) & (x < math.inf), lost, 0), x)


# Pi in parts: of a number near n of them the first, subtracted in one fused step, leaves an exact rest. All are
# positive, so that -0 stays. Then the factors of a minimax fit, sin(r) = r + r^3 P(r^2), |r| <= pi / 2, error 6e-9 and
# 3e-19.
PI = (3.141592653589793, 1.224646799147353e-16, 2.165713347843828e-32)
LARGE = 2.0**24
SIN: dict[str, tuple[Any, ...]] = {
    "f": float32(2.6057801768743946e-6, -1.9809602677124376e-4, 8.3330662428888811e-3, -1.6666659550333558e-1),
    "d": SINE_FACTORS,
}  # fmt: skip


def _sine(function: int, shift: float, x: Any) -> Any:
    """sin(x + shift pi) = (-1)^k sin(r), with x = (k - shift) pi + r; C's ``function`` of large x."""
    wide, word, magic = x.astype(np.float64), f"i{x.dtype.itemsize}", EXPONENTIALS["d"][2] - 1023
    rounded = (wide * (1 / math.pi) + shift) + magic
    n = (rounded - magic) - shift
    r = functools.reduce(lambda rest, part: x.trace.fma(-n, part, rest), PI, wide).astype(x.dtype)
    s = r * r
    y = np.copysign(_polynomial(SIN[x.dtype.char], s) * s * r + r, r)  # of -0, too
    sign = rounded.view(np.int64).astype(word) << (8 * x.dtype.itemsize - 1)
    y = np.where(abs(x) < LARGE, (y.view(word) ^ sign).view(x.dtype), x.dtype.type(math.nan))
    return x.trace.noted(mended(function, x.dtype), [x, x, y], x.dtype)


_sin = functools.partial(_sine, SINE, 0.0)
_cos = functools.partial(_sine, COSINE, 0.5)
FUNCTIONS: dict[str, dict[np.ufunc, Callable[..., Any]]] = {}
"""By the character of a dtype, and NumPy's function, the one in its place."""
FUNCTIONS["d"] = {np.exp: _exp, of_each[math.erf]: _erf, of_each[math.erfc]: _erfc, np.sin: _sin, np.cos: _cos}
FUNCTIONS["d"][np.tan] = lambda x: _sin(x) / _cos(x)
FUNCTIONS["f"] = {**FUNCTIONS["d"], np.expm1: _expm1, np.log: _log, np.log1p: _log1p, np.tanh: _tanh}
