"""Attention with a thread for each row: small problems, and heads of any size.

The formulas are those of ``attention.py``. A thread walks over the keys of its query (for dk and dv: the queries of its
key) and keeps only the running maximum and sum; what it adds up over D columns lies in the result itself. This is
the plain version of ``flash.py``, which computes the same on tiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..platform.array import Array, copy
from ..platform.language import cuda, device_function, math
from ..platform.launch import Kernel, kernel
from ..pointwise.philox import philox_block, unit_float32

Arrays = tuple[Array, ...]
# Hq, H, Tq, Tk, D; causal; threshold, seed and offset of dropout.
SIZES = "int64 x5, int32, float32, uint64 x2"
THREE, TWO = np.uint64(3), np.uint64(2)


def steps_of(*operands: Array) -> list[int]:
    """Steps of operands (B, heads, T, D) along their first three dimensions; the last is contiguous."""
    return [step for x in operands for step in x.steps[:3]]


@device_function
def dropped(index: Any, threshold: Any, seed: Any, offset: Any) -> Any:
    """Whether dropout takes element ``index`` of the (B, H, Tq, Tk) probabilities: as ``fill_dropout`` of the CPU."""
    place = np.uint64(index)
    a, b, c, d = philox_block(place >> TWO, seed, offset)
    lane = np.int32(place & THREE)
    word = a if lane == 0 else b if lane == 1 else c if lane == 2 else d
    return unit_float32(np.uint32(word)) < threshold


@device_function
def place_of(row: Any, T: Any, heads: Any) -> Any:
    """The batch, head and position of a row."""
    outer = row // T
    b = outer // heads
    return b, outer - b * heads, row - outer * T


@device_function
def dot(x: Any, i: Any, y: Any, j: Any, D: Any, zero: Any) -> Any:
    """The sum of x[i + c] y[j + c] over D columns."""
    s = zero
    for c in range(D):
        s += x[i + c] * y[j + c]
    return s


def _kernels(real: Any) -> tuple[Kernel, Kernel, Kernel]:
    word = np.dtype(real).name

    @kernel(f"{word}* x5, int64, {SIZES}, {word} x2, int64 x9", threads=128, registers=56, of=word)
    def forward(
        y, lse, q, k, v, n, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    ):  # fmt: skip
        """y (B, Tq, Hq, D) and lse (n,), n = B Hq Tq rows."""
        row = np.int64(cuda.grid(1))
        if row < n:
            b, h, i = place_of(row, Tq, Hq)
            kv = h // (Hq // H)
            query = b * q_b + h * q_h + i * q_t
            key, value = b * k_b + kv * k_h, b * v_b + kv * v_h
            place = ((b * Tq + i) * Hq + h) * D
            zero, one = real(0), real(1)
            for c in range(D):
                y[place + c] = zero
            largest, total = -real(math.inf), zero
            for j in range(min(Tk, i + 1) if causal else Tk):
                s = scale * dot(q, query, k, key + j * k_t, D, zero)
                if s > largest:
                    decay = math.exp(largest - s)
                    largest = s
                    total *= decay
                    for c in range(D):
                        y[place + c] *= decay
                p = math.exp(s - largest) if s != -real(math.inf) else zero
                total += p
                if threshold > np.float32(0):
                    p = zero if dropped(row * Tk + j, threshold, seed, offset) else p * kept
                for c in range(D):
                    y[place + c] += p * v[value + j * v_t + c]
            lse[row] = largest + math.log(total)
            inverse = one / total if Tk > 0 else zero
            for c in range(D):
                y[place + c] *= inverse

    @kernel(
        f"{word}* x8, int64, {SIZES}, {word} x2, int64 x15",
        threads=128, registers={"float32": 56, "float64": 64}[word], of=word,
    )  # fmt: skip
    def dq(
        grads, delta, dy, q, k, v, y, lse, n, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t,
    ):  # fmt: skip
        """grads: dq (B, Tq, Hq, D), and delta (n,) = sum over D of dy y."""
        row = np.int64(cuda.grid(1))
        if row < n:
            b, h, i = place_of(row, Tq, Hq)
            kv = h // (Hq // H)
            query, gradient = b * q_b + h * q_h + i * q_t, b * dy_b + h * dy_h + i * dy_t
            key, value = b * k_b + kv * k_h, b * v_b + kv * v_h
            place = ((b * Tq + i) * Hq + h) * D
            zero = real(0)
            shared_part = dot(dy, gradient, y, b * y_b + h * y_h + i * y_t, D, zero)
            delta[row] = shared_part
            for c in range(D):
                grads[place + c] = zero
            for j in range(min(Tk, i + 1) if causal else Tk):
                p = math.exp(scale * dot(q, query, k, key + j * k_t, D, zero) - lse[row])
                dp = dot(dy, gradient, v, value + j * v_t, D, zero)
                if threshold > np.float32(0):
                    dp = zero if dropped(row * Tk + j, threshold, seed, offset) else dp * kept
                ds = p * (dp - shared_part) * scale
                for c in range(D):
                    grads[place + c] += ds * k[key + j * k_t + c]

    @kernel(f"{word}* x8, int64, {SIZES}, {word} x2, int64 x12", threads=128, registers=80, resident=6, of=word)
    def dk_dv(
        dk, dv, dy, q, k, v, lse, delta, n, Hq, H, Tq, Tk, D, causal, threshold, seed, offset, scale, kept,
        dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    ):  # fmt: skip
        """dk and dv (B, Tk, H, D), n = B H Tk rows, each the sum over the queries of its head group."""
        row = np.int64(cuda.grid(1))
        if row < n:
            b, kv, j = place_of(row, Tk, H)
            group = Hq // H
            key, value = b * k_b + kv * k_h + j * k_t, b * v_b + kv * v_h + j * v_t
            place = ((b * Tk + j) * H + kv) * D
            zero = real(0)
            for c in range(D):
                dk[place + c] = zero
                dv[place + c] = zero
            for h in range(kv * group, kv * group + group):
                for i in range(j if causal else 0, Tq):
                    query, gradient = b * q_b + h * q_h + i * q_t, b * dy_b + h * dy_h + i * dy_t
                    other = (b * Hq + h) * Tq + i
                    p = math.exp(scale * dot(q, query, k, key, D, zero) - lse[other])
                    dp = dot(dy, gradient, v, value, D, zero)
                    weight = p
                    if threshold > np.float32(0):
                        factor = zero if dropped(other * Tk + j, threshold, seed, offset) else kept
                        dp *= factor
                        weight *= factor
                    ds = p * (dp - delta[other]) * scale
                    for c in range(D):
                        dk[place + c] += ds * q[query + c]
                        dv[place + c] += weight * dy[gradient + c]

    return forward, dq, dk_dv


_KERNELS = {np.dtype(real): _kernels(real) for real in (np.float32, np.float64)}


def contiguous_rows(x: Array) -> Array:
    """x (B, heads, T, D), or a copy, with contiguous rows."""
    return x if x.steps[-1] == 1 or x.shape[-1] <= 1 else copy(x)


def forward(y: Array, lse: Array, inputs: Arrays, settings: tuple[Any, ...]) -> None:
    """``attention.forward`` of ``inputs``, q, k, v, into y (B, Tq, Hq, D) and lse."""
    inputs = tuple(map(contiguous_rows, inputs))
    run, n = _KERNELS[y.dtype][0], lse.size
    run.launch(-(-n // 32), y, lse, *inputs, n, *settings, *steps_of(*inputs), threads=32)


def backward(grads: Arrays, delta: Array, inputs: Arrays, settings: tuple[Any, ...]) -> None:
    """``attention.backward`` into ``grads``, dq, dk, dv (B, T, heads, D), of ``inputs``, dy, q, k, v, y, lse; delta (B,
    Hq, Tq) is scratch."""
    (dq, dk, dv), (*operands, lse) = grads, inputs
    dy, q, k, v, y = operands = [contiguous_rows(x) for x in operands]
    _, queries, keys = _KERNELS[y.dtype]
    arguments, n, rows = (*settings, *steps_of(*operands)), lse.size, k.shape[0] * k.shape[1] * k.shape[2]
    queries.launch(-(-n // 32), dq, delta, *operands, lse, n, *arguments, threads=32)
    keys.launch(-(-rows // 32), dk, dv, dy, q, k, v, lse, delta, rows, *arguments[:-3], threads=32)
