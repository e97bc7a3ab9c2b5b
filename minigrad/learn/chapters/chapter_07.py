"""Chapter 7: many values to one. Sums, softmax, cross-entropy and attention on the GPU, with every number read once."""

from typing import Any

import numpy as np

from minigrad.cuda_kernels.simulator import cuda, math  # on a GPU: from numba import cuda; import math

from .chapter_06 import ALL, WARP, warp_sum

LOWEST = np.float32(-np.inf)
KEYS = 16  # keys and values in a tile of ``attention``, and threads of its blocks
D = 4  # length of a query, a key, a value


def larger(a: Any, b: Any) -> Any:
    """The larger of two numbers."""
    return a if a > b else b


def warp_max(value: Any) -> Any:
    """The largest value of the 32 lanes of a warp, for each of them."""
    distance = WARP // 2
    while distance > 0:
        value = larger(value, cuda.shfl_xor_sync(ALL, value, distance))
        distance //= 2
    return value


def block_sum(value: Any, partial: Any) -> Any:
    """The sum of the values of all threads of the block, for each of them. Blocks of whole warps.

    ``partial``: a shared array with a place for each warp. It may be used again as soon as this returns.
    """
    value = warp_sum(value)
    if cuda.threadIdx.x % WARP == 0:
        partial[cuda.threadIdx.x // WARP] = value
    cuda.syncthreads()
    total = np.float32(0)
    for warp in range(cuda.blockDim.x // WARP):
        total += partial[warp]
    cuda.syncthreads()
    return total  # given


def block_max(value: Any, partial: Any) -> Any:
    """The largest of the values of all threads of the block, as ``block_sum``."""
    value = warp_max(value)  # given
    if cuda.threadIdx.x % WARP == 0:
        partial[cuda.threadIdx.x // WARP] = value
    cuda.syncthreads()
    largest = LOWEST
    for warp in range(cuda.blockDim.x // WARP):
        largest = larger(largest, partial[warp])
    cuda.syncthreads()
    return largest  # given


def softmax(x: Any, y: Any) -> None:
    """y[i, j] = e^(x[i, j] - m) / the sum over j of e^(x[i, j] - m), with m the largest of row i. A block for each row.

    Three passes over the row: the maximum, the sum, the result. Neighbouring threads read neighbouring columns.
    """
    partial = cuda.shared.array(WARP, np.float32)  # given
    i, columns = cuda.blockIdx.x, x.shape[1]  # given
    m, s = LOWEST, np.float32(0)
    for j in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        m = larger(m, x[i, j])
    m = block_max(m, partial)
    for j in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        s += math.exp(x[i, j] - m)
    s = block_sum(s, partial)
    for j in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        y[i, j] = math.exp(x[i, j] - m) / s


def join(m: Any, s: Any, other_m: Any, other_s: Any) -> Any:
    """Two parts of a row as one: ``(m, s)`` of both, from the maximum and the sum of e^(x - maximum) of each part.

    A part without elements has ``LOWEST`` and 0.
    """
    top = larger(m, other_m)
    if top == LOWEST:
        return top, s
    return top, s * math.exp(m - top) + other_s * math.exp(other_m - top)


def online_softmax(x: Any, y: Any) -> None:
    """``softmax`` in two passes: the first finds maximum and sum together, by ``join``."""
    partial = cuda.shared.array(WARP, np.float32)  # given
    i, columns = cuda.blockIdx.x, x.shape[1]  # given
    m, s = LOWEST, np.float32(0)
    for j in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        m, s = join(m, s, x[i, j], np.float32(1))
    top = block_max(m, partial)
    s = block_sum(s * math.exp(m - top), partial)
    for j in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        y[i, j] = math.exp(x[i, j] - top) / s


def cross_entropy(x: Any, targets: Any, losses: Any, dx: Any) -> None:
    """The loss of each row of scores, and the gradient of the mean of all losses, in one launch. A block for each row.

    losses[i] = log(sum over j of e^x[i, j]) - x[i, targets[i]], computed with the maximum taken out. dx[i, j] is
    (softmax(x)[i, j] - (1 where j is the target, else 0)) / the number of rows, which is ``cuda.gridDim.x``.
    """
    partial = cuda.shared.array(WARP, np.float32)  # given
    i, columns, target = cuda.blockIdx.x, x.shape[1], targets[cuda.blockIdx.x]  # given
    m, s = LOWEST, np.float32(0)
    for j in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        m, s = join(m, s, x[i, j], np.float32(1))
    top = block_max(m, partial)
    s = block_sum(s * math.exp(m - top), partial)
    for j in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        p = math.exp(x[i, j] - top) / s
        dx[i, j] = (p - np.float32(j == target)) / np.float32(cuda.gridDim.x)
    if cuda.threadIdx.x == 0:
        losses[i] = math.log(s) + (top - x[i, target])


def attention(q: Any, k: Any, v: Any, y: Any) -> None:
    """y[i] = the mean of v[0], ..., v[i], weighted by softmax(q[i] · k[j] / sqrt(D)) over j <= i. All are (T, D).

    A thread for each query, 16 in a block. The keys and values come through shared memory in tiles of 16; each thread
    keeps a maximum, a sum and a weighted sum of the values so far. No array of scores exists anywhere.
    """
    keys, values = cuda.shared.array((KEYS, D), np.float32), cuda.shared.array((KEYS, D), np.float32)  # given
    query, total = cuda.local.array(D, np.float32), cuda.local.array(D, np.float32)  # given
    t, i, T = cuda.threadIdx.x, cuda.grid(1), q.shape[0]  # given
    for d in range(D):  # given
        query[d] = q[i, d] / math.sqrt(np.float32(D)) if i < T else np.float32(0)  # given
        total[d] = np.float32(0)  # given
    m, s = LOWEST, np.float32(0)  # given
    for first in range(0, T, KEYS):  # given
        for d in range(D):  # given
            keys[t, d] = k[first + t, d] if first + t < T else np.float32(0)  # given
            values[t, d] = v[first + t, d] if first + t < T else np.float32(0)  # given
        cuda.syncthreads()
        for n in range(KEYS):
            if first + n <= i:
                score = np.float32(0)
                for d in range(D):
                    score += query[d] * keys[n, d]
                top = larger(m, score)
                old, new = math.exp(m - top), math.exp(score - top)
                s = s * old + new
                for d in range(D):
                    total[d] = total[d] * old + new * values[n, d]
                m = top
        cuda.syncthreads()
    if i < T:  # given
        for d in range(D):  # given
            y[i, d] = total[d] / s  # given
