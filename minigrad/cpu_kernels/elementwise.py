"""Functions of each element: the plain formulas, each in one pass."""

import functools
import inspect
from typing import Any

import numpy as np

from ..plain_kernels import elementwise as plain
from ..plain_kernels.elementwise import Each, check_divisor, quiet
from .toolbox.array_program import number
from .toolbox.formula import FEW, for_graphs, formula, formulas, writer
from .toolbox.strided_copy import MANY, copy_into
from .toolbox.tracing import supports_half as supports_half

TINY = 64  # elements that NumPy converts in the time of a call

add: Any  # and all others of the plain family
cast: Any
div: Any
mul: Any
select: Any
globals().update(_all := formulas(plain, without=("add_into", "assign", "fused", "pow", "supports_half")))
cast = functools.update_wrapper(lambda x, kind: (_all if x.size > TINY else vars(plain))["cast"](x, kind), _all["cast"])
add_into: Any = writer(plain.add_into, _all["add"], lambda x, y: (x, y))
_assign = writer(plain.assign, _all["cast"], lambda x, y: (y, x.dtype))


@functools.cache
def _of(expression: Any) -> Any:
    code = expression.__code__
    inputs = 0 if code.co_flags & inspect.CO_VARARGS else code.co_argcount - 1
    return formula(quiet(functools.partial(expression, Each)), inputs)


def fused(expression: Any, *inputs: Any) -> Any:
    """expression(k, *inputs), as the plain one, in one pass."""
    return _of(expression)(*inputs)


for_graphs(fused, lambda of, *inputs: _of(of).prepare(*inputs), lambda of, *inputs: _of(of).at_any_size(*inputs))
fused.of, fused.into = _of, lambda out, of, *inputs: _of(of).into(out, *inputs)  # type: ignore[attr-defined]


def assign(x: np.ndarray, y: Any) -> None:
    """x[...] = y, broadcasting y; of large arrays by all threads."""
    if isinstance(y, np.ndarray) and y.dtype == x.dtype:
        large = x.nbytes >= MANY and x.shape == y.shape and not np.may_share_memory(x, y)
        copy_into(x, y) if large else x.__setitem__(..., y)
    elif isinstance(y, np.ndarray) or x.size >= FEW:
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

    divide: Any = functools.update_wrapper(lambda x, y: formula_for(x, y)(x, y), of_any)
    divide.into, divide.of_few = lambda out, x, y: formula_for(x, y).into(out, x, y), lambda x, y: (None, 0)
    return divide


floor_div: Any = _dividing("floor_div", np.floor_divide)
remainder: Any = _dividing("remainder", np.remainder)
fmod: Any = _dividing("fmod", np.fmod)
_power = formula(plain.pow)
_even_power = formula(quiet(lambda x, n: np.power(np.abs(x), n)))
_odd_power = formula(quiet(lambda x, n: np.copysign(np.power(np.abs(x), n), x)))


def pow(x: Any, y: Any) -> Any:
    """x ** y, as the plain one; with AVX-512 NumPy takes a hundred times as long for negative numbers."""
    if isinstance(y, int | float) and x.dtype.char in "fd" and y % 2 in (0, 1):
        return _odd_power(x, y) if y % 2 else _even_power(x, y)
    return _power(x, y)
