"""Passes over many arrays: the gradients' global norm, clipping and scaling in place, checks for infinities and NaN.

All arrays of one dtype are one launch over a list of chunks. A block sums the squares of its chunk in float64, and
``fold`` adds the chunks' sums, in an order that depends on the arrays' sizes alone.

``clip_`` and ``unscale_`` leave their results on the device, so the host need not wait for them.

Used by gradient clipping: Pascanu, Mikolov & Bengio, "On the difficulty of training recurrent neural networks" (2013).
"""

import functools
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minigrad.plain_kernels.optimizers import writable

from . import elementwise
from .optimizers.multi_tensor import POINTERS, REALS, Cut, chunk_of
from .platform import memory, recording
from .platform.array import Array, contiguous, empty, to_host, zeros
from .platform.toolbox import Kernel, cuda, kernel
from .platform.upload import Upload
from .pointwise.pointwise import Pointwise, floating
from .pointwise.rules import rule
from .ptx.fours import each, fours
from .rowwise.collective import block_sum
from .rowwise.fold import fold

NORM_CHUNK = 8192  # elements of one partial sum
REMEMBERED = 16  # lists of sizes that a thread remembers


def _kernels(real: Any) -> tuple[Kernel, Kernel]:
    word, pointer, itemsize = real.__name__, POINTERS[real], np.dtype(real).itemsize
    load, _, store = fours(itemsize)
    widened: Any = each(np.float64)

    @kernel("int64* x2, int32*, float64*, int32", registers=32, vector_loads=True, of=word)
    def squares(addresses, sizes, chunks, sums, length):
        """``sums`` (chunks,). Thread by thread four neighbours at a time, whether or not one access fetches them."""
        partial = cuda.shared.array(32, np.float64)
        tensor, first, n = chunk_of(chunks, sizes, length)
        address = addresses[tensor] + first * itemsize
        x, total = pointer(address), np.float64(0)
        i = cuda.threadIdx.x * 4
        while i + 4 <= n:
            v = widened(load(x, i) if address & 15 == 0 else (x[i], x[i + 1], x[i + 2], x[i + 3]))
            total += (v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3])
            i += cuda.blockDim.x * 4
        i = n - n % 4 + cuda.threadIdx.x
        if i < n:
            value = np.float64(x[i])
            total += value * value
        total = block_sum(total, partial)
        if cuda.threadIdx.x == 0:
            sums[cuda.blockIdx.x] = total

    def is_bad(x):
        return x - x != real(0)

    @kernel(f"int64* x2, int32*, {word}*, int32*, int32 x3", registers=32, vector_loads=True, of=word)
    def scale(addresses, sizes, chunks, factors, found, length, checks, writes):
        """x *= factors[0] if ``writes``; found[0] = 1 if ``checks`` and an x is infinite or NaN."""
        factor = factors[0]
        if factor == real(1):
            writes = 0
        if checks or writes:
            tensor, first, n = chunk_of(chunks, sizes, length)
            address = addresses[tensor] + first * itemsize
            x, bad = pointer(address), False
            i = cuda.threadIdx.x
            if address & 15 == 0:
                i = cuda.threadIdx.x * 4
                while i + 4 <= n:
                    v = load(x, i)
                    bad |= is_bad(v[0]) or is_bad(v[1]) or is_bad(v[2]) or is_bad(v[3])
                    if writes:
                        store(x, i, (v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor))
                    i += cuda.blockDim.x * 4
                i = n - n % 4 + cuda.threadIdx.x
            while i < n:
                value = x[i]
                bad |= is_bad(value)
                if writes:
                    x[i] = value * factor
                i += cuda.blockDim.x
            if bad and checks:
                found[0] = 1  # whoever writes, writes the same

    return squares, scale


@rule
def _clipping(real):
    one, infinity = real(1), real(np.inf)
    return lambda norm, limit, eps: limit / (norm + eps) if norm > limit and norm < infinity else one


_KERNELS = {np.dtype(real): _kernels(real) for real in REALS}
_CLIPPING = Pointwise("clipping", _clipping, floating, 3, eager=("float64", "float64 to float32"), lazy=())


# Launchers ------------------------------------------------------------------------------------------------------------


_plans: Any = threading.local()  # each thread's own, as what is under way belongs to its stream


def _plan(arrays: Sequence[Array]) -> tuple[Cut, Upload]:
    """What passes over arrays of these sizes share: the list of chunks, and a way for addresses to the device.

    The arrays are of one device and dtype; the last ``REMEMBERED`` are kept.
    """
    if not hasattr(_plans, "of"):
        _plans.of = functools.lru_cache(REMEMBERED)(
            lambda sizes, chunk, device, *_: (Cut(sizes, chunk, device), Upload(8 * len(sizes) + 8, device))
        )
    sizes, first = tuple([array.size for array in arrays]), arrays[0]
    with recording.outside() as graph:
        found: tuple[Cut, Upload] = _plans.of(sizes, NORM_CHUNK, first.device, first.dtype, memory.current_stream())
    if graph is not None:
        graph.keep.append(found)
    return found


class _Pass:
    """Contiguous arrays of one dtype, float32 or float64, and device; their addresses are on the device."""

    def __init__(self, arrays: Sequence[Array], factor: float | np.ndarray = 1.0) -> None:
        self.dtype = arrays[0].dtype
        self.squares, self.scaling = _KERNELS[self.dtype]
        self.cut, upload = _plan(arrays)
        pointers = np.array([array.pointer for array in arrays], np.int64)
        factors = factor if isinstance(factor, np.ndarray) else np.array([factor], np.float64)
        self.addresses, self.factor = upload.send(pointers, recording.mapped(factors, lambda f: f.astype(self.dtype)))

    def add_squares(self, sums: Array) -> None:
        """The chunks' sums of squares, into float64 (chunks,)."""
        cut = self.cut
        arguments = self.addresses, cut.device_sizes, cut.chunks, sums, cut.length
        self.squares.launch(cut.count, *arguments, threads=cut.threads(4))

    def scale(self, factor: Array, found: Array | None, writes: bool) -> None:
        """Multiply by ``factor`` (1,); raise the flag ``found`` (1,) where something is infinite or NaN."""
        cut = self.cut
        flag = empty(1, np.int32, factor.device) if found is None else found
        arguments = self.addresses, cut.device_sizes, cut.chunks, factor, flag, cut.length
        self.scaling.launch(cut.count, *arguments, int(found is not None), int(writes), threads=cut.threads(4))


def _groups(arrays: Iterable[Array], writer: str = "") -> tuple[list[list[Array]], list[tuple[Array, Array]]]:
    """The arrays by dtype, each contiguous, and float32 or float64; and pairs (array, copy) of those that are copies.

    ``writer``: the function that writes to them, whose copies must be assigned at the end.
    """
    copies = []
    groups: dict[np.dtype, list[Array]] = {}
    for array in writable(arrays, writer) if writer else arrays:
        here = array
        if array.dtype.char not in "fd":
            here = elementwise.cast(array, np.float64 if array.dtype.kind in "iub" and not writer else np.float32)
        here = contiguous(here)
        if here is not array:
            copies.append((array, here))
        groups.setdefault(here.dtype, []).append(here)
    return list(groups.values()), copies


def _squares(passes: list[_Pass], device: int) -> Array:
    """The sum of all squares, float64 (1,)."""
    count = sum(one.cut.count for one in passes)
    sums, start = empty(count, np.float64, device), 0
    for one in passes:
        one.add_squares(sums[start : start + one.cut.count])
        start += one.cut.count
    return fold("sum", sums, 1, count, 1, sums.dtype)


def sum_of_squares(arrays: Iterable[Array]) -> float:
    """The sum of the squares of all elements; 0.0 for no arrays. Waits for it.

    Arrays that are neither float32 nor float64, or not contiguous, are converted first. NaN and infinities propagate.
    """
    groups, _ = _groups(arrays)
    if not groups:
        return 0.0
    return float(to_host(_squares([_Pass(group) for group in groups], groups[0][0].device))[0])


def scale_(arrays: Iterable[Array], factor: float) -> None:
    """array *= factor in place, in each array's dtype.

    Raises ValueError, naming the position, for a read-only array, before anything is changed.
    """
    _scale(arrays, factor, "scale_", checks=False)


def clip_(arrays: Iterable[Array], max_norm: float, eps: float) -> Array:
    """array *= max_norm / (norm + eps) in place if the norm of all elements is finite and more than ``max_norm``.

    Returns that norm, float64 (), on the device of the arrays; the host does not wait. There is at least one array.
    An array that is given twice counts twice and is changed once.
    Raises ValueError, naming the position, for a read-only array, before anything is changed.
    """
    arrays = list(arrays)
    groups, copies = _groups(arrays, "clip_")
    passes = [_Pass(group) for group in groups]
    norm = elementwise.sqrt(_squares(passes, groups[0][0].device))
    unique = {id(array): array for array in arrays}
    if len(unique) < len(arrays):
        groups, copies = _groups(unique.values(), "clip_")
        passes = [_Pass(group) for group in groups]
    for one in passes:
        one.scale(_CLIPPING(norm, float(max_norm), float(eps), dtype=one.dtype), None, writes=True)
    _put_back(copies)
    return norm.reshape(())


def unscale_(arrays: Iterable[Array], inverse_scale: float) -> Array:
    """array *= inverse_scale in place, and whether an element of any array was infinite or NaN: int32 (), 0 or 1.

    The result is on the device of the arrays; the host does not wait. There is at least one array.
    Raises ValueError, naming the position, for a read-only array, before anything is changed.
    """
    return _scale(arrays, inverse_scale, "unscale_", checks=True).reshape(())


def all_finite(arrays: Iterable[Array]) -> bool:
    """Whether no element of any array is infinite or NaN. Waits for it."""
    arrays = list(arrays)
    return not arrays or not to_host(_scale(arrays, 1.0, "", checks=True))[0]


def _scale(arrays: Iterable[Array], factor: float, writer: str, checks: bool) -> Any:
    """Multiply by ``factor`` if there is a ``writer``; with ``checks`` the flag of infinities and NaN, int32 (1,)."""
    groups, copies = _groups(arrays, writer)
    found = zeros(1, np.int32, groups[0][0].device) if checks else None
    for group in groups:
        one = _Pass(group, factor)
        one.scale(one.factor, found, writes=bool(writer))
    _put_back(copies if writer else [])
    return found


def _put_back(copies: list[tuple[Array, Array]]) -> None:
    for array, copy in copies:
        elementwise.assign(array, copy)
