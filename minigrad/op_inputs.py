"""Errors that describe the inputs of an operation. ``Function.apply`` raises them."""

from typing import Any

from . import autograd
from .errors import bad_state, located

WRITTEN = {"MatMul": "a @ b", "Add": "a + b", "Sub": "a - b", "Mul": "a * b", "Div": "a / b", "Index": "x[...]"}
"""What a program says for an operation, where that is no name."""


def explained(cls: type[Any], error: Exception, inputs: tuple[Any, ...]) -> Exception | None:
    """The error of ``forward`` with the op and its inputs; None for errors of other kinds, which explain themselves."""
    kind = type(error)
    if any(isinstance(x, autograd.TensorCore) and isinstance(x.data, autograd.TensorCore) for x in inputs):
        text = "to a tensor, but it is an array; to change values: with minigrad.no_grad(): p.copy_(tensor)"
        return located(TypeError(f"{WRITTEN.get(cls.__name__, cls.__name__)}: the .data of an input was set {text}"))
    if kind not in (ValueError, IndexError, OverflowError) or not isinstance(next(iter(error.args), None), str):
        return None
    reason = _broadcast_problem(inputs) if "broadcast together" in str(error) else str(error)
    return located(kind(f"{WRITTEN.get(cls.__name__, cls.__name__)}: {reason}\n  inputs: {describe(inputs)}"))


def mixed_devices(cls: type[Any], inputs: tuple[Any, ...]) -> RuntimeError:
    """The error for inputs on several devices."""
    return bad_state(
        f"{WRITTEN.get(cls.__name__, cls.__name__)}: inputs are on different devices; "
        "move them to one with .to(device)\n"
        f"  inputs: {describe(inputs)}"
    )


def _broadcast_problem(inputs: tuple[Any, ...]) -> str:
    shapes = [tuple(x.data.shape)[::-1] for x in inputs if isinstance(x, autograd.TensorCore)]
    for i in range(max(map(len, shapes))):
        sizes = dict.fromkeys(shape[i] for shape in shapes if i < len(shape) and shape[i] != 1)
        if len(sizes) > 1:
            found = " and ".join(map(str, sizes))
            return f"the shapes do not broadcast: dim {-1 - i} has sizes {found}; they must be equal, or 1"
    return "the shapes do not broadcast"


def describe(inputs: tuple[Any, ...]) -> str:
    """Shapes, dtypes and devices of the inputs, for errors."""
    known = autograd.TensorCore
    return ", ".join(
        f"{tuple(x.data.shape)} {x.data.dtype} on {x.device}" if isinstance(x, known) else repr(x) for x in inputs
    )
