"""Errors that describe the inputs of an operation. ``Function.apply`` raises them."""

from typing import Any

import numpy as np

from . import autograd
from .errors import bad_state, bad_type, located, operation

WRITTEN = {"MatMul": "a @ b", "Add": "a + b", "Sub": "a - b", "Mul": "a * b", "Div": "a / b"}
WRITTEN |= dict.fromkeys(("Index", "Slice"), "x[...]")
"""What a program says for an operation, where that is no name."""


def written(cls: type[Any]) -> str:
    """What a program says for an operation."""
    return WRITTEN.get(cls.__name__, cls.__name__)


def explained(cls: type[Any], error: Exception, inputs: tuple[Any, ...]) -> Exception | None:
    """The error of ``forward`` with the op and its inputs; None for errors of other kinds, which explain themselves."""
    kind = type(error)
    for x in inputs:
        if isinstance(x, autograd.TensorCore) and not isinstance(x.data, x.device.kernels.Array):
            return no_array(written(cls), x)
    if kind not in (ValueError, IndexError, OverflowError) or not isinstance(next(iter(error.args), None), str):
        return None
    reason = _broadcast_problem(inputs) if "broadcast together" in str(error) else str(error)
    name = f"{written(cls)}: " if cls.__name__ in WRITTEN or kind is not IndexError else operation()
    return located(kind(f"{name}{reason}\n  inputs: {describe(inputs)}"))


def no_array(where: str, x: Any) -> TypeError:
    """The error for a tensor whose ``data`` is no array."""
    found = f"the .data of a tensor was set to a {type(x.data).__name__}, but it is an array"
    return bad_type(f"{where}: {found}; to change values: with minigrad.no_grad(): p.copy_(tensor)")


def mixed_devices(cls: type[Any], inputs: tuple[Any, ...]) -> RuntimeError:
    """The error for inputs on several devices."""
    problem = "inputs are on different devices; move them to one with .to(device)"
    return bad_state(f"{written(cls)}: {problem}\n  inputs: {describe(inputs)}")


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
        f"{tuple(x.data.shape)} {x.data.dtype} on {x.device}" if isinstance(x, known) else repr(x)
        for x in inputs
        if not isinstance(x, tuple | np.ndarray)  # an index
    )
