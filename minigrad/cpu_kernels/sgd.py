"""SGD, with or without momentum, for all parameters in one pass over memory and one parallel launch.

For each element, with the parameter's own scalars (see ``SCALARS``), in PyTorch's order of operations:

    g <- g + weight_decay * p
    b <- keep * b + take * g          the buffer: keep = momentum, take = 1 - dampening; 0 and 1 in the first update
    g <- g + momentum * b  (nesterov)     or     g <- b
    p <- p - lr * g

Without buffers in the table the two lines in the middle are left out. Memory policy: p and b are read and written once,
g is read once, nothing is allocated. Plain IEEE arithmetic, for the reason given in ``adamw.py``.

Source: Sutskever, Martens, Dahl & Hinton, "On the importance of initialization and momentum in deep learning" (2013).
"""

from collections.abc import Sequence

import numpy as np

from .toolbox.multi_tensor import GRAD, PARAM, STATE, Table as Table, exact, run_of
from .toolbox.threads import task_kernel

SCALARS = ("lr", "weight_decay", "keep", "take", "momentum", "nesterov")
"""The columns of ``scalars``, one row for each parameter; ``nesterov`` is 0 or 1."""


@exact
def _descend(p: np.ndarray, g: np.ndarray, scalars: np.ndarray) -> None:
    real = p.dtype.type
    lr, weight_decay = real(scalars[0]), real(scalars[1])
    decays = weight_decay != real(0)
    for i in range(p.shape[0]):
        gi = g[i] + weight_decay * p[i] if decays else g[i]
        p[i] = p[i] - lr * gi


@exact
def _descend_with_momentum(p: np.ndarray, g: np.ndarray, b: np.ndarray, scalars: np.ndarray) -> None:
    real = p.dtype.type
    lr, weight_decay, keep, take, momentum = (
        real(scalars[0]), real(scalars[1]), real(scalars[2]), real(scalars[3]), real(scalars[4]),
    )  # fmt: skip
    decays, nesterov = weight_decay != real(0), scalars[5] != 0.0
    for i in range(p.shape[0]):
        gi = g[i] + weight_decay * p[i] if decays else g[i]
        bi = keep * b[i] + take * gi
        b[i] = bi
        p[i] = p[i] - lr * (gi + momentum * bi if nesterov else bi)


@task_kernel
def _step(task, tasks, starts, runs, addresses, like, scalars):
    for r in range(starts[task], starts[task + 1]):
        p, g, row = run_of(addresses, runs, r, PARAM, like), run_of(addresses, runs, r, GRAD, like), scalars[runs[r, 0]]
        if addresses.shape[1] > STATE:
            _descend_with_momentum(p, g, run_of(addresses, runs, r, STATE, like), row)
        else:
            _descend(p, g, row)


def step(table: Table, grads: Sequence[np.ndarray], scalars: np.ndarray) -> None:
    """Update the parameters, and the buffers if the table has them, in place; arguments as ``Table.bind``.

    Raises ValueError or TypeError, naming the position, before anything is changed.
    """
    grads, scalars = table.bind(grads, scalars, len(SCALARS))
    table.launch(_step, scalars)
