"""AdaGrad for all parameters in one pass over memory and one launch.

For each element, with the parameter's own scalars (see ``SCALARS``), in PyTorch's order of operations:

    g <- g + weight_decay * p
    s <- s + g * g
    p <- p - lr * g / (sqrt(s) + eps)

p and s are read and written once, g is read once, nothing is allocated. The bits are those of the CPU backend.

Source: Duchi, Hazan & Singer, "Adaptive subgradient methods for online learning and stochastic optimization" (2011).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .optimizers.multi_tensor import PRODUCTS, REALS, Table as Table, updater
from .platform.toolbox import Array, Kernel, math

SCALARS = ("lr", "weight_decay", "eps")
"""The columns of ``scalars``, one row for each parameter."""


def _adagrad(real: Any) -> Kernel:
    product = PRODUCTS[real]

    def element(row, p, g, s, unused):
        lr, weight_decay, eps = row[0], row[1], row[2]
        if weight_decay != real(0):
            g = g + product(weight_decay, p)
        s = s + product(g, g)
        return p - product(lr, g) / (math.sqrt(s) + eps), s, unused

    return updater("adagrad", real.__name__, 1, element, {np.float32: 32, np.float64: 64}[real])


_STEP = {np.dtype(real): _adagrad(real) for real in REALS}


def step(table: Table, grads: Sequence[Array], scalars: np.ndarray) -> None:
    """Update the parameters and their sums in place; arguments as ``Table.check``.

    Raises ValueError or TypeError, naming the position, before anything is changed.
    """
    table.check(grads, scalars, len(SCALARS))
    table.launch(_STEP[table.dtype], grads, scalars)
