"""What ``batch_norm`` and ``group_norm`` do by channel with x (N, C, S): sums over N and S, and elementwise formulas.

Each sample n and channel c has the statistics number n ``per_sample`` + c // ``width``: of batch_norm (0, 1), the
channel's; of group_norm (G, C / G), those of the sample's group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..platform.array import DeviceArray, empty
from ..platform.language import THREADS, cuda
from ..platform.launch import Kernel, kernel
from .collective import add_pairs, down_column_of_pairs
from .fold import COLUMN_PART, FOLD_BLOCKS, fold
from .rows import ceil_div, power_of_two, quotient

of_column: Any = down_column_of_pairs(add_pairs)


class Channels(NamedTuple):
    """The kernels for one dtype."""

    squares: Kernel
    slopes: Kernel
    apply: Kernel


def _sums(real: Any, of_slopes: bool) -> Kernel:
    word = real.__name__

    @kernel(
        *(f"{word}*",) * 6, *("int64",) * 8,
        threads=THREADS, registers=40, name=f"{'slopes' if of_slopes else 'squares'}_{word}",
    )  # fmt: skip
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
        a, b = of_column(a, b, firsts, seconds)
        if c < C and place == 0:
            first[cuda.blockIdx.y * C + c] = a
            if of_slopes:
                second[cuda.blockIdx.y * C + c] = b

    return sums


def _apply(real: Any) -> Kernel:
    word = real.__name__

    @kernel(
        *(f"{word}*",) * 5, *("int64",) * 6, "int32", threads=THREADS, registers=32, name=f"apply_{word}",
    )  # fmt: skip
    def apply(x, y, mean, scale, shift, N, C, S, tiles, per_sample, width, centred):
        """y = (x - mean) scale + shift, without mean and shift where not ``centred``; scale, shift (C,). y may be x."""
        tile = quotient(np.int64(cuda.blockIdx.x), tiles)
        s = (cuda.blockIdx.x - tile * tiles) * cuda.blockDim.x + cuda.threadIdx.x
        row = tile * cuda.blockDim.y + cuda.threadIdx.y
        if s < S and row < N * C:
            n = quotient(row, C)
            c = row - n * C
            value = x[row * S + s]
            if centred:
                value = (value - mean[n * per_sample + quotient(c, width)]) * scale[c] + shift[c]
            else:
                value *= scale[c]
            y[row * S + s] = value

    return apply


CHANNELS: dict[Any, Channels] = {
    np.dtype(real): Channels(_sums(real, False), _sums(real, True), _apply(real)) for real in (np.float32, np.float64)
}


def tiles(N: int, C: int, S: int) -> tuple[int, int, tuple[int, int]]:
    """For a kernel on x (N, C, S): the grid, how many blocks lie along S, and a block's sizes along S and along N C."""
    across = min(THREADS, power_of_two(S))
    down = min(THREADS // across, power_of_two(N * C))
    along = ceil_div(S, across)
    return ceil_div(N * C, down) * along, along, (across, down)


def affine(
    x: DeviceArray, mean: DeviceArray, scale: DeviceArray, shift: DeviceArray, per_sample: int, width: int,
    y: DeviceArray | None = None,
) -> DeviceArray:  # fmt: skip
    """(x - mean) scale + shift, x (N, C, S), scale and shift (C,), into y (default: a new array)."""
    N, C, S = x.shape
    y = empty(x.shape, x.dtype, x.device) if y is None else y
    if x.size:
        grid, along, threads = tiles(N, C, S)
        CHANNELS[x.dtype].apply.launch(
            grid, x, y, mean, scale, shift, N, C, S, along, per_sample, width, 1, threads=threads
        )
    return y


def times(x: DeviceArray, scale: DeviceArray) -> DeviceArray:
    """x scale, x (N, C, S), scale (C,)."""
    N, C, S = x.shape
    y = empty(x.shape, x.dtype, x.device)
    if x.size:
        grid, along, threads = tiles(N, C, S)
        CHANNELS[x.dtype].apply.launch(grid, x, y, x, scale, scale, N, C, S, along, 0, 1, 0, threads=threads)
    return y


def sums(
    kernels: str, dy: DeviceArray, x: DeviceArray, mean: DeviceArray, rstd: DeviceArray, per_sample: int, width: int
) -> tuple[DeviceArray, DeviceArray]:
    """``kernels`` = "slopes": the sums over N and S of dy and dy xhat, (C,); "squares": of (x - mean)^2, and again."""
    N, C, S = x.shape
    across = 1 if S >= 32 else power_of_two(min(C, 32))
    height = min(THREADS // across, power_of_two(ceil_div(N * S, 4)))
    blocks = ceil_div(C, across)
    parts = max(1, min(N * S // (height * COLUMN_PART), 2 * FOLD_BLOCKS // max(blocks, 1)))
    part = ceil_div(N * S, parts)
    parts = max(1, ceil_div(N * S, max(part, 1)))
    first = empty(parts * C, x.dtype, x.device)
    second = empty(parts * C, x.dtype, x.device) if kernels == "slopes" else first
    step_n, step_s = divmod(height, max(S, 1))
    getattr(CHANNELS[x.dtype], kernels).launch(
        (blocks, parts), dy, x, mean, rstd, first, second, N, C, max(S, 1), part if N * S else 0,
        per_sample, width, step_n, step_s, threads=(across, height),
    )  # fmt: skip
    if parts == 1:
        return first, second
    return tuple(fold("sum", a, 1, parts, C, x.dtype) for a in (first, second))  # type: ignore[return-value]
