"""Attention row by row: small problems, heads of any size, and one more token to a cache.

The formulas are those of ``attention.py``. Forward, a block has a query. It takes as many keys at a time as it has
threads, and keeps the running maximum and sum. Backward, a thread has a query (for dk and dv: a key) and walks over the
other side. What is added up over D columns lies in the result itself. This is the plain version of ``flash.py``, which
computes the same on tiles.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..platform.toolbox import Array, Kernel, copy, cuda, empty, kernel, math
from ..pointwise.philox import philox_block, unit_float32
from ..pointwise.rules import larger_of as larger
from ..rowwise.collective import block_max, block_sum

Arrays = tuple[Array, ...]
# Hq, H, Tq, Tk, D; causal; threshold, seed and offset of dropout.
SIZES = "int64 x5, int32, float32, uint64 x2"
SEERS = 128  # threads for a query at most
THREE, TWO = np.uint64(3), np.uint64(2)


def steps_of(*operands: Array) -> list[int]:
    """Steps of operands (B, heads, T, D) along their first three dimensions; the last is contiguous."""
    return [step for x in operands for step in x.steps[:3]]


def dropped(index: Any, threshold: Any, seed: Any, offset: Any) -> Any:
    """Whether dropout takes element ``index`` of the (B, H, Tq, Tk) probabilities: as ``fill_dropout`` of the CPU."""
    place = np.uint64(index)
    a, b, c, d = philox_block(place >> TWO, seed, offset)
    lane = np.int32(place & THREE)
    word = a if lane == 0 else b if lane == 1 else c if lane == 2 else d
    return unit_float32(np.uint32(word)) < threshold


def place_of(row: Any, T: Any, heads: Any) -> Any:
    """The batch, head and position of a row."""
    outer = row // T
    b = outer // heads
    return b, outer - b * heads, row - outer * T


def dot(x: Any, i: Any, y: Any, j: Any, D: Any, zero: Any) -> Any:
    """The sum of x[i + c] y[j + c] over D columns."""
    s = zero
    for c in range(D):
        s += x[i + c] * y[j + c]
    return s


def _forward(real: Any, extends: bool) -> Kernel:
    """``extends``: a query sees first the keys in a cache, then the one new key of k, which goes there."""
    word = np.dtype(real).name

    @kernel(
        f"{word}* x6, int64*, {SIZES}, {word} x2, int64 x10", threads=SEERS, registers=128, resident=4,
        name=f"{'extend' if extends else 'forward'}_{word}",
    )  # fmt: skip
    def forward(
        y, lse, q, k, v, cache, length, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, room,
    ):  # fmt: skip
        """A block for each row of y (B, Tq, Hq, D) and lse (B, Hq, Tq); ``length``: how many keys are in the cache.

        The new key and value are read where they are, so that no block waits for another.
        """
        partial, weights = cuda.shared.array(32, real), cuda.shared.array(SEERS, real)
        row, tid, step = np.int64(cuda.blockIdx.x), cuda.threadIdx.x, cuda.blockDim.x
        b, h, i = place_of(row, Tq, Hq)
        kv = h // (Hq // H)
        query, key, value = b * q_b + h * q_h + i * q_t, b * k_b + kv * k_h, b * v_b + kv * v_h
        place = ((b * Tq + i) * Hq + h) * D
        zero, lowest = real(0), -real(math.inf)
        old, count = np.int64(0), np.int64(min(Tk, i + 1) if causal else Tk)
        if extends:
            old = length[0]
            count = old + 1
        keys = (b * H + kv) * room * D
        values = keys + cuda.gridDim.x // Hq * H * room * D
        for c in range(tid, D, step):
            y[place + c] = zero
        largest, total = lowest, zero
        for first in range(0, count, step):
            j, s = first + tid, lowest
            if extends and j < old:
                s = scale * dot(q, query, cache, keys + j * D, D, zero)
            elif j < count:
                s = scale * dot(q, query, k, key + (j - old) * k_t, D, zero)
            top = block_max(larger(largest, s), partial)
            p = math.exp(s - top) if s != lowest else zero
            decay = math.exp(largest - top) if largest != lowest else zero
            largest, total = top, total * decay + p
            if threshold > np.float32(0):
                p = zero if dropped(row * Tk + j, threshold, seed, offset) else p * kept
            weights[tid] = p
            cuda.syncthreads()
            for c in range(tid, D, step):
                s = y[place + c] * decay
                for j in range(first, min(first + step, old if extends else count)):
                    s += weights[j - first] * (cache[values + j * D + c] if extends else v[value + j * v_t + c])
                if extends and old < first + step:
                    s += weights[old - first] * v[value + c]
                y[place + c] = s
            cuda.syncthreads()
        total = block_sum(total, partial)
        if tid == 0 and not extends:
            lse[row] = largest + math.log(total)
        inverse = real(1) / total if count > 0 else zero
        for c in range(tid, D, step):
            y[place + c] *= inverse
            if extends and h % (Hq // H) == 0:
                cache[keys + old * D + c], cache[values + old * D + c] = k[key + c], v[value + c]

    return forward


def _gradient(real: Any, keeps_keys: bool) -> Kernel:
    """dk and dv where a thread has a key, else dq; it writes delta too, which the other reads. As in ``flash.py``."""
    word = np.dtype(real).name
    registers, resident = (80, 6) if keeps_keys else ({"float32": 56, "float64": 64}[word], 0)

    @kernel(
        f"{word}* x9, int64, {SIZES}, {word} x2, int64 x15", threads=128, registers=registers, resident=resident,
        name=f"{'dk_dv' if keeps_keys else 'dq'}_{word}",
    )  # fmt: skip
    def gradient(
        dx, dx2, x, x2, z, z2, y, lse, delta, n, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        x_b, x_h, x_t, x2_b, x2_h, x2_t, z_b, z_h, z_t, z2_b, z2_h, z2_t, y_b, y_h, y_t,
    ):  # fmt: skip
        """dx and dx2 (B, T, heads, D), n rows; delta = sum over D of dy y, of each query."""
        row = np.int64(cuda.grid(1))
        if row < n:
            group = Hq // H
            b, h, i = place_of(row, Tk if keeps_keys else Tq, H if keeps_keys else Hq)
            mine, mine2 = b * x_b + h * x_h + i * x_t, b * x2_b + h * x2_h + i * x2_t
            place = ((b * (Tk if keeps_keys else Tq) + i) * (H if keeps_keys else Hq) + h) * D
            zero = real(0)
            shared_part = zero
            if not keeps_keys:
                shared_part = dot(x2, mine2, y, b * y_b + h * y_h + i * y_t, D, zero)
                delta[row] = shared_part
            for c in range(D):
                dx[place + c] = zero
                if keeps_keys:
                    dx2[place + c] = zero
            if keeps_keys:
                first_head, heads, begin, end = h * group, group, (i if causal else 0), Tq
            else:
                first_head, heads, begin, end = h // group, np.int64(1), 0, (min(Tk, i + 1) if causal else Tk)
            for other in range(first_head, first_head + heads):
                for j in range(begin, end):
                    there, there2 = b * z_b + other * z_h + j * z_t, b * z2_b + other * z2_h + j * z2_t
                    query, key = ((b * Hq + other) * Tq + j, i) if keeps_keys else (row, j)
                    p = math.exp(scale * dot(x, mine, z, there, D, zero) - lse[query])
                    dp = dot(x2, mine2, z2, there2, D, zero)
                    weight = p
                    if threshold > np.float32(0):
                        gone = dropped(query * Tk + key, threshold, seed, offset)
                        dp = zero if gone else dp * kept
                        weight = zero if gone else weight * kept
                    ds = p * (dp - (delta[query] if keeps_keys else shared_part)) * scale
                    for c in range(D):
                        dx[place + c] += ds * z[there + c]
                        if keeps_keys:
                            dx2[place + c] += weight * z2[there2 + c]

    return gradient


_KERNELS = {
    np.dtype(real): (
        *(_forward(real, extends) for extends in (False, True)),
        *(_gradient(real, keeps_keys) for keeps_keys in (False, True)),
    )
    for real in (np.float32, np.float64)
}


def contiguous_rows(x: Array) -> Array:
    """x (B, heads, T, D), or a copy, with contiguous rows."""
    return x if x.steps[-1] == 1 or x.shape[-1] <= 1 else copy(x)


def forward(y: Array, lse: Array, inputs: Arrays, settings: tuple[Any, ...]) -> None:
    """``attention.forward`` of ``inputs``, q, k, v, into y (B, Tq, Hq, D) and lse."""
    q, k, v = map(contiguous_rows, inputs)
    threads = min(SEERS, -(-max(q.shape[-1], k.shape[2], 1) // 32) * 32)
    run, arrays, none = _KERNELS[y.dtype][0], (y, lse, q, k, v, k), empty(1, np.int64, q.device)
    run.launch(lse.size, *arrays, none, *settings, *steps_of(q, k, v), 0, threads=threads)


def extend(y: Array, inputs: Arrays, cache: Array, length: Array, scale: float) -> None:
    """``attention.extend`` of ``inputs``, q, k, v, into y (B, 1, H, D) and the cache."""
    q, k, v = map(contiguous_rows, inputs)
    (B, Hq, _, D), (_, _, H, room, _) = q.shape, cache.shape
    settings = Hq, H, 1, 1, D, 0, 0.0, 0, 0, scale, 1.0
    _KERNELS[y.dtype][1].launch(B * Hq, y, y, q, k, v, cache, length, *settings, *steps_of(q, k, v), room)


def passes(grads: Arrays, operands: Arrays) -> Iterator[tuple[int, Arrays, Arrays, int, int]]:
    """Of each pass of backward, over the queries and over the keys: number, results, sides, heads, and rows of a head.

    ``grads``: dq, dk, dv; ``operands``: dy, q, k, v.
    """
    (dq, dk, dv), (dy, q, k, v) = grads, operands
    yield 0, (dq, dq), (q, dy, k, v), q.shape[0] * q.shape[1], q.shape[2]
    yield 1, (dk, dv), (k, v, q, dy), k.shape[0] * k.shape[1], k.shape[2]


def backward(grads: Arrays, delta: Array, inputs: Arrays, settings: tuple[Any, ...]) -> None:
    """``attention.backward`` into ``grads``, dq, dk, dv (B, T, heads, D), of ``inputs``, dy, q, k, v, y, lse; delta (B,
    Hq, Tq) is scratch."""
    *operands, y, lse = *map(contiguous_rows, inputs[:-1]), inputs[-1]
    for i, results, sides, heads, rows in passes(grads, tuple(operands)):
        n, steps, run = heads * rows, steps_of(*sides, y), _KERNELS[y.dtype][2 + i]
        run.launch(-(-n // 32), *results, *sides, y, lse, delta, n, *settings, *steps, threads=32)
