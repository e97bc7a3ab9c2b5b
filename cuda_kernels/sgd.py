"""SGD, with or without momentum, for all parameters in one pass over memory and one launch.

For each element, with the parameter's own scalars (see ``SCALARS``), in PyTorch's order of operations:

    g <- g + weight_decay * p
    b <- keep * b + take * g          the buffer: keep = momentum, take = 1 - dampening; 0 and 1 in the first update
    g <- g + momentum * b  (nesterov)     or     g <- b
    p <- p - lr * g

Without buffers in the table the two lines in the middle are left out. p and b are read and written once, g is read
once, nothing is allocated. The bits are those of the CPU backend.

Source: Sutskever, Martens, Dahl & Hinton, "On the importance of initialization and momentum in deep learning" (2013).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .optimizers.multi_tensor import PRODUCTS, REALS, Table as Table, updater
from .platform.toolbox import Array, Kernel

SCALARS = ("lr", "weight_decay", "keep", "take", "momentum", "nesterov")
"""The columns of ``scalars``, one row for each parameter; ``nesterov`` is 0 or 1."""


def _sgd(real: Any, states: int) -> Kernel:
    product = PRODUCTS[real]

    def descend(row, p, g, b, unused):
        lr, weight_decay, keep, take, momentum, nesterov, _, _, _ = row
        if weight_decay != real(0):
            g = g + product(weight_decay, p)
        direction = g
        if states:
            b = product(keep, b) + product(take, g)
            direction = g + product(momentum, b) if nesterov != real(0) else b
        return p - product(lr, direction), b, unused

    if states:
        return updater("sgd_momentum", real.__name__, 1, descend, {np.float32: 32, np.float64: 40}[real])
    return updater("sgd", real.__name__, 0, descend, 32)


_STEP = {(np.dtype(real), states): _sgd(real, states) for real in REALS for states in (0, 1)}


def step(table: Table, grads: Sequence[Array], scalars: np.ndarray) -> None:
    """Update the parameters, and the buffers if the table has them, in place; arguments as ``Table.check``.

    Raises ValueError or TypeError, naming the position, before anything is changed.
    """
    table.check(grads, scalars, len(SCALARS))
    table.launch(_STEP[table.dtype, table.states], grads, scalars)
