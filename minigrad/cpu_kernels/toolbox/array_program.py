"""Elementwise functions of NumPy arrays as one pass, in machine code: vectors, and all threads for large arrays.

NumPy computes ``np.where(x > 0, x, slope * x)`` in three passes over memory, in one thread. Here the function is called
once with stand-ins that note each step (``tracing.py``), and the steps become a *program*: one loop, whose intermediate
results are in registers (``program_code.py``).

    x ──> greater ──> mask ─┐
    │                       ├─> where ──> the result
    └─> multiply ─> product ┘

So the plain kernel's formula is the only one. Sums, products, quotients, choices have NumPy's own bits; exponentials
and logarithms are those of ``program_math.py``. Half floats are computed in float32, and rounded at the end. Arrays go
through the loop as a ufunc, which divides itself among threads; large ones that broadcast or have gaps as a launch:
``formula.py`` says which. What asks for a value (``if x.any()``), or takes what has no loop, has no program and runs as
it is. NaN and infinities are results, without warnings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ...plain_kernels.elementwise import quiet
from .multi_tensor import addresses_of
from .numpy_loops import Loop
from .program_code import Code, Value, compiled, over_tables, ufunc_of
from .threads import constant, known_by_address, shares
from .tracing import ARRAY, Tracing

PIECE = 8192  # elements of a call of a loop
WORTH = 1 << 20  # elements times work, from which on more threads are faster
TASK = 1 << 17  # elements times work that is worth a launch
MEMORY, CALL = 5, 100  # the work of a loop's memory, and of a step that is a call; that of an instruction is 1
ZERO = np.zeros((), np.uint8)


class Program:
    """A function as one loop, for operands of certain dtypes."""

    def __init__(self, function: Callable[..., Any], kinds: tuple[Any, ...]) -> None:
        self._function, self._given = function, kinds
        trace = Tracing(function, kinds)
        self._kinds, self._steps = trace.kinds, trace.steps
        self.result: np.dtype[Any] = trace.result
        self.work: int = MEMORY + sum(CALL if isinstance(step.code, Loop) else 1 for step in self._steps)
        used = {x.slot for step in self._steps for x in step.takes if isinstance(x, Value)}
        self._inputs = [i for i in range(len(kinds)) if i in used]
        self._codes: dict[frozenset[int], Code] = {}
        self.code: Code = self._code_for(frozenset(i for i, kind in enumerate(kinds) if isinstance(kind, type)))

    def _code_for(self, repeated: frozenset[int]) -> Code:
        """The loop where these inputs are one value in each call."""
        if repeated not in self._codes:
            operands = [Value(i, self._kinds[i]) for i in self._inputs]
            self._codes[repeated] = compiled(operands, self._steps, set(repeated), WORTH // self.work)
        return self._codes[repeated]

    @functools.cached_property
    def ufunc(self) -> Callable[..., Any]:
        """The program as a function of NumPy's, of its inputs. For NumPy numbers must have their dtypes."""
        names = [f"x{i}" for i in range(len(self._given))]
        given = [f"(number({x}, {x}_dtype) if {x} else np.array({x}, {x}_dtype))" for x in names]  # -0.0 equals 0
        given = [given[i] if isinstance(self._given[i], type) else names[i] for i in self._inputs]
        known: dict[str, Any] = {f"x{i}_dtype": self._kinds[i] for i in self._inputs}
        ufunc = ufunc_of(self.code, [*known.values(), self.result])
        known |= {"number": number, "np": np, "function": self._function, "ufunc": ufunc, "call": ufunc}
        if given != names:
            exec(_CALL.format(names=", ".join(names), given=", ".join(given)), known)
        return known["call"]

    def run(self, inputs: tuple[Any, ...], out: np.ndarray | None = None) -> np.ndarray:
        """The result for inputs that broadcast, in ``out``, or in a new array; by all threads."""
        given, made = [(inputs[i], self._kinds[i]) for i in self._inputs], number.__wrapped__
        arrays: Any = [x if isinstance(x, ARRAY) else constant(made(x, dtype)) for x, dtype in given]
        if out is None:
            out = np.empty_like(_like(*[(x.shape, x.strides) for x in arrays]), self.result)
        elif out.dtype != self.result or np.broadcast(out, *arrays).shape != out.shape:
            raise ValueError("the result does not fit")  # NumPy will say how
        arrays.append(out)
        layout, repeated = layout_of(*[(x.shape, x.strides) for x in arrays])
        tasks = shares(out.size * self.work, TASK)
        data = self._code_for(frozenset([self._inputs[k] for k in repeated])).data
        over_tables.launch(None, tasks, data, constant(np.array([PIECE, *layout, *addresses_of(arrays)], np.int64)))
        known_by_address(arrays)
        return out


_CALL = """def call({names}, *out):
    try:
        return np.asarray(ufunc({given}, *out))
    except OverflowError:  # a number that its dtype has not: NumPy compares with it, or says so
        return function({names}, *out)
"""


@functools.lru_cache(1024)
@quiet  # one that is infinite to the dtype
def number(x: Any, dtype: np.dtype[Any]) -> np.ndarray:
    return np.array(x, dtype)


@functools.lru_cache(4096)
def _like(*operands: tuple[tuple[int, ...], tuple[int, ...]]) -> np.ndarray:
    """An array, without its memory, in NumPy's order of a result for operands of these shapes and strides."""
    arrays: Any = [*(as_strided(ZERO, *one) for one in operands), None]
    flags: Any = [*[["readonly"]] * len(operands), ["writeonly", "allocate"]]
    made: Any = np.nditer(arrays, [], flags).operands[-1]
    return as_strided(ZERO, made.shape, made.strides)


@functools.lru_cache(4096)
def layout_of(*operands: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Of operands' shapes and strides how many dimensions there are, and of each the size and the strides; and where
    the last dimension's stride is 0. The last operand, the result, has the order.

    Neighbours that are as one are one. The last dimension is a row; before it comes that in which rows of the first
    operand are nearest.
    """
    steps = ([0] * (len(operands[-1][0]) - len(ns)) + [s * (n > 1) for n, s in zip(ns, at)] for ns, at in operands)
    dims: list[tuple[int, ...]] = []
    for n, *strides in sorted(zip(operands[-1][0], *steps), key=lambda dim: -abs(dim[-1])):
        if dims and dims[-1][1:] == tuple([n * stride for stride in strides]):
            dims[-1] = (dims[-1][0] * n, *strides)
        elif n > 1:
            dims.append((n, *strides))
    one = (1,) * (1 + len(operands))
    row = dims.pop() if dims else one
    above = min(dims, key=lambda dim: abs(dim[1]), default=one)
    dims = [*(dim for dim in dims if dim is not above), above, row]
    return [len(dims), *sum(dims, ())], [k for k, stride in enumerate(row[1:-1]) if not stride]
