"""What ``batch_norm`` and ``group_norm`` do by channel with x (N, C, S): sums over N and S.

Each sample n and channel c has the statistics number n ``per_sample`` + c // ``width``: of batch_norm (0, 1), the
channel's; of group_norm (G, C / G), those of the sample's group.
"""

from typing import Any

import numpy as np

from ..platform.array import Array, empty
from ..platform.language import THREADS, cuda
from ..platform.launch import Kernel, kernel
from .collective import PAIR, add_pairs, down_column
from .fold import COLUMN_PART, FOLD_BLOCKS, fold
from .rows import ceil_div, power_of_two, quotient

of_column: Any = down_column(add_pairs, PAIR)


def _sums(real: Any, of_slopes: bool) -> Kernel:
    word = real.__name__

    @kernel(f"{word}* x6, int64 x8", registers=40, name=f"{'slopes' if of_slopes else 'squares'}_{word}")
    def sums(dy, x, mean, rstd, first, second, N, C, S, part, per_sample, width, step_n, step_s):
        """first[p, c], of slopes: the sum of dy, second: of dy xhat; else first: of (x - mean)^2. p: part of N S.

        ``blockDim.y`` threads share a channel; (step_n, step_s) is how far each goes at once, blockDim.y places.
        """
        firsts = cuda.shared.array(THREADS, real)
        seconds = cuda.shared.array(THREADS, real)
        place, height = cuda.threadIdx.y, cuda.blockDim.y
        c = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        a, b = real(0), real(0)
        start = cuda.blockIdx.y * part
        stop = min(N * S, start + part)
        n = quotient(start + place, S)
        s = start + place - n * S
        group = quotient(c, width)
        for _ in range(start + place, stop if c < C else 0, height):
            at = (n * C + c) * S + s
            index = n * per_sample + group
            centred = x[at] - mean[index]
            if of_slopes:
                a += dy[at]
                b += dy[at] * (centred * rstd[index])
            else:
                a += centred * centred
            n += step_n
            s += step_s
            if s >= S:
                s -= S
                n += 1
        a, b = of_column((a, b), (firsts, seconds))
        if c < C and place == 0:
            first[cuda.blockIdx.y * C + c] = a
            if of_slopes:
                second[cuda.blockIdx.y * C + c] = b

    return sums


CHANNELS: dict[tuple[Any, bool], Kernel] = {
    (np.dtype(real), of_slopes): _sums(real, of_slopes)
    for real in (np.float32, np.float64)
    for of_slopes in (False, True)
}


def sums(
    of_slopes: bool, dy: Array, x: Array, mean: Array, rstd: Array, per_sample: int, width: int
) -> tuple[Array, Array]:
    """``of_slopes``: the sums over N and S of dy and dy xhat, (C,); else: of (x - mean)^2, and again."""
    N, C, S = x.shape
    across = 1 if S >= 32 else power_of_two(min(C, 32))
    height = min(THREADS // across, power_of_two(ceil_div(N * S, 4)))
    blocks = ceil_div(C, across)
    parts = max(1, min(N * S // (height * COLUMN_PART), 2 * FOLD_BLOCKS // max(blocks, 1)))
    part = ceil_div(N * S, parts)
    parts = max(1, ceil_div(N * S, max(part, 1)))
    first = empty(parts * C, x.dtype, x.device)
    second = empty(parts * C, x.dtype, x.device) if of_slopes else first
    step_n, step_s = divmod(height, max(S, 1))
    CHANNELS[x.dtype, of_slopes].launch(
        (blocks, parts), dy, x, mean, rstd, first, second, N, C, max(S, 1), part if N * S else 0,
        per_sample, width, step_n, step_s, threads=(across, height),
    )  # fmt: skip
    if parts == 1:
        return first, second
    return tuple(fold("sum", a, 1, parts, C, x.dtype) for a in (first, second))  # type: ignore[return-value]
