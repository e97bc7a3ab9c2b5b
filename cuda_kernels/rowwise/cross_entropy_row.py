"""How the kernels of ``cross_entropy`` go over a row of logits: the sum of exponentials, and the gradient."""

from typing import Any, NamedTuple

import numpy as np

from ..platform.language import cuda, math
from ..pointwise.rules import larger_of as larger
from ..ptx import ptx
from .argmax_fold import add_exponentials
from .collective import PAIR, across_block, block_sum, of_pairs

joined: Any = across_block(of_pairs(add_exponentials), PAIR)


class Passes(NamedTuple):
    """Device functions that go over a row, each thread over its elements."""

    exponentials: Any
    smoothing: Any
    gradient: Any


def row_passes(real: Any, cached: bool) -> Passes:
    """``cached``: the row is kept in, and read again from, ``cache`` in shared memory."""
    width = 16 // np.dtype(real).itemsize
    four = width == 4
    load, store = (ptx.load4, ptx.store4) if four else (ptx.load2, ptx.store2)

    def join(m: Any, s: Any, v: Any) -> Any:
        top = larger(v[0], v[1])
        if four:
            top = larger(top, larger(v[2], v[3]))
        top = larger(top, m)
        if top == real(-np.inf):
            return m, s
        added = math.exp(v[0] - top) + math.exp(v[1] - top)
        if four:
            added += math.exp(v[2] - top) + math.exp(v[3] - top)
        return top, s * math.exp(m - top) + added

    def exponentials(x: Any, base: Any, C: Any, vectors: Any, cache: Any, partial: Any) -> Any:
        """(m, s) of the row: its maximum, and the sum of e^(x - m)."""
        m, s = real(-np.inf), real(0)
        if vectors:
            step = cuda.blockDim.x * width
            j = cuda.threadIdx.x * width
            while j + step < C:  # two loads are under way at once
                v, w = load(x, base + j), load(x, base + j + step)
                if cached:
                    store(cache, j, v)
                    store(cache, j + step, w)
                m, s = join(m, s, v)
                m, s = join(m, s, w)
                j += 2 * step
            if j < C:
                v = load(x, base + j)
                if cached:
                    store(cache, j, v)
                m, s = join(m, s, v)
        else:
            for j in range(cuda.threadIdx.x, C, cuda.blockDim.x):
                value = x[base + j]
                if cached:
                    cache[j] = value
                m, s = add_exponentials(m, s, value, real(1))
        m, s = joined((m, s), partial)
        return m, s + (m - m)  # NaN where m is infinite

    def smoothing(x: Any, base: Any, C: Any, w: Any, weighted: Any, m: Any, log_s: Any, partial: Any) -> Any:
        """sum_c w_c (lse - x_c)."""
        total = real(0)
        for j in range(cuda.threadIdx.x, C, cuda.blockDim.x):
            gap = m - x[base + j] + log_s
            total += w[j] * gap if weighted else gap
        return block_sum(total, partial[0])

    def slope(x: Any, lse: Any, scale: Any, spread: Any, is_target: Any, on_target: Any) -> Any:
        return scale * math.exp(x - lse) - spread - (on_target if is_target else real(0))

    def slopes(v: Any, lse: Any, scale: Any, spread: Any, at: Any, on_target: Any) -> Any:
        low = slope(v[0], lse, scale, spread, at == 0, on_target), slope(v[1], lse, scale, spread, at == 1, on_target)
        if four:
            third = slope(v[2], lse, scale, spread, at == 2, on_target)
            return low[0], low[1], third, slope(v[3], lse, scale, spread, at == 3, on_target)
        return low

    def gradient(x, base, cache, dx, C, vectors, w, lse, scale, spread, target, on_target, spread_by_weight):
        """dx = scale e^(x - lse) - spread (times w), less on_target at the target; 0 where the target is -1."""
        if target < 0:
            for j in range(cuda.threadIdx.x, C, cuda.blockDim.x):
                dx[base + j] = real(0)
        elif vectors and not spread_by_weight:
            for j in range(cuda.threadIdx.x * width, C, cuda.blockDim.x * width):
                v = load(cache, j) if cached else load(x, base + j)
                store(dx, base + j, slopes(v, lse, scale, spread, target - j, on_target))
        else:
            for j in range(cuda.threadIdx.x, C, cuda.blockDim.x):
                share = spread * w[j] if spread_by_weight else spread
                value = cache[j] if cached and not vectors else x[base + j]  # this thread put it there
                dx[base + j] = slope(value, lse, scale, share, j == target, on_target)

    return Passes(exponentials, smoothing, gradient)
