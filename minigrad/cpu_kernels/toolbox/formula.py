"""A function of arrays and numbers computed by its program, in one thread or in all, as its size is worth."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .array_program import WORTH, Program
from .threads import LAYER, recording
from .tracing import ARRAY, NoProgramError, kind_of

FEW, PAIRS = 8192, 65536  # elements of one array, or pairs of two, that one thread computes before others would begin
ONE_ROW = 0x101  # of NumPy's flags: C-contiguous, and aligned


class Formula(dict[Any, Any]):
    """A function of arrays and numbers, computed by its program: by the kinds of its inputs the program, None where
    there can be none, and what computes few elements.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __missing__(self, kinds: tuple[Any, ...]) -> Any:
        program, few = None, self._function
        with contextlib.suppress(NoProgramError, OverflowError):  # a number that its dtype has not
            program = Program(few, kinds)
            few = program.ufunc
        return self.setdefault(kinds, (program, few))

    def program_for(self, *inputs: Any) -> Program | None:
        """The program for inputs of these kinds, None where there can be none."""
        return self[tuple(map(kind_of, inputs))][0]

    def __call__(self, *inputs: Any) -> Any:
        """The result, by as many threads as its size is worth."""
        if any([isinstance(x, ARRAY) and x.size >= FEW for x in inputs]):
            return self.of_many(*inputs)
        return self[tuple([x.dtype if isinstance(x, ARRAY) else kind_of(x) for x in inputs])][1](*inputs)

    def of_many(self, *inputs: Any, out: np.ndarray | None = None, worth: int = WORTH) -> Any:
        """The result, in ``out`` if it is given; by all threads for ``worth`` elements times work or more."""
        program, few = self[tuple(map(kind_of, inputs))]
        arrays = [x for x in inputs if isinstance(x, ARRAY)]
        if out is not None:
            if any([x is not out and np.may_share_memory(x, out) for x in arrays]):
                out[...] = self.of_many(*inputs, worth=worth)  # NumPy takes care for one thread only
                return out
            arrays.append(out)
        if program is not None and arrays:
            shape = arrays[0].shape
            is_one_row = all([x.shape == shape and x.flags.num & ONE_ROW == ONE_ROW for x in arrays])
            if not is_one_row or recording.launches is not None or LAYER == "workqueue":
                with contextlib.suppress(ValueError, OverflowError, TypeError):  # NumPy will say what does not fit
                    size = np.broadcast(*arrays).size
                    if size > 1 and size * program.work >= worth and all([x.flags.aligned for x in arrays]):
                        return program.run(inputs, out)
        return few(*inputs) if out is None else few(*inputs, out)


def formula(function: Callable[..., Any], inputs: int | None = None) -> Callable[..., Any]:
    """The function, computed by its program, by the sizes of one or two ``inputs``, quickly; 0: of any number."""
    made = Formula(function)
    plain = inspect.unwrap(function)
    if inputs is None:
        inputs = plain.nin if isinstance(plain, np.ufunc) else plain.__code__.co_argcount
    many = made.of_many

    def of_one(x: Any) -> Any:
        return many(x) if x.size >= FEW else made[x.dtype,][1](x)

    def of_two(x: Any, y: Any) -> Any:
        n, m = getattr(x, "size", 0), getattr(y, "size", 0)
        if n < FEW and m < FEW and (n * m <= PAIRS or x.shape == y.shape or x.shape[x.ndim - y.ndim :] == y.shape):
            kinds = x.dtype if isinstance(x, ARRAY) else kind_of(x), y.dtype if isinstance(y, ARRAY) else kind_of(y)
            return made[kinds][1](x, y)
        return many(x, y)

    by_inputs: dict[int, Callable[..., Any]] = {1: of_one, 2: of_two}
    wrapped: Any = functools.update_wrapper(by_inputs.get(inputs, made), function)

    def into(out: np.ndarray, *inputs: Any, worth: int = WORTH) -> Any:
        program, few = made[tuple([x.dtype if isinstance(x, ARRAY) else kind_of(x) for x in inputs])]
        if program is None or program.result != out.dtype:
            return None
        try:
            return few(*inputs, out) if out.size < worth // program.work else many(*inputs, out=out, worth=worth)
        except (ValueError, OverflowError, TypeError):
            return None  # the function will say what is wrong

    wrapped.into, wrapped.of_few = into, lambda *inputs: (made[tuple(map(kind_of, inputs))][1], FEW)
    return for_graphs(wrapped, made.program_for, functools.partial(made.of_many, worth=0))


def for_graphs(function: Any, prepare: Callable[..., Any], at_any_size: Callable[..., Any]) -> Any:
    """``function``, in whose place a graph calls ``prepare`` and ``at_any_size``: launches are better than calls."""
    function.prepare, function.at_any_size = prepare, at_any_size
    return function


def as_launches(function: Any) -> Any:
    """The function within a kernel: as launches, if these are being noted."""
    return function if recording.launches is None else function.at_any_size


def written(out: np.ndarray, of: Any, *inputs: Any) -> bool:
    """Whether the result of a formula, of the shape and dtype of ``out``, is there; else nothing is done."""
    worth = WORTH if recording.launches is None else 0
    return of.into(out, *inputs, worth=worth) is not None


def writer(plain: Callable[..., None], of: Any, inputs: Callable[..., tuple[Any, ...]]) -> Callable[..., None]:
    """The plain function of x and y, which changes x, by a formula of ``inputs(x, y)``."""

    def write(x: np.ndarray, y: Any) -> None:
        if not written(x, of, *inputs(x, y)):
            plain(x, y)

    return for_graphs(write, lambda x, y: of.prepare(*inputs(x, y)), write)


def formulas(family: type, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The functions of a plain family by name, each as ``formula``; not those named in ``without``."""
    names = [name for name in vars(family) if not name.startswith("_") and name not in without]
    return {name: formula(getattr(family, name)) for name in names}
