"""e^x for x <= 0, and the steps of folds, for use inside kernels, in a form that LLVM vectorises.

Numba ships without a vector math library, so ``math.exp`` in a loop is one scalar libm call per element, five times as
slow as the branch-free polynomial below. (Formulas have theirs in ``program_math.py``.)

``exp_nonpositive`` is an ordinary Python function too, which is what documents it; kernels get the overload of their
precision. That may be contracted to FMA but not reassociated: reassociation would fold the error-compensating constant
pairs and the round-to-integer addition into something cheaper and wrong.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from .jit import emits, inline

_OPTIONS: Any = {"fastmath": {"contract"}, "error_model": "numpy", "forceinline": True}


def float32(*values: float) -> tuple[Any, ...]:
    return tuple(np.float32(value) for value in values)


# exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds a float32 of magnitude below 2^22
# to an integer, which is then the low bits of the sum; 2^52 does for float64. With the exponent's bias in the sum they
# are the exponent field of 2^n: zeros, which is the number 0, for the least n, and ones, infinity, for the most.
LN2 = math.log(2.0)
# By NumPy's character of a dtype: ln 2 as a sum whose first part times n is exact (after Cephes and fdlibm), what
# rounds, an x whose 2^n is 0, the exponent's bias and place, and the factors of a minimax polynomial for (e^r - 1) / r,
# that of the highest power first (error 2e-9 and 1e-17).
EXPONENTIALS: dict[str, tuple[Any, Any, Any, Any, int, int, tuple[Any, ...]]] = {
    "f": (*float32(0.693359375, -2.12194440e-4, 12582912.0 + 127, -88.0), 127, 23, float32(
        1.3843559901e-03, 8.3742360940e-03, 4.1668007428e-02, 1.6666430336e-01, 4.9999994174e-01, 1.0000000324e00,
    )),
    "d": (0.693147180369123816490, 1.90821492927058770002e-10, 6755399441055744.0 + 1023, -709.0, 1023, 52, (
        2.5110025275773e-8, 2.76200767985373e-7, 2.75572424075491e-06, 2.480152132028392e-05, 1.9841269886522217e-04,
        1.3888888917198152e-3, 8.3333333333222327e-3, 4.1666666666624157e-2, 0.16666666666666674, 0.5000000000000001, 1,
    )),
}  # fmt: skip


@emits(lambda r, rounded: r(r, r))
def _exponential(context: Any, builder: Any, signature: Any, r: Any, rounded: Any) -> Any:
    """2^n exp(r): 2^n is 0 and infinity at the ends."""
    *_, place, factors = EXPONENTIALS["f" if signature.return_type == types.float32 else "d"]
    y, *others = (r.type(float(x)) for x in (*factors, 1))
    for x in others:
        y = builder.fadd(builder.fmul(y, r, flags=("contract",)), x, flags=("contract",))
    integer = ir.IntType(32 if place == 23 else 64)
    power = builder.bitcast(builder.shl(builder.bitcast(rounded, integer), integer(place)), r.type)
    return builder.fmul(y, power)


def _of_llvm(name: str, types_of: Callable[..., Any], *fastmath: str, of_integers: str = "") -> Any:
    """A function that LLVM has, of floats of one type, or under another name of integers."""

    def emit(context: Any, builder: Any, signature: Any, *values: Any) -> Any:
        kind = values[0].type
        word, flags = (of_integers, ()) if isinstance(kind, ir.IntType) else (name, fastmath)
        function = builder.module.declare_intrinsic(word, [kind], ir.FunctionType(kind, [kind] * len(values)))
        return builder.call(function, values, fastmath=flags)

    return emits(types_of)(emit)


# The larger of two floats; if one is NaN the other, as C's ``fmax``. For the maximum of a row that is subtracted before
# exp: a NaN reaches the result through exp. A running ``max`` does not become vectors without the assumption that there
# are no NaNs, this does (ten times faster).
maxnum: Any = _of_llvm("llvm.maxnum", lambda a, b: a(a, b), "nsz", "reassoc")
# And these give NaN.
_larger: Any = _of_llvm("llvm.maximum", lambda a, b: a(a, b), "nsz", "reassoc", of_integers="llvm.smax")
_smaller: Any = _of_llvm("llvm.minimum", lambda a, b: a(a, b), "nsz", "reassoc", of_integers="llvm.smin")
SUM_BLOCK = 1024  # elements folded on their own: one long sum would lose the many small ones
SUM, SQUARES, NUMBERS, DISTANCES, SQUARED_DISTANCES, POWERS, PRODUCT, LARGEST, SMALLEST = range(9)
"""What is made of numbers: sums of x, x^2, x unless NaN, x - a, (x - a)^2, e^(x - a) with a >= x; products, extrema."""


@emits(lambda x, like: like.dtype(x, like))
def widened(context: Any, builder: Any, signature: Any, x: Any, like: Any) -> Any:
    """x in the dtype of an array or a pointer; uint16 are the bits of bfloat16, int16 those of float16."""
    given, single = signature.args[0], ir.FloatType()
    if given == types.uint16:
        x = builder.bitcast(builder.shl(builder.zext(x, ir.IntType(32)), ir.IntType(32)(16)), single)
    if given == types.int16:
        x = builder.fpext(builder.bitcast(x, ir.HalfType()), single)
    given = types.float32 if given in {types.uint16, types.int16} else given
    return context.cast(builder, x, given, signature.return_type)


@emits(lambda x, like: like.dtype(x, like))
def rounded(context: Any, builder: Any, signature: Any, x: Any, like: Any) -> Any:
    """``widened``'s inverse: the nearest of two half floats, or the even one; NaN keeps its sign."""
    if signature.return_type not in {types.uint16, types.int16}:
        return context.cast(builder, x, signature.args[0], signature.return_type)
    x = context.cast(builder, x, signature.args[0], types.float32)
    if signature.return_type == types.int16:
        return builder.bitcast(builder.fptrunc(x, ir.HalfType()), ir.IntType(16))
    bits = builder.bitcast(x, ir.IntType(32))
    odd, nan = (builder.and_(builder.lshr(bits, bits.type(n)), bits.type(mask)) for n, mask in ((16, 1), (16, 0x8000)))
    nearest = builder.lshr(builder.add(bits, builder.add(odd, bits.type(0x7FFF))), bits.type(16))
    found = builder.select(builder.fcmp_unordered("uno", x, x), builder.or_(nan, bits.type(0x7FC0)), nearest)
    return builder.trunc(found, ir.IntType(16))


def bits_of(x: np.ndarray) -> np.ndarray:
    """An array of half floats as kernels take it, contiguous."""
    return np.ascontiguousarray(x.view(np.int16 if x.dtype.kind == "f" else np.uint16))


def numbers(x: np.ndarray, buffer: np.ndarray, read: bool) -> np.ndarray:
    """A row (n,) to compute with: x, or of half floats the buffer, a row of float32, which it is ``read`` into."""
    return x


def _half_numbers(x: Any, buffer: Any, read: bool) -> Any:
    for j in range(x.shape[0] if read else 0):
        buffer[j] = widened(x[j], buffer)
    return buffer


@inline
def combined(fold: int, x: Any, y: Any) -> Any:
    """Two numbers, or what was made of some before, as one."""
    if fold >= LARGEST:
        return _larger(x, y) if fold == LARGEST else _smaller(x, y)
    return x * y if fold == PRODUCT else x + y


@emits(lambda x: x(x))
def _number_or_zero(context: Any, builder: Any, signature: Any, x: Any) -> Any:
    """x, 0 for NaN, of an integer nothing else."""
    return x if isinstance(x.type, ir.IntType) else builder.select(builder.fcmp_ordered("ord", x, x), x, x.type(0.0))


@inline
def moves(x: Any, before: Any, now: Any, last: bool) -> Any:
    """Whether an extremum, which x has made of ``before`` what it is ``now``, is x: of equals the ``last`` or first."""
    return (x == now) | (x != x) if last else (now != before) & (before == before)


@inline
def term(fold: int, x: Any, like: Any, shift: Any) -> Any:
    """What of an element goes into the fold."""
    number = widened(x, like)
    if fold == POWERS:
        return exp_nonpositive(number - shift)
    if fold == NUMBERS:
        return _number_or_zero(number)
    if fold == DISTANCES:
        return number - shift
    if fold == SQUARED_DISTANCES:
        return (number - shift) * (number - shift)
    return number * number if fold == SQUARES else number


@inline
def folded(fold: int, x: Any, like: Any, shift: Any = 0) -> Any:
    """Of x (n,), in the dtype of ``like``: strips first, then these (a fixed order, and shorter error chains)."""
    start = widened(x[0], like) if fold >= LARGEST else like.dtype.type(fold == PRODUCT)
    total = start
    for first in range(0, x.shape[0], SUM_BLOCK):
        strip, of_strip = x[first : first + SUM_BLOCK], start
        for j in range(strip.shape[0]):
            of_strip = combined(fold, of_strip, term(fold, strip[j], like, shift))
        total = combined(fold, total, of_strip)
    return total


def exp_nonpositive(x: float) -> float:
    """e^x for x <= 0 or NaN, half of the work of any e^x; within 2 ulp, but 0 instead of subnormals."""
    return math.exp(x)


def _exp_nonpositive(ln2_high: Any, ln2_low: Any, magic: Any, least: Any, *_: Any) -> Callable[..., Any]:
    log2_e = type(least)(1 / LN2)

    def exp(x: float) -> Any:
        x = least if x < least else x
        rounded = x * log2_e + magic
        n = rounded - magic
        return _exponential((x - n * ln2_high) - n * ln2_low, rounded)

    return exp


_OF: Any = {types.float32: _exp_nonpositive(*EXPONENTIALS["f"]), types.float64: _exp_nonpositive(*EXPONENTIALS["d"])}
overload(exp_nonpositive, jit_options=_OPTIONS, strict=False)(lambda x: _OF.get(x))
overload(numbers, strict=False)(lambda x, *_: _half_numbers if x.dtype in {types.uint16, types.int16} else numbers)
