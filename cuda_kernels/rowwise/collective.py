"""What the threads of a warp or of a block compute together. All of them must call.

Each is made for an associative ``combine`` of two values. It takes all values in a fixed order, so a kernel gives the
same bits at each run. A value is a number, or a pair with ``PAIR`` (``of_pairs`` makes its ``combine``):

    across_lanes(x)             over the 32 lanes of a warp, or groups of them
    across_block(x, partial)    over the threads of a block, a multiple of 32; ``partial`` is shared and holds 32. In a
                                block (32, n) each warp, which is a row of it, has its own.
    down_column(x, partial)     over the threads (x, 0), (x, 1), ... of a block, whose height is a power of 2; the
                                thread (x, 0) gets the result. ``partial`` holds one for each thread.

Lanes and threads of a block all get the result. Of pairs ``partial`` is a pair of shared arrays.
"""

from typing import Any, NamedTuple

from ..platform.language import FULL_WARP, cuda
from ..pointwise.rules import larger_of


class Moves(NamedTuple):
    """How a value moves between threads: device functions."""

    shuffled: Any  # (x, distance): the value of the lane whose number differs in this bit
    put: Any  # (partial, i, x)
    get: Any  # (partial, i)


def _shuffled(x: Any, distance: Any) -> Any:
    return cuda.shfl_xor_sync(FULL_WARP, x, distance)


def _put(partial: Any, i: Any, x: Any) -> None:
    partial[i] = x


def _put_pair(partial: Any, i: Any, x: Any) -> None:
    partial[0][i], partial[1][i] = x[0], x[1]


NUMBER = Moves(_shuffled, _put, lambda partial, i: partial[i])
PAIR = Moves(
    lambda x, distance: (_shuffled(x[0], distance), _shuffled(x[1], distance)),
    _put_pair,
    lambda partial, i: (partial[0][i], partial[1][i]),
)


def of_pairs(combine: Any) -> Any:
    """The device function (x, y) of two pairs that ``combine(x[0], x[1], y[0], y[1])`` is."""
    return lambda x, y: combine(x[0], x[1], y[0], y[1])


def across_lanes(combine: Any, moves: Moves = NUMBER, distances: tuple[int, ...] = (16, 8, 4, 2, 1)) -> Any:
    """The device function (x). ``distances``: fewer of them join groups of lanes."""
    shuffled = moves.shuffled

    def fold(x: Any) -> Any:
        for distance in distances:
            x = combine(x, shuffled(x, distance))
        return x

    return fold


def across_block(combine: Any, moves: Moves = NUMBER, again: bool = True) -> Any:
    """The device function (x, partial). ``again``: the kernel uses ``partial`` a second time."""
    of_warp, (_, put, get) = across_lanes(combine, moves), moves

    def fold(x: Any, partial: Any) -> Any:
        x = of_warp(x)
        if cuda.blockDim.x > 32:
            if cuda.threadIdx.x % 32 == 0:
                put(partial, cuda.threadIdx.x // 32, x)
            cuda.syncthreads()
            x = get(partial, 0)
            for warp in range(1, cuda.blockDim.x // 32):
                x = combine(x, get(partial, warp))
            if again:
                cuda.syncthreads()
        return x

    return fold


def down_column(combine: Any, moves: Moves = NUMBER) -> Any:
    """The device function (x, partial)."""
    _, put, get = moves

    def fold(x: Any, partial: Any) -> Any:
        place, width = cuda.threadIdx.y, cuda.blockDim.x
        half = cuda.blockDim.y >> 1
        if half > 0:
            me = place * width + cuda.threadIdx.x
            put(partial, me, x)
            cuda.syncthreads()
            while half > 0:
                if place < half:
                    x = combine(x, get(partial, me + half * width))
                    put(partial, me, x)
                cuda.syncthreads()
                half >>= 1
        return x

    return fold


def add(x: Any, y: Any) -> Any:
    """x + y."""
    return x + y


def add_pairs(x: Any, y: Any) -> Any:
    """The sums of two pairs."""
    return x[0] + y[0], x[1] + y[1]


warp_sum: Any = across_lanes(add)
warp_max: Any = across_lanes(larger_of)
"""NaN if one is."""
block_sum: Any = across_block(add)
block_max: Any = across_block(larger_of)
"""NaN if one is."""
warp_sums: Any = across_lanes(add_pairs, PAIR)
row_sums: Any = across_block(add_pairs, PAIR)
"""Two sums at once."""
