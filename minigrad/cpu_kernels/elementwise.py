"""Functions of each element: the plain formulas, each in one pass."""

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from ..plain_kernels import elementwise as plain
from ..plain_kernels.elementwise import quiet
from .toolbox.array_program import FEW, Formula, for_graphs, formula, formulas, into_first

add: Any  # and all others of the plain family
div: Any
select: Callable[..., Any]
globals().update(formulas(plain, without=("add_into", "assign", "cast", "fused", "pow")))
assign: Callable[..., None] = plain.assign
add_into: Callable[..., None] = into_first(np.add)

_power = formula(plain.pow)
_even_power = formula(quiet(lambda x, n: np.power(np.abs(x), n)))
_odd_power = formula(quiet(lambda x, n: np.copysign(np.power(np.abs(x), n), x)))


def pow(x: Any, y: Any) -> Any:
    """x ** y, as the plain one; with AVX-512 NumPy takes a hundred times as long for negative numbers."""
    if isinstance(y, int | float) and x.dtype.char in "fd" and y % 2 in (0, 1):
        return _odd_power(x, y) if y % 2 else _even_power(x, y)
    return _power(x, y)


def cast(x: np.ndarray, dtype: Any) -> np.ndarray:
    """A copy of ``x`` in another dtype."""
    return plain.cast(x, dtype) if x.size < FEW or numba.config.DISABLE_JIT else _cast_to(np.dtype(dtype)).of_many(x)


@functools.cache
def _cast_to(dtype: Any) -> Formula:
    return Formula(lambda x: plain.cast(x, dtype))


for_graphs(cast, lambda x, dtype: _cast_to(dtype).program_for(x), lambda x, dtype: _cast_to(dtype).of_any(x))


def fused(expression: Callable[..., Any], *inputs: Any) -> Any:
    """expression(elementwise, *inputs), a function of a module's top level, in one pass."""
    return expression(plain, *inputs) if numba.config.DISABLE_JIT else _of_arrays(expression)(*inputs)


@functools.cache
def _of_arrays(expression: Callable[..., Any]) -> Formula:
    return Formula(lambda *inputs: expression(plain, *inputs))


for_graphs(
    fused,
    lambda expression, *inputs: _of_arrays(expression).program_for(*inputs),
    lambda expression, *inputs: _of_arrays(expression).of_any(*inputs),
)
