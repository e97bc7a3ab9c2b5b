"""Embedding: y[i] = weight[indices[i]]; dweight[v] = sum of dy[i] over the positions i with indices[i] = v.

Backward sorts the positions by index, stably, and takes them in chunks of 32. A block walks a chunk, a thread for each
column (or four), and sums the rows of equal indices, in order:

    chunk 0           chunk 1           chunk 2
    3 3 3 5 5 7 7 7   7 7 7 7 7 7 7 7   7 7 8 8 9 9 9 9

An index within one chunk (3, 5, 8, 9) is added to dweight at once. What an index that goes on (7) has in each chunk is
kept, and added by a second kernel, chunk after chunk. No atomics: each run gives the same bits.
"""

from typing import Any

import numpy as np

from .platform.array import Array, contiguous, empty
from .platform.language import THREADS, cuda, device_function
from .platform.launch import Kernel, kernel
from .pointwise.conversion import element_conversions
from .ptx import ptx
from .ptx.fours import add4
from .rowwise import gather_scatter as at
from .rowwise.gather_scatter import LOW_BITS
from .rowwise.index_arrays import find_outside, harmless
from .rowwise.rows import ceil_div
from .rowwise.sorting import sort_rows

SORTED_CHUNK = 32


@device_function
def _load_one(p: Any, i: Any) -> Any:
    x = p[i]
    return x, x, x, x


@device_function
def _store_one(p: Any, i: Any, values: Any) -> None:
    p[i] = values[0]


def _sums(dtype: str, width: int) -> tuple[Kernel, Kernel, np.dtype[Any]]:
    """The two kernels of backward, and the dtype of what the first leaves to the second."""
    real = np.float64 if dtype == "float64" else np.float32
    wide = real.__name__
    read, write = element_conversions(dtype)
    load, store = (ptx.load4, ptx.store4) if width == 4 else (_load_one, _store_one)
    of, vectors = f"{dtype}_{width}", width == 4 and dtype == "float32"

    @device_function
    def widened(v):
        return real(read(v[0])), real(read(v[1])), real(read(v[2])), real(read(v[3]))

    @device_function
    def add_row(dweight, to, sums):
        s = add4(widened(load(dweight, to)), sums)
        store(dweight, to, (write(s[0]), write(s[1]), write(s[2]), write(s[3])))

    @kernel(f"{dtype}* x2, uint64*, int64*, {wide}*, int64 x2", registers=32, vector_loads=vectors, of=of)
    def sum_chunks(dweight, dy, keys, order, kept, N, C):
        """kept (chunks, 2, C): what an index from the chunk before has here; what one that goes on has here."""
        column = width * (np.int64(cuda.blockIdx.y) * cuda.blockDim.x + cuda.threadIdx.x)
        if column >= C:
            return
        chunk = np.int64(cuda.blockIdx.x)
        start = chunk * SORTED_CHUNK
        end = min(start + SORTED_CHUNK, N)
        began_before = start > 0 and keys[start - 1] == keys[start]
        nothing = real(0), real(0), real(0), real(0)
        sums = nothing
        for i in range(start, end):
            key = keys[i]
            sums = add4(sums, widened(load(dy, order[i] * C + column)))
            goes_on = i + 1 < N and keys[i + 1] == key
            if i + 1 == end or not goes_on:
                if began_before:
                    store(kept, 2 * chunk * C + column, sums)
                elif goes_on:
                    store(kept, (2 * chunk + 1) * C + column, sums)
                else:
                    add_row(dweight, np.int64(key & LOW_BITS) * C + column, sums)
                began_before = False
                sums = nothing

    @kernel(f"{dtype}*, uint64*, {wide}*, int64 x2", registers=22, of=of)
    def sum_spanning(dweight, keys, kept, N, C):
        """The block of the chunk where an index that goes on begins adds what all its chunks have."""
        column = width * (np.int64(cuda.blockIdx.y) * cuda.blockDim.x + cuda.threadIdx.x)
        chunk = np.int64(cuda.blockIdx.x)
        start = chunk * SORTED_CHUNK
        end = start + SORTED_CHUNK
        if column >= C or end >= N:
            return
        key = keys[end - 1]
        if keys[end] != key or (start > 0 and keys[start - 1] == key):
            return
        sums = load(kept, (2 * chunk + 1) * C + column)
        while end < N and keys[end] == key:
            chunk += 1
            sums = add4(sums, load(kept, 2 * chunk * C + column))
            end += SORTED_CHUNK
        add_row(dweight, np.int64(key & LOW_BITS) * C + column, sums)

    return sum_chunks, sum_spanning, np.dtype(real)


_SUMS = {
    (dtype, width): _sums(dtype, width)
    for dtype, widths in (("float32", (1, 4)), ("float64", (1,)), ("float16", (1, 4)), ("bfloat16", (1, 4)))
    for width in widths
}


def check_indices(indices: Array, rows: int) -> int:
    """The first flat position whose index is not in 0..rows - 1; -1 if all are. indices int64.

    ``forward`` and ``backward_into`` index unchecked: call this first. It waits for the device.
    """
    return find_outside(contiguous(indices), 0, rows)


def forward(weight: Array, indices: Array) -> Array:
    """weight (V, C) of any real dtype, indices int64 of any shape (checked) -> (\\*indices.shape, C)."""
    table = contiguous(weight).reshape(1, *weight.shape)
    places = harmless(contiguous(indices), 0, len(weight))
    return at.take(table, places.reshape(indices.size)).reshape(*indices.shape, weight.shape[1])


def backward_into(dy: Array, indices: Array, dweight: Array) -> None:
    """dweight[indices] += dy, duplicates summed, in place; dy (\\*indices.shape, C), dweight (V, C) contiguous.

    Half-width floats are summed in float32 and rounded once.
    """
    N, C = indices.size, dweight.shape[1]
    if not N * C:
        return
    dy = contiguous(dy)
    name = dweight.dtype.name
    wide = C % 4 == 0 and not (dy.pointer % 16 or dweight.pointer % 16)
    width = 4 if wide and (name, 4) in _SUMS else 1
    sum_chunks, sum_spanning, total = _SUMS[name, width]
    keys, order = sort_rows(harmless(contiguous(indices), 0, len(dweight)).reshape(1, N))
    chunks = ceil_div(N, SORTED_CHUNK)
    kept = empty((chunks, 2, C), total, dweight.device)
    used = min(THREADS, C // width)
    grid = (chunks, ceil_div(C // width, used))
    sum_chunks.launch(grid, dweight, dy, keys, order, kept, N, C, threads=used)
    if chunks > 1:
        sum_spanning.launch(grid, dweight, keys, kept, N, C, threads=used)
