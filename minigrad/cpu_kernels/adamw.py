"""AdamW for all parameters in one pass over memory and one parallel launch.

For each element, with the parameter's own scalars (see ``SCALARS``), in PyTorch's order of operations:

    p <- p * decay                                decay = 1 - lr * weight_decay
    m <- m + weight * (g - m)                     weight = 1 - beta1
    v <- v * beta2 + (1 - beta2) * g * g
    p <- p - step_size * m / (sqrt(v) / root + eps)   step_size = lr / (1 - beta1^t), root = sqrt(1 - beta2^t)

Memory policy: p, m and v are read and written once, g is read once, nothing is allocated.

The arithmetic is plain IEEE (no fast-math, no fused multiply-add): an element's result does not depend on whether a
vector lane or a loop tail computed it, so cutting parameters in other places (threads, shards, buckets) changes no bit.
The pass is bound by memory, so this costs nothing.

Source: Loshchilov & Hutter, "Decoupled weight decay regularization" (2019); the multi-tensor launch by pointer table is
NVIDIA Apex's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from .jit import kernel, parallel_kernel
from .pointers import address_of, elements_at

SCALARS = ("decay", "weight", "beta2", "one_minus_beta2", "step_size", "root", "eps")
"""The columns of ``scalars``, one row for each parameter."""

_TASK = 16384  # elements of one task: its four arrays fill a quarter of a 1 MiB L2 cache
_ALIGN = 16  # tensors start at multiples of this in the numbering of elements, so tasks do not share cache lines


# Not the kernels' fast-math flags, see the module docstring (False must be said, or the caller's flags are inherited).
@numba.njit(nogil=True, error_model="numpy", fastmath=False)
def _update(p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, scalars: np.ndarray) -> None:
    """One run of elements: arrays (n,), a row of ``SCALARS``."""
    real = p.dtype.type
    decay, weight, beta2, one_minus_beta2 = real(scalars[0]), real(scalars[1]), real(scalars[2]), real(scalars[3])
    step_size, root, eps = real(scalars[4]), real(scalars[5]), real(scalars[6])
    beta1 = real(1) - weight
    blend_from_old = weight < real(0.5)  # as torch.lerp: the form without cancellation
    for i in range(p.shape[0]):
        gi = g[i]
        difference = gi - m[i]
        mi = m[i] + weight * difference if blend_from_old else gi - difference * beta1
        vi = v[i] * beta2 + one_minus_beta2 * gi * gi
        m[i] = mi
        v[i] = vi
        p[i] = p[i] * decay - step_size * mi / (np.sqrt(vi) / root + eps)


@kernel
def _task(
    first: int,
    last: int,
    starts: np.ndarray,
    sizes: np.ndarray,
    addresses: np.ndarray,
    scalars: np.ndarray,
    like: np.ndarray,
) -> None:
    """Update the elements ``first`` to ``last - 1`` of the numbering ``starts``, over as many tensors as it touches."""
    k = np.searchsorted(starts, first, side="right") - 1
    while k < sizes.shape[0] and starts[k] < last:
        begin = max(first - starts[k], 0)
        n = min(last - starts[k], sizes[k]) - begin
        if n > 0:
            offset = begin * like.itemsize
            _update(
                elements_at(addresses[k, 0] + offset, n, like),
                elements_at(addresses[k, 1] + offset, n, like),
                elements_at(addresses[k, 2] + offset, n, like),
                elements_at(addresses[k, 3] + offset, n, like),
                scalars[k],
            )
        k += 1


@parallel_kernel
def _step(
    total: int, starts: np.ndarray, sizes: np.ndarray, addresses: np.ndarray, scalars: np.ndarray, like: np.ndarray
) -> None:
    for task in numba.prange((total + _TASK - 1) // _TASK):
        _task(task * _TASK, min((task + 1) * _TASK, total), starts, sizes, addresses, scalars, like)


class Table:
    """Addresses and sizes of the arrays that one launch updates; build it once, use it for many steps.

    ``params``, ``exp_avg`` and ``exp_avg_sq`` are sequences of equally many arrays of one dtype, float32 or float64,
    C-contiguous and writable, of equal sizes at equal positions. The table keeps them alive.

    Raises ValueError or TypeError, naming the position, for an array that cannot be updated through its address.
    """

    __slots__ = ("addresses", "arrays", "dtype", "like", "sizes", "starts", "total")

    def __init__(
        self, params: Sequence[np.ndarray], exp_avg: Sequence[np.ndarray], exp_avg_sq: Sequence[np.ndarray]
    ) -> None:
        if not len(params) == len(exp_avg) == len(exp_avg_sq):
            raise ValueError(
                f"{len(params)} parameters, {len(exp_avg)} first and {len(exp_avg_sq)} second moments: expected "
                "as many of each"
            )
        self.dtype = np.dtype(params[0].dtype if params else np.float32)
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"AdamW on the CPU updates float32 or float64 parameters, not {self.dtype}")
        self.arrays = (list(params), list(exp_avg), list(exp_avg_sq))
        for i, arrays in enumerate(zip(*self.arrays, strict=True)):
            for array in arrays:
                _check_array(i, array, self.dtype, arrays[0].size)
                if not array.flags.writeable:
                    raise ValueError(f"array {i} of shape {array.shape} is read-only, so it cannot be updated in place")
        self.like = np.empty(0, self.dtype)
        self.sizes = np.array([p.size for p in params], np.int64)
        padded = (self.sizes + (_ALIGN - 1)) // _ALIGN * _ALIGN
        self.starts = np.cumsum(padded) - padded
        self.total = int(padded.sum())
        self.addresses = np.empty((len(params), 4), np.int64)  # p, g, m, v
        for column, arrays_ in zip((0, 2, 3), self.arrays, strict=True):
            self.addresses[:, column] = [address_of(array) for array in arrays_]


def step(table: Table, grads: Sequence[np.ndarray], scalars: np.ndarray) -> None:
    """Update the table's parameters and moments in place.

    grads:   one array for each parameter: the table's dtype, as many elements, C-contiguous
    scalars: float64 (number of parameters, 7), columns ``SCALARS``; a row is the same for all elements of a parameter

    Raises ValueError or TypeError, naming the position, before anything is changed.
    """
    if len(grads) != len(table.sizes) or scalars.shape != (len(grads), len(SCALARS)) or scalars.dtype != np.float64:
        raise ValueError(
            f"{len(grads)} gradients and scalars of shape {scalars.shape}, {scalars.dtype}: expected "
            f"{len(table.sizes)} gradients and float64 scalars of shape ({len(table.sizes)}, {len(SCALARS)})"
        )
    for i, (p, g) in enumerate(zip(table.arrays[0], grads, strict=True)):
        _check_array(i, g, table.dtype, p.size)
    table.addresses[:, 1] = [address_of(g) for g in grads]
    _step(table.total, table.starts, table.sizes, table.addresses, np.ascontiguousarray(scalars), table.like)


def _check_array(i: int, array: np.ndarray, dtype: np.dtype[Any], size: int) -> None:
    if array.dtype != dtype:
        raise TypeError(f"array {i} has dtype {array.dtype}, the table has {dtype}")
    if array.size != size:
        raise ValueError(f"array {i} of shape {array.shape} has {array.size} elements, its parameter has {size}")
    if not array.flags.c_contiguous:
        raise ValueError(f"array {i} of shape {array.shape} is not C-contiguous; np.ascontiguousarray makes it so")
