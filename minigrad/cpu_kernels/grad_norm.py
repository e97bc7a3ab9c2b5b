"""Passes over many arrays: the gradients' global norm, clipping and scaling in place, checks for infinities and NaN.

All arrays of one dtype are one parallel launch over a table of chunks. Squares are summed in float64, each chunk by
itself and the chunks in order. So neither the number of threads nor 10^8 float32 elements make the norm drift.

Used by gradient clipping: Pascanu, Mikolov & Bengio, "On the difficulty of training recurrent neural networks" (2013).
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..plain_kernels.optimizers import grad_norm as plain, writable
from .toolbox.multi_tensor import addresses_of, elements_at
from .toolbox.threads import TaskKernel, task_kernel
from .toolbox.vector_math import SQUARES, folded

CHUNK = 32768  # elements of one partial sum


@task_kernel
def _partial_sums(chunk, chunks, addresses, sizes, like, partial):
    partial[chunk] = folded(SQUARES, elements_at(addresses[chunk], sizes[chunk], like), partial)


@task_kernel
def _check_chunks(chunk, chunks, addresses, sizes, like, finite):
    x, all_finite = elements_at(addresses[chunk], sizes[chunk], like), True
    for i in range(x.shape[0]):
        all_finite &= np.isfinite(x[i])
    finite[chunk] = all_finite


@task_kernel
def _scale_chunks(chunk, chunks, addresses, sizes, like, factor):
    x = elements_at(addresses[chunk], sizes[chunk], like)
    for i in range(x.shape[0]):
        x[i] *= x.dtype.type(factor)


class _Chunks(NamedTuple):
    """Addresses and sizes of all chunks of one dtype; ``like`` is an array of that dtype, for the kernel's type."""

    addresses: np.ndarray
    sizes: np.ndarray
    like: np.ndarray

    def launch(self, kernel: TaskKernel, *arguments: Any) -> None:
        """Run a kernel over the chunks, each a task."""
        kernel.launch(self.like.dtype, self.sizes.size, *self, *arguments)


def _table(arrays: Sequence[np.ndarray]) -> _Chunks:
    """``arrays``: at least one, contiguous, of one dtype; the caller keeps them alive."""
    sizes = [array.size for array in arrays]
    first, size = np.array(addresses_of(arrays), np.int64), np.array(sizes, np.int64)
    if max(sizes) <= CHUNK:
        return _Chunks(first, size, np.empty(0, arrays[0].dtype))
    chunks = -(-size // CHUNK)
    index = np.arange(chunks.sum()) - np.repeat(chunks.cumsum() - chunks, chunks)  # of the chunk in its array
    addresses = np.repeat(first, chunks) + index * (CHUNK * arrays[0].itemsize)
    sizes = np.minimum(np.repeat(size, chunks) - index * CHUNK, CHUNK)
    return _Chunks(addresses, sizes, np.empty(0, arrays[0].dtype))


def _readable(arrays: Iterable[np.ndarray]) -> list[list[np.ndarray]]:
    """The arrays by dtype, each contiguous, and float64 where it is neither float32 nor float64."""
    groups: dict[str, list[np.ndarray]] = {}
    for array in arrays:
        kind = array.dtype.char if array.dtype.char in "fd" else "d"
        groups.setdefault(kind, []).append(np.ascontiguousarray(array, kind))
    return list(groups.values())


def _writable(arrays: Iterable[np.ndarray], what: str) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """Float32 and float64 arrays that are contiguous, by dtype; and the others."""
    groups: dict[np.dtype, list[np.ndarray]] = {}
    others = []
    for array in writable(arrays, what):
        if array.dtype.char in "fd" and array.flags.c_contiguous:
            groups.setdefault(array.dtype, []).append(array)
        else:
            others.append(array)
    return list(groups.values()), others


def sum_of_squares(arrays: Iterable[np.ndarray]) -> float:
    """The sum of the squares of all elements, accumulated in float64; 0.0 for no arrays.

    Arrays that are neither float32 nor float64, or not contiguous, are converted first. NaN and infinities propagate.
    """
    total = 0.0
    for group in _readable(arrays):
        chunks = _table(group)
        partial = np.empty(chunks.sizes.size)
        chunks.launch(_partial_sums, partial)
        total += float(partial.sum())
    return total


def scale_(arrays: Iterable[np.ndarray], factor: float) -> None:
    """array *= factor in place, in each array's dtype.

    Raises ValueError, naming the position, for a read-only array, before anything is changed.
    """
    _scale(arrays, factor, "scale_")


def _scale(arrays: Iterable[np.ndarray], factor: float, what: str) -> None:
    groups, others = _writable(arrays, what)
    plain.scale_(others, factor)
    for group in groups:
        _table(group).launch(_scale_chunks, float(factor))


def clip_(arrays: Iterable[np.ndarray], max_norm: float, eps: float) -> np.ndarray:
    """array *= max_norm / (norm + eps) in place if the norm of all elements is finite and more than ``max_norm``.

    Returns that norm, float64 (); an array that is given twice counts twice and is changed once.

    Raises ValueError, naming the position, for a read-only array that is to be changed, before anything is.
    """
    arrays = list(arrays)
    norm = math.sqrt(sum_of_squares(arrays))
    if max_norm < norm < math.inf:
        scale_({id(array): array for array in arrays}.values(), max_norm / (norm + eps))
    return np.array(norm)


def unscale_(arrays: Iterable[np.ndarray], inverse_scale: float | np.ndarray) -> np.ndarray:
    """array *= inverse_scale in place, and whether an element of any array was infinite or NaN: int32 (), 0 or 1.

    Raises ValueError, naming the position, for a read-only array, before anything is changed.
    """
    arrays = list(arrays)
    finite = all_finite(arrays)
    _scale(arrays, float(np.asarray(inverse_scale).item()), "unscale_")  # in a graph an array, which varies
    return np.array(not finite, np.int32)


def all_finite(arrays: Iterable[np.ndarray]) -> bool:
    """Whether no element of any array is infinite or NaN."""
    for group in _readable(arrays):
        chunks = _table(group)
        finite = np.empty(chunks.sizes.size, np.bool_)
        chunks.launch(_check_chunks, finite)
        if not finite.all():
            return False
    return True
