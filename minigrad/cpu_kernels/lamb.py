"""LAMB and LARS for all parameters, in two parallel launches with the tensors' norms between them.

For each element, with the parameter's own scalars (see ``SCALARS``), the first launch computes

    LAMB (the table holds m and v)                      LARS (the table holds m)
    m <- beta1 * m + (1 - beta1) * g                    m <- beta1 * m + (1 - beta1) * (g + weight_decay * p)
    v <- beta2 * v + (1 - beta2) * g * g                u  = m
    u  = (m / correction) / (sqrt(v) / root + eps) + weight_decay * p

and for each tensor the norms of p and u; the second computes u again and makes the step

    p <- p - lr * ratio * u       ratio = min(norm(p) / norm(u), max_trust_ratio), 1 if one of the norms is 0

with correction = 1 - beta1^t and root = sqrt(1 - beta2^t). u is computed twice because that is cheaper than to store
it. Squares are summed in float64, by runs that depend on the tensor's size alone, and the runs in order.

Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes" (2020), algorithms 1 and
2; LARS is of You, Gitman & Ginsburg, "Large batch training of convolutional networks" (2017).
"""

from collections.abc import Sequence

import numpy as np

from .toolbox.jit import inline, kernel
from .toolbox.multi_tensor import GRAD, PARAM, STATE, Table as Table, exact, run_of
from .toolbox.threads import task_kernel

SCALARS = ("lr", "weight_decay", "beta1", "beta2", "correction", "root", "eps", "max_trust_ratio")
"""The columns of ``scalars``, one row for each parameter."""


@exact
def _moments(p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, scalars: np.ndarray, lamb: bool) -> None:
    real = p.dtype.type
    weight_decay, beta1, beta2 = real(scalars[1]), real(scalars[2]), real(scalars[3])
    rest1, rest2 = real(1.0 - scalars[2]), real(1.0 - scalars[3])
    if lamb:
        for i in range(p.shape[0]):
            m[i] = beta1 * m[i] + rest1 * g[i]
            v[i] = beta2 * v[i] + rest2 * g[i] * g[i]
    else:
        for i in range(p.shape[0]):
            m[i] = beta1 * m[i] + rest1 * (g[i] + weight_decay * p[i])


@inline
def _direction(p, m, v, weight_decay, correction, root, eps):
    return m / correction / (np.sqrt(v) / root + eps) + weight_decay * p


@kernel
def _squares(p, m, v, scalars, lamb, sums):
    """The sums of the squares of p and of u, into ``sums`` (2,)."""
    real = p.dtype.type
    weight_decay, correction, root, eps = real(scalars[1]), real(scalars[4]), real(scalars[5]), real(scalars[6])
    of_p, of_u = 0.0, 0.0
    if lamb:
        for i in range(p.shape[0]):
            u = np.float64(_direction(p[i], m[i], v[i], weight_decay, correction, root, eps))
            of_p += np.float64(p[i]) * np.float64(p[i])
            of_u += u * u
    else:
        for i in range(p.shape[0]):
            of_p += np.float64(p[i]) * np.float64(p[i])
            of_u += np.float64(m[i]) * np.float64(m[i])
    sums[0] = of_p
    sums[1] = of_u


@exact
def _descend(
    p: np.ndarray, m: np.ndarray, v: np.ndarray, scalars: np.ndarray, lamb: bool, step_size: np.float64
) -> None:
    real = p.dtype.type
    weight_decay, correction, root, eps = real(scalars[1]), real(scalars[4]), real(scalars[5]), real(scalars[6])
    step = real(step_size)
    if lamb:
        for i in range(p.shape[0]):
            p[i] = p[i] - step * _direction(p[i], m[i], v[i], weight_decay, correction, root, eps)
    else:
        for i in range(p.shape[0]):
            p[i] = p[i] - step * m[i]


@task_kernel
def _step(task, tasks, starts, runs, addresses, like, scalars, step_sizes, sums):
    """Without ``step_sizes`` the first launch, which fills ``sums`` (runs, 2); with them the second."""
    lamb = addresses.shape[1] > STATE + 1
    for r in range(starts[task], starts[task + 1]):
        k = runs[r, 0]
        p, m = run_of(addresses, runs, r, PARAM, like), run_of(addresses, runs, r, STATE, like)
        v = run_of(addresses, runs, r, addresses.shape[1] - 1, like)  # LARS has none and looks at none
        if step_sizes.shape[0] == 0:
            _moments(p, run_of(addresses, runs, r, GRAD, like), m, v, scalars[k], lamb)
            _squares(p, m, v, scalars[k], lamb, sums[r])
        else:
            _descend(p, m, v, scalars[k], lamb, step_sizes[k])


def step(table: Table, grads: Sequence[np.ndarray], scalars: np.ndarray) -> None:
    """Update the parameters and their moments in place; arguments as ``Table.bind``.

    Raises ValueError or TypeError, naming the position, before anything is changed.
    """
    grads, scalars = table.bind(grads, scalars, len(SCALARS))
    if not grads:
        return
    sums = np.empty((len(table.runs), 2))
    table.launch(_step, scalars, np.empty(0), sums)
    of_p, of_u = (
        np.sqrt(np.bincount(table.runs[:, 0], sums[:, column], len(grads)))  # adds in the order of the runs
        for column in (0, 1)
    )
    with np.errstate(all="ignore"):  # an infinite norm gives a ratio of NaN
        ratio = np.where((of_p > 0) & (of_u > 0), np.minimum(of_p / of_u, scalars[:, 7]), 1.0)
    table.launch(_step, scalars, scalars[:, 0] * ratio, sums)
