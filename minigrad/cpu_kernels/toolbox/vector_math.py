"""e^x for x <= 0, maxnum and fmod for use inside kernels, in a form that LLVM vectorises.

Numba ships without a vector math library, so ``math.exp`` in a loop is one scalar libm call per element, five times as
slow as the polynomial below. ``exp_nonpositive`` and ``fmod_fast`` have one name for both precisions: for float32 the
first is a branch-free polynomial, for float64 the libm function, which keeps the full precision that gradient checks
need. (Formulas have theirs in ``program_math.py``.)

Both are ordinary Python functions too, which is what documents them; kernels get the overloads. The overloads may be
contracted to FMA but not reassociated: reassociation would fold the error-compensating constant pairs and the
round-to-integer addition into something cheaper and wrong.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from .jit import emits

_OPTIONS: Any = {"fastmath": {"contract"}, "error_model": "numpy", "forceinline": True}


def float32(*values: float) -> tuple[Any, ...]:
    return tuple(np.float32(value) for value in values)


# exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2; the split of ln 2 after Cephes' expf (Moshier).
# 2^f = 1 + f (G1 + f (G2 + ...)) for |f| <= 1/2: minimax for the relative error (2e-9), fitted as below; exp(r) is the
# same polynomial of r / ln 2.
LN2 = math.log(2.0)
LOG2_E, LN2_HIGH, LN2_LOW = float32(1 / LN2, 0.693359375, -2.12194440e-4)
BASE2 = (
    6.931472029852e-01, 2.402264789686e-01, 5.550332162428e-02,
    9.618438602296e-03, 1.339900366699e-03, 1.535325808906e-04,
)  # fmt: skip
E1, E2, E3, E4, E5, E6 = float32(*(g / LN2**k for k, g in enumerate(BASE2, 1)))
# Adding 1.5 * 2^23 rounds a float32 of magnitude below 2^22 to an integer, which is then the low bits of the sum. With
# the exponent's bias in the sum they are the exponent field of 2^n: all zeros, which is the number 0, for n = -127, and
# all ones, infinity, for n = 128.
BIASED_MAGIC = np.float32(12582912.0 + 127.0)
ONE_FACTOR_MIN: Any = np.float32(-88.0)


@emits(lambda rounded: types.float32(types.float32))
def _power_of_two(context: Any, builder: Any, signature: Any, rounded: Any) -> Any:
    """2^n, where ``rounded`` is n + BIASED_MAGIC and -127 <= n <= 128: 0 and infinity at the ends."""
    int32 = ir.IntType(32)
    return builder.bitcast(builder.shl(builder.bitcast(rounded, int32), int32(23)), ir.FloatType())


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


def exp_nonpositive(x: float) -> float:
    """e^x for x <= 0 or NaN, half of the work of any e^x; float32 within 2 ulp, but 0 instead of subnormals."""
    return math.exp(x)


def _exp_nonpositive_float32(x: float) -> Any:
    x = ONE_FACTOR_MIN if x < ONE_FACTOR_MIN else x
    rounded = x * LOG2_E + BIASED_MAGIC
    n = rounded - BIASED_MAGIC
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = (((((E6 * r + E5) * r + E4) * r + E3) * r + E2) * r + E1) * r + np.float32(1)
    return p * _power_of_two(rounded)


_in_kernels(exp_nonpositive, _exp_nonpositive_float32)


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
