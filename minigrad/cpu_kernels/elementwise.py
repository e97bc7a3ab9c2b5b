"""Functions of each element: the plain formulas, each in one pass."""

from typing import Any

import numpy as np

from ..plain_kernels import elementwise as plain
from ..plain_kernels.elementwise import check_divisor, quiet
from .toolbox.array_program import FEW, chosen, formula, formulas, number, supports_half as supports_half, writer
from .toolbox.strided_copy import MANY, copy_into

_formulas = formulas(plain, without=("add_into", "assign", "pow", "supports_half"))
globals().update(_formulas)
add, cast, div, mul, select = (_formulas[name] for name in ("add", "cast", "div", "mul", "select"))
add_into: Any = writer(plain.add_into, add, lambda x, y: (x, x, y))
_assign = writer(plain.assign, cast, lambda x, y: (y, x.dtype))


def assign(x: np.ndarray, y: Any) -> None:
    """x[...] = y, broadcasting y; of large arrays by all threads, and the same number without a cast of each."""
    of_array = isinstance(y, np.ndarray)
    if of_array and y.dtype == x.dtype:
        if x.nbytes >= MANY and x.shape == y.shape and not np.may_share_memory(x, y):
            copy_into(x, y)
        else:
            x[...] = y
    elif of_array or x.size >= FEW:
        _assign(x, y)
    else:
        x.fill(number(y, x.dtype) if y else y)


def _dividing(name: str, ufunc: np.ufunc) -> Any:
    """The plain function, for integers with a look for zeros before it, which is in no program; graphs call NumPy."""
    of_any, of_integers = globals()[name], formula(quiet(ufunc))

    def formula_for(x: Any, y: Any) -> Any:
        if (x if isinstance(x, np.ndarray) else y).dtype.kind not in "iu":
            return of_any
        check_divisor(x, y)
        return of_integers

    return chosen(formula_for, of_any)


floor_div: Any = _dividing("floor_div", np.floor_divide)
remainder: Any = _dividing("remainder", np.remainder)
_power = formula(plain.pow)
_even_power = formula(quiet(lambda x, n: np.power(np.abs(x), n)))
_odd_power = formula(quiet(lambda x, n: np.copysign(np.power(np.abs(x), n), x)))


@chosen
def pow(x: Any, y: Any) -> Any:
    """x ** y, as the plain one; with AVX-512 NumPy takes a hundred times as long for negative numbers."""
    if isinstance(y, int | float) and x.dtype.char in "fd" and y % 2 in (0, 1):
        return _odd_power if y % 2 else _even_power
    return _power
