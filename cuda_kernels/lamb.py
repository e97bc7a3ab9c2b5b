"""LAMB and LARS for all parameters, in three launches: the moments, the tensors' ratios, the step.

For each element, with the parameter's own scalars (see ``SCALARS``), the first launch computes

    LAMB (the table holds m and v)                      LARS (the table holds m)
    m <- beta1 * m + (1 - beta1) * g                    m <- beta1 * m + (1 - beta1) * (g + weight_decay * p)
    v <- beta2 * v + (1 - beta2) * g * g                u  = m
    u  = (m / correction) / (sqrt(v) / root + eps) + weight_decay * p

and for each chunk the sums of the squares of p and u; the second adds them up for each tensor; the third computes u
again and makes the step

    p <- p - lr * ratio * u       ratio = min(norm(p) / norm(u), max_trust_ratio), 1 if one of the norms is 0

with correction = 1 - beta1^t and root = sqrt(1 - beta2^t). Squares are summed in float64, in an order that depends on
the tensor's size alone. m, v and, but for the ratio's last bit, p are those of the CPU backend.

Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes" (2020), algorithms 1 and
2; LARS is of You, Gitman & Ginsburg, "Large batch training of convolutional networks" (2017).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .optimizers.multi_tensor import POINTERS, PRODUCTS, REALS, ROW_LENGTH, Table, block_of, chunk_of, row_of, updater
from .platform import recording
from .platform.toolbox import Array, Kernel, cuda, empty, kernel, math
from .rowwise.collective import block_sum
from .rowwise.rows import ceil_div

__all__ = ["SCALARS", "Table", "step"]

SCALARS = ("lr", "weight_decay", "beta1", "beta2", "correction", "root", "eps", "max_trust_ratio")
"""The columns of ``scalars``, one row for each parameter."""


def _ratios(real: Any) -> Kernel:
    @kernel(f"float64*, int64*, float64*, {real.__name__}*", registers=32, of=real.__name__)
    def ratios(sums, starts, limits, scalars):
        """``starts`` (tensors + 1): the tensors' first chunks; ``limits`` (tensors, 2): lr and max_trust_ratio.

        The first number of each row of ``scalars`` becomes lr times the ratio.
        """
        partial = cuda.shared.array(32, np.float64)
        tensor = cuda.blockIdx.x
        of_p, of_u = np.float64(0), np.float64(0)
        chunk = starts[tensor] + cuda.threadIdx.x
        while chunk < starts[tensor + 1]:
            of_p += sums[2 * chunk]
            of_u += sums[2 * chunk + 1]
            chunk += cuda.blockDim.x
        of_p, of_u = math.sqrt(block_sum(of_p, partial)), math.sqrt(block_sum(of_u, partial))
        ratio = np.float64(1)
        if of_p > 0 and of_u > 0:
            ratio = of_p / of_u
            if ratio > limits[2 * tensor + 1]:
                ratio = limits[2 * tensor + 1]
        if cuda.threadIdx.x == 0:
            scalars[ROW_LENGTH * tensor] = real(limits[2 * tensor] * ratio)

    return ratios


def _lamb(real: Any, lamb: bool) -> tuple[Kernel, Kernel]:
    """``lamb``: with v in the table."""
    pointer, product = POINTERS[real], PRODUCTS[real]
    columns, itemsize = 3 if lamb else 2, np.dtype(real).itemsize
    name, word = "lamb" if lamb else "lars", real.__name__
    most = {(False, 4): 32, (False, 8): 40, (True, 4): 48, (True, 8): 64}[lamb, itemsize]

    def direction(row, p, m, v):
        _, weight_decay, _, _, _, _, correction, root, eps = row
        return m / correction / (math.sqrt(v) / root + eps) + product(weight_decay, p) if lamb else m

    def descend(row, p, unused, m, v):
        return p - product(row[0], direction(row, p, m, v)), m, v

    @kernel(f"int64* x3, int32*, {word}*, float64*, int32", registers=most, name=f"{name}_moments_{word}")
    def moments(addresses, sizes, grads, chunks, scalars, sums, length):
        """``sums`` (chunks, 2): the squares of p and of u."""
        partial = cuda.shared.array(32, np.float64)
        tensor, first, n = chunk_of(chunks, sizes, length)
        row = row_of(scalars, tensor)
        _, weight_decay, beta1, rest1, beta2, rest2, _, _, _ = row
        start = first * itemsize
        p, m = pointer(addresses[tensor * columns] + start), pointer(addresses[tensor * columns + 1] + start)
        g, v = pointer(grads[tensor] + start), pointer(addresses[tensor * columns + columns - 1] + start)
        of_p, of_u = np.float64(0), np.float64(0)
        i = cuda.threadIdx.x
        while i < n:
            p_one, g_one, m_one = p[i], g[i], m[i]
            v_one = m_one
            if lamb:
                m_one = product(beta1, m_one) + product(rest1, g_one)
                v_one = product(beta2, v[i]) + product(product(rest2, g_one), g_one)
                v[i] = v_one
            else:
                m_one = product(beta1, m_one) + product(rest1, g_one + product(weight_decay, p_one))
            m[i] = m_one
            u = np.float64(direction(row, p_one, m_one, v_one))
            of_p += np.float64(p_one) * np.float64(p_one)
            of_u += u * u
            i += cuda.blockDim.x
        of_p, of_u = block_sum(of_p, partial), block_sum(of_u, partial)
        if cuda.threadIdx.x == 0:
            sums[2 * cuda.blockIdx.x] = of_p
            sums[2 * cuda.blockIdx.x + 1] = of_u

    return moments, updater(f"{name}_step", word, 1 + lamb, descend, most, writes=0)


_RATIOS = {np.dtype(real): _ratios(real) for real in REALS}
_KERNELS = {(np.dtype(real), 1 + lamb): _lamb(real, lamb) for real in REALS for lamb in (False, True)}


def step(table: Table, grads: Sequence[Array], scalars: np.ndarray) -> None:
    """Update the parameters and their moments in place; arguments as ``Table.check``.

    Raises ValueError or TypeError, naming the position, before anything is changed.
    """
    table.check(grads, scalars, len(SCALARS))
    cut = table.cut
    if not cut.count:
        return
    ends = recording.mapped(scalars, lambda s: np.ascontiguousarray(s[:, [0, 7]]))
    addresses, rows, limits = table.send(grads, recording.mapped(scalars, _rows), ends)
    sums = empty((cut.count, 2), np.float64, table.device)
    (moments, descend), threads = _KERNELS[table.dtype, table.states], cut.threads(4)
    arrays = table.addresses, cut.device_sizes, addresses, cut.chunks, rows
    moments.launch(cut.count, *arrays, sums, cut.length, threads=threads)
    most = ceil_div(max(cut.sizes), cut.length)
    _RATIOS[table.dtype].launch(len(grads), sums, cut.starts, limits, rows, threads=block_of(most))
    descend.launch(cut.count, *arrays, cut.length, threads=threads)


def _rows(scalars: np.ndarray) -> np.ndarray:
    """Rows of the kernels: lr (which becomes the step), weight_decay, beta1, 1 - beta1, beta2, 1 - beta2, correction,
    root, eps."""
    lr, weight_decay, beta1, beta2, correction, root, eps, _ = scalars.T
    return np.stack([lr, weight_decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2, correction, root, eps], axis=1)
