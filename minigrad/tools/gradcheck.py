"""Check a backward against finite differences."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dtypes import float64
from ..errors import bad_value, expect
from ..modes import enable_grad
from ..random import Generator
from ..tensor import Tensor


class GradcheckError(AssertionError):
    """An analytic gradient differs from the finite difference."""


def gradcheck(
    fn: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Any], *, eps: float = 1e-6, atol: float = 1e-5,
    rtol: float = 1e-3, seed: int = 0,
) -> bool:  # fmt: skip
    """Compare ``backward`` with central differences, for each element of each float64 input that requires grad.

    ``fn(*inputs)`` gives one tensor or several; their sum with fixed random weights v is what is differentiated, so
    each compared number is an element of v^T J. The inputs' values are moved by ``eps`` and put back.

    Returns True; raises GradcheckError with the place and both numbers if |a - n| > atol + rtol |n|, and ValueError if
    no input can be checked or one is not float64 (finite differences in float32 tell nothing).
    """
    checked = [(i, x) for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not checked:
        raise bad_value("gradcheck: no input requires grad")
    expect(eps > 0, "gradcheck: eps", eps, "a small positive number")
    for i, x in checked:
        if x.dtype != float64:
            raise bad_value(f"gradcheck: input {i} is {x.dtype}; finite differences need float64")
        if not x.is_leaf or not x.data.flags.writeable:
            raise bad_value(f"gradcheck: input {i} must be a writable leaf; pass .detach().clone().requires_grad_()")

    weights: list[Tensor] = []

    def objective() -> Tensor:
        outputs = fn(*inputs)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        if not weights:
            generator = Generator(seed)
            k = outputs[0].device.kernels
            weights.extend(Tensor.wrap(k.random.normal(y.shape, float64, *generator.next()), y.device) for y in outputs)
        return functools.reduce(operator.add, [(y.double() * v).sum() for y, v in zip(outputs, weights, strict=True)])

    with enable_grad():
        loss = objective()
        grads = loss.backward() if loss.requires_grad else None
    for i, x in checked:
        found = grads.get(x) if grads is not None else None
        analytic = x.device.kernels.to_host(x.data * 0 if found is None else found.data).reshape(-1)
        for place, exact in zip(np.ndindex(*x.shape), analytic, strict=True):
            numeric = _central_difference(objective, x, place, eps)
            if not abs(exact - numeric) <= atol + rtol * abs(numeric):
                text = f"backward gives {float(exact):.9g}, the finite difference is {numeric:.9g}"
                raise GradcheckError(f"input {i}, element {place}: {text}")
    return True


def _central_difference(objective: Callable[[], Tensor], x: Tensor, place: tuple[int, ...], eps: float) -> float:
    """The derivative of the objective by one element of x, which is moved and put back."""
    kernels = x.device.kernels
    assign, element = kernels.elementwise.assign, x.data[(*place, ...)]  # a view, also of a number
    old = float(kernels.to_host(element))
    try:
        assign(element, old + eps)
        above = objective().item()
        assign(element, old - eps)
        below = objective().item()
    finally:
        assign(element, old)
    return float(above - below) / (2 * eps)
