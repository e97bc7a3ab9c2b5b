"""Which kernel of the CPU an operation is, found out by running its ``forward`` once without values."""

from __future__ import annotations

import functools
import operator
from types import FunctionType
from typing import Any

from ..autograd import Function, TensorCore, prepare
from ..device import CPU


def takes_as_they_are(op: type[Function], *inputs: Any) -> tuple[bool, Any]:
    """Whether ``op.apply`` gives ``forward`` the arrays and numbers as they are; and what it rounds the result to."""
    given = [x.data if isinstance(x, TensorCore) else x for x in inputs]
    kernels, arrays = inputs[0].device.native, [*given]
    half = prepare(op, inputs, arrays, given[0].dtype, kernels)
    return all(a is b for a, b in zip(arrays, given)), half


class CalledKernel:
    """Kernels, or one of their functions, and what ``forward`` has called it with; or an input, of which nothing is
    known but its dtype: what asks for a value or a shape raises TypeError.
    """

    shape: Any = object()
    used: bool = False
    __iter__: Any = None
    __hash__: Any = object.__hash__

    def __init__(self, function: Any = None, given: Any = None, dtype: Any = None) -> None:
        self.function: Any = function
        self.given: Any = given
        self.dtype: Any = dtype

    def __getattr__(self, name: str) -> CalledKernel:
        setattr(self, name, CalledKernel(getattr(self.function, name)))  # for the next time
        return self.__dict__[name]

    def __getitem__(self, where: Any) -> CalledKernel:
        return CalledKernel(operator.getitem, (self, where))

    def __call__(self, *given: Any) -> CalledKernel:
        for x in given:
            if isinstance(x, CalledKernel) and x.given is not None:
                x.used = True
        fused = isinstance(given[0], FunctionType) and hasattr(self.function, "of")
        return CalledKernel(self.function.of(given[0]), given[1:]) if fused else CalledKernel(self.function, given)

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("of an input that is no number yet")

    __bool__ = __eq__ = _refuse


_kernels: Any = functools.cache(lambda: CalledKernel(CPU.native))


def noted(op: type[Function], inputs: Any, options: dict[str, Any]) -> Any:
    """The call of a kernel that ``forward`` ends with."""
    node: Any = op()
    node.kernels, node.needs = _kernels(), (False,) * len(inputs)
    call = op.forward(node, *inputs, **options)
    if call.used:
        raise TypeError("what the kernel gave is changed by another")
    return call


def kernel_of(op: Any, inputs: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """The kernel of the CPU that ``forward`` is, of inputs and options of which it sees the dtypes alone: a function,
    what it gets after them, another for so few elements, and what the result is rounded to; None if ``forward`` does
    more, or on a GPU; () if ``apply`` casts. What is found serves other values: ``forward`` may not ask whether an
    option is None, or its type.
    """
    as_they_are, half = takes_as_they_are(op, *inputs)
    if not as_they_are:
        return ()
    given = [CalledKernel(dtype=x.data.dtype if isinstance(x, TensorCore) else None) for x in inputs]
    values = {name: CalledKernel() for name in options}
    does_more = None, (), None, 0, half
    if inputs[0].device is not CPU or (options and len(inputs) > 1):
        return does_more
    try:
        call = noted(op, given, values)
        wanted, found = [*given, *values.values()], [*(call.given or ())]
        rest = found[len(wanted) :]
        plain = all(options and isinstance(x, str | None) for x in rest)
        if not plain or [*map(id, found)] != [*map(id, wanted + rest)]:
            return does_more
        if options or not hasattr(call.function, "of_few"):
            return call.function, rest, None, 0, half
        few = call.function.of_few(*[x.data if isinstance(x, TensorCore) else x for x in inputs])
        return call.function, rest, *few, half
    except Exception:  # it works with values, or with what a kernel gives, or takes more inputs
        return does_more
