"""exp, exp2, tanh, sigmoid, erf and maxnum for use inside kernels, in a form that LLVM vectorises for float32.

Numba ships without a vector math library, so ``math.exp`` in a loop is one scalar libm call per element. It costs about
5 times as much as the polynomial below, ``math.tanh`` 20 times. Each function here has one name for both precisions:
float32 arguments get a branch-free polynomial, float64 arguments the libm function, which keeps the full precision that
gradient checks need.

NaN gives NaN and infinities give the exact limit. Float32 errors (measured in the tests):
``exp_fast`` 2 ulp including subnormal results, ``exp_nonpositive`` and ``exp2_fast`` 2 ulp with 0 for subnormal ones,
``tanh_fast`` 3 ulp, ``sigmoid_fast`` 1e-7 absolute,
``erf_fast`` 2e-7 absolute, ``normal_cdf`` 3e-7 absolute and 1e-5 relative.

All but ``maxnum`` are ordinary Python functions too (``math`` semantics), which is what documents them; kernels get the
overloads. The overloads may be contracted to FMA but not reassociated: reassociation would fold the error-compensating
constant pairs and the round-to-integer addition into something cheaper and wrong.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from ...plain_kernels.elementwise import GELU_SLOPE, of_each
from .jit import emits

_OPTIONS: Any = {"fastmath": {"contract"}, "error_model": "numpy", "forceinline": True}


def _float32(*values: float) -> tuple[Any, ...]:
    return tuple(np.float32(value) for value in values)


ZERO, HALF, ONE, TWO = _float32(0.0, 0.5, 1.0, 2.0)
GELU_EXPONENT = -GELU_SLOPE / math.log(2)  # "tanh": e^-2u = 2^(GELU_EXPONENT (x + GELU_CUBIC x^3))

# exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2; the split of ln 2 after Cephes' expf (Moshier).
# 2^f = 1 + f (G1 + f (G2 + ...)) for |f| <= 1/2: minimax for the relative error (2e-9), fitted as below; exp(r) is the
# same polynomial of r / ln 2.
LN2 = math.log(2.0)
LOG2_E, LN2_HIGH, LN2_LOW = _float32(1 / LN2, 0.693359375, -2.12194440e-4)
BASE2 = (
    6.931472029852e-01, 2.402264789686e-01, 5.550332162428e-02,
    9.618438602296e-03, 1.339900366699e-03, 1.535325808906e-04,
)  # fmt: skip
G1, G2, G3, G4, G5, G6 = _float32(*BASE2)
E1, E2, E3, E4, E5, E6 = _float32(*(g / LN2**k for k, g in enumerate(BASE2, 1)))
# Below EXP_MIN the result rounds to 0, above EXP_MAX to infinity; the clamp keeps n small enough for an exponent field.
EXP_MIN, EXP_MAX = _float32(-104.0, 89.0)
# Adding 1.5 * 2^23 rounds a float32 of magnitude below 2^22 to an integer, which is then the low bits of the sum.
ROUND_MAGIC = np.float32(12582912.0)
ROUND_MAGIC_BITS = 0x4B400000
# With the exponent's bias in the sum its low bits are the exponent field of 2^n: all zeros, which is the number 0, for
# n = -127, and all ones, infinity, for n = 128.
BIASED_MAGIC = np.float32(12582912.0 + 127.0)
ONE_FACTOR_MIN: Any = np.float32(-88.0)
EXP2_MIN, EXP2_MAX = _float32(-127.0, 128.0)


def choose(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    return np.where(condition, x, y)


overload(choose, jit_options=_OPTIONS)(lambda condition, x, y: lambda condition, x, y: x if condition else y)


def _scale_by_power_of_two(value: Any, rounded: Any) -> Any:
    """value * 2^n, where ``rounded`` is n + ROUND_MAGIC and -150 <= n <= 129.

    Two factors, because 2^n itself may lie outside float32's normal range: subnormal results are rounded once.
    """
    n = rounded.view(np.int32) - ROUND_MAGIC_BITS
    first = n >> 1
    return value * _exponent(first + 127) * _exponent(n - first + 127)


def _power_of_two(rounded: Any) -> Any:
    """2^n, where ``rounded`` is n + BIASED_MAGIC and -127 <= n <= 128: 0 and infinity at the ends."""
    return _exponent(rounded.view(np.int32))


def _exponent(bits: Any) -> Any:
    """The float32 with these bits as exponent, what is above is cut off."""
    return (bits << 23).view(np.float32)


@emits(lambda rounded: types.float32(types.float32))
def _power(context: Any, builder: Any, signature: Any, rounded: Any) -> Any:
    """``_power_of_two`` in kernels."""
    int32 = ir.IntType(32)
    return builder.bitcast(builder.shl(builder.bitcast(rounded, int32), int32(23)), ir.FloatType())


overload(_power_of_two, jit_options=_OPTIONS)(lambda rounded: lambda rounded: _power(rounded))


def _of_llvm(name: str, types_of: Callable[..., Any], *fastmath: str) -> Any:
    """A function that LLVM has, of floats of one type."""

    def emit(context: Any, builder: Any, signature: Any, *values: Any) -> Any:
        kind = values[0].type
        function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind] * len(values)))
        return builder.call(function, values, fastmath=fastmath)

    return emits(types_of)(emit)


floor: Any = _of_llvm("llvm.floor", lambda x: x(x))
trunc: Any = _of_llvm("llvm.trunc", lambda x: x(x))
copysign: Any = _of_llvm("llvm.copysign", lambda x, y: x(x, y))
fma: Any = _of_llvm("llvm.fma", lambda x, y, z: x(x, y, z))
# The larger of two floats; if one is NaN the other, as C's ``fmax``. For the maximum of a row that is subtracted before
# exp: a NaN reaches the result through exp. A running ``max`` does not become vectors without the assumption that there
# are no NaNs, this does (ten times faster).
maxnum: Any = _of_llvm("llvm.maxnum", lambda a, b: a(a, b), "nsz", "reassoc")


def _in_kernels(fn: Callable[..., Any], float32: Callable[..., Any], float64: Callable[..., Any] | None = None) -> None:
    """Kernels that call ``fn`` get ``float32`` or ``float64`` by the type of the first argument; ``fn`` without one."""

    def choose(x: float, *others: float) -> Callable[..., Any] | None:
        return {types.float32: float32, types.float64: float64 or fn}.get(x)

    overload(fn, jit_options=_OPTIONS, strict=False)(choose)


def _exp_float32(x: float) -> Any:
    # Written as "limit if beyond it else x", so that NaN fails both comparisons and passes through.
    x = choose(x > EXP_MAX, EXP_MAX, x)
    x = choose(x < EXP_MIN, EXP_MIN, x)
    rounded = x * LOG2_E + ROUND_MAGIC
    n = rounded - ROUND_MAGIC
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = (((((E6 * r + E5) * r + E4) * r + E3) * r + E2) * r + E1) * r + ONE
    return _scale_by_power_of_two(p, rounded)


def exp_nonpositive(x: float) -> float:
    """e^x for x <= 0 or NaN, half of the work of any e^x; float32 within 2 ulp, but 0 instead of subnormals."""
    return math.exp(x)


def _exp_nonpositive_float32(x: float) -> Any:
    x = choose(x < ONE_FACTOR_MIN, ONE_FACTOR_MIN, x)
    rounded = x * LOG2_E + BIASED_MAGIC
    n = rounded - BIASED_MAGIC
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = (((((E6 * r + E5) * r + E4) * r + E3) * r + E2) * r + E1) * r + ONE
    return p * _power_of_two(rounded)


_in_kernels(exp_nonpositive, _exp_nonpositive_float32)


def exp2_fast(x: float) -> float:
    """2^x; float32 within 2 ulp, 0 for x < -126.5 and inf for x > 127.5."""
    return 2.0**x if x < 1024.0 or x != x else math.inf


def _exp2_float32(x: float) -> Any:
    x = choose(x > EXP2_MAX, EXP2_MAX, x)
    x = choose(x < EXP2_MIN, EXP2_MIN, x)
    rounded = x + BIASED_MAGIC
    f = x - (rounded - BIASED_MAGIC)
    p = (((((G6 * f + G5) * f + G4) * f + G3) * f + G2) * f + G1) * f + ONE
    return p * _power_of_two(rounded)


_in_kernels(exp2_fast, _exp2_float32, lambda x: np.exp2(x))


# tanh(x) = x + x^3 P(x^2) for |x| < 0.625 (Cephes' tanhf): there 1 - 2 / (e^2x + 1) would cancel.
TANH_SMALL = np.float32(0.625)
T4, T3, T2, T1, T0 = _float32(
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1
)


def _tanh_float32(x: float) -> Any:
    magnitude = abs(x)
    s = x * x
    near_zero = ((((T4 * s + T3) * s + T2) * s + T1) * s + T0) * s * x + x
    tail = ONE - TWO / (ONE + _exp_float32(TWO * magnitude))
    return choose(magnitude < TANH_SMALL, near_zero, choose(x < ZERO, -tail, tail))


# Minimax fits (Lawson's iteration on Chebyshev nodes, this project's own):
# erf(x) = x P(x^2) for |x| < 1, error 1.2e-9; erfc(x) = exp(-Q(x)) for 1 <= x <= 4, error 1.3e-9. Past 4 erf is 1.
ERF_MAX: Any = np.float32(4.0)
P6, P5, P4, P3, P2, P1, P0 = _float32(
    7.889119297033e-05, -8.020841050893e-04, 5.189535208046e-03, -2.685444429517e-02,
    1.128360033036e-01, -3.761262595654e-01, 1.128379167096e00,
)  # fmt: skip
Q6, Q5, Q4, Q3, Q2, Q1, Q0 = _float32(
    -1.915050379466e-04, 2.999549033120e-03, -2.205204914774e-02, 1.035669520497e-01,
    6.375999450683e-01, 1.127426147461e00, 2.564366441220e-04,
)  # fmt: skip


def _erf_float32(x: Any) -> Any:
    t = np.minimum(abs(x), ERF_MAX)
    s = t * t
    near_zero = ((((((P6 * s + P5) * s + P4) * s + P3) * s + P2) * s + P1) * s + P0) * x
    tail = ONE - _exp_float32(-((((((Q6 * t + Q5) * t + Q4) * t + Q3) * t + Q2) * t + Q1) * t + Q0))
    return choose(t < ONE, near_zero, choose(x < ZERO, -tail, tail))


def normal_cdf(x: float, gaussian: float) -> float:
    """Phi(x), the distribution function of the standard normal; ``gaussian`` = exp(-x^2 / 2), which Phi' needs too."""
    return 0.5 * math.erfc(-math.sqrt(0.5) * x)


# 1 - Phi(x) = exp(-x^2 / 2) k R(k), k = 1 / (1 + x / sqrt 8), for x >= 0: Abramowitz & Stegun's form 7.1.26 with a
# polynomial of degree 6 fitted as above. One exp for Phi and Phi' instead of two, and no cancellation for x < 0.
INVERSE_SQRT8, ROOT_2 = _float32(0.35355339059, math.sqrt(2))
R6, R5, R4, R3, R2, R1, R0 = _float32(
    4.527205434389e-02, -1.819574939472e-01, 1.988086862678e-01, 1.661398712146e-02,
    1.413736961972e-01, 1.387215548179e-01, 1.411676258187e-01,
)  # fmt: skip


def _normal_cdf_float32(x: float, gaussian: float) -> Any:
    k = ONE / (ONE + INVERSE_SQRT8 * abs(x))
    tail = gaussian * k * ((((((R6 * k + R5) * k + R4) * k + R3) * k + R2) * k + R1) * k + R0)
    return choose(x < ZERO, tail, ONE - tail)


_in_kernels(normal_cdf, _normal_cdf_float32)


def _erfc_float32(x: Any) -> Any:
    return TWO * _normal_cdf_float32(-ROOT_2 * x, _exp_nonpositive_float32(-x * x))


def fmod_fast(x: float, y: float) -> float:
    """fmod(x, y), exactly; NaN also where |x / y| is too large for that, or y infinite."""
    return math.fmod(x, y) if y and abs(x / y) < 2.0**53 and abs(y) < math.inf else math.nan


def _fmod(limit: Any, infinity: Any) -> Callable[..., Any]:
    nan = type(limit)(math.nan)

    def fmod(x: float, y: float) -> Any:
        quotient = trunc(x / y)
        rest = fma(-quotient, y, x)  # exact, also where rounding has made the quotient one too large
        rest = rest + copysign(y, x) if ((rest < 0) & (x > 0)) | ((rest > 0) & (x < 0)) else rest
        return copysign(rest, x) if (abs(quotient) < limit) & (abs(y) < infinity) else nan

    return fmod


_in_kernels(fmod_fast, _fmod(np.float32(2**24), np.float32(np.inf)), _fmod(2.0**53, math.inf))


# log(x) = n ln 2 + log(m), sqrt(1/2) <= m < sqrt 2; log(1 + f) = f - f^2 / 2 + f^3 P(f) after Cephes' logf (Moshier).
SMALLEST_NORMAL, SUBNORMAL_SCALE, SUBNORMAL_SHIFT = _float32(2.0**-126, 2.0**25, 25.0)
HALF_ROOT_BITS = 0x3F3504F3  # of sqrt(1/2)
L8, L7, L6, L5, L4, L3, L2, L1, L0 = _float32(
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
INFINITY, NAN = _float32(math.inf, math.nan)


def _log_float32(x: Any) -> Any:
    small = x < SMALLEST_NORMAL
    bits = choose(small, x * SUBNORMAL_SCALE, x).view(np.int32)
    exponent = (bits - HALF_ROOT_BITS) >> 23
    f = (bits - (exponent << 23)).view(np.float32) - ONE
    n = exponent.astype(np.float32) - choose(small, SUBNORMAL_SHIFT, ZERO)
    s = f * f
    tail = ((((((((L8 * f + L7) * f + L6) * f + L5) * f + L4) * f + L3) * f + L2) * f + L1) * f + L0) * f * s
    y = f + (tail + n * LN2_LOW - HALF * s) + n * LN2_HIGH
    y = choose(x < INFINITY, y, x)  # infinity and NaN
    return choose(x > ZERO, y, choose(x == ZERO, -INFINITY, choose(x < ZERO, NAN, x)))


def _log1p_float32(x: Any) -> Any:
    u = ONE + x
    lost = (x - (u - ONE)) / u  # by rounding
    return _log_float32(u) + choose((u > ZERO) & (x < INFINITY), lost, ZERO)


EXPM1_MIN = np.float32(-30.0)


def _expm1_float32(x: Any) -> Any:
    x = choose(x > EXP_MAX, EXP_MAX, x)
    x = choose(x < EXPM1_MIN, EXPM1_MIN, x)
    rounded = x * LOG2_E + BIASED_MAGIC
    n = rounded - BIASED_MAGIC
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = (((((E6 * r + E5) * r + E4) * r + E3) * r + E2) * r + E1) * r
    half = _power_of_two(rounded - ONE)  # 2^n / 2: 2^128 is infinite
    return (half * p + (half - HALF)) * TWO


FLOAT32: dict[np.ufunc, Callable[..., Any]] = {
    np.exp: _exp_float32, np.expm1: _expm1_float32, np.log: _log_float32, np.log1p: _log1p_float32,
    np.tanh: _tanh_float32, of_each[math.erf]: _erf_float32, of_each[math.erfc]: _erfc_float32,
}  # fmt: skip
"""What programs compute instead of NumPy's functions, whose loops are slow on machines without AVX-512. The functions
above are of stand-ins, too: ``choose`` instead of a condition."""
