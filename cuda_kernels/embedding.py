"""Embedding: y[i] = weight[indices[i]]; dweight[v] = sum of dy[i] over the positions i with indices[i] = v.

Both are those of ``gather_scatter.py``, and each run gives the same bits.
"""

from .platform.array import Array, contiguous
from .rowwise import gather_scatter as at
from .rowwise.index_arrays import find_outside, harmless


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
    places = harmless(contiguous(indices), 0, len(dweight)).reshape(indices.size)
    rows = contiguous(dy).reshape(1, indices.size, dweight.shape[1])
    at.reduce_at(dweight.reshape(1, *dweight.shape), places, rows, "sum")
