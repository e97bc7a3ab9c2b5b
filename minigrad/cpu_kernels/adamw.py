"""AdamW, and Adam, for all parameters in one pass over memory and one parallel launch.

For each element, with the parameter's own scalars (see ``SCALARS``), in PyTorch's order of operations:

    g <- g + l2 * p                               Adam's coupled decay; only if the scalars have that column
    p <- p * decay                                decay = 1 - lr * weight_decay
    m <- m + weight * (g - m)                     weight = 1 - beta1
    v <- v * beta2 + (1 - beta2) * g * g
    p <- p - step_size * m / (sqrt(v) / root + eps)   step_size = lr / (1 - beta1^t), root = sqrt(1 - beta2^t)

Memory policy: p, m and v are read and written once, g is read once, nothing is allocated. A checksum of what is read
goes into ``Table.read``, for ranks that compare it.

The arithmetic is plain IEEE (no fast-math, no fused multiply-add), so a vector lane and a loop's tail compute the same
result. Cutting parameters in other places (threads, shards, buckets) therefore changes no bit.
The pass is bound by memory, so this costs nothing.

Sources: Kingma & Ba, "Adam: a method for stochastic optimization" (2015); Loshchilov & Hutter, "Decoupled weight decay
regularization" (2019).
"""

from collections.abc import Sequence

import numpy as np

from . import elementwise
from .toolbox.multi_tensor import GRAD, PARAM, STATE, Table as Table, exact, run_of, with_bits
from .toolbox.threads import task_kernel

SCALARS = ("decay", "weight", "beta2", "one_minus_beta2", "step_size", "root", "eps")
"""The columns of ``scalars``, one row for each parameter."""

L2_SCALARS = (*SCALARS, "l2")
"""The same with coupled decay."""


@exact
def _update(p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, scalars: np.ndarray, read: np.ndarray) -> None:
    """One run of elements: arrays (n,), a row of ``SCALARS`` or ``L2_SCALARS``, the run's row of ``Table.read``."""
    real, word = p.dtype.type, read.dtype.type
    bits = word(0)
    decay, weight, beta2, one_minus_beta2 = real(scalars[0]), real(scalars[1]), real(scalars[2]), real(scalars[3])
    step_size, root, eps = real(scalars[4]), real(scalars[5]), real(scalars[6])
    l2 = real(scalars[7]) if scalars.shape[0] > 7 else real(0)
    couples = l2 != real(0)
    beta1 = real(1) - weight
    blend_from_old = weight < real(0.5)  # as torch.lerp: the form without cancellation
    for i in range(p.shape[0]):
        bits = with_bits(with_bits(with_bits(bits, p[i]), m[i]), v[i])
        gi = g[i] + l2 * p[i] if couples else g[i]
        difference = gi - m[i]
        mi = m[i] + weight * difference if blend_from_old else gi - difference * beta1
        vi = v[i] * beta2 + one_minus_beta2 * gi * gi
        m[i] = mi
        v[i] = vi
        p[i] = p[i] * decay - step_size * mi / (np.sqrt(vi) / root + eps)
    read[0] = read[0] * word(0x9E3779B1) + bits  # odd, so that what differed once differs for good
    read[1] += word(1)


@task_kernel
def _step(task, tasks, starts, runs, addresses, like, scalars, read):
    for r in range(starts[task], starts[task + 1]):
        _update(
            run_of(addresses, runs, r, PARAM, like),
            run_of(addresses, runs, r, GRAD, like),
            run_of(addresses, runs, r, STATE, like),
            run_of(addresses, runs, r, STATE + 1, like),
            scalars[runs[r, 0]],
            read[r],
        )


def step(table: Table, grads: Sequence[np.ndarray], scalars: np.ndarray) -> None:
    """Update the table's parameters and moments in place.

    grads:   one array for each parameter: its dtype (that of the weights, if there are some), as many elements,
             C-contiguous
    scalars: float64 (number of parameters, 7 or 8), columns ``SCALARS`` or ``L2_SCALARS``; a row is the same for all
             elements of a parameter

    Raises ValueError or TypeError, naming the position, before anything is changed.
    """
    coupled = scalars.ndim == 2 and scalars.shape[1] == len(L2_SCALARS)
    grads, scalars = table.bind(grads, scalars, len(L2_SCALARS) if coupled else len(SCALARS))
    table.launch(_step, scalars, table.read)
    if table.weights is not None:
        for w, p in zip(table.weights, table.arrays[0], strict=True):
            elementwise.assign(w, p.reshape(w.shape))
