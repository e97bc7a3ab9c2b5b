"""Philox4x32-10, a counter-based generator: any element of any draw is a function of (seed, offset, index).

    key     = (seed low word, seed high word)
    counter = (block low, block high, offset low, offset high)
    element i of a draw of 32-bit words = lane i % 4 of block i // 4

Draws of 64-bit values take the words 2i (low half) and 2i + 1 for element i. The words, and what is made of them by
integer arithmetic and exact scaling (uniform, integers, masks), are the CPU backend's; normal numbers are the same but
for the rounding of the logarithm, sine and cosine. A thread computes one block of four words.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.plain_kernels import random as plain

from .platform import recording
from .platform.toolbox import Array, Kernel, cuda, empty, kernel, libdevice, math
from .pointwise.philox import HALF_WORD, philox_block, unit_float32
from .ptx import ptx
from .ptx.fours import each, storer_inside

state: Callable[[int, int], Any] = plain.state
ELEVEN = np.uint64(11)
TOP_BIT = np.uint64(1 << 63)


def word64(low: Any, high: Any) -> Any:
    """Two words as one of 64 bits."""
    return np.uint64(high) << HALF_WORD | np.uint64(low)


def store_two(y: Any, first: Any, n: Any, values: Any) -> None:
    """y[first], y[first + 1] = values, as far as n reaches; 16 bytes at once but for the last."""
    if first + 2 <= n:
        ptx.store2(y, first, values)
    else:
        y[first] = values[0]


def unit_float64(low: Any, high: Any) -> Any:
    """Two words as a float64 in [0, 1): the upper 53 bits."""
    return np.float64(np.int64(word64(low, high) >> ELEVEN)) * 2.0**-53


def sort_key(low: Any, high: Any) -> Any:
    """Two words as an int64 of the same order."""
    return np.int64(word64(low, high) ^ TOP_BIT)


def _of_words(name: str, word: str, count: int, values_of: Any) -> Kernel:
    """The kernel of elements of which a thread makes ``count``, 4 or 2: ``values_of`` the four words of a block."""
    store = store_two if count == 2 else storer_inside(np.dtype(word).itemsize)

    @kernel(f"{word}*, int64, uint64 x2", registers=32, name=name)
    def draw_words(y: Any, n: Any, seed: Any, offset: Any) -> None:
        block = cuda.grid(1)
        if count * block < n:
            store(y, count * block, n, values_of(philox_block(np.uint64(block), seed, offset)))

    return draw_words


def _pairs(function: Any) -> Any:
    """Of four words two values, each of two."""
    return lambda words: (function(words[0], words[1]), function(words[2], words[3]))


def box_muller(u: Any, v: Any, word: Any) -> Any:
    """Two normal float64 of two words: r cos(t), r sin(t), r = sqrt(-2 log((u + 1/2) w)), t = 2 pi v w, w = 2^-32."""
    radius = math.sqrt(-2.0 * math.log((np.float64(u) + 0.5) * word))
    half_turns = 2.0 * word * np.float64(v)  # cospi needs no reduction of large angles, which takes local memory
    return radius * libdevice.cospi(half_turns), radius * libdevice.sinpi(half_turns)


def _normal(real: Any) -> Kernel:
    dtype, store = real.__name__, storer_inside(np.dtype(real).itemsize)

    @kernel(f"{dtype}*, int64, uint64 x2, float64", registers=64, of=dtype)
    def normal(y: Any, n: Any, seed: Any, offset: Any, word: Any) -> None:
        """``word``: 2^-32, an argument because it is of float64, in which a kernel computes only if it says so."""
        block = cuda.grid(1)
        if 4 * block < n:
            a, b, c, d = philox_block(np.uint64(block), seed, offset)
            (z0, z1), (z2, z3) = box_muller(a, b, word), box_muller(c, d, word)
            store(y, 4 * block, n, (real(z0), real(z1), real(z2), real(z3)))

    return normal


bits: Kernel = _of_words("bits", "uint32", 4, lambda words: words)
uniform_float32: Kernel = _of_words("uniform_float32", "float32", 4, each(unit_float32))
uniform_float64: Kernel = _of_words("uniform_float64", "float64", 2, _pairs(unit_float64))
sort_keys: Kernel = _of_words("sort_keys", "int64", 2, _pairs(sort_key))
_NORMAL = {np.dtype(real): _normal(real) for real in (np.float32, np.float64)}


@kernel("int64*, int64, uint64 x4", registers=40)
def integers_int64(y: Any, n: Any, seed: Any, offset: Any, low: Any, span: Any) -> None:
    block = cuda.grid(1)
    if 2 * block < n:
        a, b, c, d = philox_block(np.uint64(block), seed, offset)
        first, second = libdevice.umul64hi(word64(a, b), span), libdevice.umul64hi(word64(c, d), span)
        store_two(y, 2 * block, n, (np.int64(low + np.uint64(first)), np.int64(low + np.uint64(second))))


# Launchers ------------------------------------------------------------------------------------------------------------


def draw(what: Kernel, y: Array, per_block: int, seed: int, offset: int, *more: Any) -> Array:
    """Launch ``what``, whose threads make ``per_block`` elements each, on all of ``y``; returns it.

    Raises ValueError unless seed is in 0..2^64 - 1 and offset in 0..2^63 - 1.
    """
    if recording.current() is None:  # else they are an address, and an offset with ``ON_DEVICE``
        state(seed, offset)
    what.launch_each(-(-y.size // per_block), y, y.size, seed, offset, *more)
    return y


def philox_bits(n: int, seed: int, offset: int) -> Array:
    """The first n words of the draw: uint32 (n,)."""
    return draw(bits, empty(n, np.uint32), 4, seed, offset)


def uniform(shape: int | tuple[int, ...], dtype: Any, seed: int, offset: int) -> Array:
    """Uniform in [0, 1), float32 (multiples of 2^-24) or float64 (multiples of 2^-53)."""
    y = empty(shape, dtype)
    if y.dtype == np.float32:
        return draw(uniform_float32, y, 4, seed, offset)
    return draw(uniform_float64, y, 2, seed, offset)


def normal(shape: int | tuple[int, ...], dtype: Any, seed: int, offset: int) -> Array:
    """Standard normal, float32 or float64: the same float64 numbers, rounded. One word for each element; |z| < 6.8."""
    y = empty(shape, dtype)
    return draw(_NORMAL[y.dtype], y, 4, seed, offset, 2.0**-32)


def integers(low: int, high: int, shape: int | tuple[int, ...], seed: int, offset: int) -> Array:
    """int64 in [low, high), by multiplication of 64 random bits: no value's probability is off by more than 2^-64.

    Raises ValueError if the range is empty or leaves int64.
    """
    if not -(2**63) <= low < high < 2**63:
        raise ValueError(f"integers(low={low}, high={high}): expected -2**63 <= low < high < 2**63")
    return draw(integers_int64, empty(shape, np.int64), 2, seed, offset, low % 2**64, high - low)


def permutation(n: int, seed: int, offset: int) -> Array:
    """A random permutation of 0..n-1, int64: the stable order of n random 64-bit keys."""
    from . import indexing

    return indexing.argsort(draw(sort_keys, empty(n, np.int64), 2, seed, offset), 0, False)
