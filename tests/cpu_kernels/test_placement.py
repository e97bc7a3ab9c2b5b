"""The bits of a kernel's results do not depend on where its arrays lie in memory.

LLVM guards a vectorised loop by a check that what it writes does not lie just before what it reads, and takes a scalar
loop otherwise. With ``reassoc`` the two add in different orders, so a loop that writes must not also add up.
"""

import numpy as np
import pytest

from minigrad.cpu_kernels import cross_entropy, layer_norm, rms_norm, softmax

FAR = 4096  # elements
ROWS, GAPS = 3, range(0, 40, 2)
TARGETS = np.array([0, 2, 4])


def matrix(columns):
    return ROWS, columns


def row(columns):
    return (columns,)


def column(columns):
    return (ROWS,)


def forward_loss(x, weights, losses, lse):
    cross_entropy._forward.kernel(0, 1, x, TARGETS, -100, 0.1, weights, losses, lse)


def backward_loss(dlosses, x, lse, weights, dx):
    cross_entropy._backward.kernel(0, 1, dlosses, x, lse, TARGETS, -100, 0.1, weights, dx)


def fused_loss(dlosses, weights, x, losses, lse):
    cross_entropy._fused.kernel(0, 1, dlosses, x, x, TARGETS, -100, 0.1, weights, losses, lse)


# Name: the kernel, the shapes of what it reads, and of what it writes.
KERNELS = {
    "softmax": (lambda x, y: softmax._forward_rows.kernel(0, 1, x, y, False), [matrix], [matrix]),
    "log_softmax": (lambda x, y: softmax._forward_rows.kernel(0, 1, x, y, True), [matrix], [matrix]),
    "softmax_backward": (lambda *x: softmax._backward_rows.kernel(0, 1, *x, False), [matrix] * 2, [matrix]),
    "log_softmax_backward": (lambda *x: softmax._backward_rows.kernel(0, 1, *x, True), [matrix] * 2, [matrix]),
    "layer_norm": (
        lambda x, weight, bias, *results: layer_norm._LAYER[0].kernel(0, 1, x, weight, bias, 1e-5, *results),
        [matrix, row, row],
        [matrix, column, column],
    ),
    "layer_norm_backward": (
        lambda *x: layer_norm._LAYER[1].kernel(0, 1, *x, ROWS),
        [matrix, matrix, row, column, column],
        [matrix, lambda columns: (2, 1, columns)],
    ),
    "rms_norm": (
        lambda x, weight, y, rstd: rms_norm._RMS[0].kernel(0, 1, x, weight, weight, 1e-5, y, rstd, rstd),
        [matrix, row],
        [matrix, column],
    ),
    "rms_norm_backward": (
        lambda dy, x, w, rstd, *results: rms_norm._RMS[1].kernel(0, 1, dy, x, w, rstd, rstd, *results, ROWS),
        [matrix, matrix, row, column],
        [matrix, lambda columns: (1, 1, columns)],
    ),
    "cross_entropy": (forward_loss, [matrix, row], [column, column]),
    "cross_entropy_backward": (backward_loss, [column, matrix, column, row], [matrix]),
    "cross_entropy_fused": (fused_loss, [column, row, matrix], [column, column]),
}


def run(kernel, inputs, shapes, memory, near=None):
    """The results, of ``shapes``; of two arrays ``near`` = (first, second, elements between) lie behind each other."""
    arrays = [*inputs, *(np.zeros(shape, memory.dtype) for shape in shapes)]
    places = [FAR * i for i in range(len(arrays))]
    if near is not None:
        first, second, gap = near
        places[second] = places[first] + arrays[first].size + gap
    placed = []
    for place, array in zip(places, arrays, strict=True):
        view = memory[place : place + array.size].reshape(array.shape)
        view[...] = array
        placed.append(view)
    kernel(*placed)
    return [array.copy() for array in placed]


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", KERNELS)
def test_neighbours_in_memory_change_no_bit(name, dtype):
    kernel, reads, writes = KERNELS[name]
    memory = np.zeros(FAR * (len(reads) + len(writes)), dtype)
    random = np.random.default_rng(0)
    for columns in (5, 5, 5, 18, 45):
        inputs = [random.standard_normal(shape(columns)).astype(dtype) for shape in reads]
        shapes = [shape(columns) for shape in writes]
        expected = run(kernel, inputs, shapes, memory)
        for first in range(len(reads) + len(writes)):
            for second in range(len(reads) + len(writes)):
                if first == second or max(first, second) < len(reads):
                    continue
                for gap in GAPS:
                    found = run(kernel, inputs, shapes, memory, (first, second, gap))
                    for a, b in zip(found, expected, strict=True):
                        np.testing.assert_array_equal(
                            a, b, err_msg=f"{columns} columns, {gap} from {first} to {second}"
                        )
