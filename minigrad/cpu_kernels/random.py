"""Philox4x32-10, a counter-based generator: any element of any draw is a function of (seed, offset, index).

No generator state is shared or advanced, so the numbers do not depend on the number of threads or on the order of work.
A dropout mask is computed again in the backward pass instead of stored.

    key     = (seed low word, seed high word)
    counter = (block low, block high, offset low, offset high)
    element i of a draw of 32-bit words = lane i % 4 of block i // 4

Each draw uses an ``offset`` of its own. Draws of 64-bit values take the words 2i (low half) and 2i + 1 for element i.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the tests hold its known answers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

from ..plain_kernels import random as plain
from ..plain_kernels.random import QUARTER, normals, real, scaled, units
from .toolbox.formula import formula, written
from .toolbox.jit import OPTIONS, kernel
from .toolbox.multi_tensor import pointer_at
from .toolbox.threads import GENERATORS, task_kernel, tasks_of

CHUNK = 16384  # elements of one task; a multiple of 4, so that tasks start on blocks

# Unsigned constants: Numba promotes uint64 with a signed int to float64. Unsigned indices besides spare the check for
# negative ones, which would keep the loops over blocks from vectorising (six times slower).
MULTIPLIER_0, MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
ON_DEVICE = np.uint64(1 << 63)
_WORD: np.ndarray = np.empty(0, np.uint64)
HALF_WORD, LOW_WORD = np.uint64(32), np.uint64(0xFFFFFFFF)


def _device(fn: Callable[..., Any]) -> Any:
    """A helper that becomes part of the kernels that call it."""
    return numba.njit(forceinline=True, **OPTIONS)(fn)


@_device
def philox4x32(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Ten rounds: counter (c0, c1, c2, c3) and key (k0, k1), all uint32, to four random uint32."""
    for _ in range(10):
        left, right = np.uint64(c0) * MULTIPLIER_0, np.uint64(c2) * MULTIPLIER_1
        c0, c1 = np.uint32(np.uint32(right >> HALF_WORD) ^ c1 ^ k0), np.uint32(right)
        c2, c3 = np.uint32(np.uint32(left >> HALF_WORD) ^ c3 ^ k1), np.uint32(left)
        k0, k1 = np.uint32(k0 + WEYL_0), np.uint32(k1 + WEYL_1)
    return c0, c1, c2, c3


@_device
def philox_block(block: Any, seed: Any, offset: Any) -> Any:
    """Four random uint32: the words 4 * block to 4 * block + 3 of the draw; all arguments uint64."""
    counter = np.uint32(block), np.uint32(block >> HALF_WORD), np.uint32(offset), np.uint32(offset >> HALF_WORD)
    return philox4x32(*counter, np.uint32(seed), np.uint32(seed >> HALF_WORD))


@_device
def unit_float32(word: np.uint32) -> np.float32:
    """A uint32 as a float32 in [0, 1): its upper 24 bits."""
    # Through int32: conversion of unsigned words needs AVX-512 to vectorise.
    return np.float32(np.int32(word >> np.uint32(8))) * np.float32(2.0**-24)


@_device
def _now(seed, offset):
    """The seed and offset of a draw: those given, or in a graph what its launch has put at the address ``seed``."""
    if offset < ON_DEVICE:
        return seed, offset
    words = pointer_at(np.int64(seed), _WORD)
    return words[0], words[1] + (offset - ON_DEVICE)


@kernel
def fill_bits(words: np.ndarray, first_block: int | np.uint64, seed: int | np.uint64, offset: int | np.uint64) -> None:
    """words (n,) uint32, contiguous <- the draw's words from block ``first_block`` on."""
    n = words.shape[0]
    seed, offset = _now(np.uint64(seed), np.uint64(offset))
    for b in range(n // 4):
        j = np.uint64(b) * FOUR
        block = philox_block(np.uint64(first_block) + np.uint64(b), seed, offset)
        words[j], words[j + ONE], words[j + TWO], words[j + THREE] = block
    if n % 4:
        last = philox_block(np.uint64(first_block) + np.uint64(n // 4), seed, offset)
        for lane in range(n % 4):
            words[n // 4 * 4 + lane] = last[lane]


@kernel
def fill_dropout(row: np.ndarray, start: Any, seed: Any, offset: Any, p: float) -> None:
    """row[j] <- 0 with probability p, else 1 / (1 - p), for the elements ``start + j`` of the draw.

    row (n,) float32 or float64, contiguous; 0 <= p <= 1. An element is dropped if its word as a float32 in [0, 1)
    is below float32(p), in both precisions, so p = 1 drops all.
    """
    real, first = row.dtype.type, np.uint64(start)
    kept, threshold, skipped = real(1) / (real(1) - real(p)), np.float32(p), np.int64(first % FOUR)
    words = np.empty(skipped + row.shape[0], np.uint32)
    fill_bits(words, first // FOUR, seed, offset)
    for j in range(row.shape[0]):
        row[j] = kept if unit_float32(words[skipped + j]) >= threshold else real(0)


# Work is cut by CHUNK, not by threads.


@task_kernel
def _bits(task, tasks, words, seed, offset):
    fill_bits(words[task * CHUNK : (task + 1) * CHUNK], task * CHUNK // 4, seed, offset)


def state(seed: int, offset: int) -> tuple[np.uint64, np.uint64]:
    """Both as uint64; in a graph the address of the two, and the number of the draw beyond ON_DEVICE. ValueError as in
    the plain kernels."""
    if seed in GENERATORS and offset >= ON_DEVICE:
        return np.uint64(seed), np.uint64(offset)
    return plain.state(seed, offset)


def philox_bits(n: int, seed: int, offset: int) -> np.ndarray:
    """The first n words of the draw: uint32 (n,)."""
    words = np.empty(n, np.uint32)
    _bits.launch(None, tasks_of(n, CHUNK), words, *state(seed, offset))
    return words


_units = formula(units)
_scaled = formula(scaled)


def uniform(shape: int | Sequence[int], dtype: Any, seed: int, offset: int) -> np.ndarray:
    """Uniform in [0, 1), float32 (multiples of 2^-24) or float64 (multiples of 2^-53)."""
    out = real(shape, dtype)
    return _made(out, _units, philox_bits(out.size * out.itemsize // 4, seed, offset).view(f"u{out.itemsize}"))


def _made(out: np.ndarray, of: Any, *inputs: Any) -> np.ndarray:
    """``out``, with what a formula makes of words."""
    flat = out.reshape(-1)
    if not written(flat, of, *inputs):
        flat[:] = of(*inputs)
    return out


_normals = formula(lambda pairs, turn, dtype: normals(pairs, turn).astype(dtype))
_two_normals = formula(lambda pairs: _bits_of(pairs, QUARTER) | _bits_of(pairs, 0) << 32)  # float32, as one number


def _bits_of(pairs: Any, turn: int) -> Any:
    return normals(pairs, turn).astype(np.float32).view(np.uint32).astype(np.uint64)


def normal(shape: int | Sequence[int], dtype: Any, seed: int, offset: int) -> np.ndarray:
    """Standard normal, float32 or float64: the same float64 numbers, rounded. One word for each element; |z| < 6.8."""
    out = real(shape, dtype)
    flat, pairs = out.reshape(-1), philox_bits(out.size + out.size % 2, seed, offset).view(np.uint64)
    whole = out.size // 2 if out.itemsize == 4 else 0
    _made(flat[: 2 * whole].view(np.uint64), _two_normals, pairs[:whole])
    for lane, turn in enumerate((QUARTER, 0) if 2 * whole < out.size else ()):
        _made(flat[2 * whole + lane :: 2], _normals, pairs[whole : (out.size + 1 - lane) // 2], turn, out.dtype)
    return out


def integers(low: int, high: int, shape: int | Sequence[int], seed: int, offset: int) -> np.ndarray:
    """int64 in [low, high), by multiplication of 64 random bits: no value's probability is off by more than 2^-64.

    Raises ValueError if the range is empty or leaves int64.
    """
    if not -(2**63) <= low < high < 2**63:
        raise ValueError(f"integers(low={low}, high={high}): expected -2**63 <= low < high < 2**63")
    out, span = np.empty(shape, np.int64), high - low
    words = philox_bits(2 * out.size, seed, offset).view(np.uint64)
    return _made(out, _scaled, words, span & 0xFFFFFFFF, span >> 32, low)


_placed = formula(lambda keys, upper, places: ((keys ^ -(2**63)) & upper) | places)  # signed, but of the same order
_tied = formula(lambda x, y, upper: ((x ^ y) & upper) == 0)


def permutation(n: int, seed: int, offset: int) -> np.ndarray:
    """A random permutation of 0..n-1, int64: the stable order of n random 64-bit keys.

    A key's place takes the lower bits, so that NumPy's sort, which is fast, is one of numbers. Then keys are put in
    order that the upper bits do not tell apart.
    """
    keys, upper = philox_bits(2 * n, seed, offset).view(np.uint64), -1 << max(n - 1, 0).bit_length()
    order = _placed(keys.view(np.int64), upper, np.arange(n))
    order.sort()
    tied = _tied(order[1:], order[:-1], upper)
    np.bitwise_and(order, ~upper, order)
    for i in np.flatnonzero(tied).tolist() if tied.any() else ():
        while i >= 0 and keys[order[i]] > keys[order[i + 1]]:
            order[i], order[i + 1], i = order[i + 1], order[i], i - 1
    return order
