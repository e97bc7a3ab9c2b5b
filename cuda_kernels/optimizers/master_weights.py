"""Optimizers of half weights with float32 masters, in one launch: the gradient is read, the master and the states are
updated, and the weight is written, the master rounded to it. A weight costs 2 bytes read and 2 written more than a
float32 one's step, and no copies are made.

The arithmetic is the optimizer's own ``element`` (``multi_tensor.updater``); the bits are those of a cast of the
gradient, the float32 step, and a cast of the master.

Source: Micikevicius et al., "Mixed precision training" (2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..platform.language import THREADS, cuda, device_function
from ..platform.launch import Kernel, kernel
from ..pointwise.conversion import element_conversions
from ..ptx import ptx
from .multi_tensor import chunk_of, row_of

HALVES = ("bfloat16", "float16")


def master_updater(name: str, half: str, element: Callable[..., Any], registers: int) -> Kernel:
    """As ``multi_tensor.updater`` with two states, for weights and gradients of dtype ``half``.

    ``addresses`` (tensors, 4): the master, its states, the weight.
    """
    widen, narrow = element_conversions(half)
    update = device_function(element)

    @kernel(
        "int64*", "int64*", "int64*", "int32*", "float32*", "int32",
        threads=THREADS, registers=registers, name=f"{name}_{half}", vector_loads=True,
    )  # fmt: skip
    def step(addresses, sizes, grads, chunks, scalars, length):
        tensor, first, n = chunk_of(chunks, sizes, length)
        row = row_of(scalars, tensor)
        p_address = addresses[4 * tensor] + first * 4
        s_address = addresses[4 * tensor + 1] + first * 4
        t_address = addresses[4 * tensor + 2] + first * 4
        w_address = addresses[4 * tensor + 3] + first * 2
        g_address = grads[tensor] + first * 2
        p, s, t = ptx.pointer_float32(p_address), ptx.pointer_float32(s_address), ptx.pointer_float32(t_address)
        w, g = ptx.pointer_uint16(w_address), ptx.pointer_uint16(g_address)
        i = cuda.threadIdx.x
        if ((p_address | s_address | t_address) & 15) | ((w_address | g_address) & 7) == 0:
            i = cuda.threadIdx.x * 4
            while i + 4 <= n:
                a, b, c, d = ptx.load4(p, i), ptx.load4(s, i), ptx.load4(t, i), ptx.load4(g, i)
                p0, s0, t0 = update(row, a[0], widen(d[0]), b[0], c[0])
                p1, s1, t1 = update(row, a[1], widen(d[1]), b[1], c[1])
                p2, s2, t2 = update(row, a[2], widen(d[2]), b[2], c[2])
                p3, s3, t3 = update(row, a[3], widen(d[3]), b[3], c[3])
                ptx.store4(p, i, (p0, p1, p2, p3))
                ptx.store4(s, i, (s0, s1, s2, s3))
                ptx.store4(t, i, (t0, t1, t2, t3))
                ptx.store4(w, i, (narrow(p0), narrow(p1), narrow(p2), narrow(p3)))
                i += cuda.blockDim.x * 4
            i = n - n % 4 + cuda.threadIdx.x
        while i < n:
            p_one, s_one, t_one = update(row, p[i], widen(g[i]), s[i], t[i])
            p[i] = p_one
            s[i] = s_one
            t[i] = t_one
            w[i] = narrow(p_one)
            i += cuda.blockDim.x

    return step
