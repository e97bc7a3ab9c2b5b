"""Philox4x32-10, a counter-based generator: any element of any draw is a function of (seed, offset, index).

No generator state is shared or advanced: a dropout mask is drawn again in the backward pass instead of stored.

    key     = (seed low word, seed high word)
    counter = (block low, block high, offset low, offset high)
    element i of a draw of 32-bit words = lane i % 4 of block i // 4

Each draw uses an ``offset`` of its own. Draws of 64-bit values take the words 2i (low half) and 2i + 1 for element i.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the tests hold its known answers.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

LOW = 0xFFFFFFFF


def philox4x32(counter: Sequence[Any], key: Sequence[int]) -> list[Any]:
    """Ten rounds: a counter of four words, uint64 arrays or numbers below 2^32, and a key of two, to four words."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & LOW, (left >> 32) ^ c3 ^ k1, left & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return [c0, c1, c2, c3]


class random:
    """Draws of a seed and an offset."""

    def state(seed: int, offset: int) -> tuple[np.uint64, np.uint64]:
        """Both as uint64. Raises ValueError unless seed is in 0..2^64 - 1, offset in 0..2^63 - 1."""
        for name, value, bits in (("seed", seed, 64), ("offset", offset, 63)):
            if not 0 <= value < 2**bits:
                raise ValueError(f"{name}={value}: expected an integer from 0 to 2**{bits} - 1")
        return np.uint64(seed), np.uint64(offset)

    def philox_bits(n: int, seed: int, offset: int) -> np.ndarray:
        """The first n words of the draw: uint32 (n,)."""
        key, draw = (int(number) for number in random.state(seed, offset))
        blocks = np.arange(-(-n // 4), dtype=np.uint64)
        offsets = np.full(blocks.shape, draw & LOW, np.uint64), np.uint64(draw >> 32)
        words = philox4x32((blocks & LOW, blocks >> 32, *offsets), (key & LOW, key >> 32))
        return np.stack(words, 1).astype(np.uint32).reshape(-1)[:n]

    def uniform(shape: int | Sequence[int], dtype: Any, seed: int, offset: int) -> np.ndarray:
        """Uniform in [0, 1), float32 (multiples of 2^-24) or float64 (multiples of 2^-53)."""
        out = real(shape, dtype)
        words = random.philox_bits(out.size * out.itemsize // 4, seed, offset)
        return units(words.view(f"u{out.itemsize}")).reshape(out.shape)

    def normal(shape: int | Sequence[int], dtype: Any, seed: int, offset: int) -> np.ndarray:
        """Standard normal, float32 or float64: the same float64 numbers, rounded. One word for each element; |z| < 6.8.

        Box-Muller: words u, v -> r cos(t), r sin(t) with r = sqrt(-2 log((u + 1/2) / 2^32)), t = 2 pi v / 2^32.
        """
        out = real(shape, dtype)
        pairs = random.philox_bits(out.size + out.size % 2, seed, offset).view(np.uint64)
        both = np.stack([normals(pairs, QUARTER), normals(pairs, 0)], 1)
        return both.reshape(-1)[: out.size].reshape(out.shape).astype(out.dtype)

    def integers(low: int, high: int, shape: int | Sequence[int], seed: int, offset: int) -> np.ndarray:
        """int64 in [low, high): low + floor(word64 * span / 2^64), which favours no value by more than 2^-64.

        Raises ValueError if the range is empty or leaves int64.
        """
        if not -(2**63) <= low < high < 2**63:
            raise ValueError(f"integers(low={low}, high={high}): expected -2**63 <= low < high < 2**63")
        out = np.empty(shape, np.int64)
        span = high - low
        return scaled(_words64(out.size, seed, offset), span & LOW, span >> 32, low).reshape(out.shape)

    def permutation(n: int, seed: int, offset: int) -> np.ndarray:
        """A random permutation of 0..n-1, int64: the stable order of n random 64-bit keys."""
        return np.argsort(_words64(n, seed, offset), kind="stable").astype(np.int64, copy=False)


# Factors of the highest power first: sin(r) = r + r^3 P(r^2), |r| <= pi / 2, a minimax fit with an error of 3e-19; and
# log(1 + f) = f - h + s (h + s^2 P(s^2)), h = f^2 / 2, s = f / (2 + f), within 1 ulp (fdlibm's). ln 2 as a sum.
SINE = (2.7211748943622273e-15, -7.642991481173841e-13, 1.6058939705512328e-10, -2.5052106872793323e-08,
        2.755731921113717e-06, -1.9841269841209219e-4, 8.333333333333194e-03, -0.16666666666666666)  # fmt: skip
LOGARITHM = (1.479819860511658591e-1, 1.531383769920937332e-1, 1.818357216161805012e-1, 2.222219843214978396e-1,
             2.857142874366239149e-1, 3.999999999940941908e-1, 6.666666666666735130e-1)  # fmt: skip
LN2 = (0.693147180369123816490, 1.90821492927058770002e-10)
QUARTER, SQRT_HALF = 1 << 30, 0x3FE6A09E667F3BCD  # of a turn of 2^32, and the bits of the number


def normals(pairs: Any, turn: int) -> Any:
    """r sin(t + turn), float64, of words u + 2^32 v; by steps that round alike wherever they are computed."""
    bits = ((pairs & LOW).astype(np.float64) + 0.5).view(np.int64)
    exponent = (bits - SQRT_HALF) >> 52
    f = (bits - (exponent << 52)).view(np.float64) - 1
    n, s, h = (exponent - 32).astype(np.float64), f / (f + 2), f * f * 0.5
    rest = s * (h + _polynomial(LOGARITHM, s * s) * (s * s))
    log = n * LN2[0] + (f - (h - (rest + n * LN2[1])))
    v = (pairs >> 32) + turn
    half = (v + QUARTER) & (1 << 31)  # turned by half of a turn, t is near 0
    r = (v ^ half).astype(np.uint32).view(np.int32).astype(np.float64) * (2 * math.pi * 2**-32)
    sine = _polynomial(SINE, r * r) * (r * r) * r + r
    return np.sqrt(log * -2) * np.where(half != 0, -sine, sine)


def _polynomial(factors: tuple[float, ...], x: Any) -> Any:
    return functools.reduce(lambda y, factor: y * x + factor, factors)


def units(words: Any) -> Any:
    """Words of 32 or 64 bits as float32 or float64 in [0, 1): the upper 24 or 53 bits."""
    if words.dtype.itemsize == 4:
        return (words >> 8).view(np.int32).astype(np.float32) * np.float32(2**-24)
    return (words >> 11).view(np.int64).astype(np.float64) * 2**-53


def scaled(words: Any, span_low: int, span_high: int, low: int) -> Any:
    """low + floor(word64 * span / 2^64), int64, by the schoolbook product of 32-bit halves."""
    middle = (words >> 32) * span_low + ((words & LOW) * span_low >> 32)
    other = (words & LOW) * span_high + (middle & LOW)
    return ((words >> 32) * span_high + (middle >> 32) + (other >> 32)).view(np.int64) + low


def _words64(n: int, seed: int, offset: int) -> np.ndarray:
    return random.philox_bits(2 * n, seed, offset).view(np.uint64)


def real(shape: int | Sequence[int], dtype: Any) -> np.ndarray:
    out = np.empty(shape, dtype)
    if out.dtype not in (np.float32, np.float64):
        raise TypeError(f"dtype {out.dtype}: random draws are float32 or float64; cast the result")
    return out


class dropout:
    """y = x * mask / (1 - p), mask[i] = 1 with probability 1 - p;  dx = dy * mask / (1 - p) (Srivastava et al. 2014).

    As in PyTorch the mask is multiplied, so a dropped NaN or infinity gives NaN.
    """

    def forward(x: np.ndarray, p: float, seed: int, offset: int) -> np.ndarray:
        """x float32 or float64, any shape -> y of the same shape; 0 <= p <= 1."""
        if not 0 <= p <= 1:
            raise ValueError(f"p={p}: expected a probability from 0 to 1")
        with np.errstate(invalid="ignore"):
            return np.asarray(x * mask(x.shape, x.dtype, p, seed, offset))


def mask(shape: Sequence[int], dtype: Any, p: float, seed: int, offset: int) -> np.ndarray:
    """0 with probability p, else 1 / (1 - p). An element is dropped if its draw in [0, 1) is below float32(p)."""
    kept = random.uniform(shape, np.float32, seed, offset) >= np.float32(p)
    real = np.dtype(dtype).type
    with np.errstate(divide="ignore"):
        return np.where(kept, real(1) / (real(1) - real(p)), real(0))
