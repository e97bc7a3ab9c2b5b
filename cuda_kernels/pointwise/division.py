"""Rounded division, its remainders, and powers, with NumPy's results at zeros, infinities, NaN and for integers.

floor_div(x, y) = floor(x / y)         remainder(x, y) = x - y floor(x / y)         fmod(x, y) = x - y trunc(x / y)
"""

from typing import Any

import numpy as np

from ..platform import families
from ..platform.toolbox import Array, math
from .pointwise import Pointwise, kind, like
from .rules import OF_NUMPY, is_float, libdevice_function, rule


@rule
def _floor_div(real):
    if not is_float(real):
        return lambda x, y: x // y
    zero, half, one = real(0), real(0.5), real(1)
    floor, modulo = libdevice_function("floor", real), libdevice_function("fmod", real)

    def of_floats(x, y):
        # NumPy's: the multiple of y below x, over y, is a whole number but for its last digit.
        quotient = x / y
        if y == zero:
            return quotient
        rest = modulo(x, y)
        whole = (x - rest) / y
        if rest != zero and (y < zero) != (rest < zero):
            whole -= one
        if whole == zero:
            return math.copysign(zero, quotient)
        down = floor(whole)
        return down + one if whole - down > half else down

    return of_floats


@rule
def _remainder(real):
    if not is_float(real):
        return lambda x, y: x - (x // y) * y
    zero = real(0)
    modulo = libdevice_function("fmod", real)

    def of_floats(x, y):
        rest = modulo(x, y)
        if rest == zero:
            return math.copysign(zero, y)
        return rest + y if (y < zero) != (rest < zero) and rest == rest else rest

    return of_floats


@rule
def _fmod(real):
    if is_float(real):
        return libdevice_function("fmod", real)
    zero = real(0)

    def of_integers(x, y):
        rest = x - (x // y) * y
        return rest - y if rest != zero and (rest < zero) != (x < zero) else rest

    return of_integers


@rule
def _pow(real):
    if is_float(real):
        return math.pow
    zero, one = real(0), real(1)

    def of_integers(x, n):
        z, factor, left = one, x, n
        if left < zero:  # the integer part: of 1 and -1 what it would be for -n, else 0
            left = -left if x == one or x * x == one else zero
            z = one if left != zero else zero
        while left > zero:
            if left & one:
                z = real(z * factor)
            factor = real(factor * factor)
            left = left >> one
        return z

    return of_integers


OF_NUMPY |= {np.floor_divide: _floor_div, np.remainder: _remainder, np.fmod: _fmod, np.power: _pow}


class Division(Pointwise):
    """An operation without a value for an integer divided by 0: ZeroDivisionError. (Floats give infinities and NaN.)"""

    def __call__(self, *inputs: Any, out: Array | None = None, dtype: np.dtype[Any] | None = None) -> Array:
        """As of ``Pointwise``. The flag is copied back, for integer dtypes only."""
        y = inputs[1]
        kinds = [v.dtype if isinstance(v, Array) else kind(v) for v in inputs]
        if self.resolve(*kinds)[-1].kind in "iu":
            every = families.reduce.all(y, tuple(range(y.ndim)), False) if isinstance(y, Array) else y != 0
            if not every:
                raise ZeroDivisionError("integer division by 0; convert with .float() for infinities and NaN")
        return super().__call__(*inputs, out=out, dtype=dtype)


_KINDS: Any = {"width": 1, "lazy": ("float64", "int64", "int32")}
floor_div: Pointwise = Division("floor_div", _floor_div, like(np.floor_divide), 2, **_KINDS)
"""floor(x / y)."""
remainder: Pointwise = Division("remainder", _remainder, like(np.remainder), 2, **_KINDS)
"""x - y floor(x / y), of the sign of y."""
fmod: Pointwise = Division("fmod", _fmod, like(np.fmod), 2, **_KINDS)
"""x - y trunc(x / y), of the sign of x."""
_POW = Pointwise("pow", _pow, like(np.power), 2, width=1, lazy=("float64", "int64"))


def pow(x: Any, y: Any) -> Array:
    """x ** y. Of integers with a negative exponent in y the integer part: 0, or 1 and -1 for these.

    Raises ValueError if y is a negative integer number and x of integers, as NumPy.
    """
    if isinstance(y, int) and y < 0 and isinstance(x, Array) and x.dtype.kind in "iu":
        raise ValueError("Integers to negative integer powers are not allowed.")
    return _POW(x, y)
