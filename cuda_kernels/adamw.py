"""AdamW, and Adam, for all parameters in one pass over memory and one launch.

For each element, with the parameter's own scalars (see ``SCALARS``), in PyTorch's order of operations:

    g <- g + l2 * p                               Adam's coupled decay; only if the scalars have that column
    p <- p * decay                                decay = 1 - lr * weight_decay
    m <- m + weight * (g - m)                     weight = 1 - beta1
    v <- v * beta2 + (1 - beta2) * g * g
    p <- p - step_size * m / (sqrt(v) / root + eps)   step_size = lr / (1 - beta1^t), root = sqrt(1 - beta2^t)

p, m and v are read and written once, g is read once, nothing is allocated. The bits are those of the CPU backend.

Sources: Kingma & Ba, "Adam: a method for stochastic optimization" (2015); Loshchilov & Hutter, "Decoupled weight decay
regularization" (2019).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .optimizers.multi_tensor import HALVES, PRODUCTS, Table as Table, updater
from .platform.toolbox import Array, math

SCALARS = ("decay", "weight", "beta2", "one_minus_beta2", "step_size", "root", "eps")
"""The columns of ``scalars``, one row for each parameter."""

L2_SCALARS = (*SCALARS, "l2")
"""The same with coupled decay."""


def _element(real: Any) -> Callable[..., Any]:
    product = PRODUCTS[real]

    def element(row, p, g, m, v):
        decay, weight, beta2, one_minus_beta2, step_size, root, eps, l2, _ = row
        if l2 != real(0):
            g = g + product(l2, p)
        difference = g - m
        # As torch.lerp: the form without cancellation.
        m = m + product(weight, difference) if weight < real(0.5) else g - product(difference, real(1) - weight)
        v = product(v, beta2) + product(product(one_minus_beta2, g), g)
        return product(p, decay) - product(step_size, m) / (math.sqrt(v) / root + eps), m, v

    return element


_STEP = {
    word: updater("adamw", word, 2, _element(np.float64 if word == "float64" else np.float32), registers)
    for word, registers in {"float32": 40, "float64": 64, **dict.fromkeys(HALVES, 48)}.items()
}


def step(table: Table, grads: Sequence[Array], scalars: np.ndarray) -> None:
    """Update the table's parameters and moments in place.

    grads:   one array for each parameter: its dtype (that of the weights, if there are some), as many elements,
             C-contiguous
    scalars: float64 (number of parameters, 7 or 8), columns ``SCALARS`` or ``L2_SCALARS``; a row is the same for all
             elements of a parameter

    Raises ValueError or TypeError, naming the position, before anything is changed.
    """
    coupled = scalars.ndim == 2 and scalars.shape[1] == len(L2_SCALARS)
    table.check(grads, scalars, len(L2_SCALARS) if coupled else len(SCALARS))
    table.launch(_STEP[table.grad_dtype.name], grads, scalars)
