"""Scalar rules from the plain kernels' formulas, which are written in NumPy's functions.

A formula is called with stand-ins for its numbers (``Noted``), and each function that meets them becomes a line of the
device function. ``lambda x: np.reciprocal(np.exp(-x) + 1)`` becomes

    def formula(x0):
        t1 = -x0
        t2 = n2(t1)          # math.exp
        t3 = t2 + n3         # real(1)
        t4 = n4(t3)
        return t4
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .rules import TRUTHS, of_numpy, rule

OPERATORS: dict[Any, str] = {
    np.add: "{} + {}", np.subtract: "{} - {}", np.multiply: "{} * {}", np.true_divide: "{} / {}",
    np.negative: "-{}", np.square: "{0} * {0}", np.isnan: "{0} != {0}", np.where: "{1} if {0} else {2}",
    np.equal: "{} == {}", np.not_equal: "{} != {}", np.less: "{} < {}", np.less_equal: "{} <= {}",
    np.greater: "{} > {}", np.greater_equal: "{} >= {}",
    np.invert: "~{}", np.bitwise_and: "{} & {}", np.bitwise_or: "{} | {}", np.bitwise_xor: "{} ^ {}",
}  # fmt: skip
"""NumPy's functions that Python has operators for; all others are called, by their rules."""
_OF_TRUTHS = {getattr(np, f"bitwise_{word}"): getattr(np, f"logical_{word}") for word in ("not", "and", "or", "xor")}


class Noted(np.lib.mixins.NDArrayOperatorsMixin):
    """A number of a formula, or a truth value, by its name in the ``lines`` so far; ``names`` are those of functions
    and constants.
    """

    def __init__(self, name: str, lines: list[str], names: dict[str, Any], is_truth: bool = False) -> None:
        self.name: str = name
        self.dtype: np.dtype[Any] = np.dtype(names["real"])
        self._lines = lines
        self._names = names
        self._is_truth = is_truth

    def __array_ufunc__(self, function: Any, _: str, *inputs: Any, dtype: Any = None, casting: str = "") -> Noted:
        return self.__array_function__(function, (), inputs, {})

    def __array_function__(self, function: Any, _: Any, inputs: Sequence[Any], __: Any) -> Noted:
        if all([isinstance(x, Noted) and x._is_truth for x in inputs]):
            function = _OF_TRUTHS.get(function, function)
        text = OPERATORS.get(function)
        if text is None:
            text = f"{self._named(of_numpy(function)(self.dtype.type))}({', '.join('{}' for _ in inputs)})"
        if function not in TRUTHS and function is not np.where:
            inputs = [self._line("real({})", x) if isinstance(x, Noted) and x._is_truth else x for x in inputs]
        y = self._line(text, *inputs)
        y._is_truth = function in TRUTHS
        return y

    def astype(self, dtype: np.dtype[Any]) -> Noted:
        """Itself: a formula's numbers have one dtype."""
        return self

    def _line(self, text: str, *inputs: Any) -> Noted:
        given = [x.name if isinstance(x, Noted) else self._named(self.dtype.type(x)) for x in inputs]
        name = f"t{len(self._lines)}"
        self._lines.append(f"    {name} = {text.format(*given)}")
        return Noted(name, self._lines, self._names)

    def _named(self, value: Any) -> str:
        name = f"n{len(self._names)}"
        self._names[name] = value
        return name


def inputs_of(formula: Callable[..., Any]) -> int:
    """How many numbers it is of."""
    plain: Any = inspect.unwrap(formula)
    return int(plain.nin if isinstance(plain, np.ufunc) else plain.__code__.co_argcount)


def of_formula(formula: Callable[..., Any], *truths: bool) -> Any:
    """The rule of a plain formula; which inputs are truth values, if any are.

    Making it raises TypeError for a formula that returns anything but one array.
    """
    inputs = {f"x{i}": truth for i, truth in enumerate(truths or (False,) * inputs_of(formula))}

    def make(real: Any) -> Any:
        lines = [f"def formula({', '.join(inputs)}):"]
        names = {"__name__": __name__, "real": real}
        result = formula(*(Noted(name, lines, names, truth) for name, truth in inputs.items()))
        if not isinstance(result, Noted):
            raise TypeError(f"{formula.__qualname__} returns a {type(result).__name__}; a kernel returns one array")
        return compiled("formula", [*lines, f"    return {result.name}"], __file__, names)

    return rule(make)


def compiled(name: str, lines: Iterable[str], file: str, names: dict[str, Any]) -> Any:
    """The function ``name`` of a Python text that was made of nothing but dtypes and numbers of inputs."""
    exec(compile("\n".join(lines) + "\n", file, "exec"), names)
    return names[name]
