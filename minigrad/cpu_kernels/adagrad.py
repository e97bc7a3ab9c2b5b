"""AdaGrad for all parameters in one pass over memory and one parallel launch.

For each element, with the parameter's own scalars (see ``SCALARS``), in PyTorch's order of operations:

    g <- g + weight_decay * p
    s <- s + g * g
    p <- p - lr * g / (sqrt(s) + eps)

Memory policy: p and s are read and written once, g is read once, nothing is allocated. Plain IEEE arithmetic, for the
reason given in ``adamw.py``.

Source: Duchi, Hazan & Singer, "Adaptive subgradient methods for online learning and stochastic optimization" (2011).
"""

from collections.abc import Sequence

import numpy as np

from .toolbox.multi_tensor import GRAD, PARAM, STATE, Table as Table, exact, run_of
from .toolbox.threads import task_kernel

SCALARS = ("lr", "weight_decay", "eps")
"""The columns of ``scalars``, one row for each parameter."""


@exact
def _update(p: np.ndarray, g: np.ndarray, s: np.ndarray, scalars: np.ndarray) -> None:
    real = p.dtype.type
    lr, weight_decay, eps = real(scalars[0]), real(scalars[1]), real(scalars[2])
    decays = weight_decay != real(0)
    for i in range(p.shape[0]):
        gi = g[i] + weight_decay * p[i] if decays else g[i]
        si = s[i] + gi * gi
        s[i] = si
        p[i] = p[i] - lr * gi / (np.sqrt(si) + eps)


@task_kernel
def _step(task, tasks, starts, runs, addresses, like, scalars):
    for r in range(starts[task], starts[task + 1]):
        _update(
            run_of(addresses, runs, r, PARAM, like),
            run_of(addresses, runs, r, GRAD, like),
            run_of(addresses, runs, r, STATE, like),
            scalars[runs[r, 0]],
        )


def step(table: Table, grads: Sequence[np.ndarray], scalars: np.ndarray) -> None:
    """Update the parameters and the sums of squares in place; arguments as ``Table.bind``.

    Raises ValueError or TypeError, naming the position, before anything is changed.
    """
    grads, scalars = table.bind(grads, scalars, len(SCALARS))
    table.launch(_step, scalars)
